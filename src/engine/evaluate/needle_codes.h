// Retrieval under teacher forcing (quality.md 1, table 2): codes of seven digits hidden in prose, evenly over the length, and
// asked for at the end in another order. A code is recalled when every one of its tokens is the model's most likely one. One pass
// per text and no generation, so it is cheap, and one wrong digit does not spoil the codes behind it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/progress_callback.h"

namespace oscar::engine {

struct NeedleCodesRequest {
  std::vector<KvSetup> methods;   // at least one; all see the same tokens
  std::span<const int32_t> prose; // tokens of the text that hides the codes
  std::vector<int> lengths;       // tokens per text, question included
  int texts = 2;                  // per length, from different places of the prose
  int codes = 16;
  uint64_t seed = 0;
  RunControl control;
};

// One text: what the model is shown, and where each code stands in the answer.
struct NeedleText {
  std::vector<int32_t> tokens;
  int answer_begin = 0;           // first position behind the prose: what follows is teacher-forced
  struct Code {
    int begin = 0, end = 0;       // positions of its tokens in `tokens`
    int hidden_at = 0;            // position of the sentence that told it
  };
  std::vector<Code> codes;
};

// kInvalidArgument when the length has no room for the codes twice, or the prose is shorter than the length.
Result<NeedleText> MakeNeedleText(const Tokenizer& tokenizer, const NeedleCodesRequest& request, int length, int text);

struct NeedleCodesCell {
  std::string method;
  int length = 0;
  int recalled = 0, codes = 0;    // whole codes
  double tokens_right = 0;        // share of the codes' tokens
  double bits_per_element = 0;    // stored at this length, windows and metadata included
};

// Length before method. Errors as MakeNeedleText, and those of the model.
Result<std::vector<NeedleCodesCell>> RunNeedleCodes(Engine& engine, const NeedleCodesRequest& request);

}  // namespace oscar::engine
