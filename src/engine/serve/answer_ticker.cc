#include "src/engine/serve/answer_ticker.h"

#include <chrono>
#include <utility>

namespace oscar::engine {

AnswerTicker::AnswerTicker() : thread_([this] { Run(); }) {}

AnswerTicker::~AnswerTicker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void AnswerTicker::Add(std::weak_ptr<StreamedAnswer> answer) {
  const std::lock_guard lock(mutex_);
  answers_.push_back(std::move(answer));
}

void AnswerTicker::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, std::chrono::milliseconds(500), [this] { return stopping_; });
    const auto now = StreamedAnswer::Clock::now();
    std::erase_if(answers_, [now](const std::weak_ptr<StreamedAnswer>& weak) {
      const std::shared_ptr<StreamedAnswer> answer = weak.lock();
      return answer == nullptr || !answer->Tick(now);
    });
  }
}

}  // namespace oscar::engine
