// StreamedAnswer: what all answers of completions share, whatever their shape: whole or as a stream that begins late, pings, and ends with an
// error event once its head is out (serving.md 4).
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/engine/serve/api_error.h"
#include "src/engine/serve/http_server.h"
#include "src/engine/serve/scheduler.h"

namespace oscar::engine {

class StreamedAnswer {
 public:
  using Clock = std::chrono::steady_clock;
  // A stream of a request that waits begins after this time, and is not silent for longer than that.
  static constexpr std::chrono::seconds kBeginAfter{10}, kPingAfter{15};

  virtual ~StreamedAnswer() = default;
  // What the scheduler says of a choice. The first failure of any choice ends the answer: as an HTTP error while nothing was
  // sent, else as an error event.
  void Add(int choice, const GenerationEvent& event);
  // Ends the answer with an error, as above; later events are dropped.
  void Fail(const ApiError& error);
  // To be called now and then: keeps a silent stream alive. False once the answer is complete.
  bool Tick(Clock::time_point now);

 protected:
  // fields: header fields of the answer, content type excluded.
  StreamedAnswer(bool stream, HttpFields fields, std::shared_ptr<HttpResponder> responder);
  // Takes an event; true when it was the last of the answer, which is sent or ended by then. No two calls at a time.
  virtual bool Take(int choice, const GenerationEvent& event) = 0;
  // Whether a choice may end by being cancelled, or that is a failure.
  virtual bool MayBeAborted() const { return false; }

  void BeginStream();
  void Write(std::string text);
  // `last` is written before the end mark.
  void EndStream(const std::string& last);
  void SendWhole(const nlohmann::ordered_json& body);

  const bool stream_;
  const Clock::time_point created_ = Clock::now();

 private:
  void FailLocked(const ApiError& error);

  const HttpFields fields_;
  std::mutex mutex_;
  std::shared_ptr<HttpResponder> responder_;  // null once the answer is complete
  bool head_sent_ = false;
  Clock::time_point last_write_ = created_;
};

}  // namespace oscar::engine
