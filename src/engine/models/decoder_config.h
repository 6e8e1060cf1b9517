// The metadata keys that decoders share (ggml docs/gguf.md, "[llm].*"), read and checked.
#pragma once

#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/engine/models/model.h"
#include "src/engine/ops/ops.h"
#include "src/io/gguf.h"

namespace oscar::engine {

enum class RopePairs : uint8_t { kAdjacent, kHalves };
enum class FeedForward : uint8_t { kDense, kExperts };

// Config of a decoder whose keys begin with "<name>.". kNotFound, kCorruptData or kUnsupported naming the key: sizes
// out of range or not divisible, key and value lengths that differ, partial rotary dimensions, mixtures of experts in a dense decoder, sliding
// windows, encoders.
Result<ModelConfig> ReadDecoderConfig(const io::GgufMetadata& metadata, std::string_view name, RopePairs pairs,
                                      FeedForward feed_forward = FeedForward::kDense);

// The rotary embedding with the scaling of "<name>.rope.scaling.*": none, linear, yarn, and the NTK-aware alpha. kUnsupported
// naming a scaling type or parameter that we do not have.
Result<RopeParams> ReadRopeParams(const io::GgufMetadata& metadata, std::string_view name, const ModelConfig& config);

}  // namespace oscar::engine
