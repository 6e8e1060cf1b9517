#include "src/kv/pool/prefix_tree.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"

namespace oscar::pool {
namespace {

PageTokens PageAt(std::span<const int32_t> tokens, int page_index) {
  PageTokens page;
  std::copy_n(tokens.begin() + page_index * kPageTokens, kPageTokens, page.begin());
  return page;
}

int SharedTokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  const std::size_t limit = std::min(a.size(), b.size());
  return static_cast<int>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(limit), b.begin()).first - a.begin());
}

}  // namespace

// --- Matching

// A resume point below `node`, which lies behind `length`, that serves `length`; null when there is none. Lengths only grow
// downwards, so the search ends where the window begins later.
const PrefixTree::Tail* PrefixTree::TailBelow(const Node& node, int length) const {
  if (node.tails_below == 0 || EncodedEnd(node.depth * kPageTokens, windows_) > EncodedEnd(length, windows_)) return nullptr;
  for (const TailPlace tail : node.tails) {
    if (EncodedEnd(tail->length, windows_) == EncodedEnd(length, windows_)) return &*tail;
  }
  for (const auto& [tokens, child] : node.children) {
    if (const Tail* tail = TailBelow(*child, length)) return tail;
  }
  return nullptr;
}

void PrefixTree::Consider(const Node& node, const Node* matching_child, std::span<const int32_t> rest, Found& found) const {
  const int length = node.depth * kPageTokens;
  for (const TailPlace tail : node.tails) {
    const int shared = length + SharedTokens(tail->rest, rest);
    found.matched = std::max(found.matched, shared);
    if (shared > found.resumable && EncodedEnd(shared, windows_) == EncodedEnd(tail->length, windows_)) {
      found.resumable = shared;
      found.tail = &*tail;
      found.holder = &node;
    }
  }
  // Children stand in the order of their tokens: from the place where `rest` would stand, both ways, they share less and less.
  PageTokens wanted{};
  std::copy_n(rest.begin(), std::min<std::size_t>(rest.size(), wanted.size()), wanted.begin());
  using Child = decltype(node.children)::const_iterator;
  Child after = node.children.lower_bound(wanted), before = after;
  if (after != node.children.end() && after->second.get() == matching_child) ++after;
  for (;;) {
    const int next = after == node.children.end() ? -1 : SharedTokens(after->first, rest);
    const int previous = before == node.children.begin() ? -1 : SharedTokens(std::prev(before)->first, rest);
    if (std::max(next, previous) < 0) return;
    const int shared = length + std::max(next, previous);
    found.matched = std::max(found.matched, shared);
    if (shared <= found.resumable) return;
    const Node& child = next >= previous ? *after->second : *std::prev(before)->second;
    next >= previous ? ++after : --before;
    const Tail* tail = TailBelow(child, shared);
    if (tail == nullptr && !InSink(child)) continue;  // a page of the sink serves by itself
    found.resumable = shared;
    found.tail = tail;
    found.holder = tail != nullptr ? tail->node : &child;
    return;
  }
}

PrefixTree::Found PrefixTree::Find(std::string_view space, std::span<const int32_t> tokens) const {
  Found found;
  const auto root = spaces_.find(space);
  if (root == spaces_.end()) return found;
  const Node* node = &root->second;
  const int full_pages = static_cast<int>(tokens.size()) / kPageTokens;
  while (node->depth < full_pages) {
    const auto child = node->children.find(PageAt(tokens, node->depth));
    if (child == node->children.end()) break;
    node = child->second.get();
  }
  found.node = found.holder = node;
  found.matched = node->depth * kPageTokens;
  // The sink alone: its rows stay BF16 at every length.
  if (found.matched >= windows_.sink) found.resumable = windows_.sink;
  for (const Node* child = nullptr; node != nullptr; child = std::exchange(node, node->parent)) {
    // Nothing here or above reaches further than the page that follows this one.
    if ((node->depth + 1) * kPageTokens <= found.resumable) break;
    Consider(*node, child, tokens.subspan(static_cast<std::size_t>(node->depth * kPageTokens)), found);
  }
  return found;
}

PrefixMatch PrefixTree::Match(std::string_view space, std::span<const int32_t> tokens) const {
  const Found found = Find(space, tokens);
  PrefixMatch match{found.matched, found.resumable, 0};
  const int end_page = EncodedEnd(found.resumable, windows_) / kPageTokens;
  for (const Node* node = found.node; node != nullptr && node->parent != nullptr; node = node->parent) {
    if (node->depth <= end_page && !InSink(*node) && node->page.num_owners() > 1) ++match.live_encoded_pages;
  }
  return match;
}

// Handles on the pages of the first `length` tokens below `node`, with the BF16 rows of `tail`.
SequencePages PrefixTree::Pages(const Node& node, const Tail* tail, int length) const {
  const int num_pages = PagesFor(length), end_encoded = EncodedEnd(length, windows_) / kPageTokens;
  PageTable bf16, encoded;
  bf16.Resize(num_pages);
  encoded.Resize(num_pages);
  for (const Node* at = &node; at->parent != nullptr; at = at->parent) {
    const int index = at->depth - 1;
    if (index >= std::min(end_encoded, num_pages)) continue;
    OSCAR_CHECK(static_cast<bool>(at->page));
    (InSink(*at) ? bf16 : encoded).Place(index, at->page.Share());
  }
  for (std::size_t i = 0; tail != nullptr && i < tail->pages.size(); ++i) {
    const int index = tail->first_page + static_cast<int>(i);
    if (index < num_pages) bf16.Place(index, tail->pages[i].Share());
  }
  return SequencePages(windows_, length, std::move(bf16), std::move(encoded));
}

SequencePages PrefixTree::Resume(std::string_view space, std::span<const int32_t> tokens) {
  const Found found = Find(space, tokens);
  if (found.resumable == 0) return SequencePages(windows_);
  for (Tail& tail : tails_) {
    if (&tail == found.tail) tail.used = ++clock_;
  }
  return Pages(*found.holder, found.tail, found.resumable);
}

// --- Keeping

void PrefixTree::Insert(std::string_view space, std::span<const int32_t> tokens, SequencePages& sequence, PrefixRetention retention) {
  OSCAR_CHECK(static_cast<int>(tokens.size()) == sequence.length());
  const int length = sequence.length(), full_pages = length / kPageTokens;
  if (full_pages == 0) return;
  const auto root = spaces_.try_emplace(std::string(space)).first;
  Node* node = &root->second;
  node->space = &root->first;
  for (int index = 0; index < full_pages; ++index) {
    const auto [place, is_new] = node->children.try_emplace(PageAt(tokens, index));
    if (is_new) {
      place->second = std::make_unique<Node>();
      place->second->parent = node;
      place->second->tokens = &place->first;
      place->second->depth = node->depth + 1;
    }
    node = place->second.get();
    if (index * kPageTokens >= EncodedEnd(length, windows_)) continue;
    const PageRef& own = InSink(*node) ? sequence.bf16().page(index) : sequence.encoded().page(index);
    if (!node->page) {
      node->page = own.Share();
    } else if (node->page.id() != own.id()) {
      sequence.Exchange(index, node->page.Share());
    }
  }
  AddTail(*node, tokens.subspan(static_cast<std::size_t>(full_pages * kPageTokens)), sequence, retention);
}

void PrefixTree::AddTail(Node& node, std::span<const int32_t> rest, const SequencePages& sequence, PrefixRetention retention) {
  const int length = sequence.length(), first_page = std::min(EncodedEnd(length, windows_) / kPageTokens, node.depth);
  if (first_page == PagesFor(length)) return;  // in the sink alone, which can be resumed without
  // One that goes further along the same tokens serves the shorter one too.
  std::vector<TailPlace> replaced;
  for (const TailPlace old : node.tails) {
    const bool comparable = static_cast<std::size_t>(SharedTokens(old->rest, rest)) == std::min(old->rest.size(), rest.size());
    if (comparable && old->rest.size() >= rest.size()) {
      old->used = ++clock_;
      old->retention = std::max(old->retention, retention);
      return;
    }
    if (!comparable) continue;
    retention = std::max(retention, old->retention);
    replaced.push_back(old);
  }
  Tail tail;
  tail.node = &node;
  tail.length = length;
  tail.rest.assign(rest.begin(), rest.end());
  tail.first_page = first_page;
  for (int index = first_page; index < PagesFor(length); ++index) tail.pages.push_back(sequence.bf16().page(index).Share());
  tail.retention = retention;
  tail.used = ++clock_;
  tails_.push_back(std::move(tail));
  node.tails.push_back(std::prev(tails_.end()));
  int first_new = node.depth;
  for (Node* at = &node; at != nullptr; at = at->parent) {
    if (at->tails_below++ == 0 && at->parent != nullptr) first_new = at->depth - 1;
  }
  if (observer_ != nullptr && first_new < node.depth) {
    const Path path = PathTo(node);
    observer_->Stored(*path.space, path.tokens, first_new);
  }
  for (const TailPlace old : replaced) RemoveTail(old);
}

void PrefixTree::RemoveTail(TailPlace tail) {
  Node& last = *tail->node;
  std::erase(last.tails, tail);
  int first_gone = last.depth;
  for (Node* node = &last; node != nullptr; node = node->parent) {
    if (--node->tails_below == 0 && node->parent != nullptr) first_gone = node->depth - 1;
  }
  tails_.erase(tail);
  if (observer_ == nullptr || first_gone == last.depth) return;
  const Path path = PathTo(last);
  observer_->Removed(*path.space, path.tokens, first_gone);
}

PrefixTree::Path PrefixTree::PathTo(const Node& node) {
  Path path;
  path.tokens.resize(static_cast<std::size_t>(node.depth * kPageTokens));
  const Node* at = &node;
  for (; at->parent != nullptr; at = at->parent) std::ranges::copy(*at->tokens, path.tokens.begin() + (at->depth - 1) * kPageTokens);
  path.space = at->space;
  return path;
}

void PrefixTree::Observe(PrefixObserver* observer) {
  observer_ = observer;
  if (observer_ == nullptr) return;
  ForEachNode([this](const Node& node) {
    if (node.parent == nullptr || node.tails_below == 0) return;
    const Path path = PathTo(node);
    observer_->Stored(*path.space, path.tokens, node.depth - 1);
  });
}

// --- Giving up

PrefixTree::TailPlace PrefixTree::LeastUsed(const std::function<bool(const Tail&)>& fits) {
  TailPlace least = tails_.end();
  for (TailPlace tail = tails_.begin(); tail != tails_.end(); ++tail) {
    const bool earlier = least == tails_.end() || std::pair(tail->retention, tail->used) < std::pair(least->retention, least->used);
    if (earlier && fits(*tail)) least = tail;
  }
  return least;
}

// Handles of the tree on each BF16 page: a page of the sink may stand in a node and in a tail that ends in it.
std::map<PageId, int> PrefixTree::Bf16Handles() const {
  std::map<PageId, int> handles;
  for (const Tail& tail : tails_) {
    for (const PageRef& page : tail.pages) ++handles[page.id()];
  }
  ForEachNode([&](const Node& node) {
    if (node.page && InSink(node)) ++handles[node.page.id()];
  });
  return handles;
}

// Removes nodes under `node` that no resume point makes reusable and no sequence holds, leaves first, until `count` pages of
// the kind are free. Returns how many are.
int PrefixTree::RemoveUnreusable(Node& node, int count, bool bf16) {
  int freed = 0;
  for (auto child = node.children.begin(); child != node.children.end() && freed < count;) {
    Node& under = *child->second;
    freed += RemoveUnreusable(under, count - freed, bf16);
    if (freed >= count || under.tails_below > 0 || !under.children.empty() || under.page.num_owners() > 1) {
      ++child;
      continue;
    }
    if (under.page) {
      evicted_tokens_ += kPageTokens;
      if (InSink(under) == bf16) ++freed;
    }
    child = node.children.erase(child);
  }
  return freed;
}

int PrefixTree::RemoveUnreusable(int count, bool bf16) {
  int freed = 0;
  for (auto& [space, root] : spaces_) freed += RemoveUnreusable(root, count - freed, bf16);
  std::erase_if(spaces_, [](const auto& entry) { return entry.second.children.empty(); });
  return freed;
}

int PrefixTree::EvictBf16(int count) {
  int freed = 0;
  while (freed < count) {
    const std::map<PageId, int> handles = Bf16Handles();
    const auto idle = [&](const PageRef& page) { return page.num_owners() == handles.at(page.id()); };
    const TailPlace tail = LeastUsed([&](const Tail& one) { return std::ranges::any_of(one.pages, idle); });
    if (tail == tails_.end()) break;
    freed += static_cast<int>(std::ranges::count_if(tail->pages, [](const PageRef& page) { return page.num_owners() == 1; }));
    RemoveTail(tail);
  }
  return freed < count ? freed + RemoveUnreusable(count - freed, /*bf16=*/true) : freed;
}

int PrefixTree::EvictEncoded(int count) {
  int freed = 0;
  for (;;) {
    freed += RemoveUnreusable(count - freed, /*bf16=*/false);
    if (freed >= count) return freed;
    const TailPlace tail = LeastUsed([&](const Tail& one) {
      for (const Node* node = one.node; node->parent != nullptr; node = node->parent) {
        if (!InSink(*node) && node->page.num_owners() == 1) return true;
      }
      return false;
    });
    if (tail == tails_.end()) return freed;
    RemoveTail(tail);
  }
}

bool PrefixTree::DropLeastUsed() {
  const TailPlace tail = LeastUsed([](const Tail&) { return true; });
  if (tail == tails_.end()) return false;
  RemoveTail(tail);
  return true;
}

void PrefixTree::Clear() {
  tails_.clear();
  spaces_.clear();
  if (observer_ != nullptr) observer_->Cleared();
}

// --- Reports

void PrefixTree::ForEachNode(const std::function<void(const Node&)>& visit) const {
  std::vector<const Node*> open;
  for (const auto& [space, root] : spaces_) open.push_back(&root);
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    visit(*node);
    for (const auto& [tokens, child] : node->children) open.push_back(child.get());
  }
}

PrefixStats PrefixTree::Stats() const {
  PrefixStats stats;
  stats.resume_points = static_cast<int>(tails_.size());
  stats.evicted_tokens = evicted_tokens_;
  std::map<PageId, int> handles = Bf16Handles();
  const auto count_bf16 = [&](const PageRef& page) {
    const auto count = handles.find(page.id());
    if (count == handles.end()) return;  // counted
    if (page.num_owners() == count->second) ++stats.idle_bf16_pages;
    handles.erase(count);
  };
  ForEachNode([&](const Node& node) {
    if (!node.page) return;
    stats.tokens += kPageTokens;
    if (InSink(node)) {
      count_bf16(node.page);
    } else if (node.page.num_owners() == 1) {
      ++stats.idle_encoded_pages;
    }
  });
  for (const Tail& tail : tails_) std::ranges::for_each(tail.pages, count_bf16);
  return stats;
}

std::vector<PrefixTree::Point> PrefixTree::Points() const {
  std::vector<const Tail*> order;
  for (const Tail& tail : tails_) order.push_back(&tail);
  std::ranges::sort(order, std::greater<>(), &Tail::used);
  std::vector<Point> points;
  for (const Tail* tail : order) {
    auto [space, tokens] = PathTo(*tail->node);
    tokens.insert(tokens.end(), tail->rest.begin(), tail->rest.end());
    points.push_back({*space, std::move(tokens), Pages(*tail->node, tail, tail->length), tail->retention});
  }
  return points;
}

void PrefixTree::AppendHandles(std::vector<int32_t>& bf16, std::vector<int32_t>& encoded) const {
  ForEachNode([&](const Node& node) {
    if (node.page) (InSink(node) ? bf16 : encoded).push_back(TableEntry(node.page.id()));
  });
  for (const Tail& tail : tails_) {
    for (const PageRef& page : tail.pages) bf16.push_back(TableEntry(page.id()));
  }
}

}  // namespace oscar::pool
