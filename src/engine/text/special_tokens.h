// SpecialTokens: finds control and user-defined tokens in text, before anything else looks at it.
// The leftmost goes first, of those that begin at one place the longest.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "src/engine/text/vocabulary.h"

namespace oscar::engine {

class SpecialTokens {
 public:
  struct Match {
    size_t begin = 0, size = 0;  // bytes of the text; size 0: none found
    int32_t id = -1;
  };

  // Keeps a pointer: `vocabulary` outlives this.
  explicit SpecialTokens(const Vocabulary& vocabulary);

  // The first match at or after `from`: user-defined tokens, and control and unknown tokens when
  // `with_control`.
  Match Find(std::string_view text, size_t from, bool with_control) const;

 private:
  Match Longest(std::string_view text, bool with_control) const;

  const Vocabulary* vocabulary_;
  std::vector<int32_t> ids_;                                        // by text, ascending
  std::array<std::pair<uint32_t, uint32_t>, 256> by_first_byte_{};  // ranges of ids_
};

}  // namespace oscar::engine
