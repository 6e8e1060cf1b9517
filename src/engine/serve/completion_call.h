// A call of /v1/chat/completions, /v1/completions or /inference/v1/generate, taken apart and checked (serving.md 4 to 6): everything that can be
// refused is refused here, before anything runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/engine/runtime/engine.h"
#include "src/engine/serve/answer_grammar.h"
#include "src/engine/serve/api_error.h"
#include "src/engine/serve/scheduler.h"
#include "src/engine/text/chat/answer_format.h"

namespace oscar::engine {

// What calls are read against. All must outlive the reading.
struct ServedModel {
  const Engine& engine;
  std::string id;              // the name under which it is served
  int context = 0;
  AnswerFormat format;
  std::vector<int32_t> marker_tokens;  // MarkerTokens of the format
  bool strict_fields = false;  // members that are not known are refused
};

enum class CallKind : uint8_t { kChat, kText, kTokens };  // messages, texts, token ids

struct CompletionCall {
  CallKind kind = CallKind::kText;
  bool stream = false, include_usage = false, continuous_usage = false;
  bool echo = false;                          // the prompt before the answer (completions only)
  bool token_ids = false;                     // beside the texts
  bool cache_report = false, stats_report = false;
  std::optional<int> scores, prompt_scores;   // how many of the likeliest tokens beside each of the answer, of the prompt
  AnswerParser::Options parser;               // chat
  int choices = 1;                            // n
  int priority = 0;                           // lower first
  std::string cache_salt;                     // only calls with the same one share prefixes
  double deadline_seconds = 0;                // to begin within; 0: the queue's timeout alone
  std::string request_id;                     // given in the body (kTokens); empty: none
  std::string structured_outputs;             // JSON: all of the grammar, where a request without text can say it; empty: none or more than that
  int first_choice = 0;                       // under the seed: number of the first choice
  std::vector<GenerationRequest> requests;    // choice k of prompt p is p n + k; each has its own number under the seed
  std::vector<std::string> ignored_fields;    // for x-oscar-ignored-fields
};

// Tokenises, renders and compiles grammars: not for an HTTP thread.
std::variant<CompletionCall, ApiError> ParseCompletionCall(CallKind kind, std::string_view body, const ServedModel& model, AnswerGrammars& grammars);

}  // namespace oscar::engine
