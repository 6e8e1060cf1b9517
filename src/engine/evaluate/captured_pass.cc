#include "src/engine/evaluate/captured_pass.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "oscar/decode_pages.h"
#include "oscar/kernels.h"
#include "src/base/float_bits.h"
#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

constexpr int kScoredStepTokens = 64;  // rows of logits held at once

void AppendRows(RowsView<const float> rows, std::vector<float>& to) {
  for (int token = 0; token < rows.num_tokens; ++token) {
    for (int head = 0; head < rows.num_heads; ++head) to.insert(to.end(), rows.Row(token, head), rows.Row(token, head) + rows.head_dim);
  }
}

class PassObserver final : public AttentionObserver {
 public:
  explicit PassObserver(std::vector<LayerCapture>& layers) : layers_(layers) {}
  void set_sampled(bool sampled) { sampled_ = sampled; }

  Status Observe(int layer, RowsView<const float> queries, RowsView<const float> keys, RowsView<const float> values) override {
    LayerCapture& into = layers_[static_cast<size_t>(layer)];
    for (const auto& [rows, to] : {std::pair{keys, &into.keys}, std::pair{values, &into.values}}) {
      const size_t before = to->size();
      AppendRows(rows, *to);
      for (size_t i = before; i < to->size(); ++i) (*to)[i] = base::RoundToBf16((*to)[i]);
    }
    if (sampled_) AppendRows(queries, into.queries);
    return {};
  }
  Status ObserveAttention(int layer, RowsView<const float> attention) override {
    if (sampled_) AppendRows(attention, layers_[static_cast<size_t>(layer)].attention);
    return {};
  }
  Status ObserveHidden(int layer, RowsView<const float> hidden) override {
    if (sampled_) AppendRows(hidden, layers_[static_cast<size_t>(layer)].hidden);
    return {};
  }

 private:
  std::vector<LayerCapture>& layers_;
  bool sampled_ = false;
};

Status ReadEncodedRows(KvCache& cache, SequenceId sequence, int layer, LayerCapture& into) {
  const KvShape& shape = cache.config().shape;
  const int unit = cache.method().codec->encode_tokens;
  const auto width = static_cast<size_t>(shape.num_kv_heads) * static_cast<size_t>(shape.head_dim);
  const auto rows = static_cast<size_t>(into.encoded_end - into.encoded_begin) * width;
  into.encoded_keys.resize(rows);
  into.encoded_values.resize(rows);
  const size_t page_bytes = cache.stats().encoded_page_bytes / static_cast<size_t>(shape.num_layers);
  std::vector<std::byte> pages(page_bytes * static_cast<size_t>(unit / kPageTokens));
  for (int token = into.encoded_begin; token < into.encoded_end; token += unit) {
    for (int k = 0; k < unit / kPageTokens; ++k) {
      OSCAR_TRY(cache.ReadEncodedPage(sequence, layer, token / kPageTokens + k, std::span(pages).subspan(static_cast<size_t>(k) * page_bytes, page_bytes)));
    }
    const size_t first = static_cast<size_t>(token - into.encoded_begin) * width;
    const auto out = [&](std::vector<float>& to) { return PackedRows(to.data() + first, unit, shape.num_kv_heads, shape.head_dim); };
    OSCAR_TRY(DecodePages({.codec = cache.method().codec, .profile = &cache.profile(), .layer = layer, .first_page_index = token / kPageTokens,
                           .pages = pages, .keys = out(into.encoded_keys), .values = out(into.encoded_values)}));
  }
  return {};
}

// All layers, spread over the threads.
Status ReadAllEncodedRows(Model& model, KvCache& cache, SequenceId sequence, std::vector<LayerCapture>& layers) {
  const int begin = cache.config().sink, end = begin + cache.segments(sequence).body;
  if (cache.method().is_exact() || end <= begin) return {};
  std::mutex mutex;
  Status failed;
  std::atomic<int> next{0};
  RunOn(model.executor(), [&](int /*thread*/, int /*num_threads*/) {
    for (int layer = next++; layer < static_cast<int>(layers.size()); layer = next++) {
      LayerCapture& into = layers[static_cast<size_t>(layer)];
      into.encoded_begin = begin;
      into.encoded_end = end;
      if (const Status status = ReadEncodedRows(cache, sequence, layer, into); !status.ok()) {
        const std::lock_guard lock(mutex);
        failed = status;
      }
    }
  });
  return failed;
}

}  // namespace

Result<CapturedPass> CapturePass(Model& model, KvCache& cache, std::span<const int32_t> tokens, const PassExtent& extent,
                                 const RunControl& control) {
  CapturedPass pass;
  pass.extent = extent;
  pass.layers.resize(static_cast<size_t>(model.config().kv.num_layers));
  PassObserver observer(pass.layers);
  OSCAR_ASSIGN_OR_RETURN(const SequenceId sequence, cache.NewSequence());
  std::vector<float> logits;
  for (int at = 0; at < extent.positions;) {
    OSCAR_TRY(control.CheckCancelled());
    const bool sampled = at >= extent.first_sampled();
    const int most = sampled ? kScoredStepTokens : std::min(kMaxStepTokens, cache.config().max_step_tokens);
    const int count = std::min(most, (sampled ? extent.positions : extent.first_sampled()) - at);
    const StepSequence step{sequence, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count)), sampled};
    observer.set_sampled(sampled);
    OSCAR_TRY(model.Forward({&step, 1}, cache, sampled ? &logits : nullptr, &observer));
    if (sampled) pass.logits.insert(pass.logits.end(), logits.begin(), logits.end());
    at += count;
    control.Report(at, extent.positions);
  }
  OSCAR_TRY(ReadAllEncodedRows(model, cache, sequence, pass.layers));
  OSCAR_TRY(cache.Release(sequence));
  return pass;
}

}  // namespace oscar::engine
