// qwen3: RoPE on halves after an RMS norm of each query and key head; no biases.

#include "src/engine/models/arch.h"
#include "src/engine/models/decoder_config.h"
#include "src/engine/models/dense_decoder.h"

namespace oscar::engine {
namespace {

using namespace dense_decoder;

constexpr std::string_view kNames[] = {"qwen3"};
constexpr TensorRule<ModelWeights> kTensors[] = {kTokenEmbedding, kOutputNorm, kOutput};
constexpr TensorRule<LayerWeights> kLayerTensors[] = {
    kAttentionNorm, kQuery, kKey, kValue, kAttentionOutput, kFfnNorm, kFfnGate, kFfnUp, kFfnDown,
    kQueryNorm, kKeyNorm};

Result<ModelConfig> ReadConfig(const io::GgufMetadata& metadata, std::string_view name) {
  return ReadDecoderConfig(metadata, name, RopePairs::kHalves);
}

}  // namespace

extern const ModelArch kQwen3;
const ModelArch kQwen3 = {kNames, ReadConfig, kTensors, kLayerTensors, ForwardDenseDecoder};

}  // namespace oscar::engine
