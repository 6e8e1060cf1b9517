#include "src/engine/serve/server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "src/base/status_macros.h"
#include "src/engine/serve/admin_routes.h"
#include "src/engine/serve/auth.h"
#include "src/engine/serve/chat_page.h"
#include "src/engine/serve/completion_routes.h"
#include "src/engine/serve/embedded_files.h"
#include "src/engine/serve/json_response.h"
#include "src/engine/serve/model_service.h"
#include "src/engine/serve/random_id.h"
#include "src/engine/serve/routes.h"
#include "src/engine/serve/token_routes.h"
#include "src/engine/text/chat/answer_format.h"

namespace oscar::engine {
namespace {

using nlohmann::ordered_json;

std::string RequestId(const HttpRequest& request) {
  const std::string* given = request.Find("x-request-id");
  const bool usable = given != nullptr && !given->empty() && given->size() <= 128 && std::ranges::all_of(*given, [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  return usable ? *given : RandomId();
}

std::string MethodOf(const std::string& method) {
  for (const char* known : {"GET", "HEAD", "POST", "DELETE", "OPTIONS"}) {
    if (method == known) return method;
  }
  return "other";
}

ApiError Unavailable(std::string code, std::string message, double retry_after_seconds) {
  ApiError error{503, "service_unavailable_error", std::move(code), "", std::move(message), {}};
  error.retry_after_seconds = retry_after_seconds;
  return error;
}

// "both" of ?compat=both; nothing when the name is not there.
std::optional<std::string_view> QueryValue(std::string_view target, std::string_view name) {
  const size_t query = target.find('?');
  for (size_t at = query; at != std::string_view::npos && at < target.size(); at = target.find('&', at + 1)) {
    const std::string_view part = target.substr(at + 1, target.find('&', at + 1) - at - 1);
    if (part.size() > name.size() && part.starts_with(name) && part[name.size()] == '=') return part.substr(name.size() + 1);
  }
  return std::nullopt;
}

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerOptions& options, KeyRing keys)
      : options_(options), keys_(std::move(keys)), observer_(std::make_shared<RequestObserver>(options.log, STDERR_FILENO)),
        completions_(workers_, options.key_limits, keys_.num_tenants() > 1 && !options.share_prefixes) {}
  ~ServerImpl() override {
    // First those who call the scheduler, then the scheduler, whose last events go to connections that nobody serves any more.
    if (http_ != nullptr) http_->Stop();
    workers_.stop();
    workers_.join();
    ready_ = nullptr;
    service_.reset();
  }

  Status Bind() {
    OSCAR_ASSIGN_OR_RETURN(http_, HttpServer::Start(
        options_.http, [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) { Handle(std::move(request), std::move(responder)); },
        [](int status, std::string_view reason) { return FromHttpStatus(status, reason).Body(); }));
    return {};
  }
  Status Serve(Engine& engine, const KvSetup& setup, const SchedulerOptions& scheduler) override {
    OSCAR_ASSIGN_OR_RETURN(service_, ModelService::Start(engine, setup, {options_.model_id, options_.strict_fields, options_.tool_parser, scheduler, options_.kv_events, completions_.spaces_have_tenants()}));
    ready_ = service_.get();
    return {};
  }
  void SetProgress(double progress) override { progress_ = std::clamp(progress, 0.0, 1.0); }
  uint16_t port() const override { return http_->port(); }
  void Say(std::string line) override { observer_->writer.Write(std::move(line)); }
  const std::string& model_id() const override { return service_->model_id(); }
  SchedulerSnapshot snapshot() const override { return service_->scheduler().snapshot(); }
  void Drain(std::chrono::seconds most) override {
    draining_ = true;
    const auto end = std::chrono::steady_clock::now() + most;
    while (ready_ != nullptr && std::chrono::steady_clock::now() < end) {
      const SchedulerSnapshot now = snapshot();
      if (now.running == 0 && now.waiting == 0 && now.preempted == 0 && http_->owed_answers() == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    http_->StopAccepting();
  }

 private:
  // Stops pages of other sites that a browser was made to send here (DNS rebinding).
  bool HostAllowed(const HttpRequest& request) const {
    if (!keys_.empty() || !IsLoopback(options_.http.address)) return true;
    const std::string* host = request.Find("host");
    if (host == nullptr) return false;
    const std::string name(HostOf(*host));
    return IsLoopback(name) || std::ranges::find(options_.allowed_hosts, name) != options_.allowed_hosts.end();
  }

  // Why the caller may not use the route; null (a public one has none): an unknown route, which needs a key as any other.
  std::optional<ApiError> Refusal(const Route* route, const Caller& caller) {
    if (keys_.empty() || (route != nullptr && (route->is_public() || (route->path == "/metrics" && options_.public_metrics)))) return std::nullopt;
    if (caller.key == nullptr) {
      ++auth_failures_;
      return ApiError{401, "authentication_error", "invalid_api_key", "", "the API key is missing or wrong", {}};
    }
    if (caller.key->Allows(route == nullptr ? KeyRole::kUser : route->role())) return std::nullopt;
    return ApiError{403, "permission_error", "admin_required", "", "this key may not use this route", {}};
  }

  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> inner) {
    const std::string path = request.target.substr(0, request.target.find('?'));
    const Route* route = FindRoute(path);
    RequestRecord record;
    record.id = RequestId(request);
    record.method = MethodOf(request.method);
    record.route = route == nullptr ? "other" : std::string(route->path);  // nothing that a client made up
    HttpFields fields = {{"x-request-id", record.id}, {"cache-control", "no-store"}, {"x-content-type-options", "nosniff"}};
    for (auto& field : OriginFields(request, options_.cors_origins)) fields.push_back(std::move(field));
    const Caller caller{record.id, keys_.empty() ? nullptr : keys_.Find(request)};
    if (caller.key != nullptr) record.tenant = caller.key->tenant;
    const bool polled = route != nullptr && (route->kind == RouteKind::kHealth || route->path == "/metrics");
    const auto responder = std::make_shared<ObservedResponder>(std::move(inner), observer_, std::move(record), !polled);
    if (!HostAllowed(request)) {
      return SendError(*responder, std::move(fields), {403, "permission_error", "host_not_allowed", "", "this server answers to loopback names only", {}});
    }
    if (request.method == "OPTIONS") {
      for (auto& field : PreflightFields(request, options_.cors_origins)) fields.push_back(std::move(field));
      fields.emplace_back("Allow", route == nullptr ? "GET, HEAD, OPTIONS" : route->Allowed());
      return responder->Send(204, std::move(fields), "");
    }
    if (const auto error = Refusal(route, caller)) {
      if (error->status == 401) fields.emplace_back("WWW-Authenticate", "Bearer");
      return SendError(*responder, std::move(fields), *error);
    }
    if (route == nullptr) return SendError(*responder, std::move(fields), FromHttpStatus(404, "no route " + Quoted(path)));
    if (!route->Takes(request.method)) {
      fields.emplace_back("Allow", route->Allowed());
      return SendError(*responder, std::move(fields), FromHttpStatus(405, "this route takes " + route->Allowed()));
    }
    Dispatch(*route, path, std::move(request), std::move(fields), responder, caller);
  }

  void Dispatch(const Route& route, const std::string& path, HttpRequest request, HttpFields fields, const std::shared_ptr<ObservedResponder>& responder,
                const Caller& caller) {
    ModelService* const service = ready_;
    if (route.kind == RouteKind::kPage) return Page(*responder, std::move(fields), path);
    if (route.kind == RouteKind::kHealth) return Health(*responder, std::move(fields), path);
    if (service == nullptr) return SendError(*responder, std::move(fields), Unavailable("loading", "the model is loading", 1));
    switch (route.kind) {
      case RouteKind::kMetrics: return Report(*service, request, *responder, std::move(fields), path);
      case RouteKind::kDescription: return Describe(*service, *responder, std::move(fields), path);
      case RouteKind::kAdmin: return Administer(*service, path, std::move(request), std::move(fields), responder);
      case RouteKind::kHealthGenerate: return completions_.HealthGenerate(*service, std::move(fields), responder);
      default: break;
    }
    const std::string* type = request.Find("content-type");
    if (type == nullptr || !type->starts_with("application/json")) {
      return SendError(*responder, std::move(fields), FromHttpStatus(415, "the body must have Content-Type: application/json"));
    }
    // Parsing, template, tokens and grammars take milliseconds.
    boost::asio::post(workers_, [this, service, kind = route.kind, path, request = std::move(request), fields = std::move(fields), responder, caller]() mutable {
      const CallKind call = path.starts_with("/v1/chat") ? CallKind::kChat : path.starts_with("/inference") ? CallKind::kTokens : CallKind::kText;
      if (kind == RouteKind::kTokens) return Tokens(*service, path, request, std::move(fields), *responder);
      if (kind == RouteKind::kRender) return completions_.Render(*service, call, request, std::move(fields), *responder, caller);
      if (draining_) return SendError(*responder, std::move(fields), Unavailable("draining", "the server is shutting down", 5));
      if (Stalled(*service)) return SendError(*responder, std::move(fields), Unavailable("engine_stalled", "no step has begun for too long", 5));
      completions_.Complete(*service, call, request, std::move(fields), responder, caller);
    });
  }

  void Page(HttpResponder& responder, HttpFields fields, const std::string& path) {
    if (path != "/") return responder.Send(204, std::move(fields), "");
    for (const auto& field : page_fields_) fields.push_back(field);
    responder.Send(200, std::move(fields), std::string(ChatPage()));
  }

  bool Stalled(const ModelService& service) const { return service.scheduler().snapshot().step_age_seconds > options_.watchdog_seconds; }

  // From stamps alone.
  void Health(HttpResponder& responder, HttpFields fields, const std::string& path) {
    const bool live = path == "/live";
    const ModelService* const service = ready_;
    if (service == nullptr) {
      return SendJson(responder, live ? 200 : 503, std::move(fields), JsonText({{"status", "loading"}, {"progress", progress_.load()}}));
    }
    const double age = service->scheduler().snapshot().step_age_seconds;
    if (age > options_.watchdog_seconds) return SendJson(responder, 503, std::move(fields), JsonText({{"status", "stalled"}}));
    if (draining_ && !live) return SendJson(responder, 503, std::move(fields), JsonText({{"status", "draining"}}));
    SendJson(responder, 200, std::move(fields), JsonText({{"status", "ok"}, {"step_age_ms", static_cast<int64_t>(age * 1000)}}));
  }

  // How it goes: metrics, load, what is cached.
  void Report(const ModelService& service, const HttpRequest& request, HttpResponder& responder, HttpFields fields, const std::string& path) {
    const Scheduler& scheduler = service.scheduler();
    if (path != "/metrics") return SendJson(responder, 200, std::move(fields), path == "/v1/loads" ? LoadsBody(scheduler) : CacheBody(scheduler));
    const auto compat = QueryValue(request.target, "compat");
    const auto asked = AliasesNamed(compat.value_or(""));
    if (compat && !asked) {
      return SendError(responder, std::move(fields), ApiError::Invalid("invalid_value", "compat", "compat: must be vllm, sglang, both or none"));
    }
    fields.emplace_back("Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    const ServerMetrics metrics{service.model_id(), scheduler,      observer_->counts, http_->connections(),
                                !draining_,         auth_failures_, completions_.num_refused_by_key(), service.bad_calls, observer_->writer.num_dropped(), service.kv_events()};
    responder.Send(200, std::move(fields), MetricsBody(metrics, asked.value_or(options_.metrics_aliases)));
  }

  static void Describe(ModelService& service, HttpResponder& responder, HttpFields fields, const std::string& path) {
    std::string body = service.Describe(path);
    if (!body.empty()) return SendJson(responder, 200, std::move(fields), std::move(body));
    const std::string name = Quoted(path.substr(path.rfind("/v1/models/") + 11));
    SendError(responder, std::move(fields), {404, "invalid_request_error", "model_not_found", "model", "no model \"" + name + "\"", {}});
  }

  void Administer(ModelService& service, const std::string& path, HttpRequest request, HttpFields fields, const std::shared_ptr<ObservedResponder>& responder) {
    boost::asio::post(workers_, [this, &service, path, request = std::move(request), fields = std::move(fields), responder] {
      const AdminContext context{service.scheduler(), options_.kv_folder, service.engine().identity().fingerprint,
                                 [this, &service](const std::string& id) { return completions_.Abort(service, id); }};
      RouteAnswer answer = RunAdminRoute(path, request.method, request.body, context);
      SendJson(*responder, answer.status, fields, std::move(answer.body));
    });
  }

  static void Tokens(ModelService& service, const std::string& path, const HttpRequest& request, HttpFields fields, HttpResponder& responder) {
    const auto answer = path.ends_with("/tokenize") ? TokenizeBody(request.body, service.served()) : DetokenizeBody(request.body, service.engine());
    if (const auto* error = std::get_if<ApiError>(&answer)) return SendError(responder, std::move(fields), *error);
    SendJson(responder, 200, std::move(fields), std::get<std::string>(answer));
  }

  const ServerOptions options_;
  const KeyRing keys_;
  const std::shared_ptr<RequestObserver> observer_;
  const HttpFields page_fields_ = PageFields(ChatPage());
  std::atomic<bool> draining_ = false;
  std::atomic<double> progress_ = 0;
  std::atomic<uint64_t> auth_failures_ = 0;
  std::unique_ptr<ModelService> service_;
  std::atomic<ModelService*> ready_ = nullptr;  // of service_, once it takes requests
  std::unique_ptr<HttpServer> http_;
  boost::asio::thread_pool workers_{2};         // behind http_: what it drops unrun answers to connections
  CompletionRoutes completions_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Listen(const ServerOptions& options) {
  OSCAR_ASSIGN_OR_RETURN(KeyRing keys, KeyRing::Read(options.api_key_file));
  if (!options.api_key.empty()) keys.Add(options.api_key);
  if (keys.empty() && !IsLoopback(options.http.address) && !options.insecure_open) {
    return Status(StatusCode::kFailedPrecondition, "--host " + options.http.address +
                                                       " can be reached by others: give --api-key-file, or --insecure-open to serve without keys");
  }
  if (!options.kv_folder.empty() && !std::filesystem::is_directory(options.kv_folder)) {
    return Status(StatusCode::kNotFound, "--kv-dir " + options.kv_folder.string() + ": no such folder");
  }
  const auto invalid = [](const std::string& text) { return Status(StatusCode::kInvalidArgument, text); };
  if (options.kv_events.endpoint.empty() && !(options.kv_events.replay_endpoint.empty() && options.kv_events.topic.empty())) {
    return invalid("--kv-events-replay, --kv-events-topic: need --kv-events");
  }
  if (!options.tool_parser.empty()) {  // the name alone: whether it fits is seen with the model's template
    OSCAR_TRY(AnswerFormatNamed(options.tool_parser, "tools").status().WithContext("--tool-parser"));
  }
  if (!(options.watchdog_seconds > 0)) return invalid("--watchdog: must be positive");
  if (options.http.max_connections_per_ip < 0) return invalid("--max-connections-per-ip: must not be negative");
  const KeyLimitOptions& limits = options.key_limits;
  if (limits.max_requests < 0 || limits.tokens_per_minute < 0) return invalid("--max-requests-per-key, --tokens-per-minute-per-key: must not be negative");
  if ((limits.max_requests > 0 || limits.tokens_per_minute > 0) && keys.empty()) return invalid("limits of a key need keys: give --api-key-file");
  auto server = std::make_unique<ServerImpl>(options, std::move(keys));
  OSCAR_TRY(server->Bind());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace oscar::engine
