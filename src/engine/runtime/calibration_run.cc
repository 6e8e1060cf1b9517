#include "src/engine/runtime/calibration_run.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <utility>

#include "oscar/version.h"
#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

// Adds the rows of one step of one layer, whose first position is given, to some moments.
using AddRows = std::function<Status(int layer, int first_position, RowsView<const float> queries, RowsView<const float> keys,
                                     RowsView<const float> values)>;

// Adds what attention made of them.
using AddOutputs = std::function<Status(int layer, RowsView<const float> outputs)>;

class RowObserver : public AttentionObserver {
 public:
  RowObserver(AddRows add, AddOutputs add_outputs, bool takes_device_rows)
      : add_(std::move(add)), add_outputs_(std::move(add_outputs)), takes_device_rows_(takes_device_rows) {}
  void set_first_position(int position) { first_position_ = position; }
  bool takes_device_rows() const override { return takes_device_rows_; }
  Status Observe(int layer, RowsView<const float> queries, RowsView<const float> keys,
                 RowsView<const float> values) override {
    return add_(layer, first_position_, queries, keys, values);
  }
  Status ObserveAttention(int layer, RowsView<const float> attention) override {
    return add_outputs_ ? add_outputs_(layer, attention) : Status();
  }

 private:
  AddRows add_;
  AddOutputs add_outputs_;
  const bool takes_device_rows_;
  int first_position_ = 0;
};

// The windows of a run and the exact cache they go through.
struct CalibrationText {
  std::vector<int32_t> tokens;
  std::unique_ptr<KvCache> cache;
  int64_t num_passes = 0;
  int64_t done = 0;  // tokens over all passes
  bool takes_device_rows = true;  // as the moments of the model do

  // One pass over all windows.
  Status RunPass(Engine& engine, const CalibrationRequest& request, const AddRows& add, const AddOutputs& add_outputs = {}) {
    RowObserver observer(add, add_outputs, takes_device_rows);
    const int64_t total = static_cast<int64_t>(tokens.size()) * num_passes;
    const std::span<const int32_t> all(tokens);
    for (size_t start = 0; start < all.size(); start += request.window_tokens) {
      const auto window = all.subspan(start, std::min<size_t>(request.window_tokens, all.size() - start));
      OSCAR_ASSIGN_OR_RETURN(const SequenceId sequence, cache->NewSequence());
      for (size_t at = 0; at < window.size();) {
        OSCAR_TRY(request.control.CheckCancelled());
        const size_t count = std::min<size_t>(cache->config().max_step_tokens, window.size() - at);
        const StepSequence step{sequence, window.subspan(at, count), false};
        observer.set_first_position(static_cast<int>(at));
        OSCAR_TRY(engine.model().Forward({&step, 1}, *cache, /*logits=*/nullptr, &observer));
        at += count;
        done += static_cast<int64_t>(count);
        request.control.Report(done, total);
      }
      OSCAR_TRY(cache->Release(sequence));
    }
    return {};
  }
};

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
  provenance.model_digest = engine.identity().fingerprint;
  provenance.model_identity = engine.identity().identity;
  provenance.oscar_version = std::string(kVersion);
  provenance.text_name = request.text.name;
  provenance.num_tokens = num_tokens;
  provenance.window_tokens = request.window_tokens;
  provenance.created_utc = UtcNow();
  return provenance;
}

// Every row of every output projection, some at a time.
Status AddOutputProjections(const Engine& engine, BalancedMoments& moments) {
  constexpr int kRowsAtOnce = 256;
  const ModelConfig& config = engine.model().config();
  for (int layer = 0; layer < config.kv.num_layers; ++layer) {
    for (int first = 0; first < config.hidden_size; first += kRowsAtOnce) {
      const int count = std::min(kRowsAtOnce, config.hidden_size - first);
      OSCAR_ASSIGN_OR_RETURN(const std::vector<float> rows, engine.model().AttentionOutputRows(layer, first, count));
      OSCAR_TRY(moments.AddOutputProjection(layer, PackedRows(rows.data(), count, config.kv.num_query_heads, config.kv.head_dim)));
    }
  }
  return {};
}

Result<CalibrationOutcome> FitOscarTo(Engine& engine, const CalibrationRequest& request, CalibrationText& text) {
  OscarFitOptions fit = request.oscar_fit;
  const auto num_tokens = static_cast<int64_t>(text.tokens.size());
  fit.expected_tokens = num_tokens;
  OSCAR_ASSIGN_OR_RETURN(MomentAccumulator moments, engine.model().NewMoments(fit));
  text.num_passes = moments.num_passes();
  AddOutputs add_outputs;
  if (fit.v_metric == VMetric::kSoftmax) {
    add_outputs = [&](int layer, RowsView<const float> outputs) { return moments.AddOutputs(layer, outputs); };
  }
  for (int pass = 0; pass < moments.num_passes(); ++pass) {
    const AddRows add = [&](int layer, int /*first_position*/, const auto& queries, const auto& keys, const auto& values) {
      return moments.Add(layer, queries, keys, values);
    };
    OSCAR_TRY(text.RunPass(engine, request, add, add_outputs));
    moments.EndPass();
  }
  FitReport report;
  OSCAR_ASSIGN_OR_RETURN(CodecProfile profile, FitOscar(moments, fit, DescribeRun(engine, request, num_tokens), &report));
  return CalibrationOutcome{std::move(profile), std::move(report), num_tokens, 0};
}

Result<CalibrationOutcome> FitBalancedTo(Engine& engine, const CalibrationRequest& request, CalibrationText& text, int bits) {
  const auto num_tokens = static_cast<int64_t>(text.tokens.size());
  OSCAR_ASSIGN_OR_RETURN(BalancedMoments moments, engine.model().NewBalancedMoments(num_tokens));
  OSCAR_TRY(AddOutputProjections(engine, moments));
  text.num_passes = BalancedMoments::kNumPasses;
  for (int pass = 0; pass < BalancedMoments::kNumPasses; ++pass) {
    OSCAR_TRY(text.RunPass(engine, request, [&](int layer, int first_position, const auto& queries, const auto& keys, const auto& values) {
      return moments.Add(layer, first_position, queries, keys, values);
    }));
    moments.EndPass();
  }
  BalancedReport report;
  BalancedFitOptions fit;
  fit.bits = bits;
  OSCAR_ASSIGN_OR_RETURN(CodecProfile profile, FitBalanced(moments, fit, DescribeRun(engine, request, num_tokens), &report));
  return CalibrationOutcome{std::move(profile), std::move(report), num_tokens, 0};
}

Result<CalibrationOutcome> FitChannelOrderTo(Engine& engine, const CalibrationRequest& request, CalibrationText& text) {
  const auto num_tokens = static_cast<int64_t>(text.tokens.size());
  ChannelSums sums(engine.model().config().kv, engine.model().rotary());
  text.num_passes = 1;
  text.takes_device_rows = false;
  OSCAR_TRY(text.RunPass(engine, request, [&](int layer, int first_position, const auto& /*queries*/, const auto& keys, const auto& /*values*/) {
    return sums.Add(layer, first_position, keys);
  }));
  OSCAR_ASSIGN_OR_RETURN(CodecProfile profile, FitChannelOrder(sums, DescribeRun(engine, request, num_tokens)));
  return CalibrationOutcome{std::move(profile), std::monostate(), num_tokens, 0};
}

}  // namespace

bool IsCalibrated(std::string_view method) {
  return method == "rotatekv" || method == "int2:oscar" || method == "int2:balanced" || method == "int1:balanced";
}

Result<CalibrationOutcome> Calibrate(Engine& engine, const CalibrationRequest& request) {
  OSCAR_ASSIGN_OR_RETURN(const KvMethod method, ParseKvMethod(request.method));
  if (!IsCalibrated(request.method)) {
    return {StatusCode::kUnsupported, request.method + " takes no calibration (calibrated methods: int2:balanced, int1:balanced, int2:oscar, rotatekv)"};
  }
  if (request.window_tokens < kPageTokens) {
    return {StatusCode::kInvalidArgument, "--window " + std::to_string(request.window_tokens) + ": at least " + std::to_string(kPageTokens) +
                                              ", since attention over fewer tokens says nothing of a long context"};
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
  const bool is_oscar = method.method == "oscar", is_rotatekv = method.codec->name == "rotatekv";
  BalancedFitOptions balanced;
  balanced.bits = static_cast<int>(method.codec->bits);
  OSCAR_TRY(is_rotatekv ? CheckChannelOrderFit(config.kv, engine.model().rotary())
            : is_oscar  ? CheckOscarFit(config.kv, request.oscar_fit)
                        : CheckBalancedFit(config.kv, balanced));
  const auto start = std::chrono::steady_clock::now();
  CalibrationText text;
  OSCAR_ASSIGN_OR_RETURN(text.tokens, TokenizeSource(engine.tokenizer(), request.text, request.num_tokens, least));
  OSCAR_ASSIGN_OR_RETURN(const KvSetup exact, engine.SetUpKv("bf16", {}));
  OSCAR_ASSIGN_OR_RETURN(text.cache, engine.NewCache(exact, request.window_tokens));
  OSCAR_ASSIGN_OR_RETURN(CalibrationOutcome outcome, is_rotatekv ? FitChannelOrderTo(engine, request, text)
                                                     : is_oscar  ? FitOscarTo(engine, request, text)
                                                                 : FitBalancedTo(engine, request, text, balanced.bits));
  OSCAR_TRY(request.control.CheckCancelled());
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

}  // namespace oscar::engine
