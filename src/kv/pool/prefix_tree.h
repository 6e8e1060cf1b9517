// PrefixTree: which pages hold which tokens, and where a sequence that begins with them can go on (serving.md 14,
// oscar/prefix_cache.h). A node is one full page of 64 tokens under the page before it; it holds the page that stays (BF16 in the
// sink, encoded behind it). A tail is a resume point: the BF16 pages of the window at some length. Tokens are compared, never
// hashes. Single-threaded.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/prefix_cache.h"
#include "src/kv/pool/sequence_pages.h"

namespace oscar::pool {

using PageTokens = std::array<int32_t, kPageTokens>;

class PrefixTree {
 public:
  explicit PrefixTree(TierWindows windows) : windows_(windows) {}
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  PrefixMatch Match(std::string_view space, std::span<const int32_t> tokens) const;
  // The longest resumable prefix as a sequence; its resume point becomes the most recently used.
  SequencePages Resume(std::string_view space, std::span<const int32_t> tokens);
  // Keeps the pages of a sequence with these tokens and its resume point. Where the tree has a page already, the sequence gets
  // that one in place of its own: the same rows are held once. Precondition: tokens.size() == sequence.length(), no
  // reservation in flight. Fewer tokens than a page are not kept.
  void Insert(std::string_view space, std::span<const int32_t> tokens, SequencePages& sequence, PrefixRetention retention);

  // Gives up pages that no sequence holds until `count` are free, or nothing is left to give; returns how many became free.
  // BF16: resume points, spare ones first, then least recently used. Encoded: pages that no resume point makes reusable, then
  // those of the least recently used ones.
  int EvictBf16(int count);
  int EvictEncoded(int count);
  // Gives up the resume point that goes first, whoever holds its pages. False when there is none.
  bool DropLeastUsed();
  void Clear();
  // As PrefixCache::Observe.
  void Observe(PrefixObserver* observer);

  PrefixStats Stats() const;
  // A resume point as it was inserted.
  struct Point {
    std::string space;
    std::vector<int32_t> tokens;
    SequencePages pages;
    PrefixRetention retention;
  };
  // The most recently used first.
  std::vector<Point> Points() const;
  // Every handle of the tree, by page id, for ValidateInvariants.
  void AppendHandles(std::vector<int32_t>& bf16, std::vector<int32_t>& encoded) const;

 private:
  struct Node;
  struct Tail {
    Node* node = nullptr;          // the last full page
    int length = 0;                // tokens
    std::vector<int32_t> rest;     // those behind the node, fewer than 64
    int first_page = 0;            // page index of pages[0]
    std::vector<PageRef> pages;    // BF16, up to the last page of `length`
    PrefixRetention retention = PrefixRetention::kNormal;
    uint64_t used = 0;             // clock_ when last used
  };
  using TailPlace = std::list<Tail>::iterator;
  struct Node {
    Node* parent = nullptr;        // null for the root of a space
    const PageTokens* tokens = nullptr;  // the key in the parent's map
    const std::string* space = nullptr;  // of a root: its key in spaces_
    int depth = 0;                 // full pages up to and with this one; 0 for a root
    PageRef page;                  // empty where only tails hold the rows
    std::map<PageTokens, std::unique_ptr<Node>> children;
    std::vector<TailPlace> tails;
    int tails_below = 0;           // its own and those of all nodes under it
  };
  struct Found {
    const Node* node = nullptr;    // the last full page that matches; null: the space is unknown
    const Tail* tail = nullptr;    // that makes `resumable` so; null: the sink alone does
    const Node* holder = nullptr;  // whose path has the pages that stay; it may lie behind what matches
    int matched = 0, resumable = 0;
  };

  Found Find(std::string_view space, std::span<const int32_t> tokens) const;
  // Takes the better of `found` and the tails at `node`, and of those under children that share a part of the next page; not
  // under the child that matches wholly, if there is one. rest: the tokens behind the node.
  void Consider(const Node& node, const Node* matching_child, std::span<const int32_t> rest, Found& found) const;
  const Tail* TailBelow(const Node& node, int length) const;
  SequencePages Pages(const Node& node, const Tail* tail, int length) const;
  void AddTail(Node& node, std::span<const int32_t> rest, const SequencePages& sequence, PrefixRetention retention);
  void RemoveTail(TailPlace tail);
  // The tokens of the pages up to and with this one, and whose they are.
  struct Path {
    const std::string* space = nullptr;
    std::vector<int32_t> tokens;
  };
  static Path PathTo(const Node& node);
  int RemoveUnreusable(Node& node, int count, bool bf16);
  int RemoveUnreusable(int count, bool bf16);
  bool InSink(const Node& node) const { return (node.depth - 1) * kPageTokens < windows_.sink; }
  std::map<PageId, int> Bf16Handles() const;
  // Calls `visit` for all nodes, roots included, parents first.
  void ForEachNode(const std::function<void(const Node&)>& visit) const;
  // The tail that goes first among those that `fits`; end when none does.
  TailPlace LeastUsed(const std::function<bool(const Tail&)>& fits);

  const TierWindows windows_;
  std::map<std::string, Node, std::less<>> spaces_;
  std::list<Tail> tails_;
  uint64_t clock_ = 0;
  uint64_t evicted_tokens_ = 0;
  PrefixObserver* observer_ = nullptr;
};

}  // namespace oscar::pool
