// MergeSymbols: the greedy merge of both kinds of tokenizer. Of all neighbouring symbols that may
// merge, the pair of lowest rank goes first, of equals the leftmost. A heap makes it n log n for a
// word of n symbols.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace oscar::engine {

struct Symbol {
  int32_t id = -1;        // token, or -1 for text that is no token
  uint32_t begin = 0;     // first byte in the word
  uint32_t size = 0;      // bytes; 0 once merged into the symbol on its left
  int32_t previous = -1;  // index, -1 at the ends
  int32_t next = -1;
};

struct Merge {
  uint32_t rank = 0;
  int32_t id = -1;  // the token that two symbols become
};

// Symbols of one word and the merges waiting; kept between words to save allocations.
class SymbolMerger {
 public:
  void Clear() { symbols_.clear(); }
  // Adds a symbol of `size` >= 1 bytes behind the last one.
  void Add(int32_t id, uint32_t size) {
    const auto index = static_cast<int32_t>(symbols_.size());
    Symbol symbol{id, 0, size, index - 1, -1};
    if (index > 0) {
      symbols_.back().next = index;
      symbol.begin = symbols_.back().begin + symbols_.back().size;
    }
    symbols_.push_back(symbol);
  }

  // `find_merge(left, right)`: what two neighbours become, as std::optional<Merge>.
  template <class FindMerge>
  void Run(const FindMerge& find_merge) {
    queue_.clear();
    for (size_t i = 0; i + 1 < symbols_.size(); ++i)
      Offer(static_cast<int32_t>(i), find_merge, /*into_heap=*/false);
    std::make_heap(queue_.begin(), queue_.end());
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      const Candidate best = queue_.back();
      queue_.pop_back();
      Symbol& left = symbols_[static_cast<size_t>(best.left)];
      if (left.size == 0 || left.next < 0) continue;
      Symbol& right = symbols_[static_cast<size_t>(left.next)];
      // Symbols only grow, so the sum of sizes tells whether either has changed since the offer.
      if (left.size + right.size != best.size) continue;
      left.id = best.id;
      left.size = best.size;
      right.size = 0;
      left.next = right.next;
      if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = best.left;
      if (left.previous >= 0) Offer(left.previous, find_merge, /*into_heap=*/true);
      Offer(best.left, find_merge, /*into_heap=*/true);
    }
  }

  // Calls visit(symbol) for what is left, in order.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    if (symbols_.empty()) return;
    for (int32_t i = 0; i >= 0; i = symbols_[static_cast<size_t>(i)].next)
      visit(symbols_[static_cast<size_t>(i)]);
  }

 private:
  struct Candidate {
    uint32_t rank;
    int32_t left;
    uint32_t size;  // of both together, when offered
    int32_t id;
    // For the heap, whose top is the greatest: the lowest rank, then the leftmost.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  template <class FindMerge>
  void Offer(int32_t left, const FindMerge& find_merge, bool into_heap) {
    const Symbol& first = symbols_[static_cast<size_t>(left)];
    if (first.next < 0) return;
    const Symbol& second = symbols_[static_cast<size_t>(first.next)];
    const std::optional<Merge> merge = find_merge(first, second);
    if (!merge) return;
    queue_.push_back({merge->rank, left, first.size + second.size, merge->id});
    if (into_heap) std::push_heap(queue_.begin(), queue_.end());
  }

  std::vector<Symbol> symbols_;
  std::vector<Candidate> queue_;
};

}  // namespace oscar::engine
