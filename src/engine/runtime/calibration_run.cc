#include "src/engine/runtime/calibration_run.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "oscar/version.h"
#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

class MomentObserver : public AttentionObserver {
 public:
  explicit MomentObserver(MomentAccumulator& moments) : moments_(moments) {}
  Status Observe(int layer, RowsView<const float> queries, RowsView<const float> keys,
                 RowsView<const float> values) override {
    return moments_.Add(layer, queries, keys, values);
  }

 private:
  MomentAccumulator& moments_;
};

// One pass over the windows. `done` counts tokens over all passes.
Status RunPass(Engine& engine, KvCache& cache, std::span<const int32_t> tokens, const CalibrationRequest& request,
               MomentAccumulator& moments, int64_t* done) {
  MomentObserver observer(moments);
  const int64_t total = static_cast<int64_t>(tokens.size()) * moments.num_passes();
  for (size_t start = 0; start < tokens.size(); start += request.window_tokens) {
    const auto window = tokens.subspan(start, std::min<size_t>(request.window_tokens, tokens.size() - start));
    OSCAR_ASSIGN_OR_RETURN(const SequenceId sequence, cache.NewSequence());
    for (size_t at = 0; at < window.size();) {
      OSCAR_TRY(request.control.CheckCancelled());
      const size_t count = std::min<size_t>(cache.config().max_step_tokens, window.size() - at);
      const StepSequence step{sequence, window.subspan(at, count), false};
      OSCAR_TRY(engine.model().Forward({&step, 1}, cache, /*logits=*/nullptr, &observer));
      at += count;
      *done += static_cast<int64_t>(count);
      request.control.Report(*done, total);
    }
    OSCAR_TRY(cache.Release(sequence));
  }
  moments.EndPass();
  return {};
}

std::string UtcNow() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Provenance DescribeRun(const Engine& engine, const CalibrationRequest& request, int64_t num_tokens) {
  Provenance provenance;
  provenance.model_name = engine.identity().name;
  provenance.model_sha256 = engine.identity().fingerprint;
  provenance.model_identity = engine.identity().identity;
  provenance.oscar_version = std::string(kVersion);
  provenance.text_name = request.text.name;
  provenance.num_tokens = num_tokens;
  provenance.window_tokens = request.window_tokens;
  provenance.created_utc = UtcNow();
  return provenance;
}

}  // namespace

Result<CalibrationOutcome> Calibrate(Engine& engine, const CalibrationRequest& request) {
  if (request.method != "int2:oscar") {
    return {StatusCode::kUnsupported, request.method + " takes no calibration (calibrated methods: int2:oscar)"};
  }
  if (request.num_tokens < 1 || request.window_tokens < 1) {
    return {StatusCode::kInvalidArgument, "--tokens and --window must be positive"};
  }
  const ModelConfig& config = engine.model().config();
  const int64_t least = 8 * config.kv.head_dim;  // method.md 2.7
  if (request.num_tokens < least) {
    return {StatusCode::kInvalidArgument, "--tokens " + std::to_string(request.num_tokens) + ": at least " + std::to_string(least) +
                                              " are needed for head_dim " + std::to_string(config.kv.head_dim)};
  }
  if (request.window_tokens > config.max_context) {
    return {StatusCode::kInvalidArgument, "--window " + std::to_string(request.window_tokens) + ": the model was trained for " +
                                              std::to_string(config.max_context) + " tokens"};
  }
  OSCAR_TRY(CheckOscarFit(config.kv, request.fit));
  const auto start = std::chrono::steady_clock::now();
  OSCAR_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                         TokenizeSource(engine.tokenizer(), request.text, request.num_tokens, least));
  OSCAR_ASSIGN_OR_RETURN(const KvSetup exact, engine.SetUpKv("bf16", {}));
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> cache, engine.NewCache(exact, request.window_tokens));
  OscarFitOptions fit = request.fit;
  fit.expected_tokens = static_cast<int64_t>(tokens.size());
  MomentAccumulator moments(config.kv, fit);
  int64_t done = 0;
  for (int pass = 0; pass < moments.num_passes(); ++pass) {
    OSCAR_TRY(RunPass(engine, *cache, tokens, request, moments, &done));
  }
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  FitReport report;
  OSCAR_ASSIGN_OR_RETURN(CodecProfile profile,
                         FitOscar(moments, fit, DescribeRun(engine, request, num_tokens), &report));
  OSCAR_TRY(request.control.CheckCancelled());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return CalibrationOutcome{std::move(profile), std::move(report), num_tokens, seconds};
}

}  // namespace oscar::engine
