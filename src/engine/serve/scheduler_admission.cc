// Scheduler: who begins, who has to leave for a while, and who comes back.
#include <algorithm>
#include <limits>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/serve/running_request.h"
#include "src/engine/serve/scheduler.h"

namespace oscar::engine {
namespace {

int SharedTokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<int>(std::ranges::mismatch(a, b).in1 - a.begin());
}

int WholePages(int tokens) { return tokens / kPageTokens * kPageTokens; }

}  // namespace

void Scheduler::Admit() {
  if (!ReturnPreempted()) return;  // nobody begins before those that had begun
  waiting_prefix_ = 0;
  if (waiting_.empty()) return;
  for (const WaitingKey& key : queue_.Order()) {
    if (static_cast<int>(running_.size()) >= options_.max_running) return;
    if (!TryStart(std::ranges::find(waiting_, key.id, &Waiting::id))) return;  // nobody overtakes one that does not fit yet
  }
}

PrefixMatch Scheduler::MatchOf(const GenerationRequest& request) const {
  if (!options_.prefix_cache || request.score_prompt) return {};
  // The logits of the last token are needed.
  return prefixes_.Match(request.space, std::span(request.prompt).first(request.prompt.size() - 1));
}

// The length up to which a request must fit before it begins.
int64_t Scheduler::TargetTokens(const GenerationRequest& request, int64_t history) const {
  const int64_t most = static_cast<int64_t>(request.prompt.size()) + request.answer.max_tokens;
  return options_.preempt ? std::min<int64_t>(most, history + options_.admit_reserve) : most;
}

// Whether a sequence that begins now and grows to `target` tokens finds its pages beside all that run while these grow to theirs.
// shared_encoded_pages: those of it that running sequences hold.
bool Scheduler::Fits(int64_t target, int64_t shared_encoded_pages) const {
  if (running_.empty()) return true;  // one alone always fits
  std::vector<PageBudget::Growth> sequences = {{0, target, /*in_prompt=*/true}};
  for (const Running& running : running_) {
    sequences.push_back({running.computed, TargetTokens(running.request, static_cast<int64_t>(running.history.size())), running.pending() > 1});
  }
  const PageBudget::Pages needed = budget_.NeededBy(sequences);
  const KvCacheStats stats = cache_->stats();
  const PrefixStats prefixes = prefixes_.prefix_stats();
  const auto fits = [](int64_t pages, int64_t total) { return pages <= total - total / 100; };
  return fits(stats.bf16_pages_used - prefixes.idle_bf16_pages + needed.bf16, stats.bf16_pages_total) &&
         fits(stats.encoded_pages_used - prefixes.idle_encoded_pages + needed.encoded - shared_encoded_pages, stats.encoded_pages_total);
}

// True when the request began, failed, or waits for a prefix, so that the next one may be looked at.
bool Scheduler::TryStart(std::list<Waiting>::iterator waiting) {
  const PrefixMatch match = MatchOf(waiting->request);
  if (AwaitsPrefix(waiting->request, match)) {
    ++waiting_prefix_;
    return true;
  }
  const auto prompt_tokens = static_cast<int64_t>(waiting->request.prompt.size());
  if (!Fits(TargetTokens(waiting->request, prompt_tokens), match.live_encoded_pages)) return false;
  Waiting taken = std::move(*waiting);
  waiting_.erase(waiting);
  queue_.Remove(taken.id);
  {
    const std::lock_guard lock(mutex_);
    queued_requests_ -= taken.request.is_further_choice ? 0 : 1;
    --queued_all_;
    queued_tokens_ -= prompt_tokens;
    snapshot_.running = static_cast<int>(running_.size()) + 1;  // its place is not free any more, also for those who arrive before the step ends
  }
  const GenerationSink sink = taken.sink;
  if (const Status status = StartRequest(std::move(taken), match); !status.ok()) {
    GenerationEvent event;
    event.error = status;
    sink(event);
  }
  return true;
}

Status Scheduler::StartRequest(Waiting waiting, const PrefixMatch& match) {
  const GenerationRequest& request = waiting.request;
  OSCAR_ASSIGN_OR_RETURN(AnswerStream answer,
                         AnswerStream::Create(engine_.tokenizer(), request.answer, engine_.model().config().vocab_size, request.prompt));
  const bool resumes = options_.prefix_cache && !request.score_prompt;
  OSCAR_ASSIGN_OR_RETURN(const SequenceId sequence, resumes ? prefixes_.Resume(request.space, std::span(request.prompt).first(request.prompt.size() - 1))
                                                            : cache_->NewSequence());
  Running& running = running_.emplace_back(std::move(waiting), sequence, cache_->length(sequence), std::move(answer));
  PlanStops(running, match);
  queue_.AddRunning(running.request.tenant, 1);
  queue_.Charge(running.request.tenant, static_cast<uint64_t>(running.pending()));
  const std::lock_guard lock(mutex_);
  ++counters_.requests;
  counters_.prompt_tokens += running.request.prompt.size();
  counters_.cached_tokens += static_cast<uint64_t>(running.cached);
  counters_.unresumed_tokens += static_cast<uint64_t>(std::max(0, match.matched - running.cached));
  counters_.queue.Observe(std::chrono::duration<double>(running.admitted - running.arrived).count());
  return {};
}

// Where parts of the prompt end (serving.md 14): at its end, where it leaves a branch that is known but cannot be resumed
// there, and at a stride. A prompt of whole pages is kept one token before its end: the window at the end itself would not
// serve the same prompt again, whose last token is always computed.
void Scheduler::PlanStops(Running& running, const PrefixMatch& match) const {
  if (!options_.prefix_cache) return;
  const int length = static_cast<int>(running.request.prompt.size());
  const int end = length % kPageTokens == 0 ? length - 1 : length;
  const auto add = [&](int stop) {
    if (stop > running.computed && stop >= kPageTokens && std::ranges::find(running.stops, stop) == running.stops.end()) running.stops.push_back(stop);
  };
  add(end);
  if (const int branch = WholePages(match.matched); branch != WholePages(end) && branch > match.resumable) add(branch);
  const int stride = options_.resume_stride * kPageTokens;
  for (int stop = running.computed / stride * stride + stride; stop < WholePages(end); stop += stride) {
    add(stop);
    running.spare_stops.push_back(stop);
  }
  std::ranges::sort(running.stops);
}

bool Scheduler::AwaitsPrefix(const GenerationRequest& request, const PrefixMatch& match) {
  if (!options_.prefix_cache || request.score_prompt) return false;
  for (Running& running : running_) {
    if (running.request.space != request.space || running.completion_tokens > 0) continue;
    const int shared = SharedTokens(running.history, request.prompt);
    int stop = 0;  // the furthest that helps
    for (const int planned : running.stops) {
      if (planned > running.computed && planned <= shared) stop = planned;
    }
    if (const int branch = WholePages(std::min<int>(shared, static_cast<int>(request.prompt.size()) - 1)); branch > running.computed && branch > stop) {
      stop = branch;
    }
    if (stop < match.resumable + kPageTokens) continue;
    if (std::ranges::find(running.stops, stop) == running.stops.end()) {
      running.stops.insert(std::ranges::upper_bound(running.stops, stop), stop);
    }
    return true;
  }
  return false;
}

// --- Preemption

// Makes a running request leave the pools; false when only one runs. Not the oldest: it would never end.
bool Scheduler::Preempt() {
  if (running_.size() < 2) return false;
  auto victim = std::next(running_.begin());
  const auto rank = [this](const Running& running) {
    return std::tuple(running.request.priority, queue_.served(running.request.tenant), running.arrived);
  };
  for (auto at = std::next(victim); at != running_.end(); ++at) {
    if (rank(*at) >= rank(*victim)) victim = at;
  }
  int64_t parked_bytes = 0;
  for (const Running& running : preempted_) parked_bytes += running.parked ? static_cast<int64_t>(running.parked->host_bytes()) : 0;
  const KvCacheStats stats = cache_->stats();
  const SegmentTokens segments = cache_->segments(victim->sequence);
  const int64_t most_bytes = static_cast<int64_t>(stats.bf16_page_bytes) * ((segments.sink + segments.recent) / kPageTokens + 2) +
                             static_cast<int64_t>(stats.encoded_page_bytes) * (segments.body / kPageTokens);
  bool swapped = false;
  if (parked_bytes + most_bytes <= options_.swap_bytes) {
    if (auto parked = prefixes_.Park(victim->sequence); parked.ok()) {
      victim->parked = *std::move(parked);
      swapped = true;
    }
  }
  if (!swapped) {
    PublishPrefix(*victim, PrefixRetention::kNormal);
    OSCAR_CHECK(cache_->Release(victim->sequence).ok());
    victim->computed = 0;
  }
  ++victim->preemptions;
  {
    const std::lock_guard lock(mutex_);
    ++(swapped ? counters_.preempted_swap : counters_.preempted_recompute);
  }
  // The longest admitted comes back first.
  const auto place = std::ranges::find_if(preempted_, [&](const Running& other) { return other.admitted > victim->admitted; });
  preempted_.splice(place, running_, victim);
  return true;
}

// Parked sequences that hold shared pages give them up, to be computed again; false when there was none.
bool Scheduler::DropParked() {
  bool dropped = false;
  for (Running& running : preempted_) {
    if (!running.parked) continue;
    running.parked.reset();
    running.computed = 0;
    dropped = true;
  }
  return dropped;
}

// False when one must wait on.
bool Scheduler::ReturnPreempted() {
  while (!preempted_.empty()) {
    if (static_cast<int>(running_.size()) >= options_.max_running) return false;
    Running& first = preempted_.front();
    const auto history = static_cast<int64_t>(first.history.size());
    if (!Fits(TargetTokens(first.request, history), /*shared_encoded_pages=*/0)) return false;
    Result<SequenceId> sequence = Status(StatusCode::kInternal, "not tried");
    if (first.parked) {
      sequence = prefixes_.Unpark(*first.parked);
      if (!sequence.ok()) {
        if (!running_.empty()) return false;
        DropParked();  // nobody runs who could give pages back
        continue;
      }
      first.parked.reset();
    } else if (options_.prefix_cache && !first.request.score_prompt) {
      sequence = prefixes_.Resume(first.request.space, std::span(first.history).first(first.history.size() - 1));
    } else {
      first.prompt_scores.clear();
      sequence = cache_->NewSequence();
    }
    OSCAR_CHECK(sequence.ok());
    first.sequence = *sequence;
    first.computed = cache_->length(*sequence);
    std::erase_if(first.stops, [&](int stop) { return stop <= first.computed; });
    running_.splice(running_.end(), preempted_, preempted_.begin());
  }
  return true;
}

}  // namespace oscar::engine
