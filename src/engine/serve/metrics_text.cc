#include "src/engine/serve/metrics_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace oscar::engine {
namespace {

// The shortest text that reads back as the same number.
std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::string Escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    c == '\n' ? text += "\\n" : text += c;
  }
  return text;
}

}  // namespace

void MetricsText::Family(std::string_view name, std::string_view type, std::string_view help) {
  family_ = name;
  text_.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
}

void MetricsText::Line(std::string_view suffix, const Labels& labels, const Labels& more, std::string_view value) {
  text_.append(family_).append(suffix);
  char separator = '{';
  for (const Labels* list : {&base_, &labels, &more}) {
    for (const auto& [name, text] : *list) {
      text_ += std::exchange(separator, ',');
      text_.append(name).append("=\"").append(Escaped(text)).append("\"");
    }
  }
  if (separator == ',') text_ += '}';
  text_.append(" ").append(value).append("\n");
}

void MetricsText::Sample(double value, const Labels& labels) { Line("", labels, {}, NumberText(value)); }

void MetricsText::Samples(const Histogram& histogram, const Labels& labels) {
  uint64_t below = 0;
  for (std::size_t i = 0; i < histogram.counts().size(); ++i) {
    below += histogram.counts()[i];
    const std::string bound = i < histogram.bounds().size() ? NumberText(histogram.bounds()[i]) : "+Inf";
    Line("_bucket", labels, {{"le", bound}}, std::to_string(below));
  }
  Line("_sum", labels, {}, NumberText(histogram.sum()));
  Line("_count", labels, {}, std::to_string(histogram.count()));
}

void MetricsText::Gauge(std::string_view name, std::string_view help, double value, const Labels& labels) {
  Family(name, "gauge", help);
  Sample(value, labels);
}

void MetricsText::Counter(std::string_view name, std::string_view help, double value, const Labels& labels) {
  Family(name, "counter", help);
  Sample(value, labels);
}

void MetricsText::AddHistogram(std::string_view name, std::string_view help, const Histogram& histogram, const Labels& labels) {
  Family(name, "histogram", help);
  Samples(histogram, labels);
}

}  // namespace oscar::engine
