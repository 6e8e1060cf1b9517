#include "src/engine/text/grammar/matcher.h"

#include <algorithm>
#include <cstring>
#include <limits>
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
constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max() / 2;

}  // namespace

// Sets of (state, stack) that some bytes lead to, numbered as they are met. Not thread-safe but for `mutex`.
class DeterministicWalk {
 public:
  DeterministicWalk(const Automaton& automaton, const TokenTrie& trie) : automaton_(automaton), trie_(trie) {
    start_ = Intern({{automaton.start(automaton.root()), kEmptyStack}});
  }

  int32_t start() const { return start_; }
  size_t num_states() const { return states_.size(); }
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
    std::vector<Place> places;
    for (const Place& place : states_[static_cast<size_t>(from)].places) {
      work_ += 1 + automaton_.edges(place.state).size();
      for (const Edge& edge : automaton_.edges(place.state)) {
        if (edge.rule == Edge::kByte && edge.low <= byte && byte <= edge.high) places.push_back({edge.to, place.stack});
      }
    }
    known = places.empty() ? kNowhere : Intern(std::move(places));
    (*states_[static_cast<size_t>(from)].next)[byte] = known;
    return known;
  }

  int32_t Next(int32_t state, std::string_view bytes) {
    for (size_t i = 0; i < bytes.size() && state != kNowhere; ++i) state = Next(state, static_cast<uint8_t>(bytes[i]));
    return state;
  }

  std::shared_ptr<const TokenMask> MaskOf(int32_t state) {
    if (const auto found = masks_.find(state); found != masks_.end()) return found->second;
    if (masks_.size() >= kMaxMasks) masks_.clear();
    auto mask = std::make_shared<TokenMask>((static_cast<size_t>(trie_.num_tokens()) + 31) / 32);
    // Places on one stack are one caller's; of a token that leaves the rule the whole state must be asked.
    std::vector<Place> places = states_[static_cast<size_t>(state)].places;
    std::ranges::stable_sort(places, {}, &Place::stack);
    std::vector<int32_t> doubtful;
    for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
      std::vector<Place> local;
      for (; end < places.size() && places[end].stack == places[begin].stack; ++end) local.push_back({places[end].state, kUnknownStack});
      const LocalMask& part = LocalMaskOf(Intern(std::move(local)));
      for (size_t word = 0; word < mask->size(); ++word) (*mask)[word] |= part.inside[word];
      doubtful.insert(doubtful.end(), part.leaving.begin(), part.leaving.end());
    }
    for (const int32_t token : doubtful) {
      if (!Has(*mask, token) && Next(state, trie_.bytes(token)) != kNowhere) Set(mask.get(), token);
    }
    if (complete(state)) {
      for (const int32_t token : trie_.end_tokens()) Set(mask.get(), token);
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
  struct Frame {
    int32_t back, below, depth;
  };
  struct LocalMask {
    TokenMask inside;              // tokens that stay in the rule, or end with it
    std::vector<int32_t> leaving;  // tokens that go on behind the rule's end
  };

  static bool Has(const TokenMask& mask, int32_t token) { return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0; }
  static void Set(TokenMask* mask, int32_t token) { (*mask)[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32); }

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
    if (is_new) states_.push_back(std::move(state));
    return found->second;
  }

  const LocalMask& LocalMaskOf(int32_t local) {
    if (const auto found = local_masks_.find(local); found != local_masks_.end()) return found->second;
    if (local_masks_.size() >= kMaxMasks) local_masks_.clear();
    LocalMask mask;
    mask.inside.resize((static_cast<size_t>(trie_.num_tokens()) + 31) / 32);
    struct Step {
      int32_t state;
      bool left;  // the rule ended before the last byte
    };
    std::vector<Step> path(trie_.max_depth() + 1);
    path[0] = {local, false};
    const auto nodes = trie_.nodes();
    const auto tokens = trie_.tokens();
    for (size_t i = 0; i < nodes.size();) {
      const TokenTrie::Node& node = nodes[i];
      ++work_;
      const Step& before = path[node.depth];
      const int32_t next = Next(before.state, node.byte);
      if (next != kNowhere) {
        for (const int32_t token : tokens.subspan(static_cast<size_t>(node.first), static_cast<size_t>(node.own))) Set(&mask.inside, token);
        path[node.depth + 1u] = {next, before.left || complete(next)};
        ++i;
        continue;
      }
      const size_t end = i + static_cast<size_t>(node.size);
      if (before.left) {
        const auto last = end < nodes.size() ? static_cast<size_t>(nodes[end].first) : tokens.size();
        mask.leaving.insert(mask.leaving.end(), tokens.begin() + node.first, tokens.begin() + static_cast<std::ptrdiff_t>(last));
      }
      i = end;
    }
    if (exhausted_) return unfinished_ = std::move(mask);
    return local_masks_[local] = std::move(mask);
  }

  const Automaton& automaton_;
  const TokenTrie& trie_;
  std::vector<State> states_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, int32_t> frame_ids_;
  std::unordered_set<uint64_t> seen_;
  std::unordered_map<int32_t, LocalMask> local_masks_;
  std::unordered_map<int32_t, std::shared_ptr<const TokenMask>> masks_;
  LocalMask unfinished_;                     // the last one that was not
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
