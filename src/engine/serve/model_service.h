// ModelService: a loaded model behind its scheduler, with all that requests are read against. A server that is still loading has none.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "oscar/result.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/serve/answer_grammar.h"
#include "src/engine/serve/cache_report.h"
#include "src/engine/serve/completion_call.h"
#include "src/engine/serve/kv_event_publisher.h"
#include "src/engine/serve/scheduler.h"

namespace oscar::engine {

class ModelService {
 public:
  struct Options {
    std::string model_id;       // empty: the stem of the model's file
    bool strict_fields = false;
    std::string tool_parser;    // AnswerFormatNamed; empty: as the template has it
    SchedulerOptions scheduler;
    KvEventOptions kv_events;
    bool spaces_have_tenants = false;  // KvEventEncoder
  };
  // The engine must outlive it. Errors of the scheduler, of a template that cannot be read.
  static Result<std::unique_ptr<ModelService>> Start(Engine& engine, const KvSetup& setup, const Options& options);
  ~ModelService();

  Engine& engine() { return engine_; }
  Scheduler& scheduler() { return *scheduler_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  const std::string& model_id() const { return served_.id; }
  const ServedModel& served() const { return served_; }
  AnswerGrammars& grammars() { return grammars_; }
  const KvEventPublisher* kv_events() const { return kv_events_.get(); }  // null: none
  const CacheReport& cache_report() const { return cache_report_; }
  const std::string& fingerprint() const { return fingerprint_; }  // of everything that the bits of an answer depend on

  // The body of a GET route of RouteKind::kDescription; empty for a model that is not served.
  std::string Describe(std::string_view path);

  std::atomic<uint64_t> bad_calls = 0;  // answers with text that begins as a tool call and is none

 private:
  ModelService(Engine& engine, const KvSetup& setup, std::unique_ptr<Scheduler> scheduler, ServedModel served);
  nlohmann::ordered_json Model() const;
  std::string ServerInfo();
  nlohmann::ordered_json KvEventsJson() const;

  Status PublishKvEvents(KvEventOptions options, bool spaces_have_tenants);

  Engine& engine_;
  std::unique_ptr<Scheduler> scheduler_;
  const ServedModel served_;
  const CacheReport cache_report_;
  AnswerGrammars grammars_;
  std::string fingerprint_, openapi_;
  KvEventOptions kv_event_options_;
  std::unique_ptr<KvEventPublisher> kv_events_;  // observes the cache of the scheduler, which goes before it
  const int64_t started_;  // seconds since 1970
};

}  // namespace oscar::engine
