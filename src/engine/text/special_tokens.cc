#include "src/engine/text/special_tokens.h"

#include <algorithm>

namespace oscar::engine {

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const bool special = vocabulary.IsControl(id) || vocabulary.type(id) == TokenType::kUserDefined;
    if (special && !vocabulary.text(id).empty()) ids_.push_back(id);
  }
  // string_view compares bytes as unsigned, so the tokens of one first byte are neighbours.
  std::sort(ids_.begin(), ids_.end(),
            [&](int32_t a, int32_t b) { return vocabulary.text(a) < vocabulary.text(b); });
  for (uint32_t i = 0; i < ids_.size(); ++i) {
    auto& [begin, end] = by_first_byte_[static_cast<unsigned char>(vocabulary.text(ids_[i])[0])];
    if (end == 0) begin = i;
    end = i + 1;
  }
}

SpecialTokens::Match SpecialTokens::Find(std::string_view text, size_t from,
                                         bool with_control) const {
  if (ids_.empty()) return {};
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (by_first_byte_[static_cast<unsigned char>(text[begin])].second == 0) continue;
    Match match = Longest(text.substr(begin), with_control);
    if (match.size == 0) continue;
    match.begin = begin;
    return match;
  }
  return {};
}

// The longest special token that `text` begins with: the range of tokens that agree with it,
// narrowed byte by byte.
SpecialTokens::Match SpecialTokens::Longest(std::string_view text, bool with_control) const {
  Match longest;
  const auto [first, last] = by_first_byte_[static_cast<unsigned char>(text[0])];
  auto begin = ids_.begin() + first, end = ids_.begin() + last;
  for (size_t size = 1; begin != end; ++size) {
    if (vocabulary_->text(*begin).size() == size) {
      if (with_control || vocabulary_->type(*begin) == TokenType::kUserDefined)
        longest = {0, size, *begin};
      ++begin;
    }
    if (size == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[size]);
    const auto byte_of = [&](int32_t id) {
      return static_cast<unsigned char>(vocabulary_->text(id)[size]);
    };
    begin = std::partition_point(begin, end, [&](int32_t id) { return byte_of(id) < byte; });
    end = std::partition_point(begin, end, [&](int32_t id) { return byte_of(id) == byte; });
  }
  return longest;
}

}  // namespace oscar::engine
