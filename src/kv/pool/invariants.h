// ValidateInvariants: what must hold between the pools and the sequences of a cache after every operation. Pure, on
// plain data, so that tests, fuzzers and a running server can share it.
#pragma once

#include "oscar/result.h"
#include "src/kv/pool/snapshot.h"

namespace oscar::pool {

// OK, or kInternal naming the rule that is broken and where:
//   P1 free and held pages are all pages, and no page is listed as free twice
//   P2 a page has as many owners as tables (and copied pages of reservations, and prefixes) that name it: no leak, no hidden double
//   owner S1 a sequence holds exactly the pages of method.md 5.4 for its length, and those of its step in flight
//   besides S2 a page that the step in flight may write (its BF16 rows, its new encoded pages) has one owner
Status ValidateInvariants(const CacheSnapshot& snapshot);

}  // namespace oscar::pool
