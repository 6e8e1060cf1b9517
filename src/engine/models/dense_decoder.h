// The walk over the layers of a dense decoder, and the tensor names that llama, qwen2 and qwen3 share. What differs among them
// is which tensors a file has: the blocks apply the biases and norms that are there.
#pragma once

#include "src/engine/models/arch.h"

namespace oscar::engine {

// ModelArch::forward of dense decoders. Between two attentions there is one recording: the rest of a layer and the beginning
// of the next. The last one takes only the rows whose logits are wanted, and is left out when none are.
Status ForwardDenseDecoder(const ModelContext& model, const StepBatch& batch, Ops& ops, KvCache& cache);

namespace dense_decoder {

inline constexpr TensorRule<ModelWeights> kTokenEmbedding{
    &ModelWeights::token_embedding, "token_embd.weight", {Extent::kHidden, Extent::kVocab}};
inline constexpr TensorRule<ModelWeights> kOutputNorm{&ModelWeights::output_norm, "output_norm.weight", {Extent::kHidden}};
inline constexpr TensorRule<ModelWeights> kOutput{
    &ModelWeights::output, "output.weight", {Extent::kHidden, Extent::kVocab}, Presence::kOptional};

inline constexpr TensorRule<LayerWeights> kAttentionNorm{
    &LayerWeights::attention_norm, "attn_norm.weight", {Extent::kHidden}};
inline constexpr TensorRule<LayerWeights> kQuery{
    &LayerWeights::query, "attn_q.weight", {Extent::kHidden, Extent::kQueryWidth}};
inline constexpr TensorRule<LayerWeights> kKey{&LayerWeights::key, "attn_k.weight", {Extent::kHidden, Extent::kKvWidth}};
inline constexpr TensorRule<LayerWeights> kValue{&LayerWeights::value, "attn_v.weight", {Extent::kHidden, Extent::kKvWidth}};
inline constexpr TensorRule<LayerWeights> kAttentionOutput{
    &LayerWeights::attention_output, "attn_output.weight", {Extent::kQueryWidth, Extent::kHidden}};
inline constexpr TensorRule<LayerWeights> kFfnNorm{&LayerWeights::ffn_norm, "ffn_norm.weight", {Extent::kHidden}};
inline constexpr TensorRule<LayerWeights> kFfnGate{&LayerWeights::ffn_gate, "ffn_gate.weight", {Extent::kHidden, Extent::kFfn}};
inline constexpr TensorRule<LayerWeights> kFfnUp{&LayerWeights::ffn_up, "ffn_up.weight", {Extent::kHidden, Extent::kFfn}};
inline constexpr TensorRule<LayerWeights> kFfnDown{&LayerWeights::ffn_down, "ffn_down.weight", {Extent::kFfn, Extent::kHidden}};

constexpr TensorRule<LayerWeights> QueryBias(Presence presence) {
  return {&LayerWeights::query_bias, "attn_q.bias", {Extent::kQueryWidth}, presence};
}
constexpr TensorRule<LayerWeights> KeyBias(Presence presence) {
  return {&LayerWeights::key_bias, "attn_k.bias", {Extent::kKvWidth}, presence};
}
constexpr TensorRule<LayerWeights> ValueBias(Presence presence) {
  return {&LayerWeights::value_bias, "attn_v.bias", {Extent::kKvWidth}, presence};
}
constexpr TensorRule<LayerWeights> AttentionOutputBias(Presence presence) {
  return {&LayerWeights::attention_output_bias, "attn_output.bias", {Extent::kHidden}, presence};
}

inline constexpr TensorRule<LayerWeights> kQueryNorm{&LayerWeights::query_norm, "attn_q_norm.weight", {Extent::kHeadDim}};
inline constexpr TensorRule<LayerWeights> kKeyNorm{&LayerWeights::key_norm, "attn_k_norm.weight", {Extent::kHeadDim}};

}  // namespace dense_decoder
}  // namespace oscar::engine
