// StreamDecoder: tokens in, text out as soon as it is whole UTF-8. Never splits a character; at the
// end, and for bytes that can never become valid, U+FFFD.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/engine/text/tokenizer.h"

namespace oscar::engine {

class StreamDecoder {
 public:
  // shown: control tokens that appear as their text, whatever render_special says of the others.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool render_special = false, std::vector<int32_t> shown = {});
  // Text that became complete with this token; may be empty.
  std::string Push(int32_t token);
  // What is left over, as valid UTF-8: nothing, or U+FFFD. The next Push() begins another text.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  bool render_special_;
  std::vector<int32_t> shown_;
  bool first_ = true;
  std::string pending_;
};

}  // namespace oscar::engine
