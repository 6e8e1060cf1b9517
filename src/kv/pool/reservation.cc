#include "src/kv/pool/reservation.h"

#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace oscar::pool {

Reservation::Reservation(SequencePages& sequence, int num_tokens)
    : sequence_(&sequence),
      first_position_(sequence.length()),
      num_tokens_(num_tokens),
      demotions_(PlanDemotion(sequence.length(), sequence.length() + num_tokens, sequence.windows())) {}

Reservation::Reservation(Reservation&& other) noexcept
    : sequence_(std::exchange(other.sequence_, nullptr)),
      first_position_(other.first_position_),
      num_tokens_(other.num_tokens_),
      demotions_(other.demotions_),
      replaced_(std::move(other.replaced_)) {}

Reservation::~Reservation() {
  if (sequence_ != nullptr) RollBack();
}

namespace {

// A page that others hold too may not be written.
bool CopiesLastPage(const SequencePages& sequence) {
  const int length = sequence.length();
  return length % kPageTokens != 0 && sequence.bf16().page(length / kPageTokens).num_owners() > 1;
}

}  // namespace

Reservation::PageCounts Reservation::PagesNeeded(const SequencePages& sequence, int num_tokens) {
  const int length = sequence.length();
  return {PagesFor(length + num_tokens) - PagesFor(length) + (CopiesLastPage(sequence) ? 1 : 0),
          PlanDemotion(length, length + num_tokens, sequence.windows()).size()};
}

Result<Reservation> Reservation::Make(SequencePages& sequence, PagePool& bf16_pool, PagePool& encoded_pool,
                                      int num_tokens) {
  OSCAR_CHECK(num_tokens >= 1);
  const int length = sequence.length();
  OSCAR_CHECK(sequence.bf16().num_entries() == PagesFor(length));  // one reservation at a time
  if (num_tokens > kMaxSequenceTokens - length) {
    return {StatusCode::kInvalidArgument, std::to_string(length) + " + " + std::to_string(num_tokens) +
                                              " tokens exceed the longest sequence, " +
                                              std::to_string(kMaxSequenceTokens)};
  }
  const int last_page = length / kPageTokens;
  const bool copies_last_page = CopiesLastPage(sequence);
  const int first_new_page = PagesFor(length), end_page = PagesFor(length + num_tokens);
  const PageCounts needed = PagesNeeded(sequence, num_tokens);
  OSCAR_TRY(bf16_pool.CheckFree(needed.bf16));
  OSCAR_TRY(encoded_pool.CheckFree(needed.encoded));
  Reservation reservation(sequence, num_tokens);

  // Both pools have been asked, so Take succeeds; were it ever to fail, the reservation gives back what it holds.
  sequence.bf16_.Resize(end_page);
  sequence.encoded_.Resize(end_page);
  if (copies_last_page) {
    OSCAR_ASSIGN_OR_RETURN(PageRef page, bf16_pool.Take());
    reservation.replaced_ = sequence.bf16_.Place(last_page, std::move(page));
  }
  for (int index = first_new_page; index < end_page; ++index) {
    OSCAR_ASSIGN_OR_RETURN(PageRef page, bf16_pool.Take());
    sequence.bf16_.Place(index, std::move(page));
  }
  for (int index = reservation.demotions_.first; index < reservation.demotions_.end; ++index) {
    OSCAR_ASSIGN_OR_RETURN(PageRef page, encoded_pool.Take());
    sequence.encoded_.Place(index, std::move(page));
  }
  return reservation;
}

std::optional<Reservation::PageCopy> Reservation::copy() const {
  if (!replaced_) return std::nullopt;
  return PageCopy{replaced_.id(), sequence_->SlotFor(first_position_).page};
}

void Reservation::Commit(int num_tokens) {
  OSCAR_CHECK(sequence_ != nullptr && num_tokens >= 0 && num_tokens <= num_tokens_);
  if (num_tokens == 0) return RollBack();
  SequencePages& sequence = *std::exchange(sequence_, nullptr);
  const int length = first_position_ + num_tokens;
  const PageRange kept = PlanDemotion(first_position_, length, sequence.windows());
  sequence.length_ = length;
  sequence.bf16_.Resize(PagesFor(length));
  sequence.encoded_.Resize(PagesFor(length));
  sequence.encoded_.Drop(kept.end, demotions_.end);
  sequence.bf16_.Drop(kept.first, kept.end);
  replaced_.Reset();
}

void Reservation::RollBack() {
  SequencePages& sequence = *std::exchange(sequence_, nullptr);
  sequence.bf16_.Resize(PagesFor(first_position_));
  sequence.encoded_.Resize(PagesFor(first_position_));
  sequence.encoded_.Drop(demotions_.first, demotions_.end);
  if (replaced_) sequence.bf16_.Place(first_position_ / kPageTokens, std::move(replaced_));
}

}  // namespace oscar::pool
