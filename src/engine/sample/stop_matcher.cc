#include "src/engine/sample/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace oscar::engine {
namespace {

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t PartialMatch(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include) : stops_(std::move(stops)), include_(include) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::Push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  size_t first = std::string::npos, first_end = std::string::npos, keep = 0;
  for (const std::string& stop : stops_) {
    keep = std::max(keep, PartialMatch(held_, stop));
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < first_end || (end == first_end && begin < first)) {
      first = begin;
      first_end = end;
      matched_ = stop;
    }
  }
  stopped_ = first != std::string::npos;
  const size_t shown = stopped_ ? (include_ ? first_end : first) : held_.size() - keep;
  std::string out = held_.substr(0, shown);
  held_.erase(0, stopped_ ? std::string::npos : shown);
  return out;
}

std::string StopMatcher::Finish() { return std::exchange(held_, {}); }

}  // namespace oscar::engine
