// Names of the fit's options, as the command line and the profile spell them, and the early check of a fit.

#include <array>
#include <cmath>
#include <string>

#include "oscar/calibrate.h"
#include "src/base/status_macros.h"
#include "src/kv/profile/profile_limits.h"
#include "src/kv/transform/hadamard.h"

namespace oscar {
namespace {

constexpr std::array<std::string_view, 2> kKMetrics = {"query", "plain"};
constexpr std::array<std::string_view, 3> kVMetrics = {"score", "plain", "softmax"};
constexpr std::array<std::string_view, 5> kCompositions = {"plain", "r_h", "r_h_pbr", "h_pbr", "hadamard"};

template <class Enum, size_t N>
Result<Enum> Parse(const char* what, const std::array<std::string_view, N>& names, std::string_view text) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
    known.append(i == 0 ? "" : ", ").append(names[i]);
  }
  return Status(StatusCode::kInvalidArgument,
                std::string(what) + " \"" + std::string(text.substr(0, 40)) + "\" is not known; there are " + known);
}

Status CheckClip(const char* name, float ratio) {
  if (std::isfinite(ratio) && ratio <= 1.0f) return {};
  return {StatusCode::kInvalidArgument, std::string(name) + " " + std::to_string(ratio) + " is not a number up to 1"};
}

}  // namespace

std::string_view KMetricName(KMetric metric) { return kKMetrics[static_cast<size_t>(metric)]; }
std::string_view VMetricName(VMetric metric) { return kVMetrics[static_cast<size_t>(metric)]; }
std::string_view CompositionName(Composition composition) { return kCompositions[static_cast<size_t>(composition)]; }
Result<KMetric> ParseKMetric(std::string_view text) { return Parse<KMetric>("K metric", kKMetrics, text); }
Result<VMetric> ParseVMetric(std::string_view text) { return Parse<VMetric>("V metric", kVMetrics, text); }
Result<Composition> ParseComposition(std::string_view text) {
  return Parse<Composition>("composition", kCompositions, text);
}

Status CheckOscarFit(const KvShape& shape, const OscarFitOptions& options) {
  OSCAR_TRY(CheckProfileShape(shape));
  if (!transform::IsPowerOfTwo(shape.head_dim)) {
    return {StatusCode::kUnsupported,
            "int2:oscar needs a head dimension that is a power of two, but layer 0 (as all layers) has " +
                std::to_string(shape.head_dim)};
  }
  if (!std::isfinite(options.lloyd_ratio) || options.lloyd_ratio <= 0) {
    return {StatusCode::kInvalidArgument, "the Lloyd ratio " + std::to_string(options.lloyd_ratio) + " is not a number above 0"};
  }
  OSCAR_TRY(CheckClip("the clip ratio of keys", options.clip_k));
  return CheckClip("the clip ratio of values", options.clip_v);
}

}  // namespace oscar
