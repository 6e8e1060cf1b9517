#include "src/engine/evaluate/ablation.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include "oscar/calibrate.h"
#include "src/base/status_macros.h"
#include "src/engine/evaluate/observed_pass.h"

namespace oscar::engine {
namespace {

constexpr std::array<std::string_view, 8> kSweeps = {"clip-k", "clip-v", "scope", "k-metric", "v-metric", "compose", "effort", "windows"};
constexpr std::string_view kOscar = "int2:oscar";
// 0 is no clip. With 1 the largest value of a row is its own limit, which is the same.
constexpr std::array<float, 7> kClipRatios = {0.0f, 0.85f, 0.90f, 0.92f, 0.94f, 0.96f, 0.98f};
constexpr std::array<KvWindows, 7> kWindows = {{{0, 0}, {0, 64}, {64, 0}, {64, 64}, {64, 128}, {0, 256}, {128, 512}}};

bool IsOscarSweep(std::string_view sweep) { return sweep != "windows" && sweep != "effort"; }

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2g", value);
  return text;
}

// The moments of one text for all three V metrics, from the same passes.
class OscarMoments final : public StepObserver {
 public:
  explicit OscarMoments(const KvShape& shape) {
    for (const VMetric metric : {VMetric::kScore, VMetric::kPlain, VMetric::kSoftmax}) {
      moments_.emplace_back(shape, OscarFitOptions{.v_metric = metric});
    }
  }
  Status Observe(int layer, RowsView<const float> queries, RowsView<const float> keys, RowsView<const float> values) override {
    for (MomentAccumulator& moments : moments_) {
      if (pass_ < moments.num_passes()) OSCAR_TRY(moments.Add(layer, queries, keys, values));
    }
    return {};
  }
  Status ObserveAttention(int layer, RowsView<const float> attention) override {
    return pass_ == 0 ? moments_[static_cast<size_t>(VMetric::kSoftmax)].AddOutputs(layer, attention) : Status();
  }
  void EndPass() {
    for (MomentAccumulator& moments : moments_) {
      if (pass_ < moments.num_passes()) moments.EndPass();
    }
    ++pass_;
  }
  const MomentAccumulator& of(VMetric metric) const { return moments_[static_cast<size_t>(metric)]; }

 private:
  std::vector<MomentAccumulator> moments_;  // by VMetric
  int pass_ = 0;
};

class AblationMaker {
 public:
  AblationMaker(Engine& engine, const AblationRequest& request) : engine_(engine), request_(request) {}

  Result<std::vector<AblationSetting>> Make() {
    OSCAR_TRY(CheckSweeps());
    const bool is_oscar = request_.method == kOscar;
    if (is_oscar) {
      OSCAR_TRY(CheckOscarFit(engine_.model().config().kv, {}));
      OSCAR_TRY(Calibrate());
    }
    OSCAR_ASSIGN_OR_RETURN(KvSetup base, is_oscar ? Fitted({}) : engine_.SetUpKv(request_.method, request_.profile));
    const bool has_feedback = TakesEncodeEffort(base);
    if (engine_.options().encode_effort && !has_feedback) {
      return {StatusCode::kInvalidArgument, "--encode-effort: " + request_.method + " has no error feedback"};
    }
    settings_.push_back({"base", "-", base});
    for (const std::string_view sweep : kSweeps) {
      if (!Wants(sweep)) continue;
      if (IsOscarSweep(sweep) ? !is_oscar : sweep == "effort" && !has_feedback) {
        if (request_.sweeps.empty()) continue;
        return {StatusCode::kInvalidArgument, "--sweep " + std::string(sweep) + ": " + request_.method + " has none"};
      }
      OSCAR_TRY(Add(sweep, base));
    }
    return std::move(settings_);
  }

 private:
  Status CheckSweeps() const {
    for (const std::string& sweep : request_.sweeps) {
      if (std::find(kSweeps.begin(), kSweeps.end(), sweep) != kSweeps.end()) continue;
      std::string names;
      for (const std::string_view name : kSweeps) names += (names.empty() ? "" : ", ") + std::string(name);
      return {StatusCode::kInvalidArgument, "--sweep " + sweep + ": there are " + names};
    }
    return {};
  }
  bool Wants(std::string_view sweep) const {
    return request_.sweeps.empty() || std::find(request_.sweeps.begin(), request_.sweeps.end(), sweep) != request_.sweeps.end();
  }

  Status Calibrate() {
    const int64_t least = 8 * engine_.model().config().kv.head_dim;
    if (request_.calibration_tokens < least) {
      return {StatusCode::kInvalidArgument, "--calibration-tokens " + std::to_string(request_.calibration_tokens) + ": at least " + std::to_string(least)};
    }
    OSCAR_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                           TokenizeSource(engine_.tokenizer(), request_.calibration_text, request_.calibration_tokens, least));
    const int window = static_cast<int>(std::min<int64_t>(request_.calibration_window, static_cast<int64_t>(tokens.size())));
    OSCAR_ASSIGN_OR_RETURN(WindowPlan plan, PlanWindows(tokens.size(), window, window - 1, 0));
    plan.starts.clear();  // one behind the other, none twice
    for (size_t start = 0; start + static_cast<size_t>(window) <= tokens.size(); start += static_cast<size_t>(window)) plan.starts.push_back(start);
    moments_.emplace(engine_.model().config().kv);
    for (int pass = 0; pass < 2; ++pass) {
      RunControl half = request_.calibration_control;
      half.progress = [&](int64_t done, int64_t total) { request_.calibration_control.Report(pass * total + done, 2 * total); };
      OSCAR_TRY(ObserveWindows(engine_, tokens, plan, *moments_, half));
      moments_->EndPass();
    }
    return {};
  }

  Result<KvSetup> Fitted(const OscarFitOptions& fit) const {
    OSCAR_ASSIGN_OR_RETURN(CodecProfile profile, FitOscar(moments_->of(fit.v_metric), fit, {}, nullptr));
    OSCAR_ASSIGN_OR_RETURN(const KvMethod method, ParseKvMethod(kOscar));
    return KvSetup{method, std::move(profile), "", {}};
  }
  Status AddFit(std::string_view sweep, std::string value, const OscarFitOptions& fit) {
    OSCAR_ASSIGN_OR_RETURN(KvSetup setup, Fitted(fit));
    settings_.push_back({std::string(sweep), std::move(value), std::move(setup)});
    return {};
  }

  Status Add(std::string_view sweep, const KvSetup& base) {
    if (sweep == "windows") return AddWindows(base);
    if (sweep == "effort") return AddEfforts(base);
    if (sweep == "scope") return AddFit(sweep, "head", {.per_head = true});
    if (sweep == "k-metric") return AddFit(sweep, "plain", {.k_metric = KMetric::kPlain});
    if (sweep == "v-metric") {
      for (const VMetric metric : {VMetric::kSoftmax, VMetric::kPlain}) OSCAR_TRY(AddFit(sweep, std::string(VMetricName(metric)), {.v_metric = metric}));
      return AddFit(sweep, "plain, K too", {.k_metric = KMetric::kPlain, .v_metric = VMetric::kPlain});
    }
    if (sweep == "compose") {
      for (const Composition composition : {Composition::kRH, Composition::kPlain, Composition::kHPbr, Composition::kHadamard}) {
        OSCAR_TRY(AddFit(sweep, std::string(CompositionName(composition)), {.composition = composition}));
      }
      return {};
    }
    const OscarFitOptions defaults;
    for (const float ratio : kClipRatios) {
      OscarFitOptions fit;
      (sweep == "clip-k" ? fit.clip_k : fit.clip_v) = ratio;
      if (fit.clip_k == defaults.clip_k && fit.clip_v == defaults.clip_v) continue;
      OSCAR_TRY(AddFit(sweep, ratio > 0 ? Short(static_cast<double>(ratio)) : "none", fit));
    }
    return {};
  }

  Status AddWindows(const KvSetup& base) {
    for (const KvWindows& windows : kWindows) {
      settings_.push_back({"windows", std::to_string(windows.sink) + " + " + std::to_string(windows.recent), base});
      settings_.back().setup.windows = windows;
    }
    return {};
  }
  Status AddEfforts(const KvSetup& base) {
    for (int effort = 0; effort <= kMaxEncodeEffort; ++effort) {
      if (effort == base.profile.row(0, 0, KvSide::kKey).encode_effort) continue;
      settings_.push_back({"effort", std::to_string(effort), base});
      OSCAR_TRY(settings_.back().setup.profile.SetEncodeEffort(effort));
    }
    return {};
  }

  Engine& engine_;
  const AblationRequest& request_;
  std::optional<OscarMoments> moments_;
  std::vector<AblationSetting> settings_;
};

}  // namespace

std::span<const std::string_view> AblationSweeps() { return kSweeps; }

Result<std::vector<AblationSetting>> MakeAblation(Engine& engine, const AblationRequest& request) { return AblationMaker(engine, request).Make(); }

Result<AblationReport> RunAblation(Engine& engine, const AblationRequest& request, std::span<const int32_t> tokens, const WindowPlan& plan) {
  OSCAR_ASSIGN_OR_RETURN(std::vector<AblationSetting> settings, MakeAblation(engine, request));
  std::vector<KvSetup> setups;
  for (const AblationSetting& setting : settings) setups.push_back(setting.setup);
  OSCAR_ASSIGN_OR_RETURN(const ScoreReport scored, ScoreMethods(engine, setups, tokens, plan, /*compare=*/true, request.control));
  AblationReport report{scored.model, request.method, scored.exact_perplexity, scored.num_scored, {}};
  for (size_t i = 0; i < settings.size(); ++i) report.scores.push_back({settings[i].sweep, settings[i].value, scored.methods[i]});
  return report;
}

}  // namespace oscar::engine
