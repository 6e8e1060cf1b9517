// Generate: prompt tokens in, text out, over one sequence of a cache. The one loop under `oscar run` and the evaluations.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/kv_cache.h"
#include "oscar/result.h"
#include "src/engine/runtime/answer_stream.h"
#include "src/engine/runtime/engine.h"

namespace oscar::engine {

struct GenerateRequest {
  std::vector<int32_t> prompt;          // the whole prompt, cached tokens included; not empty
  AnswerParams answer;                  // max_tokens 0: until the context is full
  std::function<void(std::string_view text)> on_text;  // whole UTF-8, as it comes
  const std::atomic<bool>* cancelled = nullptr;
};

struct GenerateResult {
  std::vector<int32_t> tokens;   // generated, the end token excluded
  std::string text;
  FinishReason finish = FinishReason::kLength;
  int prompt_tokens = 0;
  int cached_tokens = 0;         // of the prompt, found in the cache
  double prefill_seconds = 0;
  double decode_seconds = 0;     // from the first token on
  uint64_t seed = 0;
};

// A sequence of a cache together with the tokens that it holds, so that a next prompt recomputes only what differs.
class Conversation {
 public:
  // Engine and cache must outlive it.
  static Result<Conversation> Start(Engine& engine, KvCache& cache);
  // On an error the conversation keeps the tokens that were committed. kInvalidArgument when the prompt does not fit the
  // context.
  Result<GenerateResult> Generate(const GenerateRequest& request);
  SequenceId sequence() const { return sequence_; }
  int num_tokens() const { return static_cast<int>(tokens_.size()); }

 private:
  Conversation(Engine& engine, KvCache& cache, SequenceId sequence)
      : engine_(&engine), cache_(&cache), sequence_(sequence) {}
  // Shortens the sequence to what it shares with `prompt` (less its last token, whose logits are needed).
  Status Resume(const std::vector<int32_t>& prompt);
  // Runs tokens_ .. prompt and leaves the logits of the last token.
  Status Prefill(const GenerateRequest& request, std::vector<float>* logits);
  Status Decode(const GenerateRequest& request, std::vector<float>& logits, GenerateResult* result);
  Status Step(const StepSequence& step, AnswerStream& answer, std::vector<float>& logits, std::vector<int32_t>& best);

  Engine* engine_;
  KvCache* cache_;
  SequenceId sequence_;
  std::vector<int32_t> tokens_;
};

}  // namespace oscar::engine
