#include "src/engine/serve/server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cctype>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <variant>

#include "oscar/version.h"
#include "src/base/status_macros.h"
#include "src/base/digest.h"
#include "src/engine/serve/admin_routes.h"
#include "src/engine/serve/answer_ticker.h"
#include "src/engine/serve/auth.h"
#include "src/engine/serve/chat_page.h"
#include "src/engine/serve/completion_answer.h"
#include "src/engine/serve/completion_call.h"
#include "src/engine/serve/embedded_files.h"
#include "src/engine/serve/server_metrics.h"
#include "src/engine/serve/token_routes.h"

namespace oscar::engine {
namespace {

using nlohmann::ordered_json;

constexpr const char *kGetRoute = "GET, HEAD, OPTIONS", *kPostRoute = "POST, OPTIONS";

std::string RandomId() {
  static thread_local std::mt19937_64 rng{std::random_device{}()};
  char text[25];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(rng()));
  return text;
}

class ServerImpl final : public Server {
 public:
  ServerImpl(Engine& engine, std::string model_id, const ServerOptions& options, KeyRing keys)
      : engine_(engine), model_id_(std::move(model_id)), options_(options), keys_(std::move(keys)), observer_(std::make_shared<RequestObserver>(options.log, stderr)), grammars_(engine.tokenizer()), workers_(2) {}
  ~ServerImpl() override {
    // First those who call the scheduler, then the scheduler, whose last events go to connections that nobody serves any more.
    if (http_ != nullptr) http_->Stop();
    workers_.join();
    scheduler_.reset();
  }

  Status Run(const KvSetup& setup) {
    OSCAR_ASSIGN_OR_RETURN(scheduler_, Scheduler::Start(engine_, setup, options_.scheduler));
    OSCAR_ASSIGN_OR_RETURN(const std::string chat_template, engine_.model().metadata().StringOr("tokenizer.chat_template", ""));
    served_.emplace(ServedModel{engine_, model_id_, scheduler_->context(), DetectAnswerFormat(chat_template), options_.strict_fields});
    const KvWindows windows = engine_.WindowsOf(setup);
    KvCacheConfig config;
    config.shape = engine_.model().config().kv;
    config.sink = windows.sink;
    config.recent = windows.recent;
    cache_report_.emplace(scheduler_->method(), config, scheduler_->snapshot().kv);
    base::Sha256 hash;
    hash.Update(std::string(kVersion) + "\n" + engine_.identity().fingerprint + "\n" + setup.method.name() + "\n" + std::to_string(windows.sink) + " " +
                std::to_string(windows.recent));
    ordered_json description = ordered_json::parse(OpenApiDescription());
    description["components"]["schemas"]["TokenId"]["maximum"] = engine_.tokenizer().vocab_size() - 1;
    openapi_ = description.dump();
    fingerprint_ = "fp_" + base::HexFromDigest(hash.Finish()).substr(0, 12);
    OSCAR_ASSIGN_OR_RETURN(http_, HttpServer::Start(
        options_.http, [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) { Handle(std::move(request), std::move(responder)); },
        [](int status, std::string_view reason) { return FromHttpStatus(status, reason).Body(); }));
    return {};
  }
  uint16_t port() const override { return http_->port(); }
  const std::string& model_id() const override { return model_id_; }
  SchedulerSnapshot snapshot() const override { return scheduler_->snapshot(); }
  void Drain(std::chrono::seconds most) override {
    draining_ = true;
    const auto end = std::chrono::steady_clock::now() + most;
    while (std::chrono::steady_clock::now() < end) {
      const SchedulerSnapshot now = scheduler_->snapshot();
      if (now.running == 0 && now.waiting == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    http_->StopAccepting();
  }

 private:
  // Who asks: the request's id, and the key it came with (null: there are none).
  struct Caller {
    std::string id;
    const ApiKey* key = nullptr;
  };

  static std::string RequestId(const HttpRequest& request) {
    const std::string* given = request.Find("x-request-id");
    const bool usable = given != nullptr && !given->empty() && given->size() <= 128 && std::ranges::all_of(*given, [](unsigned char c) {
      return std::isalnum(c) || c == '.' || c == '_' || c == '-';
    });
    return usable ? *given : RandomId();
  }

  // The path as a label: nothing that a client made up.
  static std::string RouteOf(const std::string& path) {
    for (const char* route : {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize",
                              "/tokenizer_info", "/model_info", "/openapi.json", "/health", "/ready", "/live", "/version", "/metrics", "/v1/loads",
                              "/v1/cache", "/flush_cache", "/reset_prefix_cache", "/abort_request", "/v1/kv", "/v1/kv/save", "/v1/kv/restore", "/",
                              "/favicon.ico"}) {
      if (path == route) return path;
    }
    return path.starts_with("/v1/models/") ? "/v1/models/{id}" : path.starts_with("/v1/kv/") ? "/v1/kv/{name}" : "other";
  }

  static std::string MethodOf(const std::string& method) {
    for (const char* known : {"GET", "HEAD", "POST", "DELETE", "OPTIONS"}) {
      if (method == known) return method;
    }
    return "other";
  }

  static void SendJson(HttpResponder& responder, int status, HttpFields fields, std::string body) {
    fields.emplace_back("Content-Type", "application/json");
    responder.Send(status, std::move(fields), std::move(body));
  }
  static void SendError(HttpResponder& responder, HttpFields fields, const ApiError& error) {
    SendJson(responder, error.status, std::move(fields), error.Body());
  }

  // Stops pages of other sites that a browser was made to send here (DNS rebinding).
  bool HostAllowed(const HttpRequest& request) const {
    if (!keys_.empty() || !IsLoopback(options_.http.address)) return true;
    const std::string* host = request.Find("host");
    if (host == nullptr) return false;
    const std::string name(HostOf(*host));
    return IsLoopback(name) || std::ranges::find(options_.allowed_hosts, name) != options_.allowed_hosts.end();
  }

  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> inner) {
    const std::string path = request.target.substr(0, request.target.find('?'));
    RequestRecord record;
    record.id = RequestId(request);
    record.method = MethodOf(request.method);
    record.route = RouteOf(path);
    HttpFields fields = {{"x-request-id", record.id}, {"cache-control", "no-store"}, {"x-content-type-options", "nosniff"}};
    for (auto& field : OriginFields(request, options_.cors_origins)) fields.push_back(std::move(field));
    const bool polled = path == "/health" || path == "/ready" || path == "/live" || path == "/metrics";
    const Caller caller{record.id, keys_.empty() ? nullptr : keys_.Find(request)};
    if (caller.key != nullptr) record.tenant = caller.key->tenant;
    const auto responder = std::make_shared<ObservedResponder>(std::move(inner), observer_, std::move(record), !polled);
    if (!HostAllowed(request)) {
      return SendError(*responder, std::move(fields), {403, "permission_error", "host_not_allowed", "", "this server answers to loopback names only", {}});
    }
    std::string_view admin_method;
    const bool admin = IsAdminRoute(path, &admin_method);
    if (request.method == "OPTIONS") {
      for (auto& field : PreflightFields(request, options_.cors_origins)) fields.push_back(std::move(field));
      fields.emplace_back("Allow", admin ? std::string(admin_method) + ", OPTIONS" : IsPostRoute(path) ? kPostRoute : kGetRoute);
      return responder->Send(204, std::move(fields), "");
    }
    const bool get = request.method == "GET" || request.method == "HEAD";
    if (path == "/") return get ? Page(*responder, fields) : WrongMethod(*responder, fields, kGetRoute);
    if (path == "/favicon.ico") return get ? responder->Send(204, std::move(fields), "") : WrongMethod(*responder, fields, kGetRoute);
    if (polled && path != "/metrics") return get ? Health(*responder, fields, path) : WrongMethod(*responder, fields, kGetRoute);
    if (!keys_.empty() && !(path == "/metrics" && options_.public_metrics)) {
      if (caller.key == nullptr) {
        ++auth_failures_;
        fields.emplace_back("WWW-Authenticate", "Bearer");
        return SendError(*responder, std::move(fields), {401, "authentication_error", "invalid_api_key", "", "the API key is missing or wrong", {}});
      }
      if (!caller.key->Allows(admin ? KeyRole::kAdmin : path == "/metrics" ? KeyRole::kMetrics : KeyRole::kUser)) {
        return SendError(*responder, std::move(fields), {403, "permission_error", "admin_required", "", "this key may not use this route", {}});
      }
    }
    if (path == "/metrics" || path == "/v1/loads" || path == "/v1/cache") {
      return get ? Report(request, *responder, std::move(fields), path) : WrongMethod(*responder, fields, kGetRoute);
    }
    if (admin) {
      if (request.method != admin_method) return WrongMethod(*responder, fields, (std::string(admin_method) + ", OPTIONS").c_str());
      boost::asio::post(workers_, [this, path, request = std::move(request), fields = std::move(fields), responder] {
        const AdminContext context{*scheduler_, options_.kv_folder, engine_.identity().fingerprint, [this](const std::string& id) { return Abort(id); }};
        RouteAnswer answer = RunAdminRoute(path, request.method, request.body, context);
        SendJson(*responder, answer.status, fields, std::move(answer.body));
      });
      return;
    }
    if (IsPostRoute(path)) {
      if (request.method != "POST") return WrongMethod(*responder, fields, kPostRoute);
      const bool tokens = !path.ends_with("/completions");
      const std::string* type = request.Find("content-type");
      if (type == nullptr || !type->starts_with("application/json")) {
        return SendError(*responder, std::move(fields), FromHttpStatus(415, "the body must have Content-Type: application/json"));
      }
      boost::asio::post(workers_, [this, tokens, path, caller, request = std::move(request), fields = std::move(fields), responder] {
        tokens ? Tokens(path, request, fields, *responder) : Complete(path == "/v1/chat/completions", request, fields, responder, caller);
      });
      return;
    }
    if (Describes(path)) return get ? Describe(*responder, fields, path) : WrongMethod(*responder, fields, kGetRoute);
    SendError(*responder, std::move(fields), FromHttpStatus(404, "no route " + Quoted(path)));
  }

  static bool IsPostRoute(const std::string& path) {
    return path == "/v1/chat/completions" || path == "/v1/completions" || path == "/tokenize" || path == "/v1/tokenize" || path == "/detokenize" ||
           path == "/v1/detokenize";
  }
  // Routes that say what is served.
  static bool Describes(const std::string& path) {
    return path == "/tokenizer_info" || path == "/version" || path == "/model_info" || path == "/openapi.json" || path == "/v1/models" ||
           path.starts_with("/v1/models/");
  }
  void Describe(HttpResponder& responder, HttpFields fields, const std::string& path) {
    std::string body;
    if (path == "/tokenizer_info") {
      body = TokenizerInfoBody(engine_, scheduler_->context());
    } else if (path == "/version") {
      body = JsonText({{"version", kVersion}});
    } else if (path == "/model_info") {
      body = JsonText({{"model_path", model_id_}, {"tokenizer_path", model_id_}, {"is_generation", true}, {"max_model_len", scheduler_->context()}});
    } else if (path == "/openapi.json") {
      body = openapi_;
    } else {
      return Models(responder, std::move(fields), path);
    }
    SendJson(responder, 200, std::move(fields), std::move(body));
  }

  void Page(HttpResponder& responder, HttpFields fields) {
    for (auto& field : page_fields_) fields.push_back(field);
    responder.Send(200, std::move(fields), std::string(ChatPage()));
  }

  static void WrongMethod(HttpResponder& responder, HttpFields fields, const char* allowed) {
    fields.emplace_back("Allow", allowed);
    SendError(responder, std::move(fields), FromHttpStatus(405, std::string("this route takes ") + allowed));
  }

  void Health(HttpResponder& responder, HttpFields fields, const std::string& path) {
    const SchedulerSnapshot now = scheduler_->snapshot();
    const bool stalled = now.step_age_seconds > options_.watchdog_seconds;
    if (stalled || (draining_ && path != "/live")) {
      return SendJson(responder, 503, std::move(fields), JsonText({{"status", stalled ? "stalled" : "draining"}}));
    }
    SendJson(responder, 200, std::move(fields), JsonText({{"status", "ok"}, {"step_age_ms", static_cast<int64_t>(now.step_age_seconds * 1000)}}));
  }

  // How it goes: metrics, load, what is cached.
  void Report(const HttpRequest& request, HttpResponder& responder, HttpFields fields, const std::string& path) {
    if (path != "/metrics") return SendJson(responder, 200, std::move(fields), path == "/v1/loads" ? LoadsBody(*scheduler_) : CacheBody(*scheduler_));
    const MetricsAliases aliases = request.target.find("compat=none") != std::string::npos ? MetricsAliases::kNone : MetricsAliases::kVllm;
    fields.emplace_back("Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    const ServerMetrics metrics{model_id_, *scheduler_, observer_->counts, http_->connections(), !draining_, auth_failures_};
    responder.Send(200, std::move(fields), MetricsBody(metrics, aliases));
  }

  // Ends the requests with this id, or all; gives how many sequences were told.
  int Abort(const std::string& id) {
    if (id.empty()) return scheduler_->CancelAll();
    const std::lock_guard lock(live_mutex_);
    int count = 0;
    for (auto [at, end] = live_.equal_range(id); at != end; ++at) {
      const auto ids = at->second.lock();
      if (ids == nullptr) continue;
      for (const uint64_t sequence : *ids) scheduler_->Cancel(sequence);
      count += static_cast<int>(ids->size());
    }
    return count;
  }

  void Models(HttpResponder& responder, HttpFields fields, const std::string& path) {
    const ordered_json model = {{"id", model_id_}, {"object", "model"}, {"created", started_}, {"owned_by", "oscar"},
                                {"max_model_len", scheduler_->context()}, {"root", model_id_}, {"parent", nullptr},
                                {"kv_method", scheduler_->method().name()}};
    if (path == "/v1/models") {
      return SendJson(responder, 200, std::move(fields), JsonText({{"object", "list"}, {"data", ordered_json::array({model})}}));
    }
    if (path.substr(11) == model_id_) return SendJson(responder, 200, std::move(fields), JsonText(model));
    SendError(responder, std::move(fields), {404, "invalid_request_error", "model_not_found", "model", "no model \"" + Quoted(path.substr(11)) + "\"", {}});
  }

  // On a worker thread, as Complete: parsing, template and tokens take milliseconds.
  void Tokens(const std::string& path, const HttpRequest& request, HttpFields fields, HttpResponder& responder) {
    const auto answer = path.ends_with("/tokenize") ? TokenizeBody(request.body, *served_) : DetokenizeBody(request.body, engine_);
    if (const auto* error = std::get_if<ApiError>(&answer)) return SendError(responder, std::move(fields), *error);
    SendJson(responder, 200, std::move(fields), std::get<std::string>(answer));
  }

  // Whose share of the machine a request uses, and whose prefixes it sees.
  void SetTenant(const Caller& caller, GenerationRequest* request) const {
    if (caller.key == nullptr) return;
    request->tenant = caller.key->tenant_index;
    request->priority = std::max(request->priority, caller.key->least_priority);
    if (keys_.num_tenants() > 1 && !options_.share_prefixes) request->space = caller.key->tenant + '\n' + request->space;
  }

  void Complete(bool chat, const HttpRequest& request, HttpFields fields, const std::shared_ptr<ObservedResponder>& responder, const Caller& caller) {
    if (draining_) {
      fields.emplace_back("retry-after", "5");
      return SendError(*responder, std::move(fields), {503, "service_unavailable_error", "draining", "", "the server is shutting down", {}});
    }
    auto parsed = ParseCompletionCall(chat, request.body, *served_, grammars_);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return SendError(*responder, std::move(fields), *error);
    auto& call = std::get<CompletionCall>(parsed);
    if (!call.ignored_fields.empty()) {
      std::string names;
      for (const std::string& name : call.ignored_fields) names += (names.empty() ? "" : ", ") + name;
      fields.emplace_back("x-oscar-ignored-fields", names);
    }
    const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    const auto answer = std::make_shared<CompletionAnswer>(
        call, CompletionAnswer::Model{engine_.tokenizer(), *cache_report_},
        CompletionAnswer::Identity{(chat ? "chatcmpl-" : "cmpl-") + RandomId(), model_id_, fingerprint_, now}, std::move(fields), responder);
    if (call.stream) ticker_.Add(answer);
    const auto ids = std::make_shared<std::vector<uint64_t>>();
    {
      const std::lock_guard lock(live_mutex_);
      std::erase_if(live_, [](const auto& entry) { return entry.second.expired(); });
      live_.emplace(caller.id, ids);
    }
    for (size_t choice = 0; choice < call.requests.size(); ++choice) {
      SetTenant(caller, &call.requests[choice]);
      const auto id = scheduler_->Submit(std::move(call.requests[choice]), [answer, choice, responder](const GenerationEvent& event) {
        responder->Note(event);
        answer->Add(static_cast<int>(choice), event);
      });
      if (!id.ok()) {
        ApiError error = FromStatus(id.status());
        error.retry_after_seconds = scheduler_->retry_after_seconds();
        answer->Fail(error);
        for (const uint64_t submitted : *ids) scheduler_->Cancel(submitted);
        return;
      }
      const std::lock_guard lock(live_mutex_);
      ids->push_back(*id);
    }
    responder->OnClosed([this, ids] {
      for (const uint64_t id : *ids) scheduler_->Cancel(id);
    });
  }

  Engine& engine_;
  const std::string model_id_;
  const ServerOptions options_;
  const KeyRing keys_;
  const std::shared_ptr<RequestObserver> observer_;
  const HttpFields page_fields_ = PageFields(ChatPage());
  const int64_t started_ = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::atomic<bool> draining_ = false;
  std::atomic<uint64_t> auth_failures_ = 0;
  std::mutex live_mutex_;
  std::multimap<std::string, std::weak_ptr<std::vector<uint64_t>>> live_;  // sequences by id of their request
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<ServedModel> served_;
  std::optional<CacheReport> cache_report_;
  std::string fingerprint_, openapi_;
  AnswerGrammars grammars_;
  AnswerTicker ticker_;
  boost::asio::thread_pool workers_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Start(Engine& engine, const KvSetup& setup, const ServerOptions& options) {
  OSCAR_ASSIGN_OR_RETURN(KeyRing keys, KeyRing::Read(options.api_key_file));
  if (!options.api_key.empty()) keys.Add(options.api_key);
  if (keys.empty() && !IsLoopback(options.http.address) && !options.insecure_open) {
    return Status(StatusCode::kFailedPrecondition, "--host " + options.http.address +
                                                       " can be reached by others: give --api-key-file, or --insecure-open to serve without keys");
  }
  if (!options.kv_folder.empty() && !std::filesystem::is_directory(options.kv_folder)) {
    return Status(StatusCode::kNotFound, "--kv-dir " + options.kv_folder.string() + ": no such folder");
  }
  if (!(options.watchdog_seconds > 0)) return Status(StatusCode::kInvalidArgument, "--watchdog: must be positive");
  std::string id = options.model_id.empty() ? engine.model_path().stem().string() : options.model_id;
  auto server = std::make_unique<ServerImpl>(engine, std::move(id), options, std::move(keys));
  OSCAR_TRY(server->Run(setup));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace oscar::engine
