#include "src/engine/serve/kv_event_publisher.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace oscar::engine {

KvEventPublisher::KvEventPublisher(KvEventEncoder encoder, std::unique_ptr<KvEventSockets> sockets, std::function<void()> resync, size_t most_queued_bytes)
    : encoder_(std::move(encoder)), sockets_(std::move(sockets)), most_queued_bytes_(most_queued_bytes), resync_(std::move(resync)), thread_([this] { Run(); }) {}

KvEventPublisher::~KvEventPublisher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void KvEventPublisher::StopResyncs() {
  const std::lock_guard lock(resync_mutex_);
  resync_ = nullptr;
}

void KvEventPublisher::BeginSnapshot() {
  {
    const std::lock_guard lock(mutex_);
    overflowed_ = false;
    in_snapshot_ = true;
  }
  Cleared();
}

void KvEventPublisher::EndSnapshot() {
  const std::lock_guard lock(mutex_);
  in_snapshot_ = false;
}

void KvEventPublisher::Stored(std::string_view space, std::span<const int32_t> tokens, int first_page) { Push(encoder_.Stored(space, tokens, first_page)); }

void KvEventPublisher::Removed(std::string_view space, std::span<const int32_t> tokens, int first_page) { Push(encoder_.Removed(space, tokens, first_page)); }

void KvEventPublisher::Cleared() { Push(KvEventEncoder::Cleared()); }

void KvEventPublisher::Push(std::string event) {
  {
    const std::lock_guard lock(mutex_);
    if (overflowed_) return;
    // A snapshot is as large as the cache makes it: it must go out whole.
    if (!in_snapshot_ && queued_bytes_ + event.size() > most_queued_bytes_) {
      overflowed_ = true;
      queue_.clear();
      queued_bytes_ = 0;
    } else {
      queued_bytes_ += event.size();
      queue_.push_back(std::move(event));
    }
  }
  wake_.notify_all();
}

void KvEventPublisher::Run() {
  // Requests for replays have no wake-up of their own.
  constexpr std::chrono::milliseconds kReplayPause{20};
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kReplayPause, [this] { return stopping_ || !queue_.empty() || overflowed_; });
      if (stopping_ && queue_.empty()) return;
    }
    if (SendQueued()) Resync();
    AnswerReplays();
  }
}

void KvEventPublisher::Resync() {
  const std::lock_guard lock(resync_mutex_);
  if (resync_ != nullptr) {
    ++num_resyncs_;
    return resync_();
  }
  const std::lock_guard inner(mutex_);
  overflowed_ = false;  // the cache is gone, and nothing follows
}

bool KvEventPublisher::SendQueued() {
  std::vector<std::string> events;
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    events.swap(queue_);
    queued_bytes_ = 0;
    lost = overflowed_;
  }
  if (events.empty()) return lost;
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  Batch batch{num_batches_, KvEventEncoder::Batch(now, events)};
  sockets_->Publish(batch.number, batch.text);
  kept_bytes_ += batch.text.size();
  kept_.push_back(std::move(batch));
  size_t gone = 0;
  while (kept_.size() - gone > kMostKeptBatches || (kept_bytes_ > kMostKeptBytes && kept_.size() - gone > 1)) kept_bytes_ -= kept_[gone++].text.size();
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(gone));
  ++num_batches_;
  return lost;
}

void KvEventPublisher::AnswerReplays() {
  for (uint64_t first = 0; sockets_->TakeRequest(&first);) {
    SendQueued();  // who asks sees all that was told before
    for (const Batch& batch : kept_) {
      if (batch.number >= first) sockets_->Replay(batch.number, batch.text);
    }
    sockets_->EndReplay();
  }
}

}  // namespace oscar::engine
