// qwen2 (Qwen2, Qwen2.5): RoPE on halves, biases on Q, K and V.

#include "src/engine/models/arch.h"
#include "src/engine/models/decoder_config.h"
#include "src/engine/models/dense_decoder.h"

namespace oscar::engine {
namespace {

using namespace dense_decoder;

constexpr std::string_view kNames[] = {"qwen2"};
constexpr TensorRule<ModelWeights> kTensors[] = {kTokenEmbedding, kOutputNorm, kOutput};
constexpr TensorRule<LayerWeights> kLayerTensors[] = {
    kAttentionNorm, kQuery, kKey, kValue, kAttentionOutput, kFfnNorm, kFfnGate, kFfnUp, kFfnDown,
    QueryBias(Presence::kRequired), KeyBias(Presence::kRequired), ValueBias(Presence::kRequired)};

Result<ModelConfig> ReadConfig(const io::GgufMetadata& metadata, std::string_view name) {
  return ReadDecoderConfig(metadata, name, RopePairs::kHalves);
}

}  // namespace

extern const ModelArch kQwen2;
const ModelArch kQwen2 = {kNames, ReadConfig, kTensors, kLayerTensors, ForwardDenseDecoder};

}  // namespace oscar::engine
