#include "src/engine/serve/masks_ahead.h"

#include <algorithm>
#include <utility>

namespace oscar::engine {

MasksAhead::~MasksAhead() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void MasksAhead::Make(std::vector<grammar::GrammarMatcher> places) {
  {
    const std::lock_guard lock(mutex_);
    places_ = std::move(places);
    std::ranges::reverse(places_);  // the last is made first
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  wake_.notify_all();
}

void MasksAhead::Run() {
  for (std::unique_lock lock(mutex_);;) {
    wake_.wait(lock, [this] { return stopping_ || !places_.empty(); });
    if (stopping_) return;
    grammar::GrammarMatcher place = std::move(places_.back());
    places_.pop_back();
    lock.unlock();
    static_cast<void>(place.Mask());  // the grammar keeps it; an error is said where the token is drawn
    lock.lock();
  }
}

}  // namespace oscar::engine
