// Reservation: the pages of one step of one sequence, taken all at once or not at all. While it lives, the sequence's
// tables hold the pages of both forms that the step may read or write; it undoes itself unless it is committed.
#pragma once

#include <optional>

#include "oscar/result.h"
#include "src/kv/pool/demotion_plan.h"
#include "src/kv/pool/page_pool.h"
#include "src/kv/pool/sequence_pages.h"

namespace oscar::pool {

class Reservation {
 public:
  // New pages that a reservation takes. num_tokens as Make.
  struct PageCounts {
    int bf16 = 0, encoded = 0;
  };
  static PageCounts PagesNeeded(const SequencePages& sequence, int num_tokens);

  // For `num_tokens` >= 1 tokens after sequence.length(): BF16 pages for them, a page of its own in place of a shared
  // partial last page, and encoded pages for PlanDemotion. kResourceExhausted when either pool is too small, and then
  // nothing has changed; kInvalidArgument beyond kMaxSequenceTokens. The sequence and the pools must stay in place
  // until the end.
  static Result<Reservation> Make(SequencePages& sequence, PagePool& bf16_pool, PagePool& encoded_pool, int num_tokens);
  ~Reservation();
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&&) = delete;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  int first_position() const { return first_position_; }
  int num_tokens() const { return num_tokens_; }
  PageRange demotions() const { return demotions_; }
  // Rows of `from` that the owner of the memory must copy to `to` before the step writes; empty when nothing was
  // shared.
  struct PageCopy {
    PageId from, to;
  };
  std::optional<PageCopy> copy() const;
  PageId replaced_page() const { return replaced_.id(); }

  // The first `num_tokens` of the reserved tokens stay (0 undoes all): the length grows, BF16 pages that left the
  // window are released, and so is everything that belongs to the other tokens. Precondition: 0 <= num_tokens <=
  // num_tokens().
  void Commit(int num_tokens);

 private:
  Reservation(SequencePages& sequence, int num_tokens);
  void RollBack();

  SequencePages* sequence_;  // null once committed or moved from
  int first_position_;
  int num_tokens_;
  PageRange demotions_;
  PageRef replaced_;  // the shared partial page, kept so that undoing restores the very same state
};

}  // namespace oscar::pool
