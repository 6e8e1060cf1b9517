// The answer to a completion call: events of its choices in, an OpenAI body or a stream of server-sent events out (serving.md 4, 5).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/serve/cache_report.h"
#include "src/engine/serve/completion_call.h"
#include "src/engine/serve/streamed_answer.h"
#include "src/engine/serve/token_scores_json.h"
#include "src/engine/text/chat/answer_parser.h"

namespace oscar::engine {

class CompletionAnswer final : public StreamedAnswer {
 public:
  // Who answers, and when: the members that all bodies and chunks repeat. created: seconds since 1970.
  struct Identity {
    std::string id, model, fingerprint;
    int64_t created = 0;
  };
  // All must outlive the answer.
  struct Model {
    const Tokenizer& tokenizer;
    const CacheReport& cache;
    std::atomic<uint64_t>* bad_calls = nullptr;  // counts answers with text that begins as a tool call and is none
  };
  // fields: header fields of the answer, content type excluded.
  CompletionAnswer(const CompletionCall& call, const Model& model, Identity identity, HttpFields fields, std::shared_ptr<HttpResponder> responder);

 private:
  struct Call {
    std::string id, name, arguments;
  };
  struct Choice {
    Choice(const CompletionCall& call, const Tokenizer& tokenizer, std::vector<int32_t> prompt_tokens);
    const std::vector<int32_t> prompt;
    AnswerParser parser;
    std::string text, reasoning;
    std::vector<Call> calls;
    std::vector<int32_t> tokens;
    size_t sent_tokens = 0;
    std::vector<TokenScore> held_scores;    // of tokens whose text is held back (chat)
    std::vector<TokenScore> chat_scores;    // of tokens whose text was given out (chat)
    std::vector<TokenScore> prompt_scores;  // for prompt_logprobs
    CompletionScores scores;                // text completions
    size_t sent_scores = 0;                 // how many of either were streamed
    bool begun = false, ended = false;
    std::string finish_reason;
    std::optional<std::string> stop_string;
    std::optional<int32_t> stop_token;
    int cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
    uint64_t seed = 0;
    RequestTimings timings;
  };
  bool Take(int index, const GenerationEvent& event) override;
  std::vector<AnswerPart> PartsOf(Choice& choice, const GenerationEvent& event);
  void Keep(Choice& choice, const std::vector<AnswerPart>& parts);
  void AddScores(Choice& choice, const GenerationEvent& event);
  void AddToStream(int index, Choice& choice, const std::vector<AnswerPart>& parts);
  nlohmann::ordered_json Delta(const Choice& choice, const AnswerPart& part) const;
  nlohmann::ordered_json CallJson(const Call& call, size_t index, bool in_stream) const;
  nlohmann::ordered_json StopReason(const Choice& choice) const;
  // The scores of a choice that were not given out yet, or null when none are wanted.
  nlohmann::ordered_json NewScores(Choice& choice) const;
  // Members of the choice, or of the body, that only some requests want.
  void AddTokenIds(Choice& choice, nlohmann::ordered_json* to) const;
  nlohmann::ordered_json Whole();
  nlohmann::ordered_json Frame(const char* chat_object) const;
  // One event of the stream with this choice, or with none when it is null.
  std::string StreamEvent(const nlohmann::ordered_json& choice, const nlohmann::ordered_json& usage, bool is_last = false);
  // `oscar`: the state of the cache, how fast it was; null when neither is wanted (now).
  nlohmann::ordered_json OwnReport(bool is_first, bool is_last);
  nlohmann::ordered_json Usage() const;

  const bool chat_, include_usage_, continuous_usage_, echo_, token_ids_, cache_report_, stats_report_;
  const std::optional<int> scores_, prompt_scores_;
  const int choices_per_prompt_;
  const Tokenizer& tokenizer_;
  const CacheReport& cache_;
  std::atomic<uint64_t>* const bad_calls_;
  const Identity identity_;
  const bool short_call_ids_;
  std::deque<Choice> choices_;
  bool event_sent_ = false;
  Clock::time_point first_token_, last_cache_report_;
};

}  // namespace oscar::engine
