#include "src/engine/text/grammar/token_trie.h"

#include <algorithm>
#include <utility>

#include "src/engine/text/utf8.h"

namespace oscar::engine::grammar {
namespace {

// How many characters the text has when all are of the set and whole; else 0.
size_t LengthIn(const CharSet& set, std::string_view text) {
  size_t length = 0;
  for (size_t i = 0; i < text.size(); ++length) {
    const Utf8Step step = NextUtf8(text.substr(i));
    if (step.kind != Utf8Kind::kCharacter || (step.code_point < 0x80 ? !set.ascii[step.code_point] : !set.others)) return 0;
    i += step.size;
  }
  return length;
}

}  // namespace

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
  std::vector<int32_t> tokens;
  for (int32_t token = 0; token < num_tokens(); ++token) {
    if (bytes(token).empty()) continue;
    tokens.push_back(token);
    max_depth_ = std::max(max_depth_, bytes(token).size());
  }
  std::ranges::sort(tokens, [this](int32_t a, int32_t b) { return bytes(a) != bytes(b) ? bytes(a) < bytes(b) : a < b; });
  tree_ = TreeOf(std::move(tokens));
  // Inside a JSON string: what most of an answer under a schema is.
  CharSet plain{.ascii = {}, .others = true};
  for (size_t c = 0x20; c < 128; ++c) plain.ascii[c] = c != '"' && c != '\\';
  ClassOf(plain);
}

TokenTree TokenTrie::TreeOf(std::vector<int32_t> tokens) const {
  TokenTree tree;
  std::vector<size_t> path;  // nodes of the bytes of the last token
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      tree.nodes[path.back()].size = static_cast<int32_t>(tree.nodes.size() - path.back());
      path.pop_back();
    }
  };
  std::string_view last;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view text = bytes(tokens[i]);
    close(static_cast<size_t>(std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin()));
    for (size_t depth = path.size(); depth < text.size(); ++depth) {
      path.push_back(tree.nodes.size());
      tree.nodes.push_back({static_cast<uint8_t>(text[depth]), static_cast<uint16_t>(depth), 1, static_cast<int32_t>(i), 0});
    }
    ++tree.nodes[path.back()].own;
    last = text;
  }
  close(0);
  tree.tokens = std::move(tokens);
  return tree;
}

const TokenClass* TokenTrie::ClassOf(const CharSet& set) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(classes_, set, [](const auto& one) -> const CharSet& { return one->set; });
  if (found != classes_.end()) return found->get();
  if (classes_.size() >= kMaxClasses) return nullptr;
  return classes_.emplace_back(MakeClass(set)).get();
}

std::unique_ptr<const TokenClass> TokenTrie::MakeClass(const CharSet& set) const {
  auto made = std::make_unique<TokenClass>();
  made->set = set;
  for (TokenMask& mask : made->up_to) mask.resize(num_mask_words());
  std::vector<int32_t> rest;
  for (const int32_t token : tree_.tokens) {
    const size_t length = LengthIn(set, bytes(token));
    if (length == 0 || length > TokenClass::kLongest) {
      rest.push_back(token);
    } else {
      SetToken(&made->up_to[length], token);
    }
  }
  for (size_t length = 1; length < made->up_to.size(); ++length) {
    for (size_t word = 0; word < num_mask_words(); ++word) made->up_to[length][word] |= made->up_to[length - 1][word];
  }
  made->rest = TreeOf(std::move(rest));
  return made;
}

}  // namespace oscar::engine::grammar
