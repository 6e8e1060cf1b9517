// LogWriter: lines to a file descriptor by a thread of its own, so that a reader who is slow, or gone, holds up nobody. What does not
// fit into the queue is dropped and counted.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace oscar::engine {

class LogWriter {
 public:
  static constexpr std::size_t kMostQueuedBytes = std::size_t{1} << 20;

  // `descriptor` stays open and is not changed.
  explicit LogWriter(int descriptor);
  // Writes what the reader takes without waiting; the rest is dropped.
  ~LogWriter();
  // Takes a line with its newline and returns at once.
  void Write(std::string line);
  uint64_t num_dropped() const;

 private:
  void Run();
  // What is left to be written of a line; false: the writer is to end, or nobody will ever read it.
  bool WriteWhole(const std::string& line);
  bool WaitUntilWritable();

  const int descriptor_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::string> lines_;
  std::size_t queued_bytes_ = 0;
  uint64_t num_dropped_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oscar::engine
