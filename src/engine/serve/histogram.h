// Histogram: counts by bucket with fixed bounds, as Prometheus has them. Plain data; whoever shares one guards it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace oscar::engine {

class Histogram {
 public:
  // Bounds first, first * factor, ...: `count` of them, and one bucket above the last.
  Histogram(double first, double factor, int count) {
    for (double bound = first; static_cast<int>(bounds_.size()) < count; bound *= factor) bounds_.push_back(bound);
    counts_.assign(bounds_.size() + 1, 0);
  }
  // 1 ms to 2097 s.
  static Histogram Seconds() { return {0.001, 2, 22}; }
  // 1 us to 8 s.
  static Histogram ShortSeconds() { return {1e-6, 2, 24}; }
  // 1 to 1,048,576.
  static Histogram Tokens() { return {1, 2, 21}; }

  void Observe(double value) {
    ++counts_[static_cast<std::size_t>(std::ranges::lower_bound(bounds_, value) - bounds_.begin())];
    sum_ += value;
    ++count_;
  }
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<uint64_t>& counts() const { return counts_; }  // one more than bounds
  double sum() const { return sum_; }
  uint64_t count() const { return count_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
  uint64_t count_ = 0;
};

}  // namespace oscar::engine
