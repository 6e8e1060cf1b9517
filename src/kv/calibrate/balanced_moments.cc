// Accumulation for the balanced fit (quality.md 2 and 3).

#include "src/kv/calibrate/balanced_moments.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/float_bits.h"
#include "src/base/status_macros.h"
#include "src/kv/transform/hadamard.h"
#include "src/kv/transform/turning_mean.h"

namespace oscar {
namespace {

using calibrate::BalancedHead;
using calibrate::BalancedLayer;
using calibrate::Matrix;
using calibrate::RowMatrix;

// sum += weight R_-t k for one key at position t.
void AddTurnedBack(const RotaryEmbedding& rotary, const uint16_t* key, int position, double weight, Eigen::VectorXd& sum) {
  const auto value = [&](int channel) { return weight * static_cast<double>(base::F32FromBf16(key[channel])); };
  const int num_pairs = static_cast<int>(rotary.angles.size());
  for (int j = 0; j < num_pairs; ++j) {
    const auto [a, b] = transform::PairChannels(rotary, j);
    const double angle = position * transform::PairAngle(rotary, j);
    const double cosine = std::cos(angle), sine = std::sin(angle), x = value(a), y = value(b);
    sum[a] += x * cosine + y * sine;
    sum[b] += y * cosine - x * sine;
  }
  for (int c = 2 * num_pairs; c < static_cast<int>(sum.size()); ++c) sum[c] += value(c);
}

// rows -= mu of each row's page.
void Centre(const RotaryEmbedding& rotary, const BalancedHead& head, int first_position, RowMatrix& keys, RowMatrix& values) {
  const std::size_t d = head.key_mean.size();
  std::vector<float> mean = head.key_mean, phases(d);
  int page = -1;
  for (Eigen::Index t = 0; t < keys.rows(); ++t) {
    const int page_of_row = (first_position + static_cast<int>(t)) / kPageTokens;
    if (!head.key_page_mean.empty() && page_of_row != page) {
      page = page_of_row;
      transform::FillPagePhases(rotary, page, phases);
      transform::TurnMean(rotary, head.key_page_mean, phases, mean);
    }
    for (std::size_t c = 0; c < d; ++c) {
      const auto column = static_cast<Eigen::Index>(c);
      keys(t, column) -= static_cast<double>(mean[c]);
      values(t, column) -= static_cast<double>(head.value_mean[c]);
    }
  }
}

double WeightOf(const BalancedMoments::Impl& impl, const calibrate::AttentionBlock& block, int head, int token) {
  const double floor = calibrate::kWeightFloor * impl.shape.group() / calibrate::kQueryStride;
  const bool is_sink = block.first_position + token < calibrate::kSinkTokens;
  return floor + (is_sink ? 0.0 : static_cast<double>(block.mass[static_cast<std::size_t>(head)][token]));
}

void AddToMeans(const BalancedMoments::Impl& impl, const calibrate::AttentionBlock& block, int h, BalancedHead& head) {
  const int d = impl.shape.head_dim;
  for (int t = 0; t < block.num_tokens; ++t) {
    const double weight = WeightOf(impl, block, h, t);
    const std::size_t row = static_cast<std::size_t>((t * impl.shape.num_kv_heads + h) * d);
    AddTurnedBack(impl.rotary, block.keys.data() + row, block.first_position + t, weight, head.key_sum);
    for (int c = 0; c < d; ++c) {
      head.value_sum[c] += weight * static_cast<double>(base::F32FromBf16(block.values[row + static_cast<std::size_t>(c)]));
    }
    head.weight += weight;
  }
}

void AddToCovariances(const BalancedMoments::Impl& impl, const calibrate::AttentionBlock& block, int h, BalancedHead& head) {
  const int d = impl.shape.head_dim;
  RowMatrix keys(block.num_tokens, d), values(block.num_tokens, d);
  for (int t = 0; t < block.num_tokens; ++t) {
    const std::size_t row = static_cast<std::size_t>((t * impl.shape.num_kv_heads + h) * d);
    for (int c = 0; c < d; ++c) {
      keys(t, c) = static_cast<double>(base::F32FromBf16(block.keys[row + static_cast<std::size_t>(c)]));
      values(t, c) = static_cast<double>(base::F32FromBf16(block.values[row + static_cast<std::size_t>(c)]));
    }
  }
  Centre(impl.rotary, head, block.first_position, keys, values);
  for (int t = 0; t < block.num_tokens; ++t) {
    const double weight = WeightOf(impl, block, h, t);
    keys.row(t) *= std::sqrt(weight);
    values.row(t) *= std::sqrt(weight);
    head.covariance_weight += weight;
  }
  calibrate::AddOuterProducts(head.key_covariance, keys);
  calibrate::AddOuterProducts(head.value_covariance, values);
}

// The tokens of a finished block into the weighted sums of the pass; the block is empty afterwards.
void FinishBlock(const BalancedMoments::Impl& impl, BalancedLayer& layer) {
  calibrate::AttentionBlock& block = layer.block;
  const int heads = impl.shape.num_kv_heads;
  for (int h = 0; h < heads && block.num_tokens > 0; ++h) {
    BalancedHead& head = layer.heads[static_cast<std::size_t>(h)];
    if (impl.pass == 0) {
      AddToMeans(impl, block, h, head);
    } else {
      AddToCovariances(impl, block, h, head);
    }
  }
  block.num_tokens = 0;
  block.keys.clear();
  block.values.clear();
  block.mass.assign(static_cast<std::size_t>(heads), Eigen::VectorXf::Zero(calibrate::kBlockTokens));
}

// Attention of one token's queries over the block, far tokens only.
void AddAttention(const BalancedMoments::Impl& impl, const RowsView<const float>& queries, int token, BalancedLayer& layer) {
  calibrate::AttentionBlock& block = layer.block;
  const int d = impl.shape.head_dim, heads = impl.shape.num_kv_heads;
  const int count = block.num_tokens - calibrate::kLeastDistance;  // the query's own token is the last of the block
  if (count <= 0) return;
  const int in_block = block.num_tokens;
  const int num_sinks = block.first_position > 0 ? static_cast<int>(block.sink_keys.size()) / (heads * d) : 0;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  Eigen::VectorXf probability(in_block + num_sinks);
  for (int q = 0; q < impl.shape.num_query_heads; ++q) {
    const int h = q / impl.shape.group();
    const float* query = queries.Row(token, q);
    const auto score = [&](const std::vector<uint16_t>& keys, int t) {
      const uint16_t* key = keys.data() + static_cast<std::size_t>((t * heads + h) * d);
      float sum = 0;
      for (int c = 0; c < d; ++c) sum += query[c] * base::F32FromBf16(key[c]);
      return sum * scale;
    };
    for (int t = 0; t < in_block; ++t) probability[t] = score(block.keys, t);
    for (int t = 0; t < num_sinks; ++t) probability[in_block + t] = score(block.sink_keys, t);
    probability = (probability.array() - probability.maxCoeff()).exp();
    probability /= probability.sum();
    block.mass[static_cast<std::size_t>(h)].head(count).array() += probability.head(count).array().square();
  }
}

void AddScored(BalancedHead& head, const RowMatrix& keys, RowMatrix values) {
  const RowMatrix transformed = keys * head.score_metric;
  for (Eigen::Index t = 0; t < keys.rows(); ++t) {
    const double weight = std::max(0.0, transformed.row(t).dot(keys.row(t)));
    head.score_weight += weight;
    values.row(t) *= std::sqrt(weight);
  }
  calibrate::AddOuterProducts(head.scored_value, values);
}

struct Group {
  int first_position;
  calibrate::LayerRows rows;
};

Status CheckFiniteRows(int layer, const calibrate::LayerRows& rows, int64_t first_token) {
  OSCAR_TRY(calibrate::CheckFinite(layer, "queries", "query head", rows.queries, first_token));
  OSCAR_TRY(calibrate::CheckFinite(layer, "keys", "KV head", rows.keys, first_token));
  return calibrate::CheckFinite(layer, "values", "KV head", rows.values, first_token);
}

// Positions decide which tokens share a block and which queries are asked, so how tokens come in changes nothing.
void AddToBlocks(const BalancedMoments::Impl& impl, const Group& group, BalancedLayer& layer) {
  calibrate::AttentionBlock& block = layer.block;
  const calibrate::LayerRows& rows = group.rows;
  for (int token = 0; token < rows.keys.num_tokens; ++token) {
    const int position = group.first_position + token;
    if (position != block.first_position + block.num_tokens || position % calibrate::kBlockTokens == 0) {
      FinishBlock(impl, layer);
      block.first_position = position;
    }
    for (int h = 0; h < impl.shape.num_kv_heads; ++h) {
      for (int c = 0; c < impl.shape.head_dim; ++c) block.keys.push_back(base::Bf16FromF32(rows.keys.Row(token, h)[c]));
      for (int c = 0; c < impl.shape.head_dim; ++c) block.values.push_back(base::Bf16FromF32(rows.values.Row(token, h)[c]));
    }
    if (position == 0) block.sink_keys.clear();
    if (position < calibrate::kSinkTokens) {
      const std::size_t row = static_cast<std::size_t>(impl.shape.num_kv_heads * impl.shape.head_dim);
      block.sink_keys.insert(block.sink_keys.end(), block.keys.end() - static_cast<std::ptrdiff_t>(row), block.keys.end());
    }
    ++block.num_tokens;
    if (position % calibrate::kQueryStride == calibrate::kQueryStride / 2) AddAttention(impl, rows.queries, token, layer);
  }
}

void AddFirstPass(const BalancedMoments::Impl& impl, const Group& group, BalancedLayer& layer) {
  const int query_heads = impl.shape.group();
  for (int h = 0; h < impl.shape.num_kv_heads; ++h) {
    BalancedHead& head = layer.heads[static_cast<std::size_t>(h)];
    calibrate::AddOuterProducts(head.query, calibrate::WidenedRows(group.rows.queries, h * query_heads, query_heads));
  }
  AddToBlocks(impl, group, layer);
}

void AddSecondPass(const BalancedMoments::Impl& impl, const Group& group, BalancedLayer& layer) {
  const calibrate::LayerRows& rows = group.rows;
  for (BalancedHead& head : layer.heads) {
    const int h = static_cast<int>(&head - layer.heads.data());
    if (head.score_metric.size() > 0) AddScored(head, calibrate::WidenedRows(rows.keys, h, 1), calibrate::WidenedRows(rows.values, h, 1));
  }
  AddToBlocks(impl, group, layer);
}

// Rows whose turn it is: sample i is the first row at or after token i expected / kSampleRows of the pass.
Status TakeSamples(const BalancedMoments::Impl& impl, const Group& group, BalancedLayer& layer) {
  const calibrate::LayerRows& rows = group.rows;
  const auto add = [&](const float* from, std::vector<std::vector<float>>& to) {
    std::vector<float> row(static_cast<std::size_t>(impl.shape.head_dim));
    if (impl.sums) {
      OSCAR_TRY(impl.sums->ReadRow(from, row));
    } else {
      std::copy_n(from, row.size(), row.begin());
    }
    for (float& value : row) value = base::RoundToBf16(value);
    to.push_back(std::move(row));
    return Status();
  };
  while (layer.sample_pages.size() < calibrate::kSampleRows) {
    const int64_t due = static_cast<int64_t>(layer.sample_pages.size()) * impl.expected_tokens / calibrate::kSampleRows;
    const int64_t token = due - layer.num_tokens[1];
    if (token >= rows.keys.num_tokens) return {};
    const int at = static_cast<int>(std::max<int64_t>(token, 0));
    layer.sample_pages.push_back((group.first_position + at) / kPageTokens);
    for (int h = 0; h < impl.shape.num_kv_heads; ++h) {
      BalancedHead& head = layer.heads[static_cast<std::size_t>(h)];
      OSCAR_TRY(add(rows.keys.Row(at, h), head.sample_keys));
      OSCAR_TRY(add(rows.values.Row(at, h), head.sample_values));
    }
    if (impl.expected_tokens < calibrate::kSampleRows) return {};  // unknown: one row of each call
  }
  return {};
}

std::vector<float> MeanOf(const Eigen::VectorXd& sum, double weight) {
  std::vector<float> mean;
  for (const double value : sum) mean.push_back(weight > 0 ? static_cast<float>(value / weight) : 0.0f);
  return mean;
}

}  // namespace

BalancedMoments::BalancedMoments(const KvShape& shape, RotaryEmbedding rotary, int64_t expected_tokens)
    : impl_(std::make_unique<Impl>()) {
  const Status fits = CheckBalancedFit(shape, {});
  OSCAR_CHECK_MSG(fits.ok(), fits.message());
  OSCAR_CHECK(rotary.angles.size() * 2 <= static_cast<std::size_t>(shape.head_dim));
  impl_->shape = shape;
  impl_->rotary = std::move(rotary);
  impl_->expected_tokens = expected_tokens;
  const Matrix zero = Matrix::Zero(shape.head_dim, shape.head_dim);
  BalancedHead head;
  head.query = head.output = head.key_covariance = head.value_covariance = zero;
  head.key_sum = head.value_sum = Eigen::VectorXd::Zero(shape.head_dim);
  BalancedLayer layer;
  layer.heads.assign(static_cast<std::size_t>(shape.num_kv_heads), head);
  layer.block.mass.assign(static_cast<std::size_t>(shape.num_kv_heads), Eigen::VectorXf::Zero(calibrate::kBlockTokens));
  impl_->layers.assign(static_cast<std::size_t>(shape.num_layers), layer);
}

BalancedMoments::~BalancedMoments() = default;
BalancedMoments::BalancedMoments(BalancedMoments&&) noexcept = default;
BalancedMoments& BalancedMoments::operator=(BalancedMoments&&) noexcept = default;

int64_t BalancedMoments::num_tokens() const { return impl_->layers.front().num_tokens[0]; }

Status BalancedMoments::AddOutputProjection(int layer, RowsView<const float> rows) {
  const KvShape& shape = impl_->shape;
  if (layer < 0 || layer >= shape.num_layers) {
    return {StatusCode::kInvalidArgument, "calibration: layer " + std::to_string(layer) + " does not exist"};
  }
  OSCAR_TRY(calibrate::CheckView(layer, "rows of the output projection", rows, rows.num_tokens, shape.num_query_heads, shape.head_dim));
  BalancedLayer& into = impl_->layers[static_cast<std::size_t>(layer)];
  for (int first = 0; first < rows.num_tokens; first += calibrate::kGroupTokens) {
    const int count = std::min(calibrate::kGroupTokens, rows.num_tokens - first);
    for (int h = 0; h < shape.num_query_heads; ++h) {
      RowMatrix wide(count, shape.head_dim);
      for (int row = 0; row < count; ++row) {
        for (int c = 0; c < shape.head_dim; ++c) wide(row, c) = rows.Row(first + row, h)[c];
      }
      if (!wide.allFinite()) {
        return {StatusCode::kNonFinite, "calibration: layer " + std::to_string(layer) + ": the output projection is not finite"};
      }
      calibrate::AddOuterProducts(into.heads[static_cast<std::size_t>(h / shape.group())].output, wide);
    }
  }
  into.output_rows += rows.num_tokens;
  return {};
}

Status BalancedMoments::Add(int layer, int first_position, RowsView<const float> queries, RowsView<const float> keys,
                            RowsView<const float> values) {
  const KvShape& shape = impl_->shape;
  if (layer < 0 || layer >= shape.num_layers || first_position < 0) {
    return {StatusCode::kInvalidArgument, "calibration: layer " + std::to_string(layer) + ", position " +
                                              std::to_string(first_position) + " do not exist"};
  }
  if (impl_->pass >= kNumPasses) return {StatusCode::kFailedPrecondition, "calibration: both passes have ended"};
  const int n = queries.num_tokens;
  OSCAR_TRY(calibrate::CheckView(layer, "queries", queries, n, shape.num_query_heads, shape.head_dim));
  OSCAR_TRY(calibrate::CheckView(layer, "keys", keys, n, shape.num_kv_heads, shape.head_dim));
  OSCAR_TRY(calibrate::CheckView(layer, "values", values, n, shape.num_kv_heads, shape.head_dim));
  BalancedLayer& moments = impl_->layers[static_cast<std::size_t>(layer)];
  int64_t& num_tokens = moments.num_tokens[static_cast<std::size_t>(impl_->pass)];
  const calibrate::LayerRows rows = {queries, keys, values};
  OSCAR_TRY(impl_->failed);
  OSCAR_TRY(impl_->sums ? impl_->sums->CheckFinite(layer, rows, num_tokens) : CheckFiniteRows(layer, rows, num_tokens));
  for (int first = 0; first < n;) {
    const int count = impl_->sums ? n : std::min(calibrate::kGroupTokens, n - first);
    const Group group = {first_position + first, rows.Slice(first, count)};
    if (impl_->pass == 1) OSCAR_TRY(TakeSamples(*impl_, group, moments));
    if (impl_->sums) {
      OSCAR_TRY(impl_->sums->Add(*impl_, layer, group.first_position, group.rows));
    } else if (impl_->pass == 0) {
      AddFirstPass(*impl_, group, moments);
    } else {
      AddSecondPass(*impl_, group, moments);
    }
    num_tokens += count;
    first += count;
  }
  return {};
}

void BalancedMoments::EndPass() {
  OSCAR_CHECK(impl_->pass < kNumPasses);
  if (impl_->sums) {
    if (impl_->failed.ok()) impl_->failed = impl_->sums->Collect(*impl_);
  } else {
    for (BalancedLayer& layer : impl_->layers) FinishBlock(*impl_, layer);
  }
  if (++impl_->pass == kNumPasses) return;
  const bool compares = transform::IsPowerOfTwo(impl_->shape.head_dim);
  for (BalancedLayer& layer : impl_->layers) {
    for (BalancedHead& head : layer.heads) {
      head.key_mean = MeanOf(head.key_sum, head.weight);
      head.value_mean = MeanOf(head.value_sum, head.weight);
      if (!impl_->rotary.angles.empty()) head.key_page_mean = transform::MeanOfPageZero(impl_->rotary, head.key_mean);
      if (!compares) continue;
      const double rows = static_cast<double>(std::max<int64_t>(layer.num_tokens[0], 1)) * impl_->shape.group();
      head.score_metric = calibrate::Full(head.query) / rows;
      head.scored_value = Matrix::Zero(impl_->shape.head_dim, impl_->shape.head_dim);
    }
  }
  if (impl_->sums && impl_->failed.ok()) impl_->failed = impl_->sums->StartSecondPass(*impl_);
}

}  // namespace oscar
