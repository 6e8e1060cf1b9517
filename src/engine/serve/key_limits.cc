#include "src/engine/serve/key_limits.h"

#include <algorithm>
#include <utility>

namespace oscar::engine {

KeyLimits::Lease::~Lease() {
  const std::lock_guard lock(limits_.mutex_);
  --limits_.uses_[key_].requests;
}

void KeyLimits::Lease::Charge(int64_t tokens) { limits_.Charge(key_, tokens); }

void KeyLimits::Refill(Use& use) const {
  const auto most = static_cast<double>(options_.tokens_per_minute);
  const Clock::time_point now = now_();
  const double minutes = use.counted == Clock::time_point{} ? 1 : std::chrono::duration<double>(now - use.counted).count() / 60;
  use.tokens_left = std::min(most, use.tokens_left + minutes * most);
  use.counted = now;
}

void KeyLimits::Charge(const ApiKey* key, int64_t tokens) {
  if (options_.tokens_per_minute == 0) return;
  const std::lock_guard lock(mutex_);
  Use& use = uses_[key];
  Refill(use);
  use.tokens_left -= static_cast<double>(tokens);
}

std::shared_ptr<KeyLimits::Lease> KeyLimits::Take(const ApiKey* key, int64_t prompt_tokens, Refusal* refusal) {
  {
    const std::lock_guard lock(mutex_);
    Use& use = uses_[key];
    if (options_.max_requests > 0 && use.requests >= options_.max_requests) {
      *refusal = {"this key has " + std::to_string(use.requests) + " requests under way, as many as it may", 1};
      return nullptr;
    }
    if (options_.tokens_per_minute > 0) {
      Refill(use);
      if (use.tokens_left <= 0) {
        const double wait = (1 - use.tokens_left) * 60 / static_cast<double>(options_.tokens_per_minute);
        *refusal = {"this key has used its " + std::to_string(options_.tokens_per_minute) + " tokens of the minute", std::clamp(wait, 1.0, 3600.0)};
        return nullptr;
      }
    }
    ++use.requests;
  }
  Charge(key, prompt_tokens);
  return std::make_shared<Lease>(*this, key);
}

}  // namespace oscar::engine
