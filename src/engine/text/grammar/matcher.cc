#include "src/engine/text/grammar/matcher.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace oscar::engine::grammar {
namespace {

constexpr int32_t kNowhere = -1;      // no state
constexpr int32_t kUntried = -2;
constexpr int32_t kEmptyStack = -1;   // the root's end is the end of the text
constexpr int32_t kUnknownStack = -2; // of a mask that must hold whoever called
constexpr int32_t kMaxStackDepth = 400;      // three frames for a level of a JSON document
constexpr size_t kFreshAbove = 20'000;       // states, above which the next request begins anew
constexpr size_t kMaxStates = 200'000;
constexpr size_t kMaxMasks = 1024;
// Places and edges that may be looked at for one mask: about a tenth of a second. Masks are made between two steps of all requests.
constexpr uint64_t kMaskWork = 8'000'000;
constexpr size_t kLeastOfClass = 10;  // characters that lead to one state, for tokens to be taken by their class
constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max() / 2;

}  // namespace

// Sets of (state, stack) that some bytes lead to, numbered as they are met. Not thread-safe but for `mutex`.
class DeterministicWalk {
 public:
  DeterministicWalk(const Automaton& automaton, const TokenTrie& trie) : automaton_(automaton), trie_(trie) {
    start_ = Intern({{automaton.start(automaton.root()), kEmptyStack}});
  }

  int32_t start() const { return start_; }
  size_t num_states() const { return num_states_.load(std::memory_order_relaxed); }  // while another thread adds some, too
  bool complete(int32_t state) const { return states_[static_cast<size_t>(state)].complete; }
  // From here on so much work may be done, and so many states may there be; exhausted() says that it was not enough.
  void Allow(uint64_t work, size_t states) {
    most_work_ = work_ + work;
    most_states_ = states;
    exhausted_ = false;
  }
  bool exhausted() const { return exhausted_; }

  int32_t Next(int32_t from, uint8_t byte) {
    if (states_[static_cast<size_t>(from)].next == nullptr) {
      states_[static_cast<size_t>(from)].next = std::make_unique<std::array<int32_t, 256>>();
      states_[static_cast<size_t>(from)].next->fill(kUntried);
    }
    int32_t known = (*states_[static_cast<size_t>(from)].next)[byte];
    if (known != kUntried) return known;
    if (states_.size() >= most_states_ || work_ > most_work_) {
      exhausted_ = true;  // nothing is learnt: the next mask may find it
      return kNowhere;
    }
    // The bytes around it that no edge tells from it come to the same.
    int low = 0, high = 255;
    std::vector<Place> places;
    for (const Place& place : states_[static_cast<size_t>(from)].places) {
      work_ += 1 + automaton_.edges(place.state).size();
      for (const Edge& edge : automaton_.edges(place.state)) {
        if (edge.rule != Edge::kByte) continue;
        if (byte < edge.low) {
          high = std::min(high, edge.low - 1);
        } else if (byte > edge.high) {
          low = std::max(low, edge.high + 1);
        } else {
          low = std::max<int>(low, edge.low);
          high = std::min<int>(high, edge.high);
          places.push_back({edge.to, place.stack});
        }
      }
    }
    known = places.empty() ? kNowhere : Intern(std::move(places));
    std::array<int32_t, 256>& next = *states_[static_cast<size_t>(from)].next;
    std::fill(next.begin() + low, next.begin() + high + 1, known);
    return known;
  }

  int32_t Next(int32_t state, std::string_view bytes) {
    for (size_t i = 0; i < bytes.size() && state != kNowhere; ++i) state = Next(state, static_cast<uint8_t>(bytes[i]));
    return state;
  }

  std::shared_ptr<const TokenMask> MaskOf(int32_t state) {
    if (const auto found = masks_.find(state); found != masks_.end()) return found->second;
    if (masks_.size() >= kMaxMasks) masks_.clear();
    std::shared_ptr<TokenMask> mask;
    const std::vector<int32_t> locals = LocalsOf(state);
    const bool is_local = locals.size() == 1 && (local_masks_.contains(locals[0]) || ClassTokensOf(locals[0]));
    if (const auto known = is_local ? std::nullopt : ClassTokensOf(state)) {
      // A class that holds for callers and rule together, as where each character of a bounded string is a call.
      mask = std::make_shared<TokenMask>(PartOf(state, known).inside);
    } else {
      mask = std::make_shared<TokenMask>(trie_.num_mask_words());
      for (const int32_t local : locals) {
        const StatePart& part = LocalMaskOf(local);
        for (size_t word = 0; word < mask->size(); ++word) (*mask)[word] |= part.inside[word];
        AddLeaving(state, part, mask.get());
      }
    }
    if (complete(state)) {
      for (const int32_t token : trie_.end_tokens()) SetToken(mask.get(), token);
    }
    if (exhausted_) return mask;  // not whole, so not kept
    return masks_[state] = mask;
  }

  std::mutex mutex;

 private:
  struct Place {
    int32_t state, stack;
    bool operator==(const Place&) const = default;
    auto operator<=>(const Place&) const = default;
  };
  struct State {
    std::vector<Place> places;  // from which a byte is read
    bool complete = false;      // the text may end here (or, with an unknown stack, the rule)
    std::unique_ptr<std::array<int32_t, 256>> next;
  };
  // The state's places by who called: those on one stack are a state of their own, which says nothing of the caller.
  std::vector<int32_t> LocalsOf(int32_t state) {
    std::vector<Place> places = states_[static_cast<size_t>(state)].places;
    std::ranges::stable_sort(places, {}, &Place::stack);
    std::vector<int32_t> locals;
    for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
      std::vector<Place> local;
      for (; end < places.size() && places[end].stack == places[begin].stack; ++end) local.push_back({places[end].state, kUnknownStack});
      locals.push_back(Intern(std::move(local)));
    }
    return locals;
  }

  struct Frame {
    int32_t back, below, depth;
  };
  struct Leaving {
    const TokenTree* tree;  // of the trie, or of a class of it
    int32_t node, parent;
  };
  struct StatePart {
    TokenMask inside;              // tokens that stay in the rule, or end with it
    std::vector<Leaving> leaving;  // sub-trees that go on behind the rule's end, in order
  };
  // Where characters lead from a state.
  struct CharStep {
    int32_t to = kNowhere;  // the state that most of ASCII leads to
    CharSet set;            // all that leads to it
    CharSet alive;          // all that leads anywhere
  };
  static constexpr int32_t kSeveral = -3;  // states
  // Tokens of a class that may come in a state: all that begin with characters of `first` and have `length` at most.
  struct ClassTokens {
    const TokenClass* of;
    CharSet first;
    int length;
  };

  // kNowhere when the stack is full.
  int32_t Push(int32_t back, int32_t below) {
    const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(back)) << 32) | static_cast<uint32_t>(below + 2);
    if (const auto found = frame_ids_.find(key); found != frame_ids_.end()) return found->second;
    const int32_t depth = below < 0 ? 1 : frames_[static_cast<size_t>(below)].depth + 1;
    if (depth > kMaxStackDepth) return INT32_MIN;
    frames_.push_back({back, below, depth});
    return frame_ids_[key] = static_cast<int32_t>(frames_.size()) - 1;
  }

  // The number of the state with these places and all that they reach without a byte.
  int32_t Intern(std::vector<Place> open) {
    State state;
    seen_.clear();
    const auto add = [&](int32_t at, int32_t stack) {
      const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(at)) << 32) | static_cast<uint32_t>(stack + 2);
      if (seen_.insert(key).second) open.push_back({at, stack});
    };
    std::vector<Place> seeds;
    seeds.swap(open);
    for (const Place& seed : seeds) add(seed.state, seed.stack);
    while (!open.empty()) {
      const Place place = open.back();
      open.pop_back();
      work_ += 1 + automaton_.edges(place.state).size();
      if (automaton_.is_end(place.state)) {
        if (place.stack < 0) {
          state.complete = true;
        } else {
          const Frame frame = frames_[static_cast<size_t>(place.stack)];
          add(frame.back, frame.below);
        }
      }
      bool reads = false;
      for (const Edge& edge : automaton_.edges(place.state)) {
        if (edge.rule == Edge::kByte) {
          reads = true;
        } else if (edge.rule == Edge::kNothing) {
          add(edge.to, place.stack);
        } else if (automaton_.is_tail(edge.to)) {
          add(automaton_.start(edge.rule), place.stack);
        } else if (const int32_t stack = Push(edge.to, place.stack); stack != INT32_MIN) {
          add(automaton_.start(edge.rule), stack);
        }
      }
      if (reads) state.places.push_back(place);
    }
    if (state.places.empty() && !state.complete) return kNowhere;
    std::ranges::sort(state.places);
    std::string key(state.places.size() * sizeof(Place) + 1, state.complete ? '\1' : '\0');
    if (!state.places.empty()) std::memcpy(key.data() + 1, state.places.data(), state.places.size() * sizeof(Place));
    const auto [found, is_new] = ids_.try_emplace(std::move(key), static_cast<int32_t>(states_.size()));
    if (is_new) {
      states_.push_back(std::move(state));
      num_states_.store(states_.size(), std::memory_order_relaxed);
    }
    return found->second;
  }

  // The state that bytes of [low, high], each with `tails` more of [0x80, 0xBF], lead to; kSeveral when there is no one answer.
  int32_t NextOfRange(int32_t from, int low, int high, int tails) {
    int32_t common = kUntried, last = kUntried;
    for (int byte = low; byte <= high; ++byte) {
      const int32_t next = Next(from, static_cast<uint8_t>(byte));
      if (next == last) continue;
      last = next;
      const int32_t to = tails == 0 || next == kNowhere ? next : NextOfRange(next, 0x80, 0xBF, tails - 1);
      if (to == kSeveral || (common != kUntried && common != to)) return kSeveral;
      common = to;
    }
    return common;
  }

  // The state that every character behind ASCII leads to.
  int32_t NextOfOthers(int32_t from) {
    struct Lead {
      int first, last, low, high, tails;  // bytes that a character begins with, its second byte, how many follow
    };
    constexpr std::array<Lead, 8> kLeads = {{{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1}, {0xED, 0xED, 0x80, 0x9F, 1},
                                             {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2}, {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}}};
    int32_t common = kUntried;
    for (const Lead& lead : kLeads) {
      const int32_t next = NextOfRange(from, lead.first, lead.last, 0);
      if (next == kSeveral) return kSeveral;
      const int32_t to = next == kNowhere ? kNowhere : NextOfRange(next, lead.low, lead.high, lead.tails);
      if (to == kSeveral || (common != kUntried && common != to)) return kSeveral;
      common = to;
    }
    return common;
  }

  CharStep StepOf(int32_t state) {
    if (const auto found = char_steps_.find(state); found != char_steps_.end()) return found->second;
    if (char_steps_.size() >= kFreshAbove) char_steps_.clear();
    CharStep step;
    std::array<int32_t, 128> next;
    std::vector<std::pair<int32_t, int>> counts;  // of few states
    for (size_t c = 0; c < next.size(); ++c) {
      next[c] = Next(state, static_cast<uint8_t>(c));
      if (next[c] == kNowhere) continue;
      step.alive.ascii[c] = true;
      const auto found = std::ranges::find(counts, next[c], &std::pair<int32_t, int>::first);
      ++(found != counts.end() ? *found : counts.emplace_back(next[c], 0)).second;
    }
    if (!counts.empty()) step.to = std::ranges::max(counts, {}, &std::pair<int32_t, int>::second).first;
    for (size_t c = 0; c < next.size(); ++c) step.set.ascii[c] = step.to != kNowhere && next[c] == step.to;
    const int32_t others = NextOfOthers(state);
    step.alive.others = others != kNowhere;
    step.set.others = step.to != kNowhere && others == step.to;
    if (!exhausted_) char_steps_[state] = step;
    return step;
  }

  std::optional<ClassTokens> ClassTokensOf(int32_t state) {
    const CharStep step = StepOf(state);
    if (step.set.ascii.count() < kLeastOfClass) return std::nullopt;
    // What most characters lead to says what the class is, so that states that differ in their first character share it; at the end of a
    // bounded text it is the state itself.
    const CharSet next = StepOf(step.to).set;
    const CharSet set = next.ascii.count() < kLeastOfClass ? step.set : next;
    int length = 1;
    bool may_leave = complete(step.to);  // the rule, or the text, before the characters end
    for (int32_t at = step.to; length < TokenClass::kLongest; ++length) {
      const CharStep further = StepOf(at);
      if (!further.alive.Meets(set)) {
        if (may_leave) return std::nullopt;
        break;
      }
      if (!further.set.Contains(set)) return std::nullopt;
      if (further.to == at) {
        length = TokenClass::kLongest;
        break;
      }
      at = further.to;
      may_leave = may_leave || complete(at);
    }
    const TokenClass* of = exhausted_ ? nullptr : trie_.ClassOf(set);
    if (of == nullptr) return std::nullopt;
    return ClassTokens{of, step.set, length};
  }

  const StatePart& LocalMaskOf(int32_t local) {
    if (const auto found = local_masks_.find(local); found != local_masks_.end()) return found->second;
    if (local_masks_.size() >= kMaxMasks) local_masks_.clear();
    StatePart part = PartOf(local, ClassTokensOf(local));
    if (exhausted_) return unfinished_ = std::move(part);
    return local_masks_[local] = std::move(part);
  }

  StatePart PartOf(int32_t state, const std::optional<ClassTokens>& known) {
    StatePart part;
    const std::vector<TokenTree::Node>& nodes = trie_.tree().nodes;
    if (!known) {
      part.inside.resize(trie_.num_mask_words());
      for (size_t i = 0; i < nodes.size(); i += static_cast<size_t>(nodes[i].size)) AddInside(state, trie_.tree(), i, &part);
      return part;
    }
    const TokenClass& of = *known->of;
    part.inside = of.up_to[static_cast<size_t>(known->length)];
    // Tokens of the class that begin with other characters are asked one by one, and so is what is not of the class.
    const auto is_other = [&](uint8_t byte) { return byte < 0x80 ? of.set.ascii[byte] && !known->first.ascii[byte] : of.set.others && !known->first.others; };
    for (size_t i = 0, end = 0; i < nodes.size(); i = end) {
      end = i + static_cast<size_t>(nodes[i].size);
      if (!is_other(nodes[i].byte)) continue;
      const size_t last = end < nodes.size() ? static_cast<size_t>(nodes[end].first) : trie_.tree().tokens.size();
      for (size_t at = static_cast<size_t>(nodes[i].first); at < last; ++at) ClearToken(&part.inside, trie_.tree().tokens[at]);
      AddInside(state, trie_.tree(), i, &part);
    }
    for (size_t i = 0; i < of.rest.nodes.size(); i += static_cast<size_t>(of.rest.nodes[i].size)) {
      if (!is_other(of.rest.nodes[i].byte)) AddInside(state, of.rest, i, &part);
    }
    return part;
  }

  // Holds the state against the tokens below a byte that tokens begin with.
  void AddInside(int32_t from, const TokenTree& tree, size_t top, StatePart* part) {
    struct Step {
      int32_t state, node;
      bool left;  // the rule ended before the last byte
    };
    static thread_local std::vector<Step> path;
    path.resize(std::max(path.size(), trie_.max_depth() + 1));
    path[0] = {from, -1, false};
    for (size_t i = top, end = top + static_cast<size_t>(tree.nodes[top].size); i < end;) {
      const TokenTree::Node& node = tree.nodes[i];
      ++work_;
      const Step& before = path[node.depth];
      const int32_t next = Next(before.state, node.byte);
      if (next != kNowhere) {
        for (int32_t at = 0; at < node.own; ++at) SetToken(&part->inside, tree.tokens[static_cast<size_t>(node.first + at)]);
        path[node.depth + 1u] = {next, static_cast<int32_t>(i), before.left || complete(next)};
        ++i;
        continue;
      }
      if (before.left) part->leaving.push_back({&tree, static_cast<int32_t>(i), before.node});
      i += static_cast<size_t>(node.size);
    }
  }

  // Of tokens that leave the rule: those that may come when all of the state is asked.
  void AddLeaving(int32_t state, const StatePart& part, TokenMask* mask) {
    struct Step {
      int32_t state = kNowhere, node = -2;
      const TokenTree* tree = nullptr;
    };
    std::vector<Step> path(trie_.max_depth() + 1);  // by depth: where the bytes before it lead
    for (const Leaving& leaving : part.leaving) {
      const auto& [nodes, tokens] = *leaving.tree;
      const TokenTree::Node& top = nodes[static_cast<size_t>(leaving.node)];
      if (path[top.depth].node != leaving.parent || path[top.depth].tree != leaving.tree) {
        const std::string_view bytes = trie_.bytes(tokens[static_cast<size_t>(top.first)]).substr(0, top.depth);
        path[top.depth] = {Next(state, bytes), leaving.parent, leaving.tree};
      }
      for (size_t i = static_cast<size_t>(leaving.node), end = i + static_cast<size_t>(top.size); i < end;) {
        const TokenTree::Node& node = nodes[i];
        ++work_;
        const int32_t next = path[node.depth].state == kNowhere ? kNowhere : Next(path[node.depth].state, node.byte);
        if (next == kNowhere) {
          i += static_cast<size_t>(node.size);
          continue;
        }
        for (int32_t at = 0; at < node.own; ++at) SetToken(mask, tokens[static_cast<size_t>(node.first + at)]);
        path[node.depth + 1u] = {next, static_cast<int32_t>(i), leaving.tree};
        ++i;
      }
    }
  }

  const Automaton& automaton_;
  const TokenTrie& trie_;
  std::vector<State> states_;
  std::atomic<size_t> num_states_ = 0;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, int32_t> frame_ids_;
  std::unordered_set<uint64_t> seen_;
  std::unordered_map<int32_t, CharStep> char_steps_;
  std::unordered_map<int32_t, StatePart> local_masks_;
  std::unordered_map<int32_t, std::shared_ptr<const TokenMask>> masks_;
  StatePart unfinished_;                     // the last one that was not
  uint64_t work_ = 0, most_work_ = kMaskWork;
  size_t most_states_ = kMaxStates;
  bool exhausted_ = false;
  int32_t start_ = 0;
};

Grammar::Grammar(Automaton automaton, std::shared_ptr<const TokenTrie> trie) : automaton_(std::move(automaton)), trie_(std::move(trie)) {}
Grammar::~Grammar() = default;

Result<std::shared_ptr<const Grammar>> Grammar::Create(const RuleSet& rules, std::shared_ptr<const TokenTrie> trie) {
  OSCAR_ASSIGN_OR_RETURN(Automaton automaton, Automaton::Compile(rules));
  return std::shared_ptr<const Grammar>(new Grammar(std::move(automaton), std::move(trie)));
}

std::shared_ptr<DeterministicWalk> Grammar::walk() const {
  const std::lock_guard lock(mutex_);
  if (walk_ == nullptr || walk_->num_states() > kFreshAbove) walk_ = std::make_shared<DeterministicWalk>(automaton_, *trie_);
  return walk_;
}

bool Grammar::Matches(std::string_view text) const {
  const std::shared_ptr<DeterministicWalk> found = walk();
  const std::lock_guard lock(found->mutex);
  found->Allow(kUnbounded, kUnbounded);
  const int32_t state = found->Next(found->start(), text);
  return state != kNowhere && found->complete(state);
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)), walk_(grammar_->walk()), state_(walk_->start()) {}

Result<std::shared_ptr<const TokenMask>> GrammarMatcher::Mask() {
  const std::lock_guard lock(walk_->mutex);
  walk_->Allow(kMaskWork, kMaxStates);
  std::shared_ptr<const TokenMask> mask = walk_->MaskOf(state_);
  if (walk_->exhausted()) return Status(StatusCode::kInvalidArgument, "the grammar has too many states on the way of this answer");
  const bool any = std::ranges::any_of(*mask, [](uint32_t word) { return word != 0; });
  if (!any) return Status(StatusCode::kInvalidArgument, "the grammar allows no token here: it is nested too deeply");
  return mask;
}

void GrammarMatcher::Accept(int32_t token) {
  const std::lock_guard lock(walk_->mutex);
  walk_->Allow(kUnbounded, kUnbounded);  // a mask let it in: as much as one token takes
  const int32_t next = walk_->Next(state_, grammar_->trie().bytes(token));
  OSCAR_CHECK(next != kNowhere);
  state_ = next;
}

bool GrammarMatcher::complete() const {
  const std::lock_guard lock(walk_->mutex);
  return walk_->complete(state_);
}

}  // namespace oscar::engine::grammar
