#include "src/engine/serve/completion_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace oscar::engine {
namespace {

using nlohmann::ordered_json;

std::string FinishReasonText(FinishReason reason) {
  return reason == FinishReason::kEndToken || reason == FinishReason::kStopString ? "stop" : "length";
}

}  // namespace

CompletionAnswer::CompletionAnswer(const CompletionCall& call, std::string id, std::string model, int64_t created, HttpFields fields,
                                   std::shared_ptr<HttpResponder> responder)
    : chat_(call.chat), stream_(call.stream), include_usage_(call.include_usage), id_(std::move(id)), model_(std::move(model)),
      created_(created), fields_(std::move(fields)), responder_(std::move(responder)), choices_(static_cast<size_t>(call.choices)) {}

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
  choice.text += event.text;
  choice.prompt_tokens = event.prompt_tokens;
  choice.cached_tokens = event.cached_tokens;
  choice.completion_tokens = event.completion_tokens;
  if (event.finish) {
    choice.ended = true;
    choice.finish_reason = FinishReasonText(*event.finish);
  }
  if (stream_) AddToStream(index, choice, event);
  if (!std::ranges::all_of(choices_, &Choice::ended)) return;
  stream_ ? EndStream() : SendWhole();
  responder_ = nullptr;
}

void CompletionAnswer::AddToStream(int index, Choice& choice, const GenerationEvent& event) {
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
  choice.begun = true;
  if (!event.text.empty()) {
    add(chat_ ? chat_choice({{"content", event.text}})
              : ordered_json{{"index", index}, {"text", event.text}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
  }
  if (choice.ended) {
    ordered_json last = chat_ ? chat_choice(ordered_json::object()) : ordered_json{{"index", index}, {"text", ""}, {"logprobs", nullptr}};
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
  ordered_json chunk = {{"id", id_}, {"object", chat_ ? "chat.completion.chunk" : "text_completion"}, {"created", created_}, {"model", model_},
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
  ordered_json body = {{"id", id_}, {"object", chat_ ? "chat.completion" : "text_completion"}, {"created", created_}, {"model", model_},
                       {"choices", ordered_json::array()}};
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    ordered_json one = {{"index", i}};
    if (chat_) {
      one["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      one["text"] = choice.text;
    }
    one["logprobs"] = nullptr;
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
