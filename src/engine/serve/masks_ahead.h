// MasksAhead: makes the masks of answers under a grammar on a thread of its own while a step runs, so that the draw behind it finds them made.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "src/engine/text/grammar/matcher.h"

namespace oscar::engine {

class MasksAhead {
 public:
  MasksAhead() = default;
  ~MasksAhead();
  // The places whose masks are needed next; those of the call before that were not begun yet are dropped. Not thread-safe.
  void Make(std::vector<grammar::GrammarMatcher> places);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<grammar::GrammarMatcher> places_;
  bool stopping_ = false;
  std::thread thread_;  // from the first call on
};

}  // namespace oscar::engine
