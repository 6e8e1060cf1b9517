// FitBalanced: from moments to a checked int2:balanced or int1:balanced profile (quality.md 2, 3 and 6).

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "oscar/calibrate.h"
#include "oscar/reference.h"
#include "src/base/status_macros.h"
#include "src/kv/calibrate/balanced_moments.h"
#include "src/kv/calibrate/balanced_transform.h"
#include "src/kv/calibrate/rotation.h"
#include "src/kv/profile/profile_limits.h"
#include "src/kv/transform/hadamard.h"

namespace oscar {
namespace {

using calibrate::BalancedHead;
using calibrate::BalancedLayer;
using calibrate::BalancedTransform;
using calibrate::Matrix;

std::string Place(int layer, int head, KvSide side) {
  return "calibration: layer " + std::to_string(layer) + ", KV head " + std::to_string(head) +
         (side == KvSide::kKey ? ", keys" : ", values");
}

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", value);
  return text;
}

Status CheckComplete(const BalancedMoments::Impl& impl) {
  const auto failed = [](std::string why) { return Status(StatusCode::kFailedPrecondition, "calibration: " + std::move(why)); };
  OSCAR_TRY(impl.failed);
  if (impl.pass != BalancedMoments::kNumPasses) return failed(std::to_string(impl.pass) + " of 2 passes have ended");
  const int64_t needed = int64_t{8} * impl.shape.head_dim;
  const int64_t expected = impl.layers.front().num_tokens[0];
  for (std::size_t i = 0; i < impl.layers.size(); ++i) {
    const BalancedLayer& layer = impl.layers[i];
    const std::string name = "layer " + std::to_string(i);
    if (layer.num_tokens[0] != expected || layer.num_tokens[1] != expected) {
      return failed(name + " saw " + std::to_string(layer.num_tokens[0]) + " and " + std::to_string(layer.num_tokens[1]) +
                    " tokens in its passes, layer 0 " + std::to_string(expected));
    }
    if (expected < needed) {
      return failed("the text is too short: " + std::to_string(expected) + " tokens, where head_dim " +
                    std::to_string(impl.shape.head_dim) + " needs at least " + std::to_string(needed));
    }
    if (layer.output_rows == 0) return failed(name + " has no output projection");
  }
  return {};
}

// Rows of one head to measure errors on, with the page that each was in, and the metric of their errors.
struct Samples {
  const std::vector<std::vector<float>>& rows;
  const std::vector<int>& pages;
  const Matrix& metric;

  // sum of e M e^T, each row encoded and decoded with a row description by the slow judge.
  double Error(const RowProfile& row, const RotaryEmbedding& rotary, int bits) const {
    double sum = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float> mean = reference::PageMean(row, rotary, pages[i]);
      const auto y = reference::TransformRow(rows[i], *row.transform, mean, reference::RoundingOf(row.encoder));
      const auto encoded = reference::EncodeRow(y, bits, row);
      if (!encoded.ok()) continue;  // beyond fp16: no figure here, and an error once the cache meets such a row
      sum += Weigh(rows[i], reference::InverseTransformRow(reference::DecodeRow(*encoded), *row.transform, mean));
    }
    return sum;
  }
  // sum of (x - mu) M (x - mu)^T.
  double Energy(const RowProfile& row, const RotaryEmbedding& rotary) const {
    double sum = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float> mean = reference::PageMean(row, rotary, pages[i]);
      sum += Weigh(rows[i], std::vector<double>(mean.begin(), mean.end()));
    }
    return sum;
  }

 private:
  double Weigh(const std::vector<float>& row, const std::vector<double>& decoded) const {
    Eigen::VectorXd error(metric.rows());
    for (std::size_t c = 0; c < decoded.size(); ++c) error[static_cast<Eigen::Index>(c)] = decoded[c] - static_cast<double>(row[c]);
    return error.dot(metric * error);
  }
};

class BalancedFit {
 public:
  BalancedFit(const BalancedMoments::Impl& impl, const BalancedFitOptions& options) : impl_(impl), options_(options) {}

  Result<CodecProfile> Run(Provenance provenance, BalancedReport* report) {
    const KvShape& shape = impl_.shape;
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      std::vector<float> spectra[2];
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
          OSCAR_TRY(FitRow(layer, head, side, spectra[static_cast<int>(side)]));
        }
      }
      spectra_.push_back(std::move(spectra[0]));
      spectra_.push_back(std::move(spectra[1]));
    }
    std::vector<KvTransform> transforms;
    for (const BalancedTransform& fit : fits_) transforms.push_back(fit.transform);
    auto profile = CodecProfile::Create("int" + std::to_string(options_.bits) + ":balanced", shape, std::move(transforms),
                                        std::move(rows_), std::move(provenance), impl_.rotary);
    if (!profile.ok()) return profile;
    for (int i = 0; i < 2 * shape.num_layers; ++i) {
      profile->set_eigenvalues(i / 2, i % 2 == 0 ? KvSide::kKey : KvSide::kValue, std::move(spectra_[static_cast<std::size_t>(i)]));
    }
    if (report != nullptr) {
      for (int layer = 0; layer < shape.num_layers; ++layer) {
        BalancedReport::Layer& into = report->layers.emplace_back();
        for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
          OSCAR_TRY(Measure(*profile, layer, side, side == KvSide::kKey ? into.key : into.value));
        }
      }
      report->warnings = std::move(warnings_);
    }
    return profile;
  }

 private:
  std::size_t RowIndex(int layer, int head, KvSide side) const {
    return static_cast<std::size_t>((layer * impl_.shape.num_kv_heads + head) * 2 + (side == KvSide::kValue ? 1 : 0));
  }

  Status FitRow(int layer, int head, KvSide side, std::vector<float>& spectrum) {
    const BalancedLayer& moments = impl_.layers[static_cast<std::size_t>(layer)];
    const BalancedHead& sums = moments.heads[static_cast<std::size_t>(head)];
    const bool is_key = side == KvSide::kKey;
    const Matrix covariance = calibrate::Full(is_key ? sums.key_covariance : sums.value_covariance) / sums.covariance_weight;
    const Matrix metric = calibrate::Full(is_key ? sums.query : sums.output);
    auto fitted = calibrate::FitBalancedTransform(covariance, metric, calibrate::AlphaOf(options_.bits), options_.gamma);
    if (!fitted.ok()) return fitted.status().WithContext(Place(layer, head, side));
    if (covariance.trace() <= 0) warnings_.push_back(Place(layer, head, side) + ": all rows are equal, so the transform is arbitrary");
    if (fitted->gamma > options_.gamma) {
      warnings_.push_back(Place(layer, head, side) + ": the error metric was regularised with gamma " + Short(fitted->gamma) +
                          " to bring the condition number to " + Short(fitted->condition));
    } else if (fitted->condition > calibrate::kReportedCondition) {
      warnings_.push_back(Place(layer, head, side) + ": the condition number of the transform is " + Short(fitted->condition));
    }
    CodecProfile::Row row;
    row.transform = static_cast<int>(fits_.size());
    row.mean = is_key ? sums.key_mean : sums.value_mean;
    row.mean_kind = is_key && !impl_.rotary.angles.empty() ? MeanKind::kRotating : MeanKind::kConstant;
    row.metric = fitted->metric;
    row.encoder = EncoderKind::kErrorFeedback;
    rows_.push_back(std::move(row));
    for (const double w : fitted->spectrum) spectrum.push_back(static_cast<float>(w));
    fits_.push_back(std::move(fitted).value());
    return {};
  }

  // The rotation of int2:oscar for this layer and side on the same data (method.md 2.2 to 2.4).
  Result<KvTransform> OscarRotation(int layer, KvSide side) const {
    const int d = impl_.shape.head_dim;
    Matrix covariance = Matrix::Zero(d, d);
    for (const BalancedHead& head : impl_.layers[static_cast<std::size_t>(layer)].heads) {
      covariance += side == KvSide::kKey ? calibrate::Full(head.query)
                                         : Matrix(calibrate::Full(head.scored_value) / std::max(head.score_weight, 1e-12));
    }
    OSCAR_ASSIGN_OR_RETURN(const calibrate::FittedRotation fitted, calibrate::FitRotation(covariance, Composition::kRHPbr));
    return KvTransform::Orthogonal(d, {fitted.rotation.data(), fitted.rotation.data() + fitted.rotation.size()});
  }

  Status Measure(const CodecProfile& profile, int layer, KvSide side, BalancedReport::Side& into) const {
    const BalancedLayer& moments = impl_.layers[static_cast<std::size_t>(layer)];
    const bool is_key = side == KvSide::kKey, compares = transform::IsPowerOfTwo(impl_.shape.head_dim);
    std::optional<KvTransform> rotation, hadamard;
    if (compares) {
      auto fitted = OscarRotation(layer, side);
      if (!fitted.ok()) return fitted.status().WithContext("calibration: the rotation to compare with, layer " + std::to_string(layer));
      rotation.emplace(std::move(fitted).value());
      hadamard.emplace(KvTransform::Hadamard(impl_.shape.head_dim).value());
    }
    double energy = 0, balanced = 0, oscar = 0, plain = 0, predicted = 0;
    for (int head = 0; head < impl_.shape.num_kv_heads; ++head) {
      const BalancedTransform& fit = fits_[RowIndex(layer, head, side)];
      into.condition = std::max(into.condition, fit.condition);
      into.gamma = std::max(into.gamma, fit.gamma);
      const BalancedHead& sums = moments.heads[static_cast<std::size_t>(head)];
      predicted += calibrate::PredictedError(fit.spectrum, calibrate::AlphaOf(options_.bits), options_.bits);
      const Samples samples = {is_key ? sums.sample_keys : sums.sample_values, moments.sample_pages, fit.error_metric};
      const RowProfile row = profile.row(layer, head, side);
      energy += samples.Energy(row, profile.rotary());
      balanced += samples.Error(row, profile.rotary(), options_.bits);
      if (!compares) continue;
      oscar += samples.Error({.transform = &*rotation, .clip_ratio = is_key ? 0.96f : 0.92f}, {}, options_.bits);
      plain += samples.Error({.transform = &*hadamard}, {}, options_.bits);
    }
    into.predicted = predicted / impl_.shape.num_kv_heads;
    if (!(energy > 0)) return {};
    into.measured = balanced / energy;
    if (!compares) return {};
    into.measured_oscar = oscar / energy;
    into.measured_hadamard = plain / energy;
    return {};
  }

  const BalancedMoments::Impl& impl_;
  const BalancedFitOptions& options_;
  std::vector<BalancedTransform> fits_;  // by row
  std::vector<CodecProfile::Row> rows_;
  std::vector<std::vector<float>> spectra_;  // layer before side
  std::vector<std::string> warnings_;
};

}  // namespace

Status CheckBalancedFit(const KvShape& shape, const BalancedFitOptions& options) {
  OSCAR_TRY(CheckProfileShape(shape));
  if (options.bits != 1 && options.bits != 2) {
    return {StatusCode::kUnsupported, "a balanced fit is for 1 or 2 bits, not " + std::to_string(options.bits)};
  }
  if (shape.head_dim % 2 != 0) {
    return {StatusCode::kUnsupported, "a balanced fit needs an even head dimension, not " + std::to_string(shape.head_dim)};
  }
  if (!(options.gamma > 0 && options.gamma <= 1)) return {StatusCode::kInvalidArgument, "gamma is not in (0, 1]"};
  return {};
}

Result<CodecProfile> FitBalanced(const BalancedMoments& moments, const BalancedFitOptions& options, Provenance provenance,
                                 BalancedReport* report) {
  const BalancedMoments::Impl& impl = moments.impl();
  OSCAR_TRY(CheckBalancedFit(impl.shape, options));
  OSCAR_TRY(CheckComplete(impl));
  provenance.num_tokens = moments.num_tokens();
  provenance.scope = "head";
  provenance.k_metric = "query";
  provenance.v_metric = "output";
  provenance.composition = transform::MixingName(impl.shape.head_dim);
  if (report != nullptr) *report = {};
  return BalancedFit(impl, options).Run(std::move(provenance), report);
}

}  // namespace oscar
