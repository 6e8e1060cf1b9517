// `oscar bench`, `bench prefill`, `bench decode`: tokens per second by context length and KV method. All methods run in one process on the
// same tokens, interleaved step by step, so that a busy machine slows them alike. Other engines run as processes beside it, a few
// steps at a time: the idle threads of both sides spin for a while, and nobody may be timed meanwhile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/bench/peer_process.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/progress_callback.h"

namespace oscar::engine {

// What a step's time is: of the clock on the wall, or that of the processor, which does not count what other programs take. With
// more than one thread the latter counts threads that wait for each other.
enum class StepClock { kWall, kProcessor };

enum class SpeedPart {
  kBoth,     // a text is prefilled from context to context, and decoding is timed at each
  kPrefill,  // each context from an empty cache, several times
  kDecode,   // the cache is filled with random rows (on a device, those of a step before) and peers with copies of some tokens: only decoding costs time
};

struct SpeedRequest {
  SpeedPart part = SpeedPart::kBoth;
  std::vector<KvSetup> methods;   // at least one
  std::vector<int> contexts;      // tokens in the cache when decoding is timed, or of a prompt; ascending, >= 1
  int decode_tokens = 32;         // steps timed at each context, at least so many
  int repeats = 3;                // prompts timed at each context (kPrefill)
  StepClock clock = StepClock::kWall;
  int batch = 1;                  // sequences of a decode step, each with a context of its own; 1 beside peers
  std::vector<PeerProcess*> peers;  // with the model opened, the cache empty and room for SpeedTokensNeeded
  RunControl control;
};

// In seconds: of decode steps of the batch, the greedy choice of its tokens included, or of whole prompts of all its sequences.
struct StepTimes {
  double min = 0, median = 0, max = 0;
};

struct SpeedCell {
  std::string method;             // or the name of a peer
  bool is_peer = false;
  int context = 0;
  int prefill_tokens = 0;         // of all sequences, in steps of up to kMaxStepTokens. kBoth: `context` less the decode steps of lower contexts
  StepTimes prefill;              // kBoth: three times the one time there is
  StepTimes decode;
  std::size_t used_bytes = 0;     // cache pages held at that context; 0 for a peer, which does not say
  // kDecode: what cache and steps have added to the resident memory; of a peer, its context and steps. Empty where that is unknown.
  std::optional<int64_t> resident_bytes;
};

struct SpeedReport {
  std::string model;
  int threads = 0;
  int batch = 1;
  std::vector<SpeedCell> cells;   // by context, then method
};

// tokens: at least SpeedTokensNeeded; every sequence reads the same ones. kInvalidArgument for a batch that is not 1 to 256 or, beside peers, not 1, repeats below 1, contexts that are
// not ascending, closer than decode_tokens (where decoding is timed), or do not fit the model. Decode steps count into the prefix of the next context, as prefill of the same tokens would.
Result<SpeedReport> MeasureSpeed(Engine& engine, std::span<const int32_t> tokens, const SpeedRequest& request);

// Tokens MeasureSpeed needs.
int64_t SpeedTokensNeeded(const SpeedRequest& request);

}  // namespace oscar::engine
