// TokenTrie: the tokens of a vocabulary by their bytes, so that a grammar can be held against all of them in one walk; and its
// classes of tokens, so that most of the walk is done once for all states that let the same characters come.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/text/tokenizer.h"

namespace oscar::engine::grammar {

// One bit per token, bit t % 32 of word t / 32.
using TokenMask = std::vector<uint32_t>;
inline bool HasToken(const TokenMask& mask, int32_t token) { return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0; }
inline void SetToken(TokenMask* mask, int32_t token) { (*mask)[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32); }

inline void ClearToken(TokenMask* mask, int32_t token) { (*mask)[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32)); }

struct TokenTree {
  // A byte below its parent. Nodes are in preorder: the sub-tree of node i is [i, i + size).
  struct Node {
    uint8_t byte = 0;
    uint16_t depth = 0;             // of the byte in its token, from 0 on
    int32_t size = 1;
    int32_t first = 0, own = 0;     // tokens[first, first + own) end here; those of the sub-tree follow
  };
  std::vector<Node> nodes;
  std::vector<int32_t> tokens;      // in preorder
};

// Some characters of ASCII, and all others or none of them.
struct CharSet {
  std::bitset<128> ascii;
  bool others = false;
  bool Contains(const CharSet& set) const { return (set.ascii & ~ascii).none() && (others || !set.others); }
  bool Meets(const CharSet& set) const { return (set.ascii & ascii).any() || (others && set.others); }
  bool operator==(const CharSet&) const = default;
};

// The tokens that are whole characters of a set and nothing else.
struct TokenClass {
  static constexpr int kLongest = 16;  // longer ones are left to `rest`
  CharSet set;
  std::array<TokenMask, kLongest + 1> up_to;  // by how many characters at most
  TokenTree rest;                             // all other tokens
};

class TokenTrie {
 public:
  // Tokens that stand for text; control tokens are left out, but for `shown`.
  explicit TokenTrie(const Tokenizer& tokenizer, std::span<const int32_t> shown = {});
  // For tests: token i has the bytes texts[i]; empty ones are left out.
  TokenTrie(std::vector<std::string> texts, std::vector<int32_t> end_tokens);

  const TokenTree& tree() const { return tree_; }                        // of all tokens
  std::span<const int32_t> end_tokens() const { return end_tokens_; }    // those that end a generation
  std::string_view bytes(int32_t token) const { return texts_[static_cast<size_t>(token)]; }
  int num_tokens() const { return static_cast<int>(texts_.size()); }
  size_t num_mask_words() const { return (texts_.size() + 31) / 32; }
  size_t max_depth() const { return max_depth_; }
  // Made when it is first asked for, in some milliseconds, and kept; null when there are too many. Thread-safe.
  const TokenClass* ClassOf(const CharSet& set) const;

 private:
  static constexpr size_t kMaxClasses = 16;
  void Build();
  TokenTree TreeOf(std::vector<int32_t> tokens) const;  // in order of their bytes
  std::unique_ptr<const TokenClass> MakeClass(const CharSet& set) const;

  std::vector<std::string> texts_;
  std::vector<int32_t> end_tokens_;
  TokenTree tree_;
  size_t max_depth_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<const TokenClass>> classes_;
};

}  // namespace oscar::engine::grammar
