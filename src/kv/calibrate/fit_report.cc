#include "src/kv/calibrate/fit_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

namespace oscar::calibrate {

void AddRotation(const FittedRotation& fitted, KvSide side, FitReport::Layer* layer) {
  double& condition = side == KvSide::kKey ? layer->k_condition : layer->v_condition;
  double& share = side == KvSide::kKey ? layer->k_top8_share : layer->v_top8_share;
  condition = std::max(condition, Condition(fitted.eigenvalues));
  share = std::max(share, Top8Share(fitted.eigenvalues));
  layer->orthogonality_error = std::max(layer->orthogonality_error, fitted.orthogonality_error);
}

void AddHeadSpread(const Matrix& rotation, const Matrix& query_covariance, FitReport::Layer* layer) {
  const Eigen::VectorXd importance = RotatedDiagonal(rotation, query_covariance);
  const double mean = importance.mean();
  const double spread = mean > 0 ? importance.maxCoeff() / mean : 1.0;  // a head without queries minds no error
  if (spread > layer->worst_head_spread) {
    layer->worst_head_spread = spread;
    layer->worst_head = static_cast<int>(layer->head_spread.size());
  }
  layer->head_spread.push_back(spread);
}

void AddConvergence(const MomentAccumulator::Impl& moments, FitReport* report) {
  for (const LayerMoments& layer : moments.layers) {
    const double fraction = static_cast<double>(layer.early_tokens) / static_cast<double>(layer.num_tokens[0]);
    if (std::abs(fraction - 0.75) > 0.05) return;  // the expectation was wrong
    Matrix early = Matrix::Zero(moments.shape.head_dim, moments.shape.head_dim), all = early;
    for (const HeadMoments& head : layer.heads) {
      early += Full(head.early_query) / static_cast<double>(layer.early_tokens);
      all += Full(head.query) / static_cast<double>(layer.num_tokens[0]);
    }
    const double norm = all.norm();
    report->k_convergence = std::max(report->k_convergence, norm > 0 ? (early - all).norm() / norm : 0.0);
  }
}

void AddSharingWarning(FitReport* report) {
  const FitReport::Layer* worst = nullptr;
  size_t worst_layer = 0, num_above = 0;
  for (size_t i = 0; i < report->layers.size(); ++i) {
    const FitReport::Layer& layer = report->layers[i];
    num_above += layer.worst_head_spread > kMaxSharedSpread;
    if (worst != nullptr && layer.worst_head_spread <= worst->worst_head_spread) continue;
    worst = &layer;
    worst_layer = i;
  }
  if (num_above == 0) return;
  char text[320];
  std::snprintf(text, sizeof(text),
                "the shared key basis serves some KV heads unevenly: worst is layer %zu, KV head %d, whose most important "
                "channel carries %.2f times the mean (1.00 with --per-head; %zu of %zu layers are above %.1f)",
                worst_layer, worst->worst_head, worst->worst_head_spread, num_above, report->layers.size(),
                kMaxSharedSpread);
  report->warnings.emplace_back(text);
}

}  // namespace oscar::calibrate
