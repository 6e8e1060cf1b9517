#include "src/engine/text/grammar/automaton.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/base/status_macros.h"

namespace oscar::engine::grammar {
namespace {

constexpr size_t kMaxWork = 20'000'000;  // visits of states while compiling: well under 200 ms

// UTF-8 of a code point; its length.
size_t EncodeUtf8(char32_t c, std::array<uint8_t, 4>* bytes) {
  const auto tail = [c](int shift) { return static_cast<uint8_t>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return *bytes = {static_cast<uint8_t>(c)}, 1;
  if (c < 0x800) return *bytes = {static_cast<uint8_t>(0xC0 | (c >> 6)), tail(0)}, 2;
  if (c < 0x10000) return *bytes = {static_cast<uint8_t>(0xE0 | (c >> 12)), tail(6), tail(0)}, 3;
  return *bytes = {static_cast<uint8_t>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)}, 4;
}

}  // namespace

int32_t Automaton::NewState() {
  if (edges_.size() >= kMaxStates) {
    too_large_ = true;
    return 0;
  }
  edges_.emplace_back();
  return static_cast<int32_t>(edges_.size()) - 1;
}

void Automaton::AddEdge(int32_t from, Edge edge) {
  if (!too_large_) edges_[static_cast<size_t>(from)].push_back(edge);
}

// Cut until both ends have encodings of one length whose bytes make a box: then one edge per byte says it all.
void Automaton::AddCodePoints(char32_t low, char32_t high, Part between) {
  for (const char32_t last : {char32_t{0x7F}, char32_t{0x7FF}, char32_t{0xD7FF}, char32_t{0xFFFF}}) {
    if (low <= last && high > last) {
      AddCodePoints(low, last, between);
      return AddCodePoints(last == 0xD7FF ? std::max<char32_t>(0xE000, low) : last + 1, high, between);
    }
  }
  if (low > high || (low >= 0xD800 && high <= 0xDFFF)) return;
  if (low >= 0xD800 && low <= 0xDFFF) low = 0xE000;
  for (int tails = 1; tails < 4 && low > 0x7F; ++tails) {
    const char32_t mask = (char32_t{1} << (6 * tails)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      AddCodePoints(low, low | mask, between);
      return AddCodePoints((low | mask) + 1, high, between);
    }
    if ((high & mask) != mask) {
      AddCodePoints(low, (high & ~mask) - 1, between);
      return AddCodePoints(high & ~mask, high, between);
    }
  }
  std::array<uint8_t, 4> first{}, last{};
  const size_t length = EncodeUtf8(low, &first);
  EncodeUtf8(high, &last);
  int32_t from = between.begin;
  for (size_t i = 0; i < length; ++i) {
    const int32_t to = i + 1 == length ? between.end : NewState();
    AddByte(from, first[i], last[i], to);
    from = to;
  }
}

Automaton::Part Automaton::Build(const Expression& expression) {
  using Kind = Expression::Kind;
  if (too_large_) return {};
  switch (expression.kind) {
    case Kind::kRepeat: return BuildRepeat(expression);
    case Kind::kWithout: return BuildWithout(expression.bytes, /*until=*/false);
    case Kind::kUntil: return BuildWithout(expression.bytes, /*until=*/true);
    default: break;
  }
  Part part{NewState(), 0};
  part.end = part.begin;
  switch (expression.kind) {
    case Kind::kBytes:
      for (const char c : expression.bytes) {
        const int32_t to = NewState();
        AddByte(part.end, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
        part.end = to;
      }
      break;
    case Kind::kCodePoints:
      part.end = NewState();
      for (const auto& [low, high] : expression.ranges) AddCodePoints(low, high, part);
      break;
    case Kind::kSequence:
      for (const Expression& child : expression.children) {
        const Part next = Build(child);
        AddNothing(part.end, next.begin);
        part.end = next.end;
      }
      break;
    case Kind::kChoice:
      part.end = NewState();
      for (const Expression& child : expression.children) {
        const Part next = Build(child);
        AddNothing(part.begin, next.begin);
        AddNothing(next.end, part.end);
      }
      break;
    case Kind::kRule:
      part.end = NewState();
      AddEdge(part.begin, {expression.rule, 0, 0, part.end});
      break;
    default: break;
  }
  return part;
}

Automaton::Part Automaton::BuildRepeat(const Expression& expression) {
  const Expression& child = expression.children[0];
  Part part{NewState(), 0};
  part.end = part.begin;
  const auto append = [&] {
    const Part next = Build(child);
    AddNothing(part.end, next.begin);
    part.end = next.end;
  };
  for (int i = 0; i < expression.least && !too_large_; ++i) append();
  const int32_t out = NewState();
  if (expression.most == Expression::kNoLimit) {
    const int32_t turn = NewState();
    AddNothing(part.end, turn);
    const Part body = Build(child);
    AddNothing(turn, body.begin);
    AddNothing(body.end, turn);
    AddNothing(turn, out);
    return {part.begin, out};
  }
  AddNothing(part.end, out);
  for (int i = expression.least; i < expression.most && !too_large_; ++i) {
    append();
    AddNothing(part.end, out);
  }
  return {part.begin, out};
}

// The automaton of Knuth, Morris and Pratt: state i has just read the first i bytes of the text.
Automaton::Part Automaton::BuildWithout(const std::string& text, bool until) {
  const size_t size = text.size();
  std::vector<int32_t> states(size + 1);
  for (int32_t& state : states) state = NewState();
  std::vector<std::array<int32_t, 256>> next(size);
  size_t fallback = 0;  // the state after text[1..i)
  for (size_t i = 0; i < size; ++i) {
    if (i == 0) {
      next[0].fill(0);
    } else {
      next[i] = next[fallback];
    }
    const auto byte = static_cast<uint8_t>(text[i]);
    const auto after = static_cast<size_t>(next[i][byte]);
    next[i][byte] = static_cast<int32_t>(i) + 1;
    if (i > 0) fallback = after;
  }
  const int32_t out = until ? states[size] : NewState();
  for (size_t i = 0; i < size; ++i) {
    for (int byte = 0; byte < 256;) {
      const int32_t to = next[i][static_cast<size_t>(byte)];
      int last = byte;
      while (last < 255 && next[i][static_cast<size_t>(last) + 1] == to) ++last;
      if (until || to != static_cast<int32_t>(size)) {
        AddByte(states[i], static_cast<uint8_t>(byte), static_cast<uint8_t>(last), states[static_cast<size_t>(to)]);
      }
      byte = last + 1;
    }
    if (!until) AddNothing(states[i], out);
  }
  return {states[0], out};
}

// The states of a rule that are reached before a byte is read.
bool Automaton::Walk::Reach(const Automaton& automaton, int32_t rule, const std::vector<bool>& nullable) {
  if (++turn; seen.empty()) seen.resize(automaton.edges_.size());
  reached = {automaton.start(rule)};
  seen[static_cast<size_t>(reached[0])] = turn;
  for (size_t i = 0; i < reached.size(); ++i) {
    for (const Edge& edge : automaton.edges(reached[i])) {
      if (edge.rule == Edge::kByte || (edge.rule >= 0 && !nullable[static_cast<size_t>(edge.rule)])) continue;
      if (std::exchange(seen[static_cast<size_t>(edge.to)], turn) != turn) reached.push_back(edge.to);
    }
  }
  work += reached.size() + 1;
  return work < kMaxWork;
}

Status Automaton::CheckLeftRecursion(const RuleSet& rules) const {
  const Status too_much(StatusCode::kResourceExhausted, "the grammar's rules are too entangled");
  Walk walk;
  std::vector<bool> nullable(rules_.size());
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t rule = 0; rule < rules_.size(); ++rule) {
      if (nullable[rule]) continue;
      if (!walk.Reach(*this, static_cast<int32_t>(rule), nullable)) return too_much;
      if (walk.seen[static_cast<size_t>(rules_[rule].end)] == walk.turn) nullable[rule] = changed = true;
    }
  }
  std::vector<std::vector<int32_t>> first_calls(rules_.size());
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    if (!walk.Reach(*this, static_cast<int32_t>(rule), nullable)) return too_much;
    for (const int32_t state : walk.reached) {
      for (const Edge& edge : edges(state)) {
        if (edge.rule >= 0) first_calls[rule].push_back(edge.rule);
      }
    }
  }
  // Rules whose first calls all lead to finished rules are finished; what is left is a cycle or leads to one.
  std::vector<bool> finished(rules_.size());
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t rule = 0; rule < rules_.size(); ++rule) {
      if (finished[rule]) continue;
      if ((walk.work += first_calls[rule].size() + 1) > kMaxWork) return too_much;
      if (!std::ranges::all_of(first_calls[rule], [&](int32_t called) { return finished[static_cast<size_t>(called)]; })) continue;
      finished[rule] = changed = true;
    }
  }
  const auto bad = std::ranges::find(finished, false);
  if (bad == finished.end()) return {};
  return {StatusCode::kInvalidArgument, "rule " + rules.names[static_cast<size_t>(bad - finished.begin())] + " calls itself before it reads anything"};
}

// Backwards from the rule's end: marks the states from which it is reached through productive rules. Whether its begin is one.
bool Automaton::MarkUseful(int32_t rule, const std::vector<bool>& productive, std::vector<bool>* useful) const {
  const RulePart& part = rules_[static_cast<size_t>(rule)];
  std::vector<std::pair<int32_t, int32_t>> back;  // (to, from)
  for (int32_t state = part.first; state < part.last; ++state) {
    (*useful)[static_cast<size_t>(state)] = state == part.end;
    for (const Edge& edge : edges(state)) {
      if (edge.rule < 0 || productive[static_cast<size_t>(edge.rule)]) back.emplace_back(edge.to, state);
    }
  }
  std::ranges::sort(back);
  std::vector<int32_t> open = {part.end};
  while (!open.empty()) {
    const int32_t state = open.back();
    open.pop_back();
    for (auto at = std::ranges::lower_bound(back, std::pair(state, int32_t{-1})); at != back.end() && at->first == state; ++at) {
      if ((*useful)[static_cast<size_t>(at->second)]) continue;
      (*useful)[static_cast<size_t>(at->second)] = true;
      open.push_back(at->second);
    }
  }
  return (*useful)[static_cast<size_t>(part.begin)];
}

Status Automaton::Trim(const RuleSet& rules) {
  std::vector<bool> productive(rules_.size()), useful(edges_.size());
  size_t work = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t rule = 0; rule < rules_.size(); ++rule) {
      if (productive[rule]) continue;
      if ((work += static_cast<size_t>(rules_[rule].last - rules_[rule].first)) > kMaxWork) {
        return {StatusCode::kResourceExhausted, "the grammar's rules are too entangled"};
      }
      if (MarkUseful(static_cast<int32_t>(rule), productive, &useful)) productive[rule] = changed = true;
    }
  }
  if (!productive[static_cast<size_t>(root_)]) return {StatusCode::kInvalidArgument, "no text fits rule " + rules.names[static_cast<size_t>(root_)]};
  for (size_t rule = 0; rule < rules_.size(); ++rule) MarkUseful(static_cast<int32_t>(rule), productive, &useful);
  for (std::vector<Edge>& out : edges_) {
    std::erase_if(out, [&](const Edge& edge) {
      return !useful[static_cast<size_t>(edge.to)] || (edge.rule >= 0 && !productive[static_cast<size_t>(edge.rule)]);
    });
  }
  return {};
}

Result<Automaton> Automaton::Compile(const RuleSet& rules) {
  Automaton automaton;
  automaton.root_ = rules.root;
  for (const Expression& body : rules.bodies) {
    const auto first = static_cast<int32_t>(automaton.edges_.size());
    const Part part = automaton.Build(body);
    automaton.rules_.push_back({part.begin, part.end, first, static_cast<int32_t>(automaton.edges_.size())});
  }
  if (automaton.too_large_) {
    return Status(StatusCode::kResourceExhausted, "the grammar needs more than " + std::to_string(kMaxStates) + " states");
  }
  OSCAR_TRY(automaton.CheckLeftRecursion(rules));
  OSCAR_TRY(automaton.Trim(rules));
  automaton.is_end_.resize(automaton.edges_.size());
  for (const RulePart& rule : automaton.rules_) automaton.is_end_[static_cast<size_t>(rule.end)] = true;
  automaton.is_tail_ = automaton.is_end_;
  for (size_t begin = 0; begin < automaton.edges_.size(); ++begin) {
    size_t state = begin;  // no cycle: after Trim every way leads to an end
    while (!automaton.is_tail_[state] && automaton.edges_[state].size() == 1 && automaton.edges_[state][0].rule == Edge::kNothing) {
      state = static_cast<size_t>(automaton.edges_[state][0].to);
    }
    if (automaton.is_tail_[state]) automaton.is_tail_[begin] = true;
  }
  return automaton;
}

}  // namespace oscar::engine::grammar
