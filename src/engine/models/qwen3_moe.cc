// qwen3moe: qwen3 with a mixture of experts in place of the feed-forward part of every layer.

#include "src/engine/models/arch.h"
#include "src/engine/models/decoder_config.h"
#include "src/engine/models/dense_decoder.h"

namespace oscar::engine {
namespace {

using namespace dense_decoder;

constexpr std::string_view kNames[] = {"qwen3moe"};
constexpr TensorRule<ModelWeights> kTensors[] = {kTokenEmbedding, kOutputNorm, kOutput};
constexpr TensorRule<LayerWeights> kLayerTensors[] = {
    kAttentionNorm, kQuery, kKey, kValue, kAttentionOutput, kFfnNorm, kQueryNorm, kKeyNorm,
    {&LayerWeights::router, "ffn_gate_inp.weight", {Extent::kHidden, Extent::kExperts}},
    {&LayerWeights::expert_gate, "ffn_gate_exps.weight", {Extent::kHidden, Extent::kFfn, Extent::kExperts}},
    {&LayerWeights::expert_up, "ffn_up_exps.weight", {Extent::kHidden, Extent::kFfn, Extent::kExperts}},
    {&LayerWeights::expert_down, "ffn_down_exps.weight", {Extent::kFfn, Extent::kHidden, Extent::kExperts}}};

Result<ModelConfig> ReadConfig(const io::GgufMetadata& metadata, std::string_view name) {
  return ReadDecoderConfig(metadata, name, RopePairs::kHalves, FeedForward::kExperts);
}

}  // namespace

extern const ModelArch kQwen3Moe;
const ModelArch kQwen3Moe = {kNames, ReadConfig, kTensors, kLayerTensors, ForwardDenseDecoder};

}  // namespace oscar::engine
