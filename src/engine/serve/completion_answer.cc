#include "src/engine/serve/completion_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <utility>

namespace oscar::engine {
namespace {

using nlohmann::ordered_json;

// Templates of Mistral's models take ids of nine letters and digits only.
std::string NewCallId(bool is_short) {
  static thread_local std::mt19937_64 rng{std::random_device{}()};
  char text[32];
  if (is_short) {
    std::snprintf(text, sizeof(text), "%09llx", static_cast<unsigned long long>(rng() >> 28));
  } else {
    std::snprintf(text, sizeof(text), "call_%016llx", static_cast<unsigned long long>(rng()));
  }
  return text;
}

double Milliseconds(CompletionAnswer::Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

}  // namespace

CompletionAnswer::Choice::Choice(const CompletionCall& call, const Tokenizer& tokenizer, std::vector<int32_t> prompt_tokens)
    : prompt(std::move(prompt_tokens)), parser(call.parser), scores(tokenizer, call.scores.value_or(0)) {}

CompletionAnswer::CompletionAnswer(const CompletionCall& call, const Model& model, Identity identity, HttpFields fields,
                                   std::shared_ptr<HttpResponder> responder)
    : StreamedAnswer(call.stream, std::move(fields), std::move(responder)), chat_(call.kind == CallKind::kChat), include_usage_(call.include_usage),
      continuous_usage_(call.continuous_usage), echo_(call.echo), token_ids_(call.token_ids), cache_report_(call.cache_report),
      stats_report_(call.stats_report), scores_(call.scores), prompt_scores_(call.prompt_scores), choices_per_prompt_(call.choices),
      tokenizer_(model.tokenizer), cache_(model.cache), bad_calls_(model.bad_calls), identity_(std::move(identity)),
      short_call_ids_(CallMarker(call.parser.format) == "[TOOL_CALLS]") {
  for (const GenerationRequest& request : call.requests) choices_.emplace_back(call, tokenizer_, request.prompt);
}

bool CompletionAnswer::Take(int index, const GenerationEvent& event) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (first_token_ == Clock::time_point()) first_token_ = Clock::now();
  const std::vector<AnswerPart> parts = PartsOf(choice, event);
  Keep(choice, parts);
  if (scores_ || prompt_scores_) AddScores(choice, event);
  if (stream_) AddToStream(index, choice, parts);
  choice.begun = true;
  if (!std::ranges::all_of(choices_, &Choice::ended)) return false;
  stream_ ? EndStream(include_usage_ ? StreamEvent(nullptr, Usage()) : "") : SendWhole(Whole());
  return true;
}

std::vector<AnswerPart> CompletionAnswer::PartsOf(Choice& choice, const GenerationEvent& event) {
  choice.cached_tokens = event.cached_tokens;
  choice.completion_tokens = event.completion_tokens;
  choice.seed = event.seed;
  choice.timings = event.timings;
  choice.tokens.insert(choice.tokens.end(), event.tokens.begin(), event.tokens.end());
  choice.ended = event.finish.has_value();
  if (event.finish == FinishReason::kStopString) choice.stop_string = event.stop_string;
  if (event.stop_token && !event.tokens.empty()) choice.stop_token = event.tokens.back();
  const bool stopped = event.finish == FinishReason::kEndToken || event.finish == FinishReason::kStopString;
  std::vector<AnswerPart> parts;
  if (!chat_) {
    std::string text = (!choice.begun && echo_ ? tokenizer_.Decode(choice.prompt) : "") + event.text;
    if (!text.empty()) parts.push_back({AnswerPart::Kind::kContent, std::move(text), 0});
    choice.finish_reason = stopped ? "stop" : "length";
    return parts;
  }
  const bool was_reasoning = choice.parser.in_reasoning();
  parts = choice.parser.Push(event.text);
  if (was_reasoning || choice.parser.in_reasoning()) choice.reasoning_tokens += static_cast<int>(event.tokens.size());
  if (choice.ended) {
    std::vector<AnswerPart> last = choice.parser.Finish();
    if (bad_calls_ != nullptr && choice.parser.found_bad_call()) ++*bad_calls_;
    parts.insert(parts.end(), std::make_move_iterator(last.begin()), std::make_move_iterator(last.end()));
    choice.finish_reason = !stopped ? "length" : choice.parser.num_calls() > 0 ? "tool_calls" : "stop";
  }
  return parts;
}

void CompletionAnswer::Keep(Choice& choice, const std::vector<AnswerPart>& parts) {
  for (const AnswerPart& part : parts) {
    switch (part.kind) {
      case AnswerPart::Kind::kContent: choice.text += part.text; break;
      case AnswerPart::Kind::kReasoning: choice.reasoning += part.text; break;
      case AnswerPart::Kind::kCall: choice.calls.push_back({NewCallId(short_call_ids_), part.text, ""}); break;
      case AnswerPart::Kind::kArguments: choice.calls[static_cast<size_t>(part.call)].arguments += part.text; break;
    }
  }
}

void CompletionAnswer::AddScores(Choice& choice, const GenerationEvent& event) {
  if (prompt_scores_) choice.prompt_scores.insert(choice.prompt_scores.end(), event.prompt_scores.begin(), event.prompt_scores.end());
  if (!scores_) return;
  if (!chat_) {
    if (!choice.begun && echo_) choice.scores.AddUnscored(choice.prompt[0]);
    if (echo_) {
      for (const TokenScore& score : event.prompt_scores) choice.scores.Add(score);
    }
    for (const TokenScore& score : event.scores) choice.scores.Add(score);
    return;
  }
  for (const TokenScore& score : event.scores) {
    if (score.token.token < tokenizer_.vocab_size() && !tokenizer_.IsEndOfGeneration(score.token.token)) choice.held_scores.push_back(score);
  }
  // They go out with their text; what a stop string swallowed whole never does.
  if (event.text.empty()) return;
  choice.chat_scores.insert(choice.chat_scores.end(), choice.held_scores.begin(), choice.held_scores.end());
  choice.held_scores.clear();
}

ordered_json CompletionAnswer::NewScores(Choice& choice) const {
  if (!scores_) return nullptr;
  const size_t first = std::exchange(choice.sent_scores, chat_ ? choice.chat_scores.size() : choice.scores.size());
  if (!chat_) return choice.scores.Arrays(first);
  return {{"content", ChatScores(tokenizer_, std::span(choice.chat_scores).subspan(first), *scores_)}, {"refusal", nullptr}};
}

void CompletionAnswer::AddTokenIds(Choice& choice, ordered_json* to) const {
  if (!token_ids_) return;
  const size_t first = std::exchange(choice.sent_tokens, choice.tokens.size());
  (*to)["token_ids"] = std::vector<int32_t>(choice.tokens.begin() + static_cast<std::ptrdiff_t>(first), choice.tokens.end());
}

ordered_json CompletionAnswer::StopReason(const Choice& choice) const {
  if (choice.stop_string) return *choice.stop_string;
  if (choice.stop_token) return *choice.stop_token;
  return nullptr;
}

ordered_json CompletionAnswer::CallJson(const Call& call, size_t index, bool in_stream) const {
  ordered_json one = {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", in_stream ? "" : call.arguments}}}};
  if (in_stream) one = {{"index", index}, {"id", call.id}, {"type", "function"}, {"function", one["function"]}};
  return one;
}

ordered_json CompletionAnswer::Delta(const Choice& choice, const AnswerPart& part) const {
  const auto index = static_cast<size_t>(part.call);
  switch (part.kind) {
    case AnswerPart::Kind::kContent: return {{"content", part.text}};
    case AnswerPart::Kind::kReasoning: return {{"reasoning_content", part.text}};
    case AnswerPart::Kind::kCall: return {{"tool_calls", ordered_json::array({CallJson(choice.calls[index], index, /*in_stream=*/true)})}};
    case AnswerPart::Kind::kArguments: break;
  }
  return {{"tool_calls", ordered_json::array({{{"index", index}, {"function", {{"arguments", part.text}}}}})}};
}

void CompletionAnswer::AddToStream(int index, Choice& choice, const std::vector<AnswerPart>& parts) {
  BeginStream();
  const auto frame = [&](ordered_json delta) {
    ordered_json made = {{"index", index}};
    if (chat_) {
      made["delta"] = std::move(delta);
    } else {
      made["text"] = delta.value("content", "");
    }
    made["logprobs"] = nullptr;
    made["finish_reason"] = nullptr;
    return made;
  };
  std::string out;
  const auto add = [&](const ordered_json& value, bool is_last = false) {
    out += StreamEvent(value, continuous_usage_ ? Usage() : ordered_json(), is_last);
  };
  if (!choice.begun && (chat_ || prompt_scores_ || token_ids_)) {
    ordered_json first = frame({{"role", "assistant"}, {"content", ""}});
    if (token_ids_) first["prompt_token_ids"] = choice.prompt;
    if (prompt_scores_) first["prompt_logprobs"] = PromptScores(tokenizer_, choice.prompt_scores, *prompt_scores_);
    add(first);
  }
  for (const AnswerPart& part : parts) {
    ordered_json made = frame(Delta(choice, part));
    made["logprobs"] = NewScores(choice);
    AddTokenIds(choice, &made);
    add(made);
  }
  if (choice.ended) {
    ordered_json last = frame(ordered_json::object());
    const size_t num_scores = chat_ ? choice.chat_scores.size() : choice.scores.size();
    if (num_scores > choice.sent_scores) last["logprobs"] = NewScores(choice);
    last["finish_reason"] = choice.finish_reason;
    last["stop_reason"] = StopReason(choice);
    AddTokenIds(choice, &last);
    add(last, std::ranges::all_of(choices_, &Choice::ended));
  }
  if (!out.empty()) Write(std::move(out));
}

ordered_json CompletionAnswer::Frame(const char* chat_object) const {
  return {{"id", identity_.id}, {"object", chat_ ? chat_object : "text_completion"}, {"created", identity_.created}, {"model", identity_.model},
          {"system_fingerprint", identity_.fingerprint}, {"choices", ordered_json::array()}};
}

std::string CompletionAnswer::StreamEvent(const ordered_json& choice, const ordered_json& usage, bool is_last) {
  ordered_json chunk = Frame("chat.completion.chunk");
  if (!choice.is_null()) {
    chunk["choices"].push_back(choice);
    if (ordered_json own = OwnReport(!std::exchange(event_sent_, true), is_last); !own.is_null()) chunk["oscar"] = std::move(own);
  }
  if (include_usage_) chunk["usage"] = usage;
  return "data: " + JsonText(chunk) + "\n\n";
}

ordered_json CompletionAnswer::OwnReport(bool is_first, bool is_last) {
  ordered_json own;
  const Choice& choice = choices_[0];
  const Clock::time_point now = Clock::now();
  if (cache_report_ && (is_first || is_last || now - last_cache_report_ >= std::chrono::milliseconds(250))) {
    last_cache_report_ = now;
    // The last token is sampled and not in the cache.
    own["cache"] = cache_.Of(static_cast<int>(choice.prompt.size()) + std::max(0, choice.completion_tokens - 1), choice.cached_tokens);
  }
  if (stats_report_ && is_last) {
    int tokens = 0;
    for (const Choice& one : choices_) tokens += one.completion_tokens;
    const double decode = Milliseconds(now - first_token_), later = tokens - static_cast<int>(choices_.size());
    own["stats"] = {{"queue_ms", 1000 * choice.timings.queue_seconds}, {"prefill_ms", 1000 * choice.timings.prefill_seconds}, {"ttft_ms", Milliseconds(first_token_ - created_)}, {"decode_ms", decode}, {"tokens_per_second", decode > 0 ? 1000 * later / decode : 0.0},
                    {"seed", static_cast<int64_t>(choice.seed)}, {"preemptions", choice.timings.preemptions}};
  }
  return own;
}

ordered_json CompletionAnswer::Usage() const {
  int completion = 0, reasoning = 0, prompt = 0, cached = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    completion += choices_[i].completion_tokens;
    reasoning += choices_[i].reasoning_tokens;
    if (i % static_cast<size_t>(choices_per_prompt_) != 0) continue;
    prompt += static_cast<int>(choices_[i].prompt.size());
    cached += choices_[i].cached_tokens;
  }
  return {{"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}, {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
}

ordered_json CompletionAnswer::Whole() {
  ordered_json body = Frame("chat.completion");
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    ordered_json one = {{"index", i}};
    if (chat_) {
      ordered_json message = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
      if (choice.text.empty() && !choice.calls.empty()) message["content"] = nullptr;
      message["reasoning_content"] = choice.reasoning.empty() ? ordered_json() : ordered_json(choice.reasoning);
      for (size_t call = 0; call < choice.calls.size(); ++call) message["tool_calls"].push_back(CallJson(choice.calls[call], call, /*in_stream=*/false));
      one["message"] = std::move(message);
    } else {
      one["text"] = choice.text;
    }
    one["logprobs"] = NewScores(choice);
    one["finish_reason"] = choice.finish_reason;
    one["stop_reason"] = StopReason(choice);
    ordered_json& about_prompt = chat_ ? body : one;
    if (prompt_scores_) about_prompt["prompt_logprobs"] = PromptScores(tokenizer_, choice.prompt_scores, *prompt_scores_);
    if (token_ids_) about_prompt["prompt_token_ids"] = choice.prompt;
    AddTokenIds(choice, &one);
    body["choices"].push_back(std::move(one));
  }
  body["usage"] = Usage();
  if (ordered_json own = OwnReport(/*is_first=*/true, /*is_last=*/true); !own.is_null()) body["oscar"] = std::move(own);
  return body;
}

}  // namespace oscar::engine
