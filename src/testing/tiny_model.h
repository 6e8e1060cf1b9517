// TinyModel: a seeded random decoder of a few thousand weights, as a GGUF file and as plain numbers, and its forward pass in
// double precision. Shares no code with the engine: the formulas are those of the papers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "oscar/types.h"

namespace oscar::testing {

struct TinyModelOptions {
  std::string architecture = "llama";  // "llama", "qwen2" (biases on Q, K, V), "qwen3" (QK norm), "qwen3moe"
  int num_layers = 2, hidden = 64, ffn = 96, vocab = 97;
  int num_query_heads = 4, num_kv_heads = 2, head_dim = 64;
  int num_experts = 8, num_used_experts = 3;  // of qwen3moe
  bool tied = true;                    // output = token embedding
  float rope_base = 10000;
  int context_length = 256;
  std::string scaling_type;            // "", "none", "linear", "yarn"
  float scaling_factor = 0;            // 0: key not written
  int original_context = 0;            // 0: key not written
  float ntk_alpha = 0;
  bool rope_factors = false;           // llama3's rope_freqs.weight
  uint64_t seed = 1;
};

// Q, K, V of one layer as attention sees them, [tokens][heads * d].
struct TinyLayerRows {
  std::vector<std::vector<double>> queries, keys, values;
};

class TinyModel {
 public:
  explicit TinyModel(const TinyModelOptions& options);
  const TinyModelOptions& options() const { return options_; }
  KvShape shape() const {
    return {options_.num_layers, options_.num_query_heads, options_.num_kv_heads, options_.head_dim};
  }
  // dims in GGUF's order (contiguous first) and values of each tensor, by name. Change them before Bytes to make bad models.
  struct Values {
    std::vector<uint64_t> dims;
    std::vector<float> data;
  };
  std::map<std::string, Values>& tensors() { return tensors_; }

  std::vector<std::byte> Bytes() const;
  void WriteTo(const std::filesystem::path& path) const;

  // Radians per position by which a rotary pair turns.
  double AngleOf(int pair) const;
  // Logits [tokens][vocab] of one sequence from position 0; `layers`, if given, gets the rows of each layer.
  std::vector<std::vector<double>> Logits(const std::vector<int32_t>& tokens, std::vector<TinyLayerRows>* layers = nullptr) const;

 private:
  using Rows = std::vector<std::vector<double>>;
  const std::vector<float>& Data(const std::string& name) const { return tensors_.at(name).data; }
  std::vector<double> Multiply(const std::string& name, const std::vector<double>& x) const;
  std::vector<double> Normed(const std::string& gain, const std::vector<double>& x) const;
  std::vector<double> Project(const std::string& prefix, const std::vector<double>& x) const;
  std::vector<double> FeedForward(const std::string& prefix, const std::vector<double>& x) const;
  std::vector<double> Expert(const std::string& prefix, size_t expert, const std::vector<double>& x) const;
  void NormAndRotate(const std::string& norm, int position, std::vector<double>& heads) const;

  std::vector<double> AttentionOf(const TinyLayerRows& rows, size_t token) const;

  TinyModelOptions options_;
  std::map<std::string, Values> tensors_;
};

}  // namespace oscar::testing
