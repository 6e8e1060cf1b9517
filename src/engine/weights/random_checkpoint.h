// A checkpoint without a file: the shape of a published model with random weights, for speed measurements.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "oscar/result.h"
#include "src/engine/weights/checkpoint.h"

namespace oscar::engine {

// shape: "qwen3-4b", "qwen3-8b", "qwen3-32b", "llama-3.1-8b" or "glm-4.7-rank"; sizes from the published configurations. Weights are those the
// model asks for, with Weight::is_random; no tokenizer. kInvalidArgument for another name, listing these.
Result<std::unique_ptr<Checkpoint>> MakeRandomCheckpoint(std::string_view shape);

}  // namespace oscar::engine
