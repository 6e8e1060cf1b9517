#include "src/engine/evaluate/task_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "src/base/status_macros.h"
#include "src/engine/runtime/generate.h"
#include "src/io/jsonl_file.h"

namespace oscar::engine {
namespace {

using nlohmann::ordered_json;

struct Outcome {
  bool correct = false, truncated = false;
  int tokens = 0;
};
using AnswerKey = std::tuple<std::string, std::string, int>;  // method, item, sample

// All that changes an answer, as the first line of a record file: an answer of another setting must not be counted.
ordered_json SettingsOf(const Engine& engine, const TaskRunRequest& request) {
  const SamplingParams& sampling = request.sampling;
  return {{"suite", TaskSuiteName(request.suite)}, {"model", engine.identity().name}, {"model_fingerprint", engine.identity().fingerprint},
          {"temperature", sampling.temperature}, {"top_k", sampling.top_k}, {"top_p", sampling.top_p}, {"min_p", sampling.min_p},
          {"seed", sampling.seed.value_or(0)}, {"max_tokens", request.max_tokens}, {"template_variables", request.template_variables},
          {"context_tokens", engine.context()}, {"sink_tokens", engine.options().sink}, {"recent_tokens", engine.options().recent}};
}

// The answers of earlier runs, and where new ones go.
class RecordLog {
 public:
  Status Open(const std::filesystem::path& path, const ordered_json& settings) {
    if (path.empty()) return {};
    const bool exists = std::filesystem::exists(path) && std::filesystem::file_size(path) > 0;
    if (exists) OSCAR_TRY(ReadEarlier(path, settings));
    OSCAR_ASSIGN_OR_RETURN(file_, io::JsonLinesWriter::Open(path, io::JsonLinesWriter::Mode::kAppend));
    return exists ? Status() : Write(settings);
  }
  const Outcome* Find(const AnswerKey& key) const {
    const auto found = earlier_.find(key);
    return found == earlier_.end() ? nullptr : &found->second;
  }
  Status Write(const ordered_json& line) { return file_ ? file_->Write(line) : Status(); }

 private:
  Status ReadEarlier(const std::filesystem::path& path, const ordered_json& settings) {
    OSCAR_ASSIGN_OR_RETURN(const std::vector<nlohmann::json> lines, io::ReadJsonLines(path));
    for (const auto& [name, value] : settings.items()) {
      const nlohmann::json wanted = value, found = lines.empty() ? nlohmann::json() : lines[0].value(name, nlohmann::json());
      if (found == wanted) continue;
      return {StatusCode::kFailedPrecondition, path.string() + ": holds answers with " + name + " " + found.dump() + ", this run has " +
                                                   wanted.dump() + "; give another --records file"};
    }
    for (size_t i = 1; i < lines.size(); ++i) {
      try {
        earlier_[{lines[i].at("kv"), lines[i].at("id"), lines[i].at("sample")}] = {lines[i].at("correct"), lines[i].at("truncated"),
                                                                                  lines[i].at("answer_tokens")};
      } catch (const nlohmann::json::exception&) {
        return {StatusCode::kCorruptData, path.string() + ": record " + std::to_string(i + 1) + " lacks a field of an answer"};
      }
    }
    return {};
  }

  std::optional<io::JsonLinesWriter> file_;  // none: nothing is recorded
  std::map<AnswerKey, Outcome> earlier_;
};

class TaskRun {
 public:
  TaskRun(Engine& engine, const TaskRunRequest& request) : engine_(engine), request_(request) {}

  Result<std::vector<TaskScore>> Run() {
    OSCAR_TRY(log_.Open(request_.records, SettingsOf(engine_, request_)));
    const int64_t total = static_cast<int64_t>(request_.methods.size() * request_.items.size()) * request_.samples;
    int64_t done = 0;
    std::vector<TaskScore> scores;
    for (const KvSetup& setup : request_.methods) {
      OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> cache, engine_.NewCache(setup, engine_.context()));
      OSCAR_ASSIGN_OR_RETURN(Conversation conversation, Conversation::Start(engine_, *cache));
      TaskScore score{setup.method.name(), 0, 0, 0, 0, 0};
      std::vector<double> rates(static_cast<size_t>(request_.samples));
      for (const TaskItem& item : request_.items) {
        for (int sample = 0; sample < request_.samples; ++sample) {
          OSCAR_ASSIGN_OR_RETURN(const Outcome outcome, Answer(conversation, score.method, item, sample));
          rates[static_cast<size_t>(sample)] += outcome.correct / static_cast<double>(request_.items.size());
          score.truncated += outcome.truncated;
          score.answer_tokens += outcome.tokens;
          ++score.answers;
          request_.control.Report(++done, total);
        }
      }
      score.truncated /= std::max(1, score.answers);
      score.answer_tokens /= std::max(1, score.answers);
      AddRates(rates, &score);
      scores.push_back(std::move(score));
    }
    return scores;
  }

 private:
  static void AddRates(const std::vector<double>& rates, TaskScore* score) {
    const double n = static_cast<double>(rates.size());
    for (const double rate : rates) score->pass_rate += rate / n;
    if (rates.size() < 2) return;
    double squares = 0;
    for (const double rate : rates) squares += (rate - score->pass_rate) * (rate - score->pass_rate);
    score->deviation = std::sqrt(squares / (n - 1));
  }

  Result<Outcome> Answer(Conversation& conversation, const std::string& method, const TaskItem& item, int sample) {
    const AnswerKey key = {method, item.id, sample};
    if (const Outcome* known = log_.Find(key)) return *known;
    OSCAR_TRY(request_.control.CheckCancelled());
    GenerateRequest generate;
    OSCAR_ASSIGN_OR_RETURN(generate.prompt, PromptOf(item));
    generate.answer = {.sampling = request_.sampling, .max_tokens = request_.max_tokens};
    if (engine_.chat_template() == nullptr) generate.answer.stop = item.stop;
    generate.answer.sampling.seed = request_.sampling.seed.value_or(0) + static_cast<uint64_t>(sample);
    generate.cancelled = request_.control.cancelled;
    auto generated = conversation.Generate(generate);
    if (!generated.ok()) return generated.status().WithContext(item.id);
    OSCAR_TRY(request_.control.CheckCancelled());
    const auto answer = ExtractAnswer(request_.suite, item, generated->text);
    OSCAR_ASSIGN_OR_RETURN(const Grade grade, GradeAnswer(request_.suite, item, answer, request_.python));
    const bool truncated = generated->finish == FinishReason::kLength || generated->finish == FinishReason::kContextFull;
    const Outcome outcome{grade.correct, truncated, static_cast<int>(generated->tokens.size())};
    OSCAR_TRY(log_.Write({{"kv", method}, {"id", item.id}, {"sample", sample}, {"correct", outcome.correct}, {"reason", grade.reason},
                          {"truncated", outcome.truncated}, {"answer_tokens", outcome.tokens}, {"prompt_tokens", generated->prompt_tokens},
                          {"extracted", answer ? ordered_json(*answer) : ordered_json()}, {"gold", item.gold}, {"text", generated->text}}));
    return outcome;
  }

  Result<std::vector<int32_t>> PromptOf(const TaskItem& item) const {
    if (engine_.chat_template() == nullptr) {
      return engine_.tokenizer().Encode(item.continuation.empty() ? item.prompt : item.continuation, {.add_special = true});
    }
    return engine_.EncodeChat({.messages = {{.role = "user", .content = item.prompt}}, .extra_json = request_.template_variables});
  }

  Engine& engine_;
  const TaskRunRequest& request_;
  RecordLog log_;
};

}  // namespace

Result<std::vector<TaskScore>> RunTasks(Engine& engine, const TaskRunRequest& request) {
  if (request.samples > 1 && request.sampling.temperature == 0) {
    return {StatusCode::kInvalidArgument, "more than one sample at temperature 0 would repeat the first"};
  }
  return TaskRun(engine, request).Run();
}

}  // namespace oscar::engine
