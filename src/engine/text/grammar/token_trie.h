// TokenTrie: the tokens of a vocabulary by their bytes, so that a grammar can be held against all of them in one walk.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/text/tokenizer.h"

namespace oscar::engine::grammar {

class TokenTrie {
 public:
  // A byte below its parent. Nodes are in preorder: the sub-tree of node i is [i, i + size).
  struct Node {
    uint8_t byte = 0;
    uint16_t depth = 0;             // of the byte in its token, from 0 on
    int32_t size = 1;
    int32_t first = 0, own = 0;     // tokens()[first, first + own) end here; those of the sub-tree follow
  };

  // Tokens that stand for text; control tokens are left out, but for `shown`.
  explicit TokenTrie(const Tokenizer& tokenizer, std::span<const int32_t> shown = {});
  // For tests: token i has the bytes texts[i]; empty ones are left out.
  TokenTrie(std::vector<std::string> texts, std::vector<int32_t> end_tokens);

  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> tokens() const { return tokens_; }            // in preorder
  std::span<const int32_t> end_tokens() const { return end_tokens_; }    // those that end a generation
  std::string_view bytes(int32_t token) const { return texts_[static_cast<size_t>(token)]; }
  int num_tokens() const { return static_cast<int>(texts_.size()); }
  size_t max_depth() const { return max_depth_; }

 private:
  void Build();

  std::vector<std::string> texts_;
  std::vector<int32_t> end_tokens_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  size_t max_depth_ = 0;
};

}  // namespace oscar::engine::grammar
