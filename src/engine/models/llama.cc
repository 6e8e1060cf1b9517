// llama: RMS norm, RoPE on adjacent pairs, SwiGLU; llama3's frequency factors and projection biases where a file has them.

#include "src/engine/models/arch.h"
#include "src/engine/models/decoder_config.h"
#include "src/engine/models/dense_decoder.h"

namespace oscar::engine {
namespace {

using namespace dense_decoder;

constexpr std::string_view kNames[] = {"llama"};
constexpr TensorRule<ModelWeights> kTensors[] = {
    kTokenEmbedding, kOutputNorm, kOutput,
    {&ModelWeights::rope_factors, "rope_freqs.weight", {Extent::kRopePairs}, Presence::kOptional}};
constexpr TensorRule<LayerWeights> kLayerTensors[] = {
    kAttentionNorm, kQuery, kKey, kValue, kAttentionOutput, kFfnNorm, kFfnGate, kFfnUp, kFfnDown,
    QueryBias(Presence::kOptional), KeyBias(Presence::kOptional), ValueBias(Presence::kOptional),
    AttentionOutputBias(Presence::kOptional)};

Result<ModelConfig> ReadConfig(const io::GgufMetadata& metadata, std::string_view name) {
  return ReadDecoderConfig(metadata, name, RopePairs::kAdjacent);
}

}  // namespace

extern const ModelArch kLlama;
const ModelArch kLlama = {kNames, ReadConfig, kTensors, kLayerTensors, ForwardDenseDecoder};

}  // namespace oscar::engine
