#include "src/engine/bench/kernel_speed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

// A cache filled with random rows, one sequence.
class FilledCache {
 public:
  static Result<FilledCache> Create(Engine& engine, const KvSetup& setup, int64_t tokens) {
    FilledCache filled;
    OSCAR_ASSIGN_OR_RETURN(filled.cache_, engine.NewCache(setup, tokens));
    OSCAR_ASSIGN_OR_RETURN(filled.sequence_, filled.cache_->NewSequence());
    const KvShape& shape = filled.shape();
    std::mt19937_64 rng(7);
    std::normal_distribution<float> normal;
    filled.rows_.resize(static_cast<size_t>(kPageTokens) * static_cast<size_t>(shape.num_kv_heads * shape.head_dim));
    for (float& value : filled.rows_) value = normal(rng);
    filled.queries_.resize(static_cast<size_t>(shape.num_query_heads * shape.head_dim));
    for (float& value : filled.queries_) value = normal(rng);
    filled.out_.resize(filled.queries_.size());
    return filled;
  }

  Status FillTo(int length) {
    while (cache_->length(sequence_) < length) {
      OSCAR_TRY(AppendTokens(std::min(kPageTokens, length - cache_->length(sequence_))));
      OSCAR_TRY(cache_->Commit(sequence_, reserved_));
    }
    return {};
  }

  // Seconds of attention in all layers for the next token, which is then taken back.
  Result<double> TimeAttention() {
    OSCAR_TRY(AppendTokens(1));
    const KvShape& shape = this->shape();
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    const auto queries = PackedRows<const float>(queries_.data(), 1, shape.num_query_heads, shape.head_dim);
    const auto start = std::chrono::steady_clock::now();
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      OSCAR_TRY(cache_->Attend({&sequence_, 1}, layer, scale, queries, PackedRows(out_.data(), 1, shape.num_query_heads, shape.head_dim)));
    }
    const double seconds = Since(start);
    cache_->Abandon(sequence_);
    return seconds;
  }

  // Seconds of a page of tokens appended in all layers, demotion included.
  Result<double> TimeDemotion() {
    const auto start = std::chrono::steady_clock::now();
    OSCAR_TRY(AppendTokens(kPageTokens));
    OSCAR_TRY(cache_->Commit(sequence_, kPageTokens));
    return Since(start);
  }

  const KvShape& shape() const { return cache_->config().shape; }
  // Bytes of the pages that attention of the next token reads.
  double BytesRead() const {
    const SegmentTokens tokens = cache_->segments(sequence_);
    const KvCacheStats stats = cache_->stats();
    return (static_cast<double>(tokens.sink + tokens.recent + 1) * static_cast<double>(stats.bf16_page_bytes) +
            static_cast<double>(tokens.body) * static_cast<double>(stats.encoded_page_bytes)) /
           kPageTokens;
  }
  // Bytes of a page of rows: f32 rows read, BF16 written, and where the method encodes BF16 read back and codes written.
  double BytesDemoted() const {
    const KvCacheStats stats = cache_->stats();
    const auto bf16 = static_cast<double>(stats.bf16_page_bytes), encoded = static_cast<double>(stats.encoded_page_bytes);
    return 3 * bf16 + (encoded > 0 ? bf16 + encoded : 0);
  }

 private:
  FilledCache() = default;
  static double Since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  Status AppendTokens(int count) {
    OSCAR_TRY(cache_->Reserve(sequence_, count));
    reserved_ = count;
    const auto rows = PackedRows<const float>(rows_.data(), count, shape().num_kv_heads, shape().head_dim);
    for (int layer = 0; layer < shape().num_layers; ++layer) OSCAR_TRY(cache_->Append(sequence_, layer, rows, rows));
    return {};
  }

  std::unique_ptr<KvCache> cache_;
  SequenceId sequence_ = 0;
  int reserved_ = 0;
  std::vector<float> rows_, queries_, out_;
};

Status CheckRequest(const Engine& engine, const KernelRequest& request) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (request.methods.empty()) return invalid("bench: no KV method given");
  if (request.repeats < 1) return invalid("bench: --repeats must be at least 1");
  if (request.contexts.empty() || request.contexts.front() < 1 ||
      !std::is_sorted(request.contexts.begin(), request.contexts.end(), [](int a, int b) { return a <= b; })) {
    return invalid("bench: contexts must be positive and ascending");
  }
  const int trained = engine.model().config().max_context;
  if (request.contexts.back() > trained) {
    return invalid("bench: context " + std::to_string(request.contexts.back()) + ": " + engine.identity().name + " was trained for " + std::to_string(trained));
  }
  return {};
}

// `time` once unmeasured, then repeat by repeat, the methods taking turns.
template <class Time>
Status TimeInTurns(const KernelRequest& request, std::vector<FilledCache>& caches, std::vector<KernelCell>& cells, const Time& time) {
  for (int repeat = -1; repeat < request.repeats; ++repeat) {
    for (size_t m = 0; m < caches.size(); ++m) {
      OSCAR_TRY(request.control.CheckCancelled());
      OSCAR_ASSIGN_OR_RETURN(const double seconds, time(caches[m]));
      if (repeat >= 0) cells[m].seconds.push_back(seconds);
    }
  }
  for (KernelCell& cell : cells) std::sort(cell.seconds.begin(), cell.seconds.end());
  return {};
}

template <class Fn>
Result<std::vector<KernelCell>> Measure(Engine& engine, const KernelRequest& request, int more_tokens, const Fn& measure) {
  OSCAR_TRY(CheckRequest(engine, request));
  std::vector<FilledCache> caches;
  for (const KvSetup& setup : request.methods) {
    OSCAR_ASSIGN_OR_RETURN(FilledCache cache, FilledCache::Create(engine, setup, int64_t{request.contexts.back()} + more_tokens));
    caches.push_back(std::move(cache));
  }
  std::vector<KernelCell> all;
  for (const int context : request.contexts) {
    std::vector<KernelCell> cells;
    for (size_t m = 0; m < caches.size(); ++m) {
      OSCAR_TRY(request.control.CheckCancelled());
      OSCAR_TRY(caches[m].FillTo(context));
      cells.push_back({.method = request.methods[m].method.name(), .context = context});
    }
    OSCAR_TRY(measure(caches, cells));
    all.insert(all.end(), cells.begin(), cells.end());
    request.control.Report(context, request.contexts.back());
  }
  return all;
}

}  // namespace

Result<std::vector<KernelCell>> MeasureAttention(Engine& engine, const KernelRequest& request) {
  return Measure(engine, request, kPageTokens, [&](std::vector<FilledCache>& caches, std::vector<KernelCell>& cells) -> Status {
    for (size_t m = 0; m < caches.size(); ++m) {
      const KvShape& shape = caches[m].shape();
      cells[m].bytes = caches[m].BytesRead();
      cells[m].multiply_adds = 2.0 * shape.num_layers * shape.num_query_heads * (cells[m].context + 1.0) * shape.head_dim;
    }
    return TimeInTurns(request, caches, cells, [](FilledCache& cache) { return cache.TimeAttention(); });
  });
}

Result<std::vector<KernelCell>> MeasureDemotion(Engine& engine, const KernelRequest& request) {
  const int64_t tokens_per_context = int64_t{kPageTokens} * (request.repeats + 1);
  for (size_t i = 1; i < request.contexts.size(); ++i) {
    if (request.contexts[i] - request.contexts[i - 1] < tokens_per_context) {
      return Status(StatusCode::kInvalidArgument, "bench: contexts " + std::to_string(request.contexts[i - 1]) + " and " + std::to_string(request.contexts[i]) +
                                                      " are closer than the " + std::to_string(tokens_per_context) + " tokens appended between them");
    }
  }
  const auto more = static_cast<int>(tokens_per_context) + kPageTokens;
  return Measure(engine, request, more, [&](std::vector<FilledCache>& caches, std::vector<KernelCell>& cells) -> Status {
    for (size_t m = 0; m < caches.size(); ++m) {
      const KvShape& shape = caches[m].shape();
      cells[m].bytes = caches[m].BytesDemoted();
      cells[m].rows = int64_t{2} * shape.num_layers * shape.num_kv_heads * kPageTokens;
    }
    return TimeInTurns(request, caches, cells, [](FilledCache& cache) { return cache.TimeDemotion(); });
  });
}

}  // namespace oscar::engine
