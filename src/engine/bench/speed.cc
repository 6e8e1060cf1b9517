#include "src/engine/bench/speed.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

// Beside peers: steps of one side before the other's turn, of which the first only warms up, and the pause in which the
// threads of the side before stop spinning (they do for about a tenth of a second).
constexpr int kTurnSteps = 8;
constexpr std::chrono::milliseconds kTurnPause(200);

constexpr int kMostBatch = 64;

// One side: a cache of ours, or a peer.
struct Runner {
  std::unique_ptr<KvCache> cache;
  std::vector<SequenceId> sequences;
  PeerProcess* peer = nullptr;
  std::vector<float> logits;
  double prefill_seconds = 0;
  std::vector<double> decode_seconds;
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
    OSCAR_TRY(engine.model().Forward(steps, *runner.cache, &runner.logits));
    seconds = {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), ProcessorSeconds() - processor_start};
  }
  return clock == StepClock::kWall ? seconds.wall : seconds.processor;
}

int TurnSteps(const SpeedRequest& request) { return request.peers.empty() ? 1 : kTurnSteps; }
// Steps of one token at each context, warming up included: one at first, which builds the graphs, then whole turns.
int StepsPerContext(const SpeedRequest& request) {
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
  if (request.contexts.empty() || request.contexts.front() < 1 || !std::is_sorted(request.contexts.begin(), request.contexts.end())) {
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

// Brings every side from `at` to `context` tokens.
Status Prefill(Engine& engine, std::span<const int32_t> tokens, int context, const SpeedRequest& request, std::vector<Runner>& runners, int& at) {
  while (at < context) {
    OSCAR_TRY(request.control.CheckCancelled());
    const int count = std::min(kMaxStepTokens, context - at);
    for (Runner& runner : runners) {
      TakeTurn(request);
      for (int i = 0; i < request.batch; ++i) {
        const auto sequence = std::span<const SequenceId>(runner.sequences).subspan(i, runner.peer == nullptr ? 1 : 0);
        OSCAR_ASSIGN_OR_RETURN(const double seconds, TimedStep(engine, runner, sequence, tokens.subspan(at, count), request.clock));
        runner.prefill_seconds += seconds;
      }
    }
    request.control.Report(at += count, SpeedTokensNeeded(request));
  }
  return {};
}

Status Decode(Engine& engine, std::span<const int32_t> tokens, const SpeedRequest& request, std::vector<Runner>& runners, int& at) {
  const int turn_steps = TurnSteps(request), num_steps = StepsPerContext(request);
  for (int first = 0; first < num_steps;) {
    OSCAR_TRY(request.control.CheckCancelled());
    const int count = first == 0 ? 1 : turn_steps;
    for (Runner& runner : runners) {
      TakeTurn(request);
      for (int i = 0; i < count; ++i) {
        OSCAR_ASSIGN_OR_RETURN(const double seconds, TimedStep(engine, runner, runner.sequences, tokens.subspan(at + i, 1), request.clock));
        if (first > 0 && (i > 0 || turn_steps == 1)) runner.decode_seconds.push_back(seconds);
      }
    }
    first += count;
    at += count;
  }
  return {};
}

SpeedCell CellOf(const SpeedRequest& request, size_t index, int context, int prefill_tokens, Runner& runner) {
  std::vector<double>& times = runner.decode_seconds;
  std::sort(times.begin(), times.end());
  SpeedCell cell;
  cell.is_peer = runner.peer != nullptr;
  cell.method = cell.is_peer ? runner.peer->name() : request.methods[index].method.name();
  cell.context = context;
  cell.prefill_tokens = prefill_tokens;
  cell.prefill_seconds = runner.prefill_seconds;
  cell.decode = {times.front(), times[times.size() / 2], times.back()};
  if (!cell.is_peer) cell.used_bytes = runner.cache->stats().used_bytes();
  times.clear();
  return cell;
}

}  // namespace

int64_t SpeedTokensNeeded(const SpeedRequest& request) {
  if (request.contexts.empty()) return 0;
  return request.contexts.back() + static_cast<int64_t>(StepsPerContext(request));
}

Result<SpeedReport> MeasureSpeed(Engine& engine, std::span<const int32_t> tokens, const SpeedRequest& request) {
  OSCAR_TRY(CheckRequest(engine, engine.model().config().max_context, tokens, request));
  std::vector<Runner> runners(request.methods.size());
  for (size_t m = 0; m < runners.size(); ++m) {
    OSCAR_ASSIGN_OR_RETURN(runners[m].cache, engine.NewCache(request.methods[m], SpeedTokensNeeded(request) * request.batch, request.batch));
    for (int i = 0; i < request.batch; ++i) {
      OSCAR_ASSIGN_OR_RETURN(const SequenceId sequence, runners[m].cache->NewSequence());
      runners[m].sequences.push_back(sequence);
    }
  }
  for (PeerProcess* peer : request.peers) runners.emplace_back().peer = peer;
  SpeedReport report{engine.identity().name, engine.threads(), request.batch, {}};
  int at = 0, prefill_tokens = 0;
  for (const int context : request.contexts) {
    prefill_tokens += (context - at) * request.batch;
    OSCAR_TRY(Prefill(engine, tokens, context, request, runners, at));
    OSCAR_TRY(Decode(engine, tokens, request, runners, at));
    for (size_t i = 0; i < runners.size(); ++i) report.cells.push_back(CellOf(request, i, context, prefill_tokens, runners[i]));
  }
  return report;
}

}  // namespace oscar::engine
