#include "src/engine/serve/streamed_answer.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace oscar::engine {

StreamedAnswer::StreamedAnswer(bool stream, HttpFields fields, std::shared_ptr<HttpResponder> responder)
    : stream_(stream), fields_(std::move(fields)), responder_(std::move(responder)) {}

void StreamedAnswer::Add(int choice, const GenerationEvent& event) {
  const std::lock_guard lock(mutex_);
  if (responder_ == nullptr) return;
  if (event.timed_out) return FailLocked({503, "service_unavailable_error", "queue_timeout", "", event.error.message()});
  const bool aborted = event.error.code() == StatusCode::kCancelled && MayBeAborted();
  if (!event.error.ok() && !aborted) return FailLocked(FromStatus(event.error));
  if (Take(choice, event)) responder_ = nullptr;
}

void StreamedAnswer::Fail(const ApiError& error) {
  const std::lock_guard lock(mutex_);
  FailLocked(error);
}

void StreamedAnswer::FailLocked(const ApiError& error) {
  if (responder_ == nullptr) return;
  if (!head_sent_) {
    HttpFields fields = fields_;
    fields.emplace_back("Content-Type", "application/json");
    for (auto& field : error.RetryFields()) fields.push_back(std::move(field));
    responder_->Send(error.status, std::move(fields), error.Body());
  } else {
    responder_->Write("data: " + error.Body() + "\n\ndata: [DONE]\n\n");
    responder_->End();
  }
  responder_ = nullptr;
}

void StreamedAnswer::BeginStream() {
  if (std::exchange(head_sent_, true)) return;
  HttpFields fields = fields_;
  fields.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
  fields.emplace_back("X-Accel-Buffering", "no");
  responder_->Begin(200, std::move(fields));
  last_write_ = Clock::now();
}

void StreamedAnswer::Write(std::string text) {
  last_write_ = Clock::now();
  responder_->Write(std::move(text));
}

void StreamedAnswer::EndStream(const std::string& last) {
  responder_->Write(last + "data: [DONE]\n\n");
  responder_->End();
}

void StreamedAnswer::SendWhole(const nlohmann::ordered_json& body) {
  HttpFields fields = fields_;
  fields.emplace_back("Content-Type", "application/json");
  responder_->Send(200, std::move(fields), JsonText(body));
}

bool StreamedAnswer::Tick(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (responder_ == nullptr) return false;
  if (!stream_) return true;
  if (!head_sent_) {
    if (now - created_ >= kBeginAfter) BeginStream();
  } else if (now - last_write_ >= kPingAfter) {
    responder_->Write(": ping\n\n");
    last_write_ = now;
  }
  return true;
}

}  // namespace oscar::engine
