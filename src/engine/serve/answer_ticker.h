// AnswerTicker: calls StreamedAnswer::Tick of every answer that is under way, twice a second.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "src/engine/serve/streamed_answer.h"

namespace oscar::engine {

class AnswerTicker {
 public:
  AnswerTicker();
  ~AnswerTicker();
  void Add(std::weak_ptr<StreamedAnswer> answer);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<std::weak_ptr<StreamedAnswer>> answers_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oscar::engine
