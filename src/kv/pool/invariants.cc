#include "src/kv/pool/invariants.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status_macros.h"
#include "src/kv/pool/demotion_plan.h"

namespace oscar::pool {
namespace {

Status Broken(const std::string& what) { return {StatusCode::kInternal, what}; }

std::string PageName(std::string_view kind, std::size_t id) {
  return std::string(kind) + " page " + std::to_string(id);
}

// Rule P1.
Status CheckFreeList(const PoolSnapshot& pool, std::string_view kind) {
  std::vector<bool> is_free(pool.owners.size(), false);
  for (const int32_t id : pool.free) {
    if (id < 0 || static_cast<std::size_t>(id) >= pool.owners.size()) {
      return Broken("P1: the free list names " + std::string(kind) + " page " + std::to_string(id) +
                    ", which does not exist");
    }
    const auto index = static_cast<std::size_t>(id);
    if (is_free[index]) return Broken("P1: " + PageName(kind, index) + " is free twice");
    is_free[index] = true;
  }
  for (std::size_t id = 0; id < pool.owners.size(); ++id) {
    if (is_free[id] != (pool.owners[id] == 0)) {
      return Broken("P1: " + PageName(kind, id) + " has " + std::to_string(pool.owners[id]) + " owners and is " +
                    (is_free[id] ? "free" : "not free"));
    }
  }
  return {};
}

// Adds one to `uses` of each page that `table` names.
Status CountUses(const std::vector<int32_t>& table, std::string_view kind, std::vector<int32_t>& uses) {
  for (const int32_t id : table) {
    if (id == kNoPage) continue;
    if (id < 0 || static_cast<std::size_t>(id) >= uses.size()) {
      return Broken("P2: a table names " + std::string(kind) + " page " + std::to_string(id) +
                    ", which does not exist");
    }
    ++uses[static_cast<std::size_t>(id)];
  }
  return {};
}

// Rule P2.
Status CheckOwners(const PoolSnapshot& pool, const std::vector<int32_t>& uses, std::string_view kind) {
  for (std::size_t id = 0; id < uses.size(); ++id) {
    if (uses[id] != pool.owners[id]) {
      return Broken("P2: " + PageName(kind, id) + " has " + std::to_string(pool.owners[id]) + " owners and is named " +
                    std::to_string(uses[id]) + " times");
    }
  }
  return {};
}

// Rules S1 and S2 for one sequence.
Status CheckSequence(const CacheSnapshot& snapshot, const SequenceSnapshot& sequence) {
  const std::string name = "sequence " + std::to_string(sequence.id) + " of " + std::to_string(sequence.length) +
                           " + " + std::to_string(sequence.step_tokens) + " tokens";
  const int end_length = sequence.length + sequence.step_tokens;
  const auto num_pages = static_cast<std::size_t>(PagesFor(end_length));
  if (sequence.bf16_table.size() != num_pages || sequence.encoded_table.size() != num_pages) {
    return Broken("S1: " + name + " has tables of " + std::to_string(sequence.bf16_table.size()) + " and " +
                  std::to_string(sequence.encoded_table.size()) + " entries");
  }
  const PageRange step_pages = PlanDemotion(sequence.length, end_length, snapshot.windows);
  const int first_written_page = sequence.step_tokens > 0 ? sequence.length / kPageTokens : PagesFor(end_length);
  for (int index = 0; index < PagesFor(end_length); ++index) {
    const std::string where = name + ", page index " + std::to_string(index);
    const int first_token = index * kPageTokens;
    const int32_t bf16 = sequence.bf16_table[static_cast<std::size_t>(index)];
    const int32_t encoded = sequence.encoded_table[static_cast<std::size_t>(index)];
    // The next query, at position `length`, fixes the state; encoded pages of the step are those of end_length.
    const bool needs_bf16 = !IsEncoded(first_token, sequence.length, snapshot.windows.sink, snapshot.windows.recent, snapshot.windows.unit_tokens);
    const bool needs_encoded = IsEncoded(first_token, end_length, snapshot.windows.sink, snapshot.windows.recent, snapshot.windows.unit_tokens);
    if ((bf16 != kNoPage) != needs_bf16)
      return Broken("S1: " + where + (needs_bf16 ? " lacks" : " keeps") + " a BF16 page");
    if ((encoded != kNoPage) != needs_encoded) {
      return Broken("S1: " + where + (needs_encoded ? " lacks" : " keeps") + " an encoded page");
    }
    if (index >= first_written_page && snapshot.bf16.owners[static_cast<std::size_t>(bf16)] != 1) {
      return Broken("S2: " + where + " is written by a step while its BF16 page is shared");
    }
    if (index >= step_pages.first && index < step_pages.end &&
        snapshot.encoded.owners[static_cast<std::size_t>(encoded)] != 1) {
      return Broken("S2: " + where + " is encoded by a step while its encoded page is shared");
    }
  }
  return {};
}

}  // namespace

Status ValidateInvariants(const CacheSnapshot& snapshot) {
  OSCAR_TRY(CheckFreeList(snapshot.bf16, "BF16"));
  OSCAR_TRY(CheckFreeList(snapshot.encoded, "encoded"));
  std::vector<int32_t> bf16_uses(snapshot.bf16.owners.size(), 0);
  std::vector<int32_t> encoded_uses(snapshot.encoded.owners.size(), 0);
  for (const SequenceSnapshot& sequence : snapshot.sequences) {
    OSCAR_TRY(CountUses(sequence.bf16_table, "BF16", bf16_uses));
    OSCAR_TRY(CountUses({sequence.replaced_page}, "BF16", bf16_uses));
    OSCAR_TRY(CountUses(sequence.encoded_table, "encoded", encoded_uses));
  }
  OSCAR_TRY(CountUses(snapshot.prefix_bf16, "BF16", bf16_uses));
  OSCAR_TRY(CountUses(snapshot.prefix_encoded, "encoded", encoded_uses));
  OSCAR_TRY(CheckOwners(snapshot.bf16, bf16_uses, "BF16"));
  OSCAR_TRY(CheckOwners(snapshot.encoded, encoded_uses, "encoded"));
  for (const SequenceSnapshot& sequence : snapshot.sequences) OSCAR_TRY(CheckSequence(snapshot, sequence));
  return {};
}

}  // namespace oscar::pool
