// The access log: one line per answered request, and the responder that sees what the answer was. Prompts, answers and keys are
// never written.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "src/engine/serve/http_server.h"
#include "src/engine/serve/log_writer.h"
#include "src/engine/serve/scheduler.h"
#include "src/engine/serve/server_metrics.h"

namespace oscar::engine {

enum class LogFormat : uint8_t { kNone, kText, kJson };

struct RequestRecord {
  std::string id, tenant, method, route;
  int status = 0;                // 499: the client left
  double seconds = 0;
  // Of requests that ran.
  bool generated = false;
  int choices = 0, prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::string finish;            // of the last choice that ended
  RequestTimings timings;        // of the first choice that ended
};
std::string RecordText(const RequestRecord& record, LogFormat format);

class RequestLog {
 public:
  // `writer` must outlive it.
  RequestLog(LogFormat format, LogWriter& writer) : format_(format), writer_(writer) {}
  void Write(const RequestRecord& record);

 private:
  const LogFormat format_;
  LogWriter& writer_;
};

// Where answered requests are counted and written; outlives every responder.
struct RequestObserver {
  // Lines go to `descriptor`, which stays open.
  RequestObserver(LogFormat format, int descriptor) : writer(descriptor), log(format, writer) {}
  HttpCounts counts;
  LogWriter writer;
  RequestLog log;
};

// A responder that reports to an observer when the request is over: answered, or left by its client.
class ObservedResponder final : public HttpResponder {
 public:
  ObservedResponder(std::shared_ptr<HttpResponder> inner, std::shared_ptr<RequestObserver> observer, RequestRecord record, bool is_logged);
  ~ObservedResponder() override;
  void Send(int status, HttpFields fields, std::string body) override;
  void Begin(int status, HttpFields fields) override;
  void Write(std::string part) override { inner_->Write(std::move(part)); }
  void End() override { inner_->End(); }
  void OnClosed(std::function<void()> closed) override;
  // What the scheduler says of a choice.
  void Note(const GenerationEvent& event);

 private:
  const std::shared_ptr<HttpResponder> inner_;
  const std::shared_ptr<RequestObserver> observer_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  const bool is_logged_;
  const std::shared_ptr<std::atomic<bool>> left_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex mutex_;
  RequestRecord record_;
};

}  // namespace oscar::engine
