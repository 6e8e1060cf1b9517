// Limits of one API key (serving.md 10): requests at once, and tokens a minute.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "src/engine/serve/auth.h"

namespace oscar::engine {

struct KeyLimitOptions {
  int max_requests = 0;             // of a key, running and waiting; 0: any number
  int64_t tokens_per_minute = 0;    // prompt tokens and answer tokens; 0: any number
};

class KeyLimits {
 public:
  using Clock = std::chrono::steady_clock;
  explicit KeyLimits(const KeyLimitOptions& options, std::function<Clock::time_point()> now = Clock::now) : options_(options), now_(std::move(now)) {}

  struct Refusal {
    std::string message;
    double retry_after_seconds = 0;
  };
  // A request of a key, from its arrival to the end of its answers; the last holder ends it. Thread-safe.
  class Lease {
   public:
    Lease(KeyLimits& limits, const ApiKey* key) : limits_(limits), key_(key) {}
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    // Tokens of an answer of the request.
    void Charge(int64_t tokens);

   private:
    KeyLimits& limits_;
    const ApiKey* const key_;
  };
  // Takes a request with so many prompt tokens in, or says why not. A key that has used up its minute waits until what it used too much
  // has come back; a request is never refused for its size alone.
  std::shared_ptr<Lease> Take(const ApiKey* key, int64_t prompt_tokens, Refusal* refusal);

 private:
  struct Use {
    int requests = 0;
    double tokens_left = 0;       // of this minute; below 0: owed
    Clock::time_point counted{};  // until when tokens came back
  };
  void Charge(const ApiKey* key, int64_t tokens);
  void Refill(Use& use) const;

  const KeyLimitOptions options_;
  const std::function<Clock::time_point()> now_;
  std::mutex mutex_;
  std::map<const ApiKey*, Use> uses_;
};

}  // namespace oscar::engine
