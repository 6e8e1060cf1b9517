#include "src/engine/serve/log_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace oscar::engine {
namespace {

// A pipe that poll calls writable takes so many bytes without blocking (POSIX: PIPE_BUF, at least 512).
constexpr std::size_t kPartBytes = 512;
constexpr int kPollMilliseconds = 50;

// On the writer's thread only: a reader that went away is an error of the write, not the end of the process.
void IgnoreBrokenPipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

LogWriter::LogWriter(int descriptor) : descriptor_(descriptor) {
  thread_ = std::thread([this] { Run(); });
}

LogWriter::~LogWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void LogWriter::Write(std::string line) {
  {
    const std::lock_guard lock(mutex_);
    if (queued_bytes_ + line.size() > kMostQueuedBytes) {
      ++num_dropped_;
      return;
    }
    queued_bytes_ += line.size();
    lines_.push_back(std::move(line));
  }
  wake_.notify_all();
}

uint64_t LogWriter::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

void LogWriter::Run() {
  IgnoreBrokenPipe();
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !lines_.empty(); });
    if (lines_.empty()) return;
    const std::string line = std::move(lines_.front());
    lines_.pop_front();
    lock.unlock();
    const bool written = WriteWhole(line);
    lock.lock();
    queued_bytes_ -= line.size();
    if (!written) ++num_dropped_;
  }
}

bool LogWriter::WriteWhole(const std::string& line) {
  for (std::size_t done = 0; done < line.size();) {
    if (!WaitUntilWritable()) return false;
    const ssize_t count = write(descriptor_, line.data() + done, std::min(kPartBytes, line.size() - done));
    if (count < 0 && errno != EINTR && errno != EAGAIN) return false;
    done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
  return true;
}

bool LogWriter::WaitUntilWritable() {
  for (;;) {
    bool stopping = false;
    {
      const std::lock_guard lock(mutex_);
      stopping = stopping_;
    }
    pollfd file{descriptor_, POLLOUT, 0};
    const int ready = poll(&file, 1, stopping ? 0 : kPollMilliseconds);
    if (ready > 0) return (file.revents & POLLOUT) != 0;  // else the reader is gone, or the descriptor is bad
    if (ready < 0 && errno != EINTR) return false;
    if (stopping) return false;
  }
}

}  // namespace oscar::engine
