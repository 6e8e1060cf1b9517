// Accumulation of second moments (method.md 2.1 to 2.3) in groups of rows.

#include "src/kv/calibrate/moments.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/kv/calibrate/captured_rows.h"

namespace oscar {
namespace {

using calibrate::HeadMoments;
using calibrate::LayerMoments;
using calibrate::LayerRows;
using calibrate::Matrix;
using calibrate::AddOuterProducts;
using calibrate::CheckFinite;
using calibrate::CheckView;
using calibrate::RowMatrix;
using calibrate::WidenedRows;


// w[t] = max(0, k M k^T) and the weighted value moment (method.md 2.3, `score`).
void AddScoreWeighted(HeadMoments& head, const Matrix& metric, const RowMatrix& keys, RowMatrix values) {
  const RowMatrix transformed = keys * metric;
  for (Eigen::Index token = 0; token < keys.rows(); ++token) {
    const double weight = std::max(0.0, transformed.row(token).dot(keys.row(token)));
    head.weight += weight;
    values.row(token) *= std::sqrt(weight);
  }
  AddOuterProducts(head.value, values);
}

Status CheckFiniteRows(int layer, const LayerRows& rows, int64_t first_token) {
  OSCAR_TRY(CheckFinite(layer, "queries", "query head", rows.queries, first_token));
  OSCAR_TRY(CheckFinite(layer, "keys", "KV head", rows.keys, first_token));
  return CheckFinite(layer, "values", "KV head", rows.values, first_token);
}

void AddFirstPass(const MomentAccumulator::Impl& impl, LayerMoments& layer, const LayerRows& rows) {
  const int group = impl.shape.group();
  for (int h = 0; h < impl.shape.num_kv_heads; ++h) {
    HeadMoments& head = layer.heads[static_cast<size_t>(h)];
    AddOuterProducts(head.query, WidenedRows(rows.queries, h * group, group));
    AddOuterProducts(head.key, WidenedRows(rows.keys, h, 1));
    if (impl.options.v_metric != VMetric::kPlain) continue;
    AddOuterProducts(head.value, WidenedRows(rows.values, h, 1));
    head.weight += rows.values.num_tokens;
  }
}

void AddSecondPass(const MomentAccumulator::Impl& impl, LayerMoments& layer, const LayerRows& rows) {
  for (int h = 0; h < impl.shape.num_kv_heads; ++h) {
    const size_t index = static_cast<size_t>(h);
    AddScoreWeighted(layer.heads[index], layer.score_metric[index], WidenedRows(rows.keys, h, 1),
                     WidenedRows(rows.values, h, 1));
  }
}

}  // namespace

MomentAccumulator::MomentAccumulator(const KvShape& shape, const OscarFitOptions& options)
    : impl_(std::make_unique<Impl>()) {
  const Status fits = CheckOscarFit(shape, options);
  OSCAR_CHECK_MSG(fits.ok(), fits.message());
  impl_->shape = shape;
  impl_->options = options;
  const Matrix zero = Matrix::Zero(shape.head_dim, shape.head_dim);
  LayerMoments layer;
  layer.heads.assign(static_cast<size_t>(shape.num_kv_heads), {zero, zero, zero, 0, {}});
  impl_->layers.assign(static_cast<size_t>(shape.num_layers), layer);
}

MomentAccumulator::~MomentAccumulator() = default;
MomentAccumulator::MomentAccumulator(MomentAccumulator&&) noexcept = default;
MomentAccumulator& MomentAccumulator::operator=(MomentAccumulator&&) noexcept = default;

int MomentAccumulator::num_passes() const { return impl_->options.v_metric == VMetric::kScore ? 2 : 1; }

Status MomentAccumulator::Add(int layer, RowsView<const float> queries, RowsView<const float> keys,
                              RowsView<const float> values) {
  const KvShape& shape = impl_->shape;
  if (layer < 0 || layer >= shape.num_layers) {
    return {StatusCode::kInvalidArgument, "calibration: layer " + std::to_string(layer) + " does not exist"};
  }
  if (impl_->pass >= num_passes()) {
    return {StatusCode::kFailedPrecondition, "calibration: all " + std::to_string(num_passes()) + " passes have ended"};
  }
  const int n = queries.num_tokens;
  OSCAR_TRY(CheckView(layer, "queries", queries, n, shape.num_query_heads, shape.head_dim));
  OSCAR_TRY(CheckView(layer, "keys", keys, n, shape.num_kv_heads, shape.head_dim));
  OSCAR_TRY(CheckView(layer, "values", values, n, shape.num_kv_heads, shape.head_dim));
  LayerMoments& moments = impl_->layers[static_cast<size_t>(layer)];
  int64_t& num_tokens = moments.num_tokens[static_cast<size_t>(impl_->pass)];
  const LayerRows rows = {queries, keys, values};
  OSCAR_TRY(impl_->failed);
  OSCAR_TRY(impl_->sums ? impl_->sums->CheckFinite(layer, rows, num_tokens) : CheckFiniteRows(layer, rows, num_tokens));

  const int64_t early_tokens = impl_->options.expected_tokens / 4 * 3;
  for (int first = 0; first < n;) {
    int count = impl_->sums ? n - first : std::min(calibrate::kGroupTokens, n - first);
    const int64_t until_early = early_tokens - moments.num_tokens[0];
    if (impl_->pass == 0 && until_early > 0) count = static_cast<int>(std::min<int64_t>(count, until_early));
    const LayerRows group = rows.Slice(first, count);
    if (impl_->sums) {
      OSCAR_TRY(impl_->sums->Add(*impl_, layer, group));
    } else if (impl_->pass == 0) {
      AddFirstPass(*impl_, moments, group);
    } else {
      AddSecondPass(*impl_, moments, group);
    }
    num_tokens += count;
    first += count;
    if (impl_->pass > 0 || until_early <= 0 || until_early != count) continue;
    moments.early_tokens = num_tokens;
    if (impl_->sums) {
      OSCAR_TRY(impl_->sums->KeepEarlyQueries(layer));
    } else {
      for (HeadMoments& head : moments.heads) head.early_query = head.query;
    }
  }
  return {};
}

Status MomentAccumulator::AddOutputs(int layer, RowsView<const float> outputs) {
  const KvShape& shape = impl_->shape;
  if (layer < 0 || layer >= shape.num_layers) {
    return {StatusCode::kInvalidArgument, "calibration: layer " + std::to_string(layer) + " does not exist"};
  }
  if (impl_->options.v_metric != VMetric::kSoftmax || impl_->pass > 0) {
    return {StatusCode::kFailedPrecondition, "calibration: attention outputs belong to the first pass of the V metric softmax"};
  }
  OSCAR_TRY(CheckView(layer, "attention outputs", outputs, outputs.num_tokens, shape.num_query_heads, shape.head_dim));
  LayerMoments& moments = impl_->layers[static_cast<size_t>(layer)];
  OSCAR_TRY(impl_->failed);
  if (impl_->sums) {
    OSCAR_TRY(impl_->sums->AddOutputs(layer, outputs, moments.output_tokens));
    moments.output_tokens += outputs.num_tokens;
    return {};
  }
  OSCAR_TRY(CheckFinite(layer, "attention outputs", "query head", outputs, moments.output_tokens));
  for (int h = 0; h < shape.num_query_heads; ++h) {
    RowMatrix rows(outputs.num_tokens, shape.head_dim);
    for (int token = 0; token < outputs.num_tokens; ++token) {
      for (int c = 0; c < shape.head_dim; ++c) rows(token, c) = static_cast<double>(outputs.Row(token, h)[c]);
    }
    HeadMoments& head = moments.heads[static_cast<size_t>(h / shape.group())];
    AddOuterProducts(head.value, rows);
    head.weight += outputs.num_tokens;
  }
  moments.output_tokens += outputs.num_tokens;
  return {};
}

void MomentAccumulator::EndPass() {
  OSCAR_CHECK(impl_->pass < num_passes());
  if (impl_->sums && impl_->failed.ok()) impl_->failed = impl_->sums->Collect(*impl_);
  ++impl_->pass;
  if (impl_->pass == num_passes()) return;
  for (LayerMoments& layer : impl_->layers) {
    const double rows = static_cast<double>(std::max<int64_t>(layer.num_tokens[0], 1)) * impl_->shape.group();
    for (const HeadMoments& head : layer.heads) layer.score_metric.push_back(calibrate::Full(head.query) / rows);
  }
  if (impl_->sums && impl_->failed.ok()) impl_->failed = impl_->sums->StartSecondPass(*impl_);
}

int64_t MomentAccumulator::num_tokens() const { return impl_->layers.front().num_tokens[0]; }

Result<MomentAccumulator> MomentAccumulator::JoinHeads(std::vector<MomentAccumulator> ranks) {
  if (ranks.empty()) return Status(StatusCode::kInvalidArgument, "calibration: no ranks to join");
  MomentAccumulator joined = std::move(ranks.front());
  Impl& into = *joined.impl_;
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    Impl& from = *ranks[rank].impl_;
    const auto differs = [&](const char* what) {
      return Status(StatusCode::kInvalidArgument,
                    "calibration: rank " + std::to_string(rank) + " and rank 0 differ in " + std::string(what));
    };
    if (from.shape.num_layers != into.shape.num_layers || from.shape.head_dim != into.shape.head_dim ||
        from.shape.group() != into.shape.group()) {
      return differs("layers, head_dim or query heads per KV head");
    }
    if (from.options.v_metric != into.options.v_metric || from.pass != into.pass) return differs("V metric or pass");
    for (size_t i = 0; i < into.layers.size(); ++i) {
      LayerMoments &layer = into.layers[i], &other = from.layers[i];
      if (layer.num_tokens != other.num_tokens || layer.early_tokens != other.early_tokens || layer.output_tokens != other.output_tokens) return differs("tokens");
      std::move(other.heads.begin(), other.heads.end(), std::back_inserter(layer.heads));
      std::move(other.score_metric.begin(), other.score_metric.end(), std::back_inserter(layer.score_metric));
    }
    into.shape.num_kv_heads += from.shape.num_kv_heads;
    into.shape.num_query_heads += from.shape.num_query_heads;
  }
  return joined;
}

}  // namespace oscar
