#include "src/engine/serve/server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>
#include <variant>

#include "oscar/version.h"
#include "src/base/status_macros.h"
#include "src/engine/serve/completion_answer.h"
#include "src/engine/serve/completion_call.h"
#include "src/engine/serve/token_routes.h"

namespace oscar::engine {
namespace {

using nlohmann::ordered_json;

constexpr double kStalledSeconds = 60;

base::Sha256Digest KeyDigest(std::string_view key) {
  base::Sha256 hash;
  hash.Update(key);
  return hash.Finish();
}

Result<std::vector<base::Sha256Digest>> ReadKeys(const std::filesystem::path& path) {
  std::vector<base::Sha256Digest> keys;
  if (path.empty()) return keys;
  std::ifstream file(path);
  if (!file) return Status(StatusCode::kNotFound, "--api-key-file " + path.string() + ": cannot be read");
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    if (line.find_first_of(" \t") != std::string::npos) {
      return Status(StatusCode::kInvalidArgument, "--api-key-file " + path.string() + ": one key per line, without spaces");
    }
    keys.push_back(KeyDigest(line));
  }
  if (keys.empty()) return Status(StatusCode::kInvalidArgument, "--api-key-file " + path.string() + ": holds no key");
  return keys;
}

bool IsLoopback(std::string_view host) { return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == "[::1]"; }

std::string RandomId() {
  static thread_local std::mt19937_64 rng{std::random_device{}()};
  char text[25];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(rng()));
  return text;
}

class ServerImpl final : public Server {
 public:
  ServerImpl(Engine& engine, std::string model_id, const ServerOptions& options, std::vector<base::Sha256Digest> keys)
      : engine_(engine), model_id_(std::move(model_id)), options_(options), keys_(std::move(keys)), workers_(2) {}
  ~ServerImpl() override {
    // First those who call the scheduler, then the scheduler, whose last events go to connections that nobody serves any more.
    if (http_ != nullptr) http_->Stop();
    workers_.join();
    scheduler_.reset();
  }

  Status Run(const KvSetup& setup) {
    OSCAR_ASSIGN_OR_RETURN(scheduler_, Scheduler::Start(engine_, setup, options_.scheduler));
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
  static HttpFields BaseFields(const HttpRequest& request) {
    const std::string* given = request.Find("x-request-id");
    const bool usable = given != nullptr && !given->empty() && given->size() <= 128 && std::ranges::all_of(*given, [](unsigned char c) {
      return std::isalnum(c) || c == '.' || c == '_' || c == '-';
    });
    return {{"x-request-id", usable ? *given : RandomId()}, {"cache-control", "no-store"}, {"x-content-type-options", "nosniff"}};
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
    const size_t colon = host->ends_with(']') ? std::string::npos : host->rfind(':');
    return IsLoopback(host->substr(0, colon));
  }

  bool KeyAllowed(const HttpRequest& request) const {
    if (keys_.empty()) return true;
    std::string key;
    if (const std::string* given = request.Find("authorization"); given != nullptr && given->starts_with("Bearer ")) {
      key = given->substr(7);
    } else if (const std::string* api_key = request.Find("x-api-key")) {
      key = *api_key;
    }
    const base::Sha256Digest digest = KeyDigest(key);
    bool found = false;
    for (const base::Sha256Digest& known : keys_) {
      uint8_t difference = 0;  // compared in full whatever the bytes, so that time tells nothing
      for (size_t i = 0; i < digest.size(); ++i) difference |= static_cast<uint8_t>(digest[i] ^ known[i]);
      found |= difference == 0;
    }
    return found;
  }

  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    HttpFields fields = BaseFields(request);
    const std::string path = request.target.substr(0, request.target.find('?'));
    if (!HostAllowed(request)) {
      return SendError(*responder, std::move(fields), {403, "permission_error", "host_not_allowed", "", "this server answers to loopback names only", {}});
    }
    const bool get = request.method == "GET" || request.method == "HEAD";
    if (path == "/health" || path == "/ready" || path == "/live") return get ? Health(*responder, fields, path) : WrongMethod(*responder, fields, "GET");
    if (!KeyAllowed(request)) {
      fields.emplace_back("WWW-Authenticate", "Bearer");
      return SendError(*responder, std::move(fields), {401, "authentication_error", "invalid_api_key", "", "the API key is missing or wrong", {}});
    }
    const bool tokens = path == "/tokenize" || path == "/v1/tokenize" || path == "/detokenize" || path == "/v1/detokenize";
    if (tokens || path == "/v1/chat/completions" || path == "/v1/completions") {
      if (request.method != "POST") return WrongMethod(*responder, fields, "POST");
      const std::string* type = request.Find("content-type");
      if (type == nullptr || !type->starts_with("application/json")) {
        return SendError(*responder, std::move(fields), FromHttpStatus(415, "the body must have Content-Type: application/json"));
      }
      boost::asio::post(workers_, [this, tokens, path, request = std::move(request), fields = std::move(fields), responder = std::move(responder)] {
        tokens ? Tokens(path, request, fields, *responder) : Complete(path == "/v1/chat/completions", request, fields, responder);
      });
      return;
    }
    if (path == "/tokenizer_info") {
      if (!get) return WrongMethod(*responder, fields, "GET");
      return SendJson(*responder, 200, std::move(fields), TokenizerInfoBody(engine_, scheduler_->context()));
    }
    if (path == "/version" || path == "/v1/models" || path.starts_with("/v1/models/")) {
      if (!get) return WrongMethod(*responder, fields, "GET");
      if (path == "/version") return SendJson(*responder, 200, std::move(fields), JsonText({{"version", kVersion}}));
      return Models(*responder, std::move(fields), path);
    }
    SendError(*responder, std::move(fields), FromHttpStatus(404, "no route " + Quoted(path)));
  }

  static void WrongMethod(HttpResponder& responder, HttpFields fields, const char* allowed) {
    fields.emplace_back("Allow", allowed);
    SendError(responder, std::move(fields), FromHttpStatus(405, std::string("this route takes ") + allowed));
  }

  void Health(HttpResponder& responder, HttpFields fields, const std::string& path) {
    const SchedulerSnapshot now = scheduler_->snapshot();
    const bool stalled = now.step_age_seconds > kStalledSeconds;
    if (stalled || (draining_ && path != "/live")) {
      return SendJson(responder, 503, std::move(fields), JsonText({{"status", stalled ? "stalled" : "draining"}}));
    }
    SendJson(responder, 200, std::move(fields), JsonText({{"status", "ok"}, {"step_age_ms", static_cast<int64_t>(now.step_age_seconds * 1000)}}));
  }

  void Models(HttpResponder& responder, HttpFields fields, const std::string& path) {
    const ordered_json model = {{"id", model_id_}, {"object", "model"}, {"created", started_}, {"owned_by", "oscar"},
                                {"max_model_len", scheduler_->context()}, {"root", model_id_}, {"parent", nullptr}};
    if (path == "/v1/models") {
      return SendJson(responder, 200, std::move(fields), JsonText({{"object", "list"}, {"data", ordered_json::array({model})}}));
    }
    if (path.substr(11) == model_id_) return SendJson(responder, 200, std::move(fields), JsonText(model));
    SendError(responder, std::move(fields), {404, "invalid_request_error", "model_not_found", "model", "no model \"" + Quoted(path.substr(11)) + "\"", {}});
  }

  // On a worker thread, as Complete: parsing, template and tokens take milliseconds.
  void Tokens(const std::string& path, const HttpRequest& request, HttpFields fields, HttpResponder& responder) {
    const auto answer = path.ends_with("/tokenize") ? TokenizeBody(request.body, engine_, scheduler_->context()) : DetokenizeBody(request.body, engine_);
    if (const auto* error = std::get_if<ApiError>(&answer)) return SendError(responder, std::move(fields), *error);
    SendJson(responder, 200, std::move(fields), std::get<std::string>(answer));
  }

  void Complete(bool chat, const HttpRequest& request, HttpFields fields, const std::shared_ptr<HttpResponder>& responder) {
    if (draining_) {
      fields.emplace_back("retry-after", "5");
      return SendError(*responder, std::move(fields), {503, "service_unavailable_error", "draining", "", "the server is shutting down", {}});
    }
    auto parsed = ParseCompletionCall(chat, request.body, engine_, model_id_, scheduler_->context());
    if (const auto* error = std::get_if<ApiError>(&parsed)) return SendError(*responder, std::move(fields), *error);
    auto& call = std::get<CompletionCall>(parsed);
    if (!call.ignored_fields.empty()) {
      std::string names;
      for (const std::string& name : call.ignored_fields) names += (names.empty() ? "" : ", ") + name;
      fields.emplace_back("x-oscar-ignored-fields", names);
    }
    const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    const auto answer = std::make_shared<CompletionAnswer>(
        call, engine_.tokenizer(), CompletionAnswer::Identity{(chat ? "chatcmpl-" : "cmpl-") + RandomId(), model_id_, now}, std::move(fields),
        responder);
    SamplingParams& sampling = call.request.answer.sampling;
    if (!sampling.seed) sampling.seed = std::random_device{}();
    const auto ids = std::make_shared<std::vector<uint64_t>>();
    for (int choice = 0; choice < call.choices; ++choice) {
      GenerationRequest one = call.request;
      one.answer.sampling.seed = *sampling.seed + static_cast<uint64_t>(choice);
      const auto id = scheduler_->Submit(std::move(one), [answer, choice](const GenerationEvent& event) { answer->Add(choice, event); });
      if (!id.ok()) {
        answer->Fail(FromStatus(id.status()));
        for (const uint64_t submitted : *ids) scheduler_->Cancel(submitted);
        return;
      }
      ids->push_back(*id);
    }
    responder->OnClosed([this, ids] {
      for (const uint64_t id : *ids) scheduler_->Cancel(id);
    });
  }

  Engine& engine_;
  const std::string model_id_;
  const ServerOptions options_;
  const std::vector<base::Sha256Digest> keys_;
  const int64_t started_ = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::atomic<bool> draining_ = false;
  std::unique_ptr<Scheduler> scheduler_;
  boost::asio::thread_pool workers_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Start(Engine& engine, const KvSetup& setup, const ServerOptions& options) {
  OSCAR_ASSIGN_OR_RETURN(std::vector<base::Sha256Digest> keys, ReadKeys(options.api_key_file));
  if (keys.empty() && !IsLoopback(options.http.address) && !options.insecure_open) {
    return Status(StatusCode::kFailedPrecondition, "--host " + options.http.address +
                                                       " can be reached by others: give --api-key-file, or --insecure-open to serve without keys");
  }
  std::string id = options.model_id.empty() ? engine.model_path().stem().string() : options.model_id;
  auto server = std::make_unique<ServerImpl>(engine, std::move(id), options, std::move(keys));
  OSCAR_TRY(server->Run(setup));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace oscar::engine
