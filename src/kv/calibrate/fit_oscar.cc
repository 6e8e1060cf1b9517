// FitOscar: from moments to a checked int2:oscar profile (method.md 2.2 to 2.7).

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "oscar/calibrate.h"
#include "src/base/status_macros.h"
#include "src/kv/calibrate/fit_report.h"
#include "src/kv/calibrate/moments.h"
#include "src/kv/calibrate/rotation.h"

namespace oscar {
namespace {

using calibrate::FittedRotation;
using calibrate::LayerMoments;
using calibrate::Matrix;

Status FailedPrecondition(std::string why) {
  return {StatusCode::kFailedPrecondition, "calibration: " + std::move(why)};
}

Status CheckComplete(const MomentAccumulator& moments, const OscarFitOptions& options) {
  const MomentAccumulator::Impl& impl = moments.impl();
  OSCAR_TRY(impl.failed);
  OSCAR_TRY(CheckOscarFit(impl.shape, options));
  if (options.v_metric != impl.options.v_metric) {
    return FailedPrecondition("the moments were summed for the V metric " +
                              std::string(VMetricName(impl.options.v_metric)) + ", not " +
                              std::string(VMetricName(options.v_metric)));
  }
  if (impl.pass != moments.num_passes()) {
    return FailedPrecondition(std::to_string(impl.pass) + " of " + std::to_string(moments.num_passes()) +
                              " passes have ended");
  }
  const int64_t needed = 8 * static_cast<int64_t>(impl.shape.head_dim);
  for (size_t i = 0; i < impl.layers.size(); ++i) {
    const std::array<int64_t, 2>& tokens = impl.layers[i].num_tokens;
    const std::string name = "layer " + std::to_string(i);
    if (tokens[0] != moments.num_tokens() || (moments.num_passes() == 2 && tokens[1] != tokens[0])) {
      return FailedPrecondition(name + " saw " + std::to_string(tokens[0]) + " and " + std::to_string(tokens[1]) +
                                " tokens in its passes, layer 0 " + std::to_string(moments.num_tokens()));
    }
    if (options.v_metric == VMetric::kSoftmax && impl.layers[i].output_tokens != tokens[0]) {
      return FailedPrecondition(name + " saw the attention outputs of " + std::to_string(impl.layers[i].output_tokens) + " of " +
                                std::to_string(tokens[0]) + " tokens");
    }
    if (tokens[0] < needed) {
      return FailedPrecondition("the text is too short: " + std::to_string(tokens[0]) + " tokens, where head_dim " +
                                std::to_string(impl.shape.head_dim) + " needs at least " + std::to_string(needed));
    }
  }
  return {};
}

// C of one KV head: method.md 2.2 and 2.3.
Matrix HeadCovariance(const MomentAccumulator::Impl& impl, const LayerMoments& layer, int head, KvSide side,
                      KMetric k_metric) {
  const calibrate::HeadMoments& sums = layer.heads[static_cast<size_t>(head)];
  const double tokens = static_cast<double>(layer.num_tokens[0]);
  if (side == KvSide::kValue) return calibrate::Full(sums.value) / std::max(sums.weight, 1e-12);
  if (k_metric == KMetric::kPlain) return calibrate::Full(sums.key) / tokens;
  return calibrate::Full(sums.query) / (tokens * impl.shape.group());
}

std::string Place(int layer, std::optional<int> head, KvSide side) {
  return "calibration: layer " + std::to_string(layer) +
         (head.has_value() ? ", KV head " + std::to_string(*head) : std::string()) +
         (side == KvSide::kKey ? ", keys" : ", values");
}

class OscarFit {
 public:
  OscarFit(const MomentAccumulator& moments, const OscarFitOptions& options, FitReport* report)
      : impl_(moments.impl()), options_(options), report_(report) {}

  Result<CodecProfile> Run(Provenance provenance) {
    const KvShape& shape = impl_.shape;
    rows_.resize(static_cast<size_t>(shape.num_layers) * static_cast<size_t>(shape.num_kv_heads) * 2);
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      layer_report_ = {};
      for (const KvSide side : {KvSide::kKey, KvSide::kValue}) OSCAR_TRY(FitSide(layer, side));
      report_->layers.push_back(std::move(layer_report_));
    }
    calibrate::AddConvergence(impl_, report_);
    if (!options_.per_head) calibrate::AddSharingWarning(report_);
    Result<CodecProfile> profile =
        CodecProfile::Create("int2:oscar", shape, std::move(transforms_), std::move(rows_), std::move(provenance));
    if (!profile.ok()) return profile;
    for (size_t i = 0; i < eigenvalues_.size(); ++i) {
      profile->set_eigenvalues(static_cast<int>(i / 2), i % 2 == 0 ? KvSide::kKey : KvSide::kValue,
                               std::move(eigenvalues_[i]));
    }
    return profile;
  }

 private:
  // Fits the one basis of a layer's heads, or one for each, and fills their rows.
  Status FitSide(int layer, KvSide side) {
    const LayerMoments& moments = impl_.layers[static_cast<size_t>(layer)];
    const int heads = impl_.shape.num_kv_heads;
    std::vector<float>& eigenvalues = eigenvalues_.emplace_back();
    Matrix mean = Matrix::Zero(impl_.shape.head_dim, impl_.shape.head_dim);
    for (int head = 0; head < heads; ++head) {
      const Matrix covariance = HeadCovariance(impl_, moments, head, side, options_.k_metric);
      if (!options_.per_head) {
        mean += covariance / heads;
        continue;
      }
      OSCAR_TRY(FitHeads(layer, side, covariance, head, head + 1, eigenvalues));
    }
    return options_.per_head ? Status() : FitHeads(layer, side, mean, 0, heads, eigenvalues);
  }

  // One basis for KV heads [first, last).
  Status FitHeads(int layer, KvSide side, const Matrix& covariance, int first, int last,
                  std::vector<float>& eigenvalues) {
    const std::string place = Place(layer, options_.per_head ? std::optional(first) : std::nullopt, side);
    Result<FittedRotation> fitted = calibrate::FitRotation(covariance, options_.composition);
    if (!fitted.ok()) return fitted.status().WithContext(place);
    if (fitted->eigenvalues.maxCoeff() == 0)
      report_->warnings.push_back(place + ": all rows are zero, so the basis is arbitrary");
    const int transform = static_cast<int>(transforms_.size());
    OSCAR_TRY(AddTransform(*fitted).WithContext(place));
    for (int head = first; head < last; ++head) {
      CodecProfile::Row& row = rows_[RowIndex(layer, head, side)];
      row.transform = transform;
      row.clip_ratio = side == KvSide::kKey ? options_.clip_k : options_.clip_v;
      row.encoder = options_.lloyd_levels ? EncoderKind::kLloydAffine : EncoderKind::kMinMax;
      if (options_.lloyd_levels) row.range_factor = options_.lloyd_ratio;
    }
    for (Eigen::Index i = 0; i < fitted->eigenvalues.size(); ++i) {
      eigenvalues.push_back(static_cast<float>(fitted->eigenvalues[i]));
    }
    calibrate::AddRotation(*fitted, side, &layer_report_);
    if (side == KvSide::kKey) {
      const Matrix stored = fitted->rotation.cast<double>();
      for (int head = first; head < last; ++head) {
        const LayerMoments& moments = impl_.layers[static_cast<size_t>(layer)];
        calibrate::AddHeadSpread(stored, HeadCovariance(impl_, moments, head, side, KMetric::kQuery), &layer_report_);
      }
    }
    return {};
  }

  Status AddTransform(const FittedRotation& fitted) {
    const int d = impl_.shape.head_dim;
    Result<KvTransform> transform =
        options_.composition == Composition::kHadamard
            ? KvTransform::Hadamard(d)
            : KvTransform::Orthogonal(d, {fitted.rotation.data(), fitted.rotation.data() + fitted.rotation.size()});
    if (!transform.ok()) return transform.status();
    transforms_.push_back(std::move(*transform));
    return {};
  }

  size_t RowIndex(int layer, int head, KvSide side) const {
    return (static_cast<size_t>(layer) * static_cast<size_t>(impl_.shape.num_kv_heads) + static_cast<size_t>(head)) *
               2 +
           (side == KvSide::kValue ? 1 : 0);
  }

  const MomentAccumulator::Impl& impl_;
  const OscarFitOptions& options_;
  FitReport* report_;
  FitReport::Layer layer_report_;
  std::vector<KvTransform> transforms_;
  std::vector<CodecProfile::Row> rows_;
  std::vector<std::vector<float>> eigenvalues_;  // layer before side
};

}  // namespace

Result<CodecProfile> FitOscar(const MomentAccumulator& moments, const OscarFitOptions& options, Provenance provenance,
                              FitReport* report) {
  OSCAR_TRY(CheckComplete(moments, options));
  provenance.num_tokens = moments.num_tokens();
  provenance.scope = options.per_head ? "head" : "layer";
  provenance.k_metric = KMetricName(options.k_metric);
  provenance.v_metric = VMetricName(options.v_metric);
  provenance.composition = CompositionName(options.composition);
  FitReport unread;
  if (report == nullptr) report = &unread;
  *report = {};
  return OscarFit(moments, options, report).Run(std::move(provenance));
}

}  // namespace oscar
