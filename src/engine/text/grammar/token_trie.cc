#include "src/engine/text/grammar/token_trie.h"

#include <algorithm>
#include <numeric>

namespace oscar::engine::grammar {

TokenTrie::TokenTrie(const Tokenizer& tokenizer, std::span<const int32_t> shown) {
  for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    const bool ends = tokenizer.IsEndOfGeneration(token);
    if (ends) end_tokens_.push_back(token);
    const bool silent = ends || (tokenizer.IsControl(token) && std::ranges::find(shown, token) == shown.end());
    texts_.push_back(silent ? std::string() : tokenizer.TokenBytes(token, /*render_special=*/!shown.empty() && std::ranges::find(shown, token) != shown.end()));
  }
  Build();
}

TokenTrie::TokenTrie(std::vector<std::string> texts, std::vector<int32_t> end_tokens) : texts_(std::move(texts)), end_tokens_(std::move(end_tokens)) {
  Build();
}

void TokenTrie::Build() {
  for (int32_t token = 0; token < num_tokens(); ++token) {
    if (!bytes(token).empty()) tokens_.push_back(token);
  }
  std::ranges::sort(tokens_, [this](int32_t a, int32_t b) { return bytes(a) != bytes(b) ? bytes(a) < bytes(b) : a < b; });
  std::vector<size_t> path;  // nodes of the bytes of the last token
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      nodes_[path.back()].size = static_cast<int32_t>(nodes_.size() - path.back());
      path.pop_back();
    }
  };
  std::string_view last;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = bytes(tokens_[i]);
    close(static_cast<size_t>(std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin()));
    for (size_t depth = path.size(); depth < text.size(); ++depth) {
      path.push_back(nodes_.size());
      nodes_.push_back({static_cast<uint8_t>(text[depth]), static_cast<uint16_t>(depth), 1, static_cast<int32_t>(i), 0});
    }
    ++nodes_[path.back()].own;
    max_depth_ = std::max(max_depth_, text.size());
    last = text;
  }
  close(0);
}

}  // namespace oscar::engine::grammar
