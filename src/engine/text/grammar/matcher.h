// Grammar and GrammarMatcher: which tokens may come next (serving.md 8). The automaton is made deterministic as it is walked; masks
// are made once per state and kept, those inside a rule independent of who called it, so that a string's mask serves every string. Of
// a state that many characters lead to one other (a string, free text), the tokens of those characters come from TokenTrie::ClassOf.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "oscar/result.h"
#include "src/engine/text/grammar/automaton.h"
#include "src/engine/text/grammar/token_trie.h"

namespace oscar::engine::grammar {

class DeterministicWalk;

// A compiled grammar over a vocabulary. Shared by all requests that use it; thread-safe.
class Grammar {
 public:
  // Errors as Automaton::Compile.
  static Result<std::shared_ptr<const Grammar>> Create(const RuleSet& rules, std::shared_ptr<const TokenTrie> trie);
  ~Grammar();

  // Whether the whole of `text` fits.
  bool Matches(std::string_view text) const;
  const TokenTrie& trie() const { return *trie_; }

 private:
  friend class GrammarMatcher;
  Grammar(Automaton automaton, std::shared_ptr<const TokenTrie> trie);
  // What was learnt so far, unless it has grown too large: then a fresh one.
  std::shared_ptr<DeterministicWalk> walk() const;

  const Automaton automaton_;
  const std::shared_ptr<const TokenTrie> trie_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<DeterministicWalk> walk_;
};

// One answer's place in its grammar.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);

  // Tokens that may come next; those that end the generation where the text is complete. kInvalidArgument when nothing may come
  // (nesting beyond the limit) or the grammar has made too many states: the fault is the request's.
  Result<std::shared_ptr<const TokenMask>> Mask();
  // The token came. Precondition: Mask() allowed it and it ends nothing.
  void Accept(int32_t token);
  // The text so far fits as it is.
  bool complete() const;

 private:
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<DeterministicWalk> walk_;
  int32_t state_ = 0;
};

}  // namespace oscar::engine::grammar
