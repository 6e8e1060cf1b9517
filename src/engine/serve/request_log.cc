#include "src/engine/serve/request_log.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/engine/serve/api_error.h"

namespace oscar::engine {

std::string RecordText(const RequestRecord& record, LogFormat format) {
  const auto ms = [](double seconds) { return seconds * 1000; };
  const RequestTimings& times = record.timings;
  if (format == LogFormat::kJson) {
    nlohmann::ordered_json line = {{"id", record.id},       {"method", record.method}, {"route", record.route},
                                   {"status", record.status}, {"ms", ms(record.seconds)}};
    if (!record.tenant.empty()) line["tenant"] = record.tenant;
    if (record.generated) {
      line.update({{"choices", record.choices}, {"prompt_tokens", record.prompt_tokens}, {"cached_tokens", record.cached_tokens},
                   {"completion_tokens", record.completion_tokens}, {"finish", record.finish}, {"queue_ms", ms(times.queue_seconds)},
                   {"ttft_ms", ms(times.first_token_seconds)}, {"itl_p50_ms", ms(times.gap_p50_seconds)}, {"preemptions", times.preemptions}});
    }
    return JsonText(line) + "\n";
  }
  std::string line = fmt::format("{} {} {} {} {:.0f} ms", record.id, record.method, record.route, record.status, ms(record.seconds));
  if (!record.tenant.empty()) line += fmt::format(" tenant={}", Quoted(record.tenant));
  if (record.generated) {
    line += fmt::format(" prompt={} cached={} out={} finish={} queue={:.0f}ms ttft={:.0f}ms itl_p50={:.1f}ms", record.prompt_tokens, record.cached_tokens,
                        record.completion_tokens, record.finish, ms(times.queue_seconds), ms(times.first_token_seconds), ms(times.gap_p50_seconds));
    if (times.preemptions > 0) line += fmt::format(" preemptions={}", times.preemptions);
  }
  return line + "\n";
}

void RequestLog::Write(const RequestRecord& record) {
  if (format_ == LogFormat::kNone) return;
  writer_.Write(RecordText(record, format_));
}

ObservedResponder::ObservedResponder(std::shared_ptr<HttpResponder> inner, std::shared_ptr<RequestObserver> observer, RequestRecord record, bool is_logged)
    : inner_(std::move(inner)), observer_(std::move(observer)), is_logged_(is_logged), record_(std::move(record)) {}

ObservedResponder::~ObservedResponder() {
  if (*left_) record_.status = 499;
  if (record_.status == 0) record_.status = 500;  // the inner one answers so
  record_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  observer_->counts.Count(record_.route, record_.method, record_.status);
  if (is_logged_) observer_->log.Write(record_);
}

void ObservedResponder::Send(int status, HttpFields fields, std::string body) {
  {
    const std::lock_guard lock(mutex_);
    record_.status = status;
  }
  inner_->Send(status, std::move(fields), std::move(body));
}

void ObservedResponder::Begin(int status, HttpFields fields) {
  {
    const std::lock_guard lock(mutex_);
    record_.status = status;
  }
  inner_->Begin(status, std::move(fields));
}

void ObservedResponder::OnClosed(std::function<void()> closed) {
  inner_->OnClosed([left = left_, closed = std::move(closed)] {
    *left = true;
    closed();
  });
}

void ObservedResponder::Note(const GenerationEvent& event) {
  if (!event.last()) return;
  const std::lock_guard lock(mutex_);
  if (record_.choices++ == 0) record_.timings = event.timings;
  record_.generated = true;
  record_.prompt_tokens = event.prompt_tokens;
  record_.cached_tokens = event.cached_tokens;
  record_.completion_tokens += event.completion_tokens;
  record_.finish = event.finish ? std::string(FinishReasonName(*event.finish)) : std::string(StatusCodeName(event.error.code()));
  std::ranges::replace(record_.finish, ' ', '_');
}

}  // namespace oscar::engine
