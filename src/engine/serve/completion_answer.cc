#include "src/engine/serve/completion_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

namespace oscar::engine {
namespace {

using nlohmann::ordered_json;

std::string FinishReasonText(FinishReason reason) {
  return reason == FinishReason::kEndToken || reason == FinishReason::kStopString ? "stop" : "length";
}

}  // namespace

CompletionAnswer::CompletionAnswer(const CompletionCall& call, const Tokenizer& tokenizer, Identity identity, HttpFields fields,
                                   std::shared_ptr<HttpResponder> responder)
    : chat_(call.chat), stream_(call.stream), include_usage_(call.include_usage), scored_(call.request.top_scores.has_value()),
      echoed_(call.echo ? call.request.prompt : std::vector<int32_t>()), tokenizer_(tokenizer), identity_(std::move(identity)),
      fields_(std::move(fields)), responder_(std::move(responder)), choices_(static_cast<size_t>(call.choices), Choice(tokenizer)) {}

void CompletionAnswer::Fail(const ApiError& error) {
  const std::lock_guard lock(mutex_);
  FailLocked(error);
}

void CompletionAnswer::FailLocked(const ApiError& error) {
  if (responder_ == nullptr) return;
  if (!head_sent_) {
    HttpFields fields = fields_;
    fields.emplace_back("Content-Type", "application/json");
    if (error.status == 429 || error.status == 503) fields.emplace_back("retry-after", "1");
    responder_->Send(error.status, std::move(fields), error.Body());
  } else {
    responder_->Write("data: " + error.Body() + "\n\ndata: [DONE]\n\n");
    responder_->End();
  }
  responder_ = nullptr;
}

void CompletionAnswer::Add(int index, const GenerationEvent& event) {
  const std::lock_guard lock(mutex_);
  if (responder_ == nullptr) return;
  if (!event.error.ok()) return FailLocked(FromStatus(event.error));
  Choice& choice = choices_[static_cast<size_t>(index)];
  const std::string text = (choice.begun ? "" : tokenizer_.Decode(echoed_)) + event.text;
  choice.text += text;
  choice.prompt_tokens = event.prompt_tokens;
  choice.cached_tokens = event.cached_tokens;
  choice.completion_tokens = event.completion_tokens;
  if (event.finish) {
    choice.ended = true;
    choice.finish_reason = FinishReasonText(*event.finish);
  }
  if (scored_) AddScores(choice, event);
  if (stream_) AddToStream(index, choice, text);
  choice.begun = true;
  if (!std::ranges::all_of(choices_, &Choice::ended)) return;
  stream_ ? EndStream() : SendWhole();
  responder_ = nullptr;
}

void CompletionAnswer::AddScores(Choice& choice, const GenerationEvent& event) {
  if (!chat_) {
    if (!choice.begun && !echoed_.empty()) choice.scores.AddUnscored(echoed_[0]);
    for (const TokenScore& score : event.prompt_scores) choice.scores.Add(score);
    for (const TokenScore& score : event.scores) choice.scores.Add(score);
    return;
  }
  for (const TokenScore& score : event.scores) {
    if (!tokenizer_.IsEndOfGeneration(score.token.token)) choice.held_scores.push_back(score);
  }
  // They go out with their text; what a stop string swallowed whole never does.
  if (event.text.empty()) return;
  choice.chat_scores.insert(choice.chat_scores.end(), choice.held_scores.begin(), choice.held_scores.end());
  choice.held_scores.clear();
}

ordered_json CompletionAnswer::NewScores(Choice& choice) const {
  if (!scored_) return nullptr;
  const size_t first = choice.sent_scores;
  choice.sent_scores = chat_ ? choice.chat_scores.size() : choice.scores.size();
  if (!chat_) return choice.scores.Arrays(first);
  return {{"content", ChatScores(tokenizer_, std::span(choice.chat_scores).subspan(first))}};
}

void CompletionAnswer::AddToStream(int index, Choice& choice, const std::string& text) {
  if (!head_sent_) {
    HttpFields fields = fields_;
    fields.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
    fields.emplace_back("X-Accel-Buffering", "no");
    responder_->Begin(200, std::move(fields));
    head_sent_ = true;
  }
  const auto chat_choice = [&](ordered_json delta) {
    return ordered_json{{"index", index}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  };
  std::string out;
  const auto add = [&](const ordered_json& value) { out += StreamEvent(value, nullptr); };
  if (chat_ && !choice.begun) add(chat_choice({{"role", "assistant"}, {"content", ""}}));
  if (!text.empty()) {
    ordered_json part = chat_ ? chat_choice({{"content", text}})
                              : ordered_json{{"index", index}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
    part["logprobs"] = NewScores(choice);
    add(part);
  }
  if (choice.ended) {
    ordered_json last = chat_ ? chat_choice(ordered_json::object()) : ordered_json{{"index", index}, {"text", ""}, {"logprobs", nullptr}};
    if (!chat_ && choice.scores.size() > choice.sent_scores) last["logprobs"] = NewScores(choice);
    last["finish_reason"] = choice.finish_reason;
    last["stop_reason"] = nullptr;
    add(last);
  }
  responder_->Write(std::move(out));
}

void CompletionAnswer::EndStream() {
  const std::string usage = include_usage_ ? StreamEvent(nullptr, Usage()) : "";
  responder_->Write(usage + "data: [DONE]\n\n");
  responder_->End();
}

std::string CompletionAnswer::StreamEvent(const ordered_json& choice, const ordered_json& usage) const {
  ordered_json chunk = {{"id", identity_.id}, {"object", chat_ ? "chat.completion.chunk" : "text_completion"}, {"created", identity_.created}, {"model", identity_.model},
                        {"choices", ordered_json::array()}};
  if (!choice.is_null()) chunk["choices"].push_back(choice);
  if (include_usage_) chunk["usage"] = usage;
  return "data: " + JsonText(chunk) + "\n\n";
}

ordered_json CompletionAnswer::Usage() const {
  int completion = 0;
  for (const Choice& choice : choices_) completion += choice.completion_tokens;
  const int prompt = choices_[0].prompt_tokens;
  return {{"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", choices_[0].cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", 0}}}};
}

void CompletionAnswer::SendWhole() {
  ordered_json body = {{"id", identity_.id}, {"object", chat_ ? "chat.completion" : "text_completion"}, {"created", identity_.created}, {"model", identity_.model},
                       {"choices", ordered_json::array()}};
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    ordered_json one = {{"index", i}};
    if (chat_) {
      one["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      one["text"] = choice.text;
    }
    one["logprobs"] = NewScores(choice);
    one["finish_reason"] = choice.finish_reason;
    one["stop_reason"] = nullptr;
    body["choices"].push_back(std::move(one));
  }
  body["usage"] = Usage();
  HttpFields fields = fields_;
  fields.emplace_back("Content-Type", "application/json");
  responder_->Send(200, std::move(fields), JsonText(body));
}

}  // namespace oscar::engine
