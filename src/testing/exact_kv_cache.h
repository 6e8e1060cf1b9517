// ExactKvCache: a KvCache that keeps every row in f32 (or rounded to f16 or bf16) and attends in double precision, one query
// after the other. The judge of model tests; no pages, no windows, no codecs.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "oscar/kv_cache.h"
#include "src/base/check.h"
#include "src/base/float_bits.h"

namespace oscar::testing {

class ExactKvCache : public KvCache {
 public:
  enum class Precision { kF32, kF16, kBf16 };

  explicit ExactKvCache(const KvShape& shape, Precision precision = Precision::kF32, int max_tokens = 1 << 20)
      : precision_(precision) {
    config_.shape = shape;
    config_.max_tokens = max_tokens;
  }

  Result<SequenceId> NewSequence() override {
    sequences_[next_id_].layers.resize(static_cast<size_t>(config_.shape.num_layers));
    return next_id_++;
  }
  Result<SequenceId> Fork(SequenceId sequence) override {
    if (!sequences_.contains(sequence)) return Unknown(sequence);
    const Sequence copy = sequences_.at(sequence);
    sequences_[next_id_] = copy;
    return next_id_++;
  }
  Result<int> Truncate(SequenceId sequence, int length) override {
    if (!sequences_.contains(sequence)) return Unknown(sequence);
    Sequence& state = sequences_.at(sequence);
    state.length = std::min(state.length, length);
    CutToLength(state);
    return state.length;
  }
  Status Release(SequenceId sequence) override {
    return sequences_.erase(sequence) == 1 ? Status() : Unknown(sequence);
  }
  int length(SequenceId sequence) const override { return sequences_.at(sequence).length; }
  SegmentTokens segments(SequenceId sequence) const override { return {.recent = length(sequence)}; }

  Status Reserve(SequenceId sequence, int num_tokens) override {
    if (!sequences_.contains(sequence)) return Unknown(sequence);
    Sequence& state = sequences_.at(sequence);
    if (state.length + num_tokens > config_.max_tokens) {
      return {StatusCode::kResourceExhausted, "no room for " + std::to_string(num_tokens) + " tokens"};
    }
    state.reserved = num_tokens;
    return {};
  }
  Status Append(SequenceId sequence, int layer, RowsView<const float> keys, RowsView<const float> values) override {
    Sequence& state = sequences_.at(sequence);
    OSCAR_CHECK(keys.num_tokens == state.reserved && values.num_tokens == state.reserved);
    Layer& rows = state.layers.at(static_cast<size_t>(layer));
    if (Status status = CopyRows(keys, layer, rows.keys); !status.ok()) return status;
    return CopyRows(values, layer, rows.values);
  }
  Status Attend(std::span<const SequenceId> sequences, int layer, float scale, RowsView<const float> queries,
                RowsView<float> out) override {
    int row = 0;
    for (SequenceId id : sequences) {
      const Sequence& state = sequences_.at(id);
      for (int i = 0; i < state.reserved; ++i, ++row) {
        for (int head = 0; head < config_.shape.num_query_heads; ++head) {
          AttendOne(state.layers[static_cast<size_t>(layer)], state.length + i + 1, head / config_.shape.group(), scale,
                    queries.Row(row, head), out.Row(row, head));
        }
      }
    }
    OSCAR_CHECK(row == queries.num_tokens && row == out.num_tokens);
    return {};
  }
  Status Commit(SequenceId sequence, int num_tokens) override {
    Sequence& state = sequences_.at(sequence);
    OSCAR_CHECK(num_tokens == state.reserved);
    state.length += num_tokens;
    state.reserved = 0;
    return {};
  }
  void Abandon(SequenceId sequence) override {
    Sequence& state = sequences_.at(sequence);
    state.reserved = 0;
    CutToLength(state);
  }

  KvCacheStats stats() const override { return {}; }
  const KvMethod& method() const override { base::CheckFailed(__FILE__, __LINE__, "method", "ExactKvCache has no codec"); }
  const CodecProfile& profile() const override {
    base::CheckFailed(__FILE__, __LINE__, "profile", "ExactKvCache has no profile");
  }
  const KvCacheConfig& config() const override { return config_; }
  Status ReadEncodedPage(SequenceId, int, int, std::span<std::byte>) const override {
    return {StatusCode::kNotFound, "ExactKvCache encodes nothing"};
  }

 protected:
  struct Layer {
    std::vector<float> keys, values;  // [tokens, num_kv_heads, d], those of the step in flight included
  };
  struct Sequence {
    std::vector<Layer> layers;
    int length = 0;
    int reserved = 0;
  };
  const Sequence& sequence(SequenceId id) const { return sequences_.at(id); }

 private:
  static Status Unknown(SequenceId sequence) {
    return {StatusCode::kNotFound, "sequence " + std::to_string(sequence) + " does not exist"};
  }
  float Rounded(float value) const {
    switch (precision_) {
      case Precision::kF16: return base::F32FromF16(base::F16FromF32(value));
      case Precision::kBf16: return base::RoundToBf16(value);
      case Precision::kF32: break;
    }
    return value;
  }
  Status CopyRows(RowsView<const float> rows, int layer, std::vector<float>& to) const {
    for (int token = 0; token < rows.num_tokens; ++token) {
      for (int head = 0; head < rows.num_heads; ++head) {
        for (int i = 0; i < rows.head_dim; ++i) {
          const float value = rows.Row(token, head)[i];
          if (!std::isfinite(value)) return {StatusCode::kNonFinite, "a row of layer " + std::to_string(layer) + " is not finite"};
          to.push_back(Rounded(value));
        }
      }
    }
    return {};
  }
  void CutToLength(Sequence& state) const {
    const size_t width = static_cast<size_t>(config_.shape.num_kv_heads) * static_cast<size_t>(config_.shape.head_dim);
    for (Layer& layer : state.layers) {
      layer.keys.resize(std::min(layer.keys.size(), static_cast<size_t>(state.length) * width));
      layer.values.resize(std::min(layer.values.size(), static_cast<size_t>(state.length) * width));
    }
  }
  void AttendOne(const Layer& layer, int num_keys, int kv_head, float scale, const float* query, float* out) const {
    const int d = config_.shape.head_dim;
    const auto row = [&](const std::vector<float>& rows, int token) {
      return rows.data() + (static_cast<size_t>(token) * static_cast<size_t>(config_.shape.num_kv_heads) +
                            static_cast<size_t>(kv_head)) * static_cast<size_t>(d);
    };
    std::vector<double> scores(static_cast<size_t>(num_keys)), sum(static_cast<size_t>(d));
    double maximum = -INFINITY, total = 0;
    for (int t = 0; t < num_keys; ++t) {
      double dot = 0;
      for (int i = 0; i < d; ++i) dot += static_cast<double>(query[i]) * row(layer.keys, t)[i];
      scores[static_cast<size_t>(t)] = dot * scale;
      maximum = std::max(maximum, dot * scale);
    }
    for (int t = 0; t < num_keys; ++t) {
      const double weight = std::exp(scores[static_cast<size_t>(t)] - maximum);
      total += weight;
      for (int i = 0; i < d; ++i) sum[static_cast<size_t>(i)] += weight * row(layer.values, t)[i];
    }
    for (int i = 0; i < d; ++i) out[i] = static_cast<float>(sum[static_cast<size_t>(i)] / total);
  }

  Precision precision_;
  KvCacheConfig config_;
  std::map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 0;
};

}  // namespace oscar::testing
