// SequencePages: the pages of one sequence in exactly the state of method.md 5.4 for its length:
//   BF16 pages of [0, min(sink, n)) and [max(sink, B(n)), n); encoded pages of [sink, B(n)).
// Full pages may be shared with other sequences and are never written again; a partial last page becomes shared only
// when a sharer truncates into it, and Reservation then gives the writer a page of its own.
#pragma once

#include "src/kv/pool/page_table.h"
#include "src/kv/pool/tier_rule.h"

namespace oscar::pool {

class SequencePages {
 public:
  explicit SequencePages(TierWindows windows) : windows_(windows) {}  // an empty sequence

  // A sequence of `length` tokens on these pages, which are those of method.md 5.4. Preconditions: both tables have
  // PagesFor(length) entries.
  SequencePages(TierWindows windows, int length, PageTable bf16, PageTable encoded);

  int length() const { return length_; }  // committed tokens
  TierWindows windows() const { return windows_; }
  const PageTable& bf16() const { return bf16_; }
  const PageTable& encoded() const { return encoded_; }

  // Where the BF16 row of `position` stands: page id (kNone when no BF16 page is held there) and row in the page.
  struct Slot {
    PageId page = PageId::kNone;
    int row = 0;
  };
  Slot SlotFor(int position) const;

  // A second sequence of the same length on the same pages. The two may not write into one page: when length() is no
  // multiple of 64, `last_page` is the child's own copy of the last BF16 page; otherwise it is empty.
  SequencePages Fork(PageRef last_page) const;

  // The largest length m <= length from which the sequence can go on exactly (method.md 5.4): `length` when the BF16
  // rows of its window are held, else min(sink, length), since the sink stays in BF16. Precondition: 0 <= length <=
  // length().
  int ResumableLength(int length) const;
  // Gives up what a sequence of `length` tokens does not have. Precondition: ResumableLength(length) == length.
  void Truncate(int length);
  // Puts another page with the same rows in place of the one held at `page_index`, BF16 in the sink and encoded behind it.
  // Precondition: a full page stands there.
  void Exchange(int page_index, PageRef page);

 private:
  friend class Reservation;

  TierWindows windows_;
  int length_ = 0;
  PageTable bf16_, encoded_;  // both have PagesFor(length_) entries, more while a reservation is in flight
};

}  // namespace oscar::pool
