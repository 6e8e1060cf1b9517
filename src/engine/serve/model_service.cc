#include "src/engine/serve/model_service.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "oscar/version.h"
#include "src/base/digest.h"
#include "src/base/status_macros.h"
#include "src/engine/serve/embedded_files.h"
#include "src/engine/serve/token_routes.h"

namespace oscar::engine {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kModels = "/v1/models";

// The build, and all that a request cannot say, in twelve letters.
std::string FingerprintOf(const Engine& engine, const KvSetup& setup) {
  const KvWindows windows = engine.WindowsOf(setup);
  base::Sha256 hash;
  hash.Update(std::string(kVersion) + "\n" + engine.identity().fingerprint + "\n" + setup.method.name() + "\n" + std::to_string(windows.sink) + " " +
              std::to_string(windows.recent) + (engine.options().deterministic ? "\ndeterministic" : "") + "\n" + std::to_string(static_cast<int>(engine.options().weights)) + " " +
              std::to_string(static_cast<int>(engine.options().device)));
  return "fp_" + base::HexFromDigest(hash.Finish()).substr(0, 12);
}

int64_t SecondsSince1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Result<std::unique_ptr<ModelService>> ModelService::Start(Engine& engine, const KvSetup& setup, const Options& options) {
  OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<Scheduler> scheduler, Scheduler::Start(engine, setup, options.scheduler));
  OSCAR_ASSIGN_OR_RETURN(const std::string chat_template, engine.model().metadata().StringOr("tokenizer.chat_template", ""));
  const std::string id = options.model_id.empty() ? engine.model_path().stem().string() : options.model_id;
  AnswerFormat format = DetectAnswerFormat(chat_template);
  if (!options.tool_parser.empty()) {
    auto named = AnswerFormatNamed(options.tool_parser, chat_template);
    if (!named.ok()) return named.status().WithContext("--tool-parser");
    format = *named;
  }
  ServedModel served{engine, id, scheduler->context(), format, MarkerTokens(engine.tokenizer(), format), options.strict_fields};
  std::unique_ptr<ModelService> service(new ModelService(engine, setup, std::move(scheduler), std::move(served)));
  if (!options.kv_events.endpoint.empty()) OSCAR_TRY(service->PublishKvEvents(options.kv_events, options.spaces_have_tenants));
  return service;
}

ModelService::~ModelService() {
  if (kv_events_ != nullptr) kv_events_->StopResyncs();
  scheduler_.reset();  // its last events go to answers that use the rest
}

Status ModelService::PublishKvEvents(KvEventOptions options, bool spaces_have_tenants) {
  if (options.topic.empty()) {
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    options.topic = "kv@" + std::string(host.data()) + "@" + model_id();
  }
  OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<KvEventSockets> sockets, KvEventSockets::Bind(options));
  const KvCacheConfig& config = scheduler_->cache().config();
  const std::string key = engine_.identity().fingerprint + "\n" + scheduler_->method().name() + "\n" + base::HexFromDigest(scheduler_->cache().profile().digest()) +
                          "\n" + std::to_string(config.sink) + " " + std::to_string(config.recent);
  const auto observe = [this] {
    return scheduler_->Call([this](KvCache& cache) {
      kv_events_->BeginSnapshot();
      cache.prefixes()->Observe(kv_events_.get());
      kv_events_->EndSnapshot();
    });
  };
  kv_events_ = std::make_unique<KvEventPublisher>(KvEventEncoder(key, spaces_have_tenants), std::move(sockets), [observe] { (void)observe(); });
  kv_event_options_ = std::move(options);
  return observe();
}

ModelService::ModelService(Engine& engine, const KvSetup& setup, std::unique_ptr<Scheduler> scheduler, ServedModel served)
    : engine_(engine), scheduler_(std::move(scheduler)), served_(std::move(served)),
      cache_report_(scheduler_->method(), scheduler_->cache().config(), scheduler_->snapshot().kv), grammars_(engine.tokenizer(), served_.marker_tokens),
      fingerprint_(FingerprintOf(engine, setup)), started_(SecondsSince1970()) {
  ordered_json description = ordered_json::parse(OpenApiDescription());
  description["components"]["schemas"]["TokenId"]["maximum"] = engine.tokenizer().vocab_size() - 1;
  openapi_ = description.dump();
}

ordered_json ModelService::Model() const {
  return {{"id", model_id()}, {"object", "model"}, {"created", started_}, {"owned_by", "oscar"}, {"max_model_len", scheduler_->context()},
          {"root", model_id()}, {"parent", nullptr}, {"kv_method", scheduler_->method().name()}};
}

ordered_json ModelService::KvEventsJson() const {
  if (kv_events_ == nullptr) return nullptr;
  const std::string& replay = kv_event_options_.replay_endpoint;
  return {{"endpoint", kv_event_options_.endpoint}, {"replay_endpoint", replay.empty() ? ordered_json() : ordered_json(replay)}, {"topic", kv_event_options_.topic}};
}

std::string ModelService::ServerInfo() {
  const SchedulerSnapshot now = scheduler_->snapshot();
  const SchedulerOptions& limits = scheduler_->options();
  const KvCacheConfig& config = scheduler_->cache().config();
  const SamplingParams sampling;
  const ordered_json kv = {{"codec", scheduler_->method().codec->name}, {"method", scheduler_->method().name()},
                           {"profile_digest", base::HexFromDigest(scheduler_->cache().profile().digest())}, {"page_tokens", kPageTokens},
                           {"sink", config.sink}, {"recent", config.recent}, {"bf16_pages", now.kv.bf16_pages_total},
                           {"int2_pages", now.kv.encoded_pages_total}, {"bf16_page_bytes", now.kv.bf16_page_bytes}, {"int2_page_bytes", now.kv.encoded_page_bytes}};
  return JsonText({{"version", kVersion}, {"model", model_id()}, {"model_digest", engine_.identity().fingerprint}, {"max_model_len", scheduler_->context()},
                   {"backend", engine_.options().device == Device::kCuda ? "cuda" : "cpu"}, {"deterministic", engine_.options().deterministic}, {"kv", kv},
                   {"limits", {{"max_running_requests", limits.max_running}, {"max_queued_requests", limits.max_queued},
                               {"max_queued_tokens", limits.max_queued_tokens}, {"step_tokens", limits.step_tokens}, {"queue_timeout_s", limits.queue_timeout}}},
                   {"sampling_defaults", {{"temperature", sampling.temperature}, {"top_p", sampling.top_p}, {"top_k", sampling.top_k}, {"min_p", sampling.min_p},
                                          {"presence_penalty", sampling.presence_penalty}, {"frequency_penalty", sampling.frequency_penalty},
                                          {"repetition_penalty", sampling.repetition_penalty}}},
                   {"kv_events", KvEventsJson()}});
}

std::string ModelService::Describe(std::string_view path) {
  if (path == "/tokenizer_info") return TokenizerInfoBody(engine_, scheduler_->context());
  if (path == "/version") return JsonText({{"version", kVersion}});
  if (path == "/model_info") {
    return JsonText({{"model_path", model_id()}, {"tokenizer_path", model_id()}, {"is_generation", true}, {"max_model_len", scheduler_->context()}});
  }
  if (path == "/server_info") return ServerInfo();
  if (path == "/openapi.json") return openapi_;
  if (path == kModels) return JsonText({{"object", "list"}, {"data", ordered_json::array({Model()})}});
  return path.substr(kModels.size() + 1) == model_id() ? JsonText(Model()) : "";
}

}  // namespace oscar::engine
