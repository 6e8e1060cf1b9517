// The sampling members of a request (serving.md 6), with their ranges.
#pragma once

#include "src/engine/runtime/answer_stream.h"
#include "src/engine/serve/request_fields.h"

namespace oscar::engine {

// All of them but max_tokens, n and the log-probabilities.
void ReadSampling(RequestFields& fields, int vocab_size, AnswerParams* answer);

// The same members again, with the numbers that hold, and max_tokens.
nlohmann::ordered_json SamplingJson(const AnswerParams& answer);

}  // namespace oscar::engine
