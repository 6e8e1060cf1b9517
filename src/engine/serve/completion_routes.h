// Completions from body to answer (serving.md 3 to 5, 10): parsed, submitted, ended when their client leaves; their prompts alone; and
// one token to see whether everything works.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <boost/asio/thread_pool.hpp>

#include "src/engine/serve/answer_ticker.h"
#include "src/engine/serve/auth.h"
#include "src/engine/serve/http_server.h"
#include "src/engine/serve/key_limits.h"
#include "src/engine/serve/model_service.h"
#include "src/engine/serve/request_log.h"

namespace oscar::engine {

// Who asks: the request's id, and the key it came with (null: there are none).
struct Caller {
  std::string id;
  const ApiKey* key = nullptr;
};

class CompletionRoutes {
 public:
  // `apart`: tenants do not see each other's prefixes. `workers` must end before this does.
  CompletionRoutes(boost::asio::thread_pool& workers, const KeyLimitOptions& limits, bool apart) : workers_(workers), key_limits_(limits), apart_(apart) {}

  // All answer through the responder; Complete and Render are for a worker's thread.
  void Complete(ModelService& service, CallKind kind, const HttpRequest& request, HttpFields fields, const std::shared_ptr<ObservedResponder>& responder,
                const Caller& caller);
  void Render(ModelService& service, CallKind kind, const HttpRequest& request, HttpFields fields, HttpResponder& responder, const Caller& caller);
  void HealthGenerate(ModelService& service, HttpFields fields, const std::shared_ptr<ObservedResponder>& responder);
  // Ends the requests with this id, or all when it is empty; gives how many sequences were told.
  int Abort(ModelService& service, const std::string& id);
  // Whether the space of a request is its tenant, a line end, and its salt, or the salt alone.
  bool spaces_have_tenants() const { return apart_; }
  uint64_t num_refused_by_key() const { return refused_by_key_; }

 private:
  struct Probe;
  // Whose share of the machine a request uses, and whose prefixes it sees.
  void SetTenant(const Caller& caller, GenerationRequest* request) const;
  void Submit(ModelService& service, CompletionCall& call, const std::shared_ptr<StreamedAnswer>& answer, const std::shared_ptr<ObservedResponder>& responder,
              const Caller& caller);

  boost::asio::thread_pool& workers_;
  KeyLimits key_limits_;
  const bool apart_;
  std::atomic<uint64_t> refused_by_key_ = 0;
  AnswerTicker ticker_;
  std::mutex live_mutex_;
  std::multimap<std::string, std::weak_ptr<std::vector<uint64_t>>> live_;  // sequences by id of their request
};

}  // namespace oscar::engine
