#include "src/engine/evaluate/error_chain.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "oscar/kernels.h"
#include "src/base/status_macros.h"
#include "src/engine/evaluate/token_scores.h"

namespace oscar::engine {
namespace {

// Lanes let the compiler use vectors without reordering a sum.
float Dot(const float* a, const float* b, size_t n) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> sums{};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float total = 0;
  for (; i < n; ++i) total += a[i] * b[i];
  for (const float sum : sums) total += sum;
  return total;
}

// exact and other less their means: adding a constant to scores or logits changes nothing behind a softmax.
RelativeError CentredError(std::span<const float> exact, std::span<const float> other) {
  double mean_exact = 0, mean_other = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    mean_exact += exact[i];
    mean_other += other[i];
  }
  mean_exact /= static_cast<double>(exact.size());
  mean_other /= static_cast<double>(exact.size());
  RelativeError error;
  for (size_t i = 0; i < exact.size(); ++i) error.Add(other[i] - mean_other - (exact[i] - mean_exact), exact[i] - mean_exact);
  return error;
}

RelativeError ErrorOf(std::span<const float> exact, std::span<const float> other) {
  RelativeError error;
  for (size_t i = 0; i < exact.size(); ++i) error.Add(static_cast<double>(other[i]) - exact[i], exact[i]);
  return error;
}

// Keys and values of one layer as the cache of a pass reads them.
class LayerOf {
 public:
  LayerOf(const LayerCapture& capture, const KvShape& shape) : capture_(capture), shape_(shape) {}
  // `encoded_end`: of the query that reads.
  const float* Key(int token, int head, int encoded_end) const {
    if (token >= capture_.encoded_begin && token < std::min(encoded_end, capture_.encoded_end)) {
      return capture_.encoded_keys.data() + At(token - capture_.encoded_begin, head, shape_.num_kv_heads);
    }
    return capture_.keys.data() + At(token, head, shape_.num_kv_heads);
  }
  const float* Query(int sample, int head) const { return capture_.queries.data() + At(sample, head, shape_.num_query_heads); }

 private:
  size_t At(int row, int head, int heads) const {
    return (static_cast<size_t>(row) * static_cast<size_t>(heads) + static_cast<size_t>(head)) * static_cast<size_t>(shape_.head_dim);
  }
  const LayerCapture& capture_;
  const KvShape& shape_;
};

// Compares two passes on one layer.
class LayerComparison {
 public:
  LayerComparison(Model& model, const CapturedPass& exact, const CapturedPass& method, const KvCache& cache, int layer)
      : model_(model), shape_(model.config().kv), extent_(exact.extent), exact_(exact.layers[static_cast<size_t>(layer)]),
        method_(method.layers[static_cast<size_t>(layer)]), cache_(cache), layer_(layer) {}

  Status AddTo(LayerErrors& errors) const {
    AddRows(errors);
    AddScores(errors);
    OSCAR_TRY(AddOutputs(errors));
    errors.hidden.Add(ErrorOf(exact_.hidden, method_.hidden));
    return {};
  }

 private:
  void AddRows(LayerErrors& errors) const {
    const size_t width = static_cast<size_t>(shape_.num_kv_heads) * static_cast<size_t>(shape_.head_dim);
    const size_t first = static_cast<size_t>(method_.encoded_begin) * width, count = method_.encoded_keys.size();
    const auto part = [&](const std::vector<float>& rows) { return std::span(rows).subspan(first, count); };
    errors.key_codec.Add(ErrorOf(part(method_.keys), method_.encoded_keys));
    errors.value_codec.Add(ErrorOf(part(method_.values), method_.encoded_values));
    errors.key.Add(ErrorOf(part(exact_.keys), method_.encoded_keys));
    errors.value.Add(ErrorOf(part(exact_.values), method_.encoded_values));
  }

  void AddScores(LayerErrors& errors) const {
    const int num_threads = model_.executor().num_threads();
    std::vector<LayerErrors> parts(static_cast<size_t>(num_threads));
    RunOn(model_.executor(), [&](int thread, int) {
      for (int row = thread; row < extent_.sampled * shape_.num_query_heads; row += num_threads) {
        AddScoresOf(row / shape_.num_query_heads, row % shape_.num_query_heads, parts[static_cast<size_t>(thread)]);
      }
    });
    for (const LayerErrors& part : parts) {
      errors.score.Add(part.score);
      errors.attention_kl += part.attention_kl;
      errors.num_attention += part.num_attention;
    }
  }

  void AddScoresOf(int sample, int head, LayerErrors& errors) const {
    const int position = extent_.first_sampled() + sample;
    const KvCacheConfig& config = cache_.config();
    const int end = cache_.method().is_exact() ? 0 : EncodedEnd(position, config.sink, config.recent, cache_.method().codec->encode_tokens);
    const auto d = static_cast<size_t>(shape_.head_dim);
    const LayerOf exact(exact_, shape_), method(method_, shape_);
    std::vector<float> exact_scores, scores;
    const float scale = model_.config().attention_scale;
    for (int token = 0; token <= position; ++token) {
      exact_scores.push_back(scale * Dot(exact.Query(sample, head), exact.Key(token, head / shape_.group(), 0), d));
      scores.push_back(scale * Dot(method.Query(sample, head), method.Key(token, head / shape_.group(), end), d));
    }
    errors.score.Add(CentredError(exact_scores, scores));
    errors.attention_kl += KlDivergence(exact_scores, scores);
    ++errors.num_attention;
  }

  // W_o (a' - a) against W_o a; a bias of the projection is left out of both.
  Status AddOutputs(LayerErrors& errors) const {
    constexpr int kRowsAtOnce = 256;
    const auto width = static_cast<size_t>(shape_.num_query_heads) * static_cast<size_t>(shape_.head_dim);
    std::vector<float> difference(exact_.attention.size());
    for (size_t i = 0; i < difference.size(); ++i) difference[i] = method_.attention[i] - exact_.attention[i];
    const int num_threads = model_.executor().num_threads();
    std::vector<RelativeError> parts(static_cast<size_t>(num_threads));
    for (int first = 0; first < model_.config().hidden_size; first += kRowsAtOnce) {
      const int count = std::min(kRowsAtOnce, model_.config().hidden_size - first);
      OSCAR_ASSIGN_OR_RETURN(const std::vector<float> rows, model_.AttentionOutputRows(layer_, first, count));
      RunOn(model_.executor(), [&](int thread, int) {
        for (int row = thread; row < count; row += num_threads) {
          const float* weights = rows.data() + static_cast<size_t>(row) * width;
          for (size_t at = 0; at < difference.size(); at += width) {
            parts[static_cast<size_t>(thread)].Add(Dot(weights, difference.data() + at, width), Dot(weights, exact_.attention.data() + at, width));
          }
        }
      });
    }
    for (const RelativeError& part : parts) errors.output.Add(part);
    return {};
  }

  Model& model_;
  const KvShape& shape_;
  const PassExtent extent_;
  const LayerCapture &exact_, &method_;
  const KvCache& cache_;
  const int layer_;
};

}  // namespace

Status AddErrors(Model& model, const CapturedPass& exact, const CapturedPass& method, const KvCache& cache, ErrorChain& chain) {
  for (size_t layer = 0; layer < chain.layers.size(); ++layer) {
    OSCAR_TRY(LayerComparison(model, exact, method, cache, static_cast<int>(layer)).AddTo(chain.layers[layer]));
  }
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  for (size_t at = 0; at < exact.logits.size(); at += vocab) {
    const auto of_exact = std::span(exact.logits).subspan(at, vocab), of_method = std::span(method.logits).subspan(at, vocab);
    chain.logits.Add(CentredError(of_exact, of_method));
    chain.kl += KlDivergence(of_exact, of_method);
    chain.top1_agreement += ArgMax(of_exact) == ArgMax(of_method);
  }
  return {};
}

Result<ErrorChainReport> RunErrorChain(Engine& engine, std::span<const KvSetup> methods, std::span<const int32_t> tokens,
                                       const WindowPlan& plan, const RunControl& control) {
  const PassExtent extent{plan.window - 1, plan.scored};  // the last token of a window is only a target
  std::vector<std::unique_ptr<KvCache>> caches;
  OSCAR_ASSIGN_OR_RETURN(const KvSetup exact_setup, engine.SetUpKv("bf16", {}));
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> exact_cache, engine.NewCache(exact_setup, plan.window));
  ErrorChainReport report{engine.identity().name, "", plan.window, plan.scored, static_cast<int>(plan.starts.size()), {}};
  for (const KvSetup& setup : methods) {
    const KvWindows windows = engine.WindowsOf(setup);
    const int unit = setup.method.codec->encode_tokens;
    if (!setup.method.is_exact() && EncodedEnd(extent.first_sampled(), windows.sink, windows.recent, unit) <= windows.sink) {
      return {StatusCode::kInvalidArgument, "--window " + std::to_string(plan.window) + ": too short for an encoded page before the last " +
                                                std::to_string(plan.scored) + " tokens; at least " +
                                                std::to_string(windows.sink + windows.recent + unit + plan.scored + 1) + " are needed"};
    }
    OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache, engine.NewCache(setup, plan.window));
    caches.push_back(std::move(cache));
    ErrorChain chain;
    chain.method = setup.method.name();
    chain.layers.resize(static_cast<size_t>(engine.model().config().kv.num_layers));
    for (int position = extent.first_sampled(); position < extent.positions; ++position) {
      chain.bits_per_element += LedgerAt(setup.method, engine.model().config().kv.head_dim, position + 1, windows.sink, windows.recent).at_length;
    }
    chain.bits_per_element /= plan.scored;
    report.chains.push_back(std::move(chain));
  }
  const int64_t passes = static_cast<int64_t>(plan.starts.size()) * (1 + static_cast<int64_t>(methods.size()));
  int64_t done = 0;
  RunControl part = control;
  part.progress = [&](int64_t at, int64_t total) { control.Report(done * total + at, passes * total); };
  for (const size_t start : plan.starts) {
    std::vector<int32_t> window(tokens.begin() + static_cast<std::ptrdiff_t>(start), tokens.begin() + static_cast<std::ptrdiff_t>(start) + plan.window);
    if (engine.tokenizer().adds_bos()) window[0] = engine.tokenizer().bos_id();
    OSCAR_ASSIGN_OR_RETURN(const CapturedPass exact, CapturePass(engine.model(), *exact_cache, window, extent, part));
    ++done;
    for (size_t m = 0; m < caches.size(); ++m) {
      OSCAR_ASSIGN_OR_RETURN(const CapturedPass pass, CapturePass(engine.model(), *caches[m], window, extent, part));
      ++done;
      OSCAR_TRY(AddErrors(engine.model(), exact, pass, *caches[m], report.chains[m]));
    }
  }
  const double scored = static_cast<double>(plan.starts.size()) * plan.scored;
  for (ErrorChain& chain : report.chains) {
    chain.kl /= scored;
    chain.top1_agreement /= scored;
  }
  return report;
}

}  // namespace oscar::engine
