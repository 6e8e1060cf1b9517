#include "src/engine/text/stream_decoder.h"

#include <algorithm>
#include <span>
#include <utility>

#include "src/engine/text/utf8.h"

namespace oscar::engine {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool render_special, std::vector<int32_t> shown)
    : tokenizer_(tokenizer), render_special_(render_special), shown_(std::move(shown)) {}

std::string StreamDecoder::Push(int32_t token) {
  const bool render_special = render_special_ || std::ranges::find(shown_, token) != shown_.end();
  const std::string bytes = tokenizer_.TokenBytes(token, render_special);
  // Decode() knows whether the text's first space is one that encoding put there. Tokens without
  // text come before it.
  pending_ +=
      first_ && !bytes.empty() ? tokenizer_.Decode(std::span(&token, 1), render_special) : bytes;
  first_ = first_ && bytes.empty();
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Kind::kIncomplete) break;
    text += step.kind == Utf8Kind::kCharacter ? rest.substr(0, step.size) : kReplacementCharacter;
    rest.remove_prefix(step.size);
  }
  pending_ = std::string(rest);
  return text;
}

std::string StreamDecoder::Finish() {
  // What waits is the beginning of one character.
  std::string text(pending_.empty() ? std::string_view() : kReplacementCharacter);
  pending_.clear();
  first_ = true;
  return text;
}

}  // namespace oscar::engine
