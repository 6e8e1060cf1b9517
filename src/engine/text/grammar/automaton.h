// Automaton: a grammar as a pushdown automaton over bytes. Every rule is a small non-deterministic automaton whose edges read a byte,
// read nothing, or run another rule; GrammarMatcher (matcher.h) walks it with sets of stacks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/text/grammar/expression.h"

namespace oscar::engine::grammar {

struct Edge {
  static constexpr int32_t kByte = -1, kNothing = -2;
  int32_t rule = kNothing;  // what is read: a byte in [low, high], nothing, or all of a rule
  uint8_t low = 0, high = 0;
  int32_t to = 0;
};

class Automaton {
 public:
  static constexpr size_t kMaxStates = 200'000;

  // kResourceExhausted beyond kMaxStates; kInvalidArgument naming the rule for one that calls itself before it reads a byte (left
  // recursion), and when no text at all fits the root.
  static Result<Automaton> Compile(const RuleSet& rules);

  int32_t start(int32_t rule) const { return rules_[static_cast<size_t>(rule)].begin; }
  int32_t root() const { return root_; }
  // A rule ends here.
  bool is_end(int32_t state) const { return is_end_[static_cast<size_t>(state)]; }
  // The rule ends here without reading more: a call that returns here needs no place on the stack.
  bool is_tail(int32_t state) const { return is_tail_[static_cast<size_t>(state)]; }
  const std::vector<Edge>& edges(int32_t state) const { return edges_[static_cast<size_t>(state)]; }
  size_t num_states() const { return edges_.size(); }

 private:
  struct Part {
    int32_t begin = 0, end = 0;
  };
  struct RulePart {
    int32_t begin = 0, end = 0;
    int32_t first = 0, last = 0;  // its states
  };
  struct Walk {
    std::vector<int32_t> reached;
    std::vector<uint32_t> seen;  // by state: the turn in which it was reached last
    uint32_t turn = 0;
    size_t work = 0;
    bool Reach(const Automaton& automaton, int32_t rule, const std::vector<bool>& nullable);  // false: too much work
  };
  Automaton() = default;
  int32_t NewState();
  void AddByte(int32_t from, uint8_t low, uint8_t high, int32_t to) { AddEdge(from, {Edge::kByte, low, high, to}); }
  void AddNothing(int32_t from, int32_t to) { AddEdge(from, {Edge::kNothing, 0, 0, to}); }
  void AddEdge(int32_t from, Edge edge);
  void AddCodePoints(char32_t low, char32_t high, Part between);
  Part Build(const Expression& expression);
  Part BuildRepeat(const Expression& expression);
  Part BuildWithout(const std::string& text, bool until);
  Status CheckLeftRecursion(const RuleSet& rules) const;
  // Takes away what never comes to an end, so that whatever is begun can be completed.
  Status Trim(const RuleSet& rules);
  bool MarkUseful(int32_t rule, const std::vector<bool>& productive, std::vector<bool>* useful) const;

  std::vector<RulePart> rules_;
  std::vector<std::vector<Edge>> edges_;  // by state
  std::vector<bool> is_end_, is_tail_;
  int32_t root_ = 0;
  bool too_large_ = false;
};

}  // namespace oscar::engine::grammar
