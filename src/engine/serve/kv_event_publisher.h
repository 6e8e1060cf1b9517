// KvEventPublisher: tells routers over ZeroMQ which pages a server can resume on (serving.md 15). A PUB socket carries batches of events with
// numbers without gaps; a ROUTER socket gives the last ones again to whoever missed some. Nothing is dropped silently: what does not fit into the
// queue between the scheduler and the sockets is followed by AllBlocksCleared and all that is there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "oscar/prefix_cache.h"
#include "oscar/result.h"
#include "src/engine/serve/kv_event_encoder.h"

namespace oscar::engine {

struct KvEventOptions {
  std::string endpoint;         // "tcp://127.0.0.1:5557"; empty: no events
  std::string replay_endpoint;  // empty: none
  std::string topic;            // of the first frame
};

// The two sockets; one thread calls it.
class KvEventSockets {
 public:
  // kUnsupported in a program without libzmq; kInvalidArgument naming the option for an endpoint that cannot be bound.
  static Result<std::unique_ptr<KvEventSockets>> Bind(const KvEventOptions& options);
  virtual ~KvEventSockets() = default;
  virtual void Publish(uint64_t number, const std::string& batch) = 0;
  // The number from which on a client wants to see batches again, if one asks; it is then the one that Replay sends to.
  virtual bool TakeRequest(uint64_t* first) = 0;
  virtual void Replay(uint64_t number, const std::string& batch) = 0;
  virtual void EndReplay() = 0;
};

// The observer's calls come from the cache's thread and never wait for a socket.
class KvEventPublisher final : public PrefixObserver {
 public:
  static constexpr size_t kMostQueuedBytes = 64 << 20, kMostKeptBatches = 10'000, kMostKeptBytes = 64 << 20;

  // resync: makes the cache observe this publisher (again), on the cache's thread; called on a thread of its own when events were lost.
  KvEventPublisher(KvEventEncoder encoder, std::unique_ptr<KvEventSockets> sockets, std::function<void()> resync, size_t most_queued_bytes = kMostQueuedBytes);
  ~KvEventPublisher() override;
  // No resync begins after this, and none is under way: the cache may go.
  void StopResyncs();
  // Around the call of Observe in a resync: all that is told until the end goes out, after AllBlocksCleared.
  void BeginSnapshot();
  void EndSnapshot();

  void Stored(std::string_view space, std::span<const int32_t> tokens, int first_page) override;
  void Removed(std::string_view space, std::span<const int32_t> tokens, int first_page) override;
  void Cleared() override;
  uint64_t num_batches() const { return num_batches_; }
  uint64_t num_resyncs() const { return num_resyncs_; }

 private:
  struct Batch {
    uint64_t number;
    std::string text;
  };
  void Push(std::string event);
  void Run();
  // What is queued; whether events were lost.
  bool SendQueued();
  void Resync();
  void AnswerReplays();

  const KvEventEncoder encoder_;
  const std::unique_ptr<KvEventSockets> sockets_;
  const size_t most_queued_bytes_;
  std::vector<Batch> kept_;      // of the thread: the newest last
  size_t kept_bytes_ = 0;
  std::atomic<uint64_t> num_batches_ = 0, num_resyncs_ = 0;

  std::mutex resync_mutex_;
  std::function<void()> resync_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::string> queue_;
  size_t queued_bytes_ = 0;
  bool overflowed_ = false;      // events are lost until the next snapshot
  bool in_snapshot_ = false;
  bool stopping_ = false;
  std::thread thread_;           // last: it uses all of the above
};

}  // namespace oscar::engine
