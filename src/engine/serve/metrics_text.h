// MetricsText: the Prometheus text format 0.0.4, written family by family.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/engine/serve/histogram.h"

namespace oscar::engine {

class MetricsText {
 public:
  // Names and values; values may hold any bytes.
  using Labels = std::vector<std::pair<std::string, std::string>>;
  // base: on every sample.
  explicit MetricsText(Labels base) : base_(std::move(base)) {}

  // Begins a family; its samples follow. type: "gauge", "counter" or "histogram".
  void Family(std::string_view name, std::string_view type, std::string_view help);
  void Sample(double value, const Labels& labels = {});
  void Samples(const Histogram& histogram, const Labels& labels = {});

  void Gauge(std::string_view name, std::string_view help, double value, const Labels& labels = {});
  void Counter(std::string_view name, std::string_view help, double value, const Labels& labels = {});
  void AddHistogram(std::string_view name, std::string_view help, const Histogram& histogram, const Labels& labels = {});

  const std::string& text() const { return text_; }

 private:
  void Line(std::string_view suffix, const Labels& labels, const Labels& more, std::string_view value);

  const Labels base_;
  std::string family_;
  std::string text_;
};

}  // namespace oscar::engine
