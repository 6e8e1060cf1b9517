#include "src/engine/bench/speed.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>
#include <thread>
#include <utility>

#include "src/base/status_macros.h"
#include "src/engine/bench/resident_memory.h"

namespace oscar::engine {
namespace {

// Beside peers: steps of one side before the other's turn, of which the first only warms up, and the pause in which the
// threads of the side before stop spinning (they do for about a tenth of a second).
constexpr int kTurnSteps = 8;
constexpr std::chrono::milliseconds kTurnPause(200);

constexpr int kMostBatch = 256;

// One side: a cache of ours, or a peer.
struct Runner {
  std::unique_ptr<KvCache> cache;
  std::vector<SequenceId> sequences;
  PeerProcess* peer = nullptr;
  std::vector<int32_t> best;      // tokens of the step before
  int64_t resident_bytes = 0;     // added by what this side of ours did
  double prefill_seconds = 0;     // since it was last noted
  std::vector<double> prefill_times, decode_times;
};

// Adds what happens while it lives to the memory of a side of ours: one side works at a time, so that all growth is its own.
class ResidentGrowth {
 public:
  explicit ResidentGrowth(Runner& runner) : runner_(runner), before_(AnonymousBytes().value_or(0)) {}
  ~ResidentGrowth() { runner_.resident_bytes += AnonymousBytes().value_or(0) - before_; }
  ResidentGrowth(const ResidentGrowth&) = delete;
  ResidentGrowth& operator=(const ResidentGrowth&) = delete;

 private:
  Runner& runner_;
  const int64_t before_;
};

double ProcessorSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Seconds by the clock of the request. The same tokens for each of `sequences`, which are some of the runner's.
Result<double> TimedStep(Engine& engine, Runner& runner, std::span<const SequenceId> sequences, std::span<const int32_t> tokens,
                         StepClock clock) {
  StepSeconds seconds;
  if (runner.peer != nullptr) {
    OSCAR_ASSIGN_OR_RETURN(seconds, runner.peer->Step(tokens));
  } else {
    std::vector<StepSequence> steps;
    for (const SequenceId sequence : sequences) steps.push_back({sequence, tokens, false});
    const auto start = std::chrono::steady_clock::now();
    const double processor_start = ProcessorSeconds();
    OSCAR_TRY(engine.model().ForwardGreedy(steps, *runner.cache, &runner.best));
    seconds = {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), ProcessorSeconds() - processor_start};
  }
  return clock == StepClock::kWall ? seconds.wall : seconds.processor;
}

int TurnSteps(const SpeedRequest& request) { return request.peers.empty() ? 1 : kTurnSteps; }
// Steps of one token at each context, warming up included: one at first, which builds the graphs, then whole turns.
int StepsPerContext(const SpeedRequest& request) {
  if (request.part == SpeedPart::kPrefill) return 0;
  if (request.peers.empty()) return 1 + request.decode_tokens;
  const int timed = kTurnSteps - 1;
  return 1 + (request.decode_tokens + timed - 1) / timed * kTurnSteps;
}

// Gives the processor to one side.
void TakeTurn(const SpeedRequest& request) {
  if (!request.peers.empty()) std::this_thread::sleep_for(kTurnPause);
}

Status CheckRequest(const Engine& engine, int max_context, std::span<const int32_t> tokens, const SpeedRequest& request) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (request.methods.empty()) return invalid("bench: no KV method given");
  if (request.contexts.empty() || request.contexts.front() < 1 ||
      !std::is_sorted(request.contexts.begin(), request.contexts.end(), [](int a, int b) { return a <= b; })) {
    return invalid("bench: contexts must be positive and ascending");
  }
  for (size_t i = 1; i < request.contexts.size(); ++i) {
    if (request.contexts[i] - request.contexts[i - 1] < StepsPerContext(request)) {
      return invalid("bench: contexts " + std::to_string(request.contexts[i - 1]) + " and " + std::to_string(request.contexts[i]) +
                     " are closer than the " + std::to_string(StepsPerContext(request)) + " decode steps between them");
    }
  }
  if (request.batch < 1 || request.batch > kMostBatch) {
    return invalid("bench: --batch must be 1 to " + std::to_string(kMostBatch));
  }
  if (request.batch > 1 && !request.peers.empty()) return invalid("bench: --against runs at batch 1 only");
  if (request.decode_tokens < 1) return invalid("bench: --decode-tokens must be at least 1");
  if (request.repeats < 1) return invalid("bench: --repeats must be at least 1");
  const int64_t needed = SpeedTokensNeeded(request);
  if (needed > max_context) {
    return invalid("bench: needs " + std::to_string(needed) + " tokens of context; " + engine.identity().name +
                   " was trained for " + std::to_string(max_context));
  }
  if (static_cast<int64_t>(tokens.size()) < needed) {
    return invalid("bench: the text has " + std::to_string(tokens.size()) + " tokens, " + std::to_string(needed) + " are needed");
  }
  return {};
}

// Appends random rows to one sequence until it has `context` tokens.
Status FillSequence(KvCache& cache, SequenceId sequence, int context, std::span<const float> rows) {
  const KvShape& shape = cache.config().shape;
  while (cache.length(sequence) < context) {
    const int count = std::min(kPageTokens, context - cache.length(sequence));
    OSCAR_TRY(cache.Reserve(sequence, count));
    const auto packed = PackedRows<const float>(rows.data(), count, shape.num_kv_heads, shape.head_dim);
    for (int layer = 0; layer < shape.num_layers; ++layer) OSCAR_TRY(cache.Append(sequence, layer, packed, packed));
    OSCAR_TRY(cache.Commit(sequence, count));
  }
  return {};
}

// Least, median and most; the list is empty afterwards.
StepTimes TakeTimes(std::vector<double>& times) {
  if (times.empty()) return {};
  std::sort(times.begin(), times.end());
  const StepTimes taken{times.front(), times[times.size() / 2], times.back()};
  times.clear();
  return taken;
}

SpeedCell TakeCell(const SpeedRequest& request, size_t index, int context, int prefill_tokens, Runner& runner) {
  SpeedCell cell;
  cell.is_peer = runner.peer != nullptr;
  cell.method = cell.is_peer ? runner.peer->name() : request.methods[index].method.name();
  cell.context = context;
  cell.prefill_tokens = prefill_tokens;
  cell.prefill = TakeTimes(runner.prefill_times);
  cell.decode = TakeTimes(runner.decode_times);
  if (!cell.is_peer) cell.used_bytes = runner.cache->stats().used_bytes();
  if (request.part == SpeedPart::kDecode) cell.resident_bytes = cell.is_peer ? runner.peer->context_bytes() : runner.resident_bytes;
  return cell;
}

// One measurement: all sides with as many tokens each.
class SpeedRun {
 public:
  SpeedRun(Engine& engine, std::span<const int32_t> tokens, const SpeedRequest& request) : engine_(engine), tokens_(tokens), request_(request) {
    for (const int context : request.contexts) total_ += request.part == SpeedPart::kPrefill ? int64_t{context} * request.repeats : StepsPerContext(request);
    if (request.part == SpeedPart::kBoth) total_ += request.contexts.back();
  }

  Status Prepare() {
    OSCAR_TRY(WarmUp());
    runners_.resize(request_.methods.size());
    for (size_t m = 0; m < runners_.size(); ++m) {
      const ResidentGrowth growth(runners_[m]);
      OSCAR_ASSIGN_OR_RETURN(runners_[m].cache, engine_.NewCache(request_.methods[m], SpeedTokensNeeded(request_) * request_.batch, request_.batch));
      runners_[m].sequences.resize(static_cast<size_t>(request_.batch));
      for (SequenceId& sequence : runners_[m].sequences) {
        OSCAR_ASSIGN_OR_RETURN(sequence, runners_[m].cache->NewSequence());
      }
    }
    for (PeerProcess* peer : request_.peers) runners_.emplace_back().peer = peer;
    return {};
  }

  Status Measure(int context, std::vector<SpeedCell>& cells) {
    switch (request_.part) {
      case SpeedPart::kBoth:
        prefill_tokens_ += (context - at_) * request_.batch;
        OSCAR_TRY(Prefill(context));
        break;
      case SpeedPart::kPrefill:
        prefill_tokens_ = context * request_.batch;
        for (int repeat = 0; repeat < request_.repeats; ++repeat) {
          OSCAR_TRY(Clear());
          OSCAR_TRY(Prefill(context));
        }
        break;
      case SpeedPart::kDecode: OSCAR_TRY(Fill(context)); break;
    }
    OSCAR_TRY(Decode());
    for (size_t i = 0; i < runners_.size(); ++i) cells.push_back(TakeCell(request_, i, context, prefill_tokens_, runners_[i]));
    return {};
  }

 private:
  // What the first step of a process costs, weights that are read for the first time and threads, belongs to no side.
  Status WarmUp() {
    int count = std::min(kMaxStepTokens, request_.contexts.front());
    if (request_.part == SpeedPart::kDecode) count = is_on_device() ? static_cast<int>(std::min<size_t>(kMaxStepTokens, tokens_.size())) : 1;
    Runner ours;
    OSCAR_ASSIGN_OR_RETURN(ours.cache, engine_.NewCache(request_.methods.front(), kMaxStepTokens));
    OSCAR_ASSIGN_OR_RETURN(const SequenceId sequence, ours.cache->NewSequence());
    OSCAR_TRY(TimedStep(engine_, ours, {&sequence, 1}, tokens_.first(count), request_.clock).status());
    if (request_.part == SpeedPart::kDecode) return {};  // a peer is filled by steps of its own
    for (PeerProcess* peer : request_.peers) {
      TakeTurn(request_);
      OSCAR_TRY(peer->Step(tokens_.first(count)).status());
      OSCAR_TRY(peer->Clear());
    }
    return {};
  }

  // Empties every side.
  Status Clear() {
    at_ = 0;
    for (Runner& runner : runners_) {
      if (runner.peer != nullptr) OSCAR_TRY(runner.peer->Clear());
      for (SequenceId& sequence : runner.sequences) {
        OSCAR_TRY(runner.cache->Release(sequence));
        OSCAR_ASSIGN_OR_RETURN(sequence, runner.cache->NewSequence());
      }
    }
    return {};
  }

  // Brings every side to `context` tokens.
  Status Prefill(int context) {
    while (at_ < context) {
      OSCAR_TRY(request_.control.CheckCancelled());
      const int count = std::min(kMaxStepTokens, context - at_);
      for (Runner& runner : runners_) {
        TakeTurn(request_);
        for (int i = 0; i < request_.batch; ++i) {
          const auto sequence = std::span<const SequenceId>(runner.sequences).subspan(i, runner.peer == nullptr ? 1 : 0);
          OSCAR_ASSIGN_OR_RETURN(const double seconds, TimedStep(engine_, runner, sequence, tokens_.subspan(at_, count), request_.clock));
          runner.prefill_seconds += seconds;
        }
      }
      at_ += count;
      Report(count);
    }
    for (Runner& runner : runners_) runner.prefill_times.push_back(std::exchange(runner.prefill_seconds, 0));
    return {};
  }

  // The same without computing them.
  Status Fill(int context) {
    const KvShape& shape = engine_.model().config().kv;
    std::vector<float> rows(static_cast<size_t>(kPageTokens) * static_cast<size_t>(shape.num_kv_heads * shape.head_dim));
    std::mt19937_64 rng(7);
    std::normal_distribution<float> normal;
    for (float& value : rows) value = normal(rng);
    for (Runner& runner : runners_) {
      OSCAR_TRY(request_.control.CheckCancelled());
      if (runner.peer != nullptr) OSCAR_TRY(runner.peer->Fill(context));
      const ResidentGrowth growth(runner);
      for (const SequenceId sequence : runner.sequences) {
        OSCAR_TRY(is_on_device() ? engine_.model().FillCache(sequence, context - runner.cache->length(sequence), *runner.cache)
                                 : FillSequence(*runner.cache, sequence, context, rows));
      }
    }
    at_ = context;
    return {};
  }

  Status Decode() {
    const int turn_steps = TurnSteps(request_), num_steps = StepsPerContext(request_);
    for (int first = 0; first < num_steps;) {
      OSCAR_TRY(request_.control.CheckCancelled());
      const int count = first == 0 ? 1 : turn_steps;
      for (Runner& runner : runners_) {
        TakeTurn(request_);
        const ResidentGrowth growth(runner);
        for (int i = 0; i < count; ++i) {
          OSCAR_ASSIGN_OR_RETURN(const double seconds, TimedStep(engine_, runner, runner.sequences, tokens_.subspan(at_ + i, 1), request_.clock));
          if (first > 0 && (i > 0 || turn_steps == 1)) runner.decode_times.push_back(seconds);
        }
      }
      first += count;
      at_ += count;
      Report(count);
    }
    return {};
  }

  // Rows of this process are no rows for its cache; a warm-up of many tokens leaves some there.
  bool is_on_device() const { return engine_.options().device != Device::kCpu; }

  void Report(int tokens) { request_.control.Report(done_ += tokens, total_); }

  Engine& engine_;
  const std::span<const int32_t> tokens_;
  const SpeedRequest& request_;
  std::vector<Runner> runners_;
  int at_ = 0;  // tokens of every sequence
  int prefill_tokens_ = 0;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

int64_t SpeedTokensNeeded(const SpeedRequest& request) {
  if (request.contexts.empty()) return 0;
  return request.contexts.back() + static_cast<int64_t>(StepsPerContext(request));
}

Result<SpeedReport> MeasureSpeed(Engine& engine, std::span<const int32_t> tokens, const SpeedRequest& request) {
  OSCAR_TRY(CheckRequest(engine, engine.model().config().max_context, tokens, request));
  SpeedReport report{engine.identity().name, engine.threads(), request.batch, {}};
  SpeedRun run(engine, tokens, request);
  OSCAR_TRY(run.Prepare());
  for (const int context : request.contexts) OSCAR_TRY(run.Measure(context, report.cells));
  return report;
}

}  // namespace oscar::engine
