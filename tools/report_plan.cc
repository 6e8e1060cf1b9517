#include "tools/report_plan.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

#include "src/engine/evaluate/retrieval_tasks.h"

namespace oscar::tools {
namespace {

// Shares of the budget; a task suite takes its own off the top. What a method costs beside the exact cache is in kMethodCost: encoding, and slower
// attention. A generated token costs about as much as kDecodeCost tokens of a prompt.
constexpr double kFitShare = 0.15, kKlShare = 0.25, kNeedleShare = 0.12, kRulerShare = 0.13, kChainShare = 0.12, kBasisShare = 0.08, kAblationShare = 0.15;
constexpr double kSuiteShare = 0.3;
constexpr double kMethodCost = 1.3, kDecodeCost = 20;
constexpr int kRulerAnswerTokens = 128, kSuiteAnswerTokens = 256;  // about
constexpr int kMostFitTokens = 30000;
constexpr int kLeastChainWindow = 640;  // holds an encode unit of 128 tokens between the BF16 windows and the tokens looked at
constexpr int kAblationSettings = 30;  // of int2:oscar, about

class Planner {
 public:
  Planner(const ReportInputs& inputs, const ReportBudget& budget) : inputs_(inputs), budget_(budget), suite_seconds_(inputs.suite.empty() ? 0 : kSuiteShare * budget.seconds) {
    budget_.seconds -= suite_seconds_;
  }

  std::vector<ReportStep> Plan() {
    PlanFits();
    const double passes = 1 + kMethodCost * static_cast<double>(inputs_.methods.size());
    const double kl_share = inputs_.code.empty() ? kKlShare : kKlShare / 2;
    const Windows kl = budget_.kl_window > 0 ? FitWindows(kl_share, passes, budget_.kl_window, budget_.kl_window) : FitWindows(kl_share, passes);
    AddEval("kl_prose", inputs_.text.empty() ? "KL and perplexity, built-in text" : "KL and perplexity, prose", {"kl"}, inputs_.text, kl, Names(false));
    if (!inputs_.code.empty()) AddEval("kl_code", "KL and perplexity, code", {"kl"}, inputs_.code, kl, Names(false));
    PlanNeedle(passes);
    PlanRuler(passes);
    PlanSuite();
    Windows chain = FitWindows(kChainShare, passes, kLeastChainWindow);
    chain.count = std::min(chain.count, 4);
    AddEval("error_chain", "Error chain", {"error-chain"}, inputs_.text, chain, Names(false));
    const std::string affine = Names(true);
    if (!affine.empty()) {
      Windows basis = FitWindows(kBasisShare, 3 + static_cast<double>(inputs_.methods.size()));
      basis.count = std::max(1, std::min(basis.count, 2));
      if (basis.window * basis.count < 8 * budget_.head_dim) basis.window = std::min(8 * budget_.head_dim, budget_.trained_tokens);
      AddEval("basis", "Bases and spectra", {"basis"}, inputs_.text, basis, affine);
    }
    PlanAblation();
    return std::move(steps_);
  }

 private:
  struct Windows {
    int window = 0, count = 0;
    double seconds = 0;
  };
  // The longest windows of which the share of the budget has one, and how many of them.
  Windows FitWindows(double share, double passes, int least = 512, int most = 2048) const {
    const double tokens = share * budget_.seconds * budget_.tokens_per_second / passes;
    int window = std::min(most, budget_.trained_tokens);
    while (window > least && tokens < window) window = std::max(least, window / 2);
    const int count = std::clamp(static_cast<int>(tokens / window), 1, 32);
    return {window, count, window * count * passes / budget_.tokens_per_second};
  }

  std::string ProfileOf(const std::string& method) const {
    std::string name = method + ".profile.safetensors";
    std::replace(name.begin(), name.end(), ':', '-');
    return (inputs_.work / name).string();
  }
  // "int2:naive,int2:oscar=work/int2-oscar.profile.safetensors"; `affine`: those whose basis can be measured.
  std::string Names(bool affine) const {
    std::string names;
    for (const ReportInputs::Method& method : inputs_.methods) {
      if (affine && !method.name.starts_with("int")) continue;
      names += (names.empty() ? "" : ",") + method.name + (method.needs_fit ? "=" + ProfileOf(method.name) : "");
    }
    return names;
  }

  std::vector<std::string> Words(std::vector<std::string> words) const {
    words.insert(words.end(), {"-m", inputs_.engine.model});
    if (inputs_.engine.threads > 0) words.insert(words.end(), {"-t", std::to_string(inputs_.engine.threads)});
    if (inputs_.engine.device == engine::Device::kCuda) words.insert(words.end(), {"--device", "cuda"});
    if (inputs_.engine.weights != engine::WeightPrecision::kStored) words.insert(words.end(), {"--weights", std::string(NameOf(inputs_.engine.weights))});
    return words;
  }
  void AddCacheWindows(std::vector<std::string>& words) const {
    words.insert(words.end(), {"--sink", std::to_string(inputs_.engine.sink), "--recent", std::to_string(inputs_.engine.recent)});
  }

  void PlanFits() {
    int fits = 0;
    for (const ReportInputs::Method& method : inputs_.methods) fits += method.needs_fit;
    for (const ReportInputs::Method& method : inputs_.methods) {
      if (!method.needs_fit) continue;
      const double tokens = kFitShare * budget_.seconds * budget_.tokens_per_second / fits / 2.5;  // two passes and the fit
      const int least = std::max({1024, 8 * budget_.head_dim, budget_.kl_window});
      const int taken = std::clamp(static_cast<int>(tokens), least, std::max(least, kMostFitTokens));
      ReportStep step{"fit_" + std::to_string(steps_.size()), "Calibration of " + method.name, Words({"calibrate", "--kv", method.name}), "", ProfileOf(method.name),
                      2.5 * taken / budget_.tokens_per_second};
      step.arguments.insert(step.arguments.end(), {"--tokens", std::to_string(taken), "-o", step.output});
      if (budget_.kl_window > 0) step.arguments.insert(step.arguments.end(), {"--window", std::to_string(budget_.kl_window)});
      steps_.push_back(std::move(step));
    }
  }

  void AddEval(std::string name, std::string title, std::vector<std::string> command, const std::string& text, const Windows& windows, const std::string& methods) {
    const bool is_basis = command.front() == "basis";
    command.insert(command.begin(), "eval");
    ReportStep step{name, std::move(title), Words(std::move(command)), name + ".json", "", windows.seconds};
    step.arguments.insert(step.arguments.end(), {"--kv", methods, "--window", std::to_string(windows.window), "--windows", std::to_string(windows.count)});
    if (!is_basis) AddCacheWindows(step.arguments);
    Finish(std::move(step), text);
  }

  // The text where there is one, and a result in JSON.
  void Finish(ReportStep step, const std::string& text) {
    if (!text.empty()) step.arguments.insert(step.arguments.end(), {"--text", text});
    step.arguments.push_back("--json");
    steps_.push_back(std::move(step));
  }

  // What the passes over one answer cost, in tokens of a prompt.
  static double AnswerCost(int prompt_tokens, int answer_tokens) { return prompt_tokens + kDecodeCost * answer_tokens; }

  // RULER's tasks that need no file, or five of them, at the longest power of two of which the share has one item each.
  void PlanRuler(double passes) {
    std::vector<std::string> tasks;
    for (const engine::RetrievalTask task : engine::RetrievalTasks()) {
      if (task == engine::RetrievalTask::kQuestions1 || task == engine::RetrievalTask::kQuestions2) continue;
      tasks.emplace_back(engine::RetrievalTaskName(task));
    }
    constexpr int kLeastLength = 1024;
    const double answers = kRulerShare * budget_.seconds * budget_.tokens_per_second / passes;
    if (answers < static_cast<double>(tasks.size()) * AnswerCost(kLeastLength, kRulerAnswerTokens)) {
      tasks = {"niah_single_2", "niah_multikey_1", "niah_multiquery", "vt", "fwe"};
    }
    const double per_task = answers / static_cast<double>(tasks.size());
    if (kLeastLength > budget_.trained_tokens || AnswerCost(kLeastLength, kRulerAnswerTokens) > per_task) return;
    int length = kLeastLength;
    while (2 * length <= std::min(budget_.trained_tokens, 32768) && AnswerCost(2 * length, kRulerAnswerTokens) <= per_task) length *= 2;
    const double cost = AnswerCost(length, kRulerAnswerTokens);
    const int samples = std::clamp(static_cast<int>(per_task / cost), 1, 20);
    ReportStep step{"ruler", "RULER's tasks", Words({"eval", "needle"}), "ruler.json", "",
                    samples * cost * static_cast<double>(tasks.size()) * passes / budget_.tokens_per_second};
    step.arguments.insert(step.arguments.end(), {"--task", fmt::format("{}", fmt::join(tasks, ",")), "--kv", "bf16," + Names(false), "--lengths",
                                                 std::to_string(length), "--samples", std::to_string(samples)});
    AddCacheWindows(step.arguments);
    Finish(std::move(step), inputs_.text);
  }

  // As many items of the suite as its share has, spread over the file.
  void PlanSuite() {
    if (inputs_.suite.empty()) return;
    const double seconds_each = static_cast<double>(inputs_.methods.size() + 1) * kMethodCost * AnswerCost(200, kSuiteAnswerTokens) / budget_.tokens_per_second;
    const int items = std::max(1, static_cast<int>(suite_seconds_ / seconds_each));
    ReportStep step{"tasks", "Answers to " + inputs_.suite, Words({"eval", "tasks"}), "tasks.json", "", items * seconds_each};
    step.arguments.insert(step.arguments.end(), {"--suite", inputs_.suite, "--data", inputs_.data, "--limit", std::to_string(items), "--kv", "bf16," + Names(false),
                                                 "--python", inputs_.python, "--records", (inputs_.work / "tasks.jsonl").string()});
    AddCacheWindows(step.arguments);
    Finish(std::move(step), "");
  }

  // Codes in one text of the longest power of two that the budget has, bf16 first.
  void PlanNeedle(double passes) {
    const double tokens = kNeedleShare * budget_.seconds * budget_.tokens_per_second / passes;
    int length = 512;
    while (2 * length <= std::min(tokens / 2, 32768.0) && 2 * length <= budget_.trained_tokens) length *= 2;
    if (length > budget_.trained_tokens) return;
    const int codes = length >= 2048 ? 16 : 4, texts = tokens >= 2 * length ? 2 : 1;
    ReportStep step{"needle", "Codes hidden in prose", Words({"eval", "needle"}), "needle.json", "", texts * length * passes / budget_.tokens_per_second};
    step.arguments.insert(step.arguments.end(), {"--kv", "bf16," + Names(false), "--lengths", std::to_string(length), "--codes", std::to_string(codes), "--texts",
                                                 std::to_string(texts)});
    AddCacheWindows(step.arguments);
    Finish(std::move(step), inputs_.text);
  }

  // Of int2:oscar with all its sweeps when it is among the methods and the budget has them; else the windows of the last method.
  void PlanAblation() {
    const auto is_oscar = [](const ReportInputs::Method& method) { return method.name == "int2:oscar"; };
    // With a profile of its own nothing is to be fitted: then only the windows can be swept.
    const bool has_oscar = std::any_of(inputs_.methods.begin(), inputs_.methods.end(), is_oscar);
    Windows windows = FitWindows(kAblationShare, kMethodCost * kAblationSettings);
    const bool all = has_oscar && windows.seconds <= 2 * kAblationShare * budget_.seconds;
    if (!all) windows = FitWindows(kAblationShare, kMethodCost * 9);
    windows.count = std::min(windows.count, 4);
    const ReportInputs::Method& last = inputs_.methods.back();
    const std::string method = all ? "int2:oscar" : last.name + (last.needs_fit ? "=" + ProfileOf(last.name) : "");
    if (!all && is_oscar(last)) return;  // it is fitted in the run, which this budget does not have
    std::vector<std::string> command{"ablation"};
    if (!all) command.insert(command.end(), {"--sweep", "windows"});
    AddEval("ablation", "Ablation of " + (all ? std::string("int2:oscar") : last.name), std::move(command), inputs_.text, windows, method);
  }

  const ReportInputs& inputs_;
  ReportBudget budget_;
  const double suite_seconds_;
  std::vector<ReportStep> steps_;
};

}  // namespace

Result<std::vector<ReportStep>> PlanReport(const ReportInputs& inputs, const ReportBudget& budget) {
  if (inputs.methods.empty()) return {StatusCode::kInvalidArgument, "--kv: at least one method is needed"};
  return Planner(inputs, budget).Plan();
}

}  // namespace oscar::tools
