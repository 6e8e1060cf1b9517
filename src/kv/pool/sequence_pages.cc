#include "src/kv/pool/sequence_pages.h"

#include <utility>

#include "src/base/check.h"

namespace oscar::pool {

SequencePages::SequencePages(TierWindows windows, int length, PageTable bf16, PageTable encoded)
    : windows_(windows), length_(length), bf16_(std::move(bf16)), encoded_(std::move(encoded)) {
  OSCAR_CHECK(bf16_.num_entries() == PagesFor(length) && encoded_.num_entries() == PagesFor(length));
}

SequencePages::Slot SequencePages::SlotFor(int position) const {
  return {bf16_.page(position / kPageTokens).id(), position % kPageTokens};
}

SequencePages SequencePages::Fork(PageRef last_page) const {
  OSCAR_CHECK(bf16_.num_entries() == PagesFor(length_));  // no reservation in flight
  OSCAR_CHECK(static_cast<bool>(last_page) == (length_ % kPageTokens != 0));
  SequencePages child(windows_);
  child.length_ = length_;
  child.bf16_ = bf16_.Share();
  child.encoded_ = encoded_.Share();
  if (last_page) child.bf16_.Place(length_ / kPageTokens, std::move(last_page));
  return child;
}

int SequencePages::ResumableLength(int length) const {
  OSCAR_CHECK(length >= 0 && length <= length_);
  // The BF16 rows behind the sink begin at EncodedEnd(length_); a shorter sequence may need them from earlier on.
  const bool window_held = EncodedEnd(length, windows_) == EncodedEnd(length_, windows_);
  return window_held ? length : std::min(windows_.sink, length);
}

void SequencePages::Truncate(int length) {
  OSCAR_CHECK(ResumableLength(length) == length);
  OSCAR_CHECK(bf16_.num_entries() == PagesFor(length_));
  length_ = length;
  bf16_.Resize(PagesFor(length));
  encoded_.Resize(PagesFor(length));
}

void SequencePages::Exchange(int page_index, PageRef page) {
  OSCAR_CHECK(page && (page_index + 1) * kPageTokens <= length_);
  PageTable& table = page_index * kPageTokens < windows_.sink ? bf16_ : encoded_;
  OSCAR_CHECK(static_cast<bool>(table.page(page_index)));
  table.Place(page_index, std::move(page));
}

}  // namespace oscar::pool
