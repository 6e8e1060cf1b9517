// GgmlKvCache: the method `f16`: the cache and the attention that llama.cpp has by default (F16 rows, V transposed; the products
// of K and Q in f16, softmax in f32, the products of V and the weights in f16, cells padded to 256), with ggml's own operations, and
// while it has a step in flight the products of weights are ggml's, too. So a model over it gives llama.cpp's logits to the bit on
// the same ggml and processor (tests/oracle). No pages, no windows, nothing
// shared between sequences; any length can be resumed exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "oscar/kv_cache.h"
#include "src/base/buffer.h"
#include "src/engine/ops/cpu/ggml_executor.h"

namespace oscar::engine {

class GgmlKvCache final : public KvCache {
 public:
  // Told true when the first step begins and false when none is in flight any more.
  using StepObserver = std::function<void(bool in_flight)>;

  // Errors as KvCache::Create. `sink` and `recent` of the config mean nothing here. The executor must outlive the cache.
  static Result<std::unique_ptr<KvCache>> Create(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config,
                                                 GgmlExecutor& executor, StepObserver observer);
  ~GgmlKvCache() override;

  Result<SequenceId> NewSequence() override;
  Result<SequenceId> Fork(SequenceId sequence) override;
  Result<int> Truncate(SequenceId sequence, int length) override;  // always `length` itself
  Status Release(SequenceId sequence) override;
  int length(SequenceId sequence) const override;
  SegmentTokens segments(SequenceId sequence) const override { return {.recent = length(sequence)}; }
  Status Reserve(SequenceId sequence, int num_tokens) override;
  // kNonFinite also for a value beyond fp16.
  Status Append(SequenceId sequence, int layer, RowsView<const float> keys, RowsView<const float> values) override;
  Status Attend(std::span<const SequenceId> sequences, int layer, float scale, RowsView<const float> queries,
                RowsView<float> out) override;
  Status Commit(SequenceId sequence, int num_tokens) override;
  void Abandon(SequenceId sequence) override;

  // In pages of 64 tokens; what the sequences hold now, since each grows by itself.
  KvCacheStats stats() const override;
  const KvMethod& method() const override { return method_; }
  const CodecProfile& profile() const override { return profile_; }
  const KvCacheConfig& config() const override { return config_; }
  Status ReadEncodedPage(SequenceId sequence, int layer, int page_index, std::span<std::byte> out) const override;

 private:
  struct Layer {
    base::Buffer keys;    // [capacity, num_kv_heads, d] fp16
    base::Buffer values;  // [num_kv_heads, d, capacity] fp16
  };
  struct Sequence {
    std::vector<Layer> layers;
    int64_t capacity = 0;  // cells, a multiple of 256
    int length = 0;
    int reserved = 0;
    int appended = 0;  // layers of the step in flight
  };

  GgmlKvCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config, GgmlExecutor& executor, StepObserver observer);
  // The step of a sequence begins (num_tokens > 0) or ends (0).
  void SetReserved(Sequence& sequence, int num_tokens);
  Result<Sequence*> Get(SequenceId id);
  Result<Sequence*> GetIdle(SequenceId id);
  int64_t TokensHeld() const;
  int64_t width() const { return int64_t{config_.shape.num_kv_heads} * config_.shape.head_dim; }
  // Room for `tokens` tokens; the rows of the first `length` stay. Nothing changes when memory is refused.
  Status Grow(Sequence& sequence, int64_t tokens);
  // The layers of `from` with `capacity` cells.
  Result<std::vector<Layer>> CopyLayers(const Sequence& from, int64_t capacity) const;
  Status CheckRows(const Sequence& sequence, int layer, KvSide side, RowsView<const float> rows) const;
  void StoreRows(const Sequence& sequence, Layer& layer, RowsView<const float> keys, RowsView<const float> values) const;
  Status AttendOne(const Sequence& sequence, const Layer& layer, float scale, RowsView<const float> queries, RowsView<float> out);

  KvMethod method_;
  CodecProfile profile_;
  KvCacheConfig config_;
  GgmlExecutor& executor_;
  StepObserver observer_;
  int steps_in_flight_ = 0;
  std::map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 0;
  base::Buffer nodes_;            // ggml's headers of one attention
  base::Buffer intermediates_;    // its scores, mask and sums
  base::Buffer work_;             // ggml's own
};

}  // namespace oscar::engine
