// The sums of BalancedMoments on a CUDA device.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"
#include "src/kv/calibrate/balanced_moments.h"
#include "src/kv/calibrate/device_sums_cuda.h"
#include "src/kv/transform/turning_mean.h"

namespace oscar::calibrate {
namespace {

using cuda::DeviceArray;
using cuda::FromCuda;

class DeviceBalancedSums final : public BalancedSums, private DeviceSums {
 public:
  DeviceBalancedSums(const KvShape& shape, cudaStream_t stream)
      : DeviceSums(shape, stream), layers_(static_cast<std::size_t>(shape.num_layers)) {}

  Status CheckFinite(int layer, const LayerRows& rows, int64_t first_token) override { return CheckLayerRows(layer, rows, first_token); }

  Status Add(const BalancedMoments::Impl& impl, int layer, int first_position, const LayerRows& rows) override {
    OSCAR_TRY(Prepare(impl, layer));
    Layer& sums = layers_[static_cast<std::size_t>(layer)];
    if (impl.pass == 0) {
      OSCAR_TRY(AddRows(rows.queries, shape_.group(), true, sums.query.data()));
    } else if (sums.metric.size() > 0) {
      OSCAR_TRY(AddScored(rows, sums.metric.data(), sums.scored.data(), sums.scored_weight.data()));
    }
    for (int token = 0; token < rows.keys.num_tokens;) {
      const int position = first_position + token;
      DeviceBlock& block = sums.block;
      if (position != block.first_position + block.num_tokens || position % kBlockTokens == 0) {
        OSCAR_TRY(FinishBlock(impl, layer));
        block.first_position = position;
      }
      const int count = std::min(kBlockTokens - position % kBlockTokens, rows.keys.num_tokens - token);
      OSCAR_TRY(AddToBlock(rows.Slice(token, count), position, sums));
      token += count;
    }
    return {};
  }

  Status Collect(BalancedMoments::Impl& impl) override {
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      if (layers_[static_cast<std::size_t>(layer)].query.size() == 0) continue;  // no rows: the fit says so
      OSCAR_TRY(FinishBlock(impl, layer));
      OSCAR_TRY(impl.pass == 0 ? CollectFirst(impl, layer) : CollectSecond(impl, layer));
    }
    return {};
  }

  Status StartSecondPass(const BalancedMoments::Impl& impl) override {
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      Layer& sums = layers_[static_cast<std::size_t>(layer)];
      const std::vector<BalancedHead>& from = impl.layers[static_cast<std::size_t>(layer)].heads;
      std::vector<float> keys, values;
      for (const BalancedHead& head : from) {
        keys.insert(keys.end(), head.key_mean.begin(), head.key_mean.end());
        values.insert(values.end(), head.value_mean.begin(), head.value_mean.end());
      }
      OSCAR_TRY(sums.key_means.Upload(keys, stream_));
      OSCAR_TRY(sums.value_means.Upload(values, stream_));
      if (from.front().score_metric.size() == 0) continue;
      OSCAR_TRY(UploadMatrices([&](std::size_t h) -> const Matrix& { return from[h].score_metric; }, sums.metric));
      OSCAR_TRY(Clear(sums.scored, matrices()));
      OSCAR_TRY(Clear(sums.scored_weight, heads()));
    }
    return {};
  }

  Status ReadRow(const float* row, std::span<float> out) override {
    OSCAR_TRY(FromCuda(cudaMemcpyAsync(out.data(), row, out.size_bytes(), cudaMemcpyDeviceToHost, stream_), "calibration"));
    return FromCuda(cudaStreamSynchronize(stream_), "calibration");
  }

 private:
  struct Layer {
    DeviceArray<double> query, key_sum, value_sum, weight;              // of the first pass
    DeviceArray<double> key, value, covariance_weight, metric, scored, scored_weight;  // of the second
    DeviceArray<float> key_means, value_means;
    DeviceArray<uint16_t> keys, values, sink_keys;  // of the block
    DeviceArray<float> mass;
    DeviceBlock block = {};
    int num_sinks = 0;
  };

  // Zero sums and an empty block before the first rows.
  Status Prepare(const BalancedMoments::Impl& impl, int layer) {
    Layer& sums = layers_[static_cast<std::size_t>(layer)];
    if (sums.query.size() > 0) return {};
    if (angles_.size() == 0) OSCAR_TRY(LoadPairs(impl.rotary));
    for (DeviceArray<double>* vector : {&sums.key_sum, &sums.value_sum}) OSCAR_TRY(Clear(*vector, vectors()));
    for (DeviceArray<double>* weight : {&sums.weight, &sums.covariance_weight}) OSCAR_TRY(Clear(*weight, heads()));
    for (DeviceArray<double>* matrix : {&sums.key, &sums.value, &sums.query}) OSCAR_TRY(Clear(*matrix, matrices()));
    OSCAR_TRY(sums.keys.Grow(kBlockTokens * vectors()));
    OSCAR_TRY(sums.values.Grow(kBlockTokens * vectors()));
    OSCAR_TRY(sums.sink_keys.Grow(kSinkTokens * vectors()));
    OSCAR_TRY(sums.mass.Grow(kBlockTokens * heads()));
    sums.block = {0, 0, shape_.num_kv_heads, shape_.head_dim, kWeightFloor * shape_.group() / kQueryStride,
                  sums.keys.data(), sums.values.data(), sums.sink_keys.data(), sums.mass.data()};
    return ClearMass(sums);
  }

  Status LoadPairs(const RotaryEmbedding& rotary) {
    std::vector<int2> channels;
    std::vector<double> angles;
    for (int pair = 0; pair < shape_.head_dim / 2; ++pair) {
      const auto [a, b] = transform::PairChannels(rotary, pair);
      channels.push_back({a, b});
      angles.push_back(transform::PairAngle(rotary, pair));
    }
    OSCAR_TRY(channels_.Upload(channels, stream_));
    return angles_.Upload(angles, stream_);
  }

  Status ClearMass(Layer& sums) {
    return FromCuda(cudaMemsetAsync(sums.mass.data(), 0, kBlockTokens * heads() * sizeof(float), stream_), "moments");
  }

  // Rows that fit into the block.
  Status AddToBlock(const LayerRows& rows, int position, Layer& sums) {
    DeviceBlock& block = sums.block;
    const int count = rows.keys.num_tokens;
    OSCAR_TRY(FromCuda(LaunchStoreBlock(block, RowsOf(rows.keys), RowsOf(rows.values), count, stream_), "moments"));
    if (position == 0) sums.num_sinks = 0;
    sums.num_sinks += std::max(0, std::min(kSinkTokens - position, count));
    const int skipped = ((kQueryStride / 2 - position) % kQueryStride + kQueryStride) % kQueryStride;
    if (skipped < count) {
      BlockAttentionParams attention = {};
      attention.block = block;
      const RowsView<const float> queries = rows.queries.Slice(skipped, count - skipped);
      attention.queries = {queries.data, kQueryStride * queries.token_stride, queries.head_stride};
      attention.num_queries = (count - skipped + kQueryStride - 1) / kQueryStride;
      attention.first_in_block = block.num_tokens + skipped + 1;
      attention.num_sinks = block.first_position > 0 ? sums.num_sinks : 0;
      attention.group = shape_.group();
      attention.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
      OSCAR_TRY(squares_.Grow(kBlockTokens / kQueryStride * heads() * static_cast<std::size_t>(shape_.group()) * kBlockTokens));
      attention.squares = squares_.data();
      OSCAR_TRY(FromCuda(LaunchBlockAttention(attention, stream_), "moments"));
    }
    block.num_tokens += count;
    return {};
  }

  // The tokens of the block into the weighted sums of the pass; it is empty afterwards.
  Status FinishBlock(const BalancedMoments::Impl& impl, int layer) {
    Layer& sums = layers_[static_cast<std::size_t>(layer)];
    if (sums.block.num_tokens == 0) return {};
    if (impl.pass == 0) {
      OSCAR_TRY(FromCuda(LaunchBlockMeans({sums.block, channels_.data(), angles_.data(), sums.key_sum.data(), sums.value_sum.data(),
                                           sums.weight.data()}, stream_), "moments"));
    } else {
      OSCAR_TRY(AddToCovariances(impl, impl.layers[static_cast<std::size_t>(layer)], sums));
    }
    sums.block.num_tokens = 0;
    return ClearMass(sums);
  }

  Status AddToCovariances(const BalancedMoments::Impl& impl, const BalancedLayer& from, Layer& sums) {
    const DeviceBlock& block = sums.block;
    const std::size_t values = static_cast<std::size_t>(block.num_tokens) * vectors();
    OSCAR_TRY(GrowWidened(2 * static_cast<std::size_t>(block.num_tokens) * heads()));
    CentreBlockParams centre = {};
    centre.block = block;
    centre.key_means = sums.key_means.data();
    if (!from.heads.front().key_page_mean.empty()) {
      OSCAR_TRY(UploadPageMeans(impl.rotary, from, block));
      centre.key_means = page_means_.data();
      centre.page_stride = static_cast<int64_t>(vectors());
    }
    centre.value_means = sums.value_means.data();
    centre.keys = widened_.data();
    centre.values = widened_.data() + values;
    centre.weights = sums.covariance_weight.data();
    OSCAR_TRY(FromCuda(LaunchCentreBlock(centre, stream_), "moments"));
    OSCAR_TRY(AddOuterProducts(centre.keys, block.num_tokens, sums.key.data()));
    return AddOuterProducts(centre.values, block.num_tokens, sums.value.data());
  }

  // The means of the keys of the block's pages.
  Status UploadPageMeans(const RotaryEmbedding& rotary, const BalancedLayer& from, const DeviceBlock& block) {
    const auto d = static_cast<std::size_t>(shape_.head_dim);
    const int first = block.first_position / kPageTokens, last = (block.first_position + block.num_tokens - 1) / kPageTokens;
    std::vector<float> means, phases(d), mean(d);
    for (int page = first; page <= last; ++page) {
      transform::FillPagePhases(rotary, page, phases);
      for (const BalancedHead& head : from.heads) {
        transform::TurnMean(rotary, head.key_page_mean, phases, mean);
        means.insert(means.end(), mean.begin(), mean.end());
      }
    }
    return page_means_.Upload(means, stream_);
  }

  Status CollectFirst(BalancedMoments::Impl& impl, int layer) {
    const Layer& sums = layers_[static_cast<std::size_t>(layer)];
    std::vector<BalancedHead>& to = impl.layers[static_cast<std::size_t>(layer)].heads;
    OSCAR_TRY(ReadMatrices(sums.query, [&](std::size_t h) -> Matrix& { return to[h].query; }));
    std::vector<double> keys(vectors()), values(vectors()), weights(heads());
    OSCAR_TRY(Read(sums.key_sum.data(), keys));
    OSCAR_TRY(Read(sums.value_sum.data(), values));
    OSCAR_TRY(Read(sums.weight.data(), weights));
    const auto d = static_cast<std::size_t>(shape_.head_dim);
    for (std::size_t h = 0; h < to.size(); ++h) {
      to[h].key_sum = Eigen::Map<const Eigen::VectorXd>(keys.data() + h * d, shape_.head_dim);
      to[h].value_sum = Eigen::Map<const Eigen::VectorXd>(values.data() + h * d, shape_.head_dim);
      to[h].weight = weights[h];
    }
    return {};
  }

  Status CollectSecond(BalancedMoments::Impl& impl, int layer) {
    const Layer& sums = layers_[static_cast<std::size_t>(layer)];
    std::vector<BalancedHead>& to = impl.layers[static_cast<std::size_t>(layer)].heads;
    OSCAR_TRY(ReadMatrices(sums.key, [&](std::size_t h) -> Matrix& { return to[h].key_covariance; }));
    OSCAR_TRY(ReadMatrices(sums.value, [&](std::size_t h) -> Matrix& { return to[h].value_covariance; }));
    std::vector<double> weights(heads());
    OSCAR_TRY(Read(sums.covariance_weight.data(), weights));
    for (std::size_t h = 0; h < to.size(); ++h) to[h].covariance_weight = weights[h];
    if (sums.metric.size() == 0) return {};
    OSCAR_TRY(ReadMatrices(sums.scored, [&](std::size_t h) -> Matrix& { return to[h].scored_value; }));
    OSCAR_TRY(Read(sums.scored_weight.data(), weights));
    for (std::size_t h = 0; h < to.size(); ++h) to[h].score_weight = weights[h];
    return {};
  }

  std::vector<Layer> layers_;
  DeviceArray<int2> channels_;
  DeviceArray<double> angles_;
  DeviceArray<float> squares_, page_means_;
};

}  // namespace

std::unique_ptr<BalancedSums> MakeDeviceBalancedSums(const KvShape& shape, cudaStream_t stream) {
  return std::make_unique<DeviceBalancedSums>(shape, stream);
}

}  // namespace oscar::calibrate
