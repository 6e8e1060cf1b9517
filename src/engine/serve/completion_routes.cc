#include "src/engine/serve/completion_routes.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "src/engine/serve/completion_answer.h"
#include "src/engine/serve/json_response.h"
#include "src/engine/serve/random_id.h"
#include "src/engine/serve/sampling_fields.h"
#include "src/engine/serve/token_answer.h"

namespace oscar::engine {
namespace {

using nlohmann::ordered_json;

constexpr std::chrono::seconds kProbeDeadline{5};
constexpr std::chrono::milliseconds kProbePause{50};

void NameIgnored(const CompletionCall& call, HttpFields* fields) {
  if (call.ignored_fields.empty()) return;
  std::string names;
  for (const std::string& name : call.ignored_fields) names += (names.empty() ? "" : ", ") + name;
  fields->emplace_back("x-oscar-ignored-fields", names);
}

}  // namespace

void CompletionRoutes::SetTenant(const Caller& caller, GenerationRequest* request) const {
  if (caller.key == nullptr) return;
  request->tenant = caller.key->tenant_index;
  request->priority = std::max(request->priority, caller.key->least_priority);
  if (apart_) request->space = caller.key->tenant + '\n' + request->space;
}

void CompletionRoutes::Complete(ModelService& service, CallKind kind, const HttpRequest& request, HttpFields fields,
                                const std::shared_ptr<ObservedResponder>& responder, const Caller& caller) {
  auto parsed = ParseCompletionCall(kind, request.body, service.served(), service.grammars());
  if (const auto* error = std::get_if<ApiError>(&parsed)) return SendError(*responder, std::move(fields), *error);
  auto& call = std::get<CompletionCall>(parsed);
  NameIgnored(call, &fields);
  if (kind == CallKind::kTokens) {
    const Caller named{call.request_id.empty() ? caller.id : call.request_id, caller.key};
    const auto answer = std::make_shared<TokenAnswer>(call, service.engine().tokenizer(), named.id, std::move(fields), responder);
    return Submit(service, call, answer, responder, named);
  }
  const bool chat = kind == CallKind::kChat;
  const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto answer = std::make_shared<CompletionAnswer>(
      call, CompletionAnswer::Model{service.engine().tokenizer(), service.cache_report(), &service.bad_calls},
      CompletionAnswer::Identity{(chat ? "chatcmpl-" : "cmpl-") + RandomId(), service.model_id(), service.fingerprint(), now}, std::move(fields), responder);
  Submit(service, call, answer, responder, caller);
}

void CompletionRoutes::Submit(ModelService& service, CompletionCall& call, const std::shared_ptr<StreamedAnswer>& answer,
                              const std::shared_ptr<ObservedResponder>& responder, const Caller& caller) {
  std::shared_ptr<KeyLimits::Lease> lease;
  if (caller.key != nullptr) {
    int64_t prompt_tokens = 0;
    for (const GenerationRequest& one : call.requests) prompt_tokens += one.is_further_choice ? 0 : static_cast<int64_t>(one.prompt.size());
    KeyLimits::Refusal refusal;
    lease = key_limits_.Take(caller.key, prompt_tokens, &refusal);
    if (lease == nullptr) {
      ++refused_by_key_;
      ApiError error{429, "rate_limit_error", "rate_limit_exceeded", "", refusal.message, {}};
      error.retry_after_seconds = refusal.retry_after_seconds;
      return answer->Fail(error);
    }
  }
  if (call.stream) ticker_.Add(answer);
  const auto ids = std::make_shared<std::vector<uint64_t>>();
  {
    const std::lock_guard lock(live_mutex_);
    std::erase_if(live_, [](const auto& entry) { return entry.second.expired(); });
    live_.emplace(caller.id, ids);
  }
  Scheduler& scheduler = service.scheduler();
  for (size_t choice = 0; choice < call.requests.size(); ++choice) {
    SetTenant(caller, &call.requests[choice]);
    const auto id = scheduler.Submit(std::move(call.requests[choice]), [answer, choice, responder, lease](const GenerationEvent& event) {
      responder->Note(event);
      if (lease != nullptr && event.last()) lease->Charge(event.completion_tokens);
      answer->Add(static_cast<int>(choice), event);
    });
    if (!id.ok()) {
      ApiError error = FromStatus(id.status());
      error.retry_after_seconds = scheduler.retry_after_seconds();
      answer->Fail(error);
      for (const uint64_t submitted : *ids) scheduler.Cancel(submitted);
      return;
    }
    const std::lock_guard lock(live_mutex_);
    ids->push_back(*id);
  }
  responder->OnClosed([&scheduler, ids] {
    for (const uint64_t id : *ids) scheduler.Cancel(id);
  });
}

void CompletionRoutes::Render(ModelService& service, CallKind kind, const HttpRequest& request, HttpFields fields, HttpResponder& responder, const Caller& caller) {
  const auto parsed = ParseCompletionCall(kind, request.body, service.served(), service.grammars());
  if (const auto* error = std::get_if<ApiError>(&parsed)) return SendError(responder, std::move(fields), *error);
  const auto& call = std::get<CompletionCall>(parsed);
  NameIgnored(call, &fields);
  ordered_json prompts = ordered_json::array();
  for (const GenerationRequest& one : call.requests) {
    if (one.is_further_choice) continue;
    ordered_json sampling = SamplingJson(one.answer);
    sampling["n"] = call.choices;
    if (call.scores) sampling["logprobs"] = *call.scores;
    if (call.prompt_scores) sampling["prompt_logprobs"] = *call.prompt_scores;
    if (one.answer.sampling.choice > 0) sampling["choice"] = one.answer.sampling.choice;
    if (!call.structured_outputs.empty()) sampling["structured_outputs"] = ordered_json::parse(call.structured_outputs);
    prompts.push_back({{"request_id", caller.id}, {"model", service.model_id()}, {"token_ids", one.prompt}, {"sampling_params", std::move(sampling)}});
  }
  SendJson(responder, 200, std::move(fields), JsonText(kind == CallKind::kChat ? prompts.at(0) : prompts));
}

// One look of a probe at its scheduler, and the next one a little later. Whoever is first answers: a token, a failure, or the clock. Any
// token that came since counts: where all places are taken the probe's own would wait for one, which says nothing of the server.
struct CompletionRoutes::Probe : std::enable_shared_from_this<CompletionRoutes::Probe> {
  Probe(boost::asio::thread_pool& workers, Scheduler& asked, HttpFields with, std::shared_ptr<ObservedResponder> to)
      : scheduler(asked), fields(std::move(with)), responder(std::move(to)), timer(workers), tokens_before(asked.counters().generated_tokens) {}

  void Answer(int status, const char* text) {
    if (!answered.exchange(true)) SendJson(*responder, status, fields, JsonText({{"status", text}}));
  }
  void Watch() {
    timer.expires_after(kProbePause);
    timer.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (error || self->answered) return;
      const bool has_token = self->scheduler.counters().generated_tokens > self->tokens_before;
      if (!has_token && std::chrono::steady_clock::now() < self->end) return self->Watch();
      has_token ? self->Answer(200, "ok") : self->Answer(503, "stalled");
      self->scheduler.Cancel(self->id);
    });
  }

  Scheduler& scheduler;
  const HttpFields fields;
  const std::shared_ptr<ObservedResponder> responder;
  boost::asio::steady_timer timer;
  const uint64_t tokens_before;
  const std::chrono::steady_clock::time_point end = std::chrono::steady_clock::now() + kProbeDeadline;
  std::atomic<bool> answered = false;
  std::atomic<uint64_t> id = 0;
};

void CompletionRoutes::HealthGenerate(ModelService& service, HttpFields fields, const std::shared_ptr<ObservedResponder>& responder) {
  GenerationRequest request;
  request.prompt = {std::max(0, service.engine().tokenizer().bos_id())};
  request.answer.max_tokens = 1;
  request.answer.sampling.temperature = 0;
  request.priority = std::numeric_limits<int>::min();
  request.deadline_seconds = static_cast<double>(kProbeDeadline.count());
  request.is_further_choice = true;  // a full queue does not refuse it
  const auto probe = std::make_shared<Probe>(workers_, service.scheduler(), std::move(fields), responder);
  const auto submitted = service.scheduler().Submit(std::move(request), [probe](const GenerationEvent& event) {
    if (!event.last() || event.timed_out) return;
    event.error.ok() ? probe->Answer(200, "ok") : probe->Answer(503, "failed");
  });
  if (!submitted.ok()) return probe->Answer(503, "failed");
  probe->id = *submitted;
  probe->Watch();
}

int CompletionRoutes::Abort(ModelService& service, const std::string& id) {
  if (id.empty()) return service.scheduler().CancelAll();
  const std::lock_guard lock(live_mutex_);
  int count = 0;
  for (auto [at, end] = live_.equal_range(id); at != end; ++at) {
    const auto ids = at->second.lock();
    if (ids == nullptr) continue;
    for (const uint64_t sequence : *ids) service.scheduler().Cancel(sequence);
    count += static_cast<int>(ids->size());
  }
  return count;
}

}  // namespace oscar::engine
