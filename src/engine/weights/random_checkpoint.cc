#include "src/engine/weights/random_checkpoint.h"

#include <list>

namespace oscar::engine {
namespace {

struct PublishedShape {
  std::string_view name, architecture;
  int layers, hidden, ffn, query_heads, kv_heads, head_dim, vocab;
  double rope_base;
  bool is_tied;  // the output layer is the embedding
  int experts = 0, used_experts = 0;
};
constexpr PublishedShape kShapes[] = {
    {"qwen3-4b", "qwen3", 36, 2560, 9728, 32, 8, 128, 151936, 1e6, true},
    {"qwen3-8b", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 1e6, false},
    {"qwen3-32b", "qwen3", 64, 5120, 25600, 64, 8, 128, 151936, 1e6, false},
    {"llama-3.1-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 5e5, false},
    {"glm-4.7-rank", "qwen3moe", 92, 5120, 192, 12, 1, 128, 18944, 1e6, false, 161, 9},
};
// GLM-4.7 is one of eight ranks: an eighth of its 96 query and 8 KV heads, of the vocabulary and of the width of its experts, 1,536. A token takes 8 of
// 160 and the shared one; here 9 of 161, and in the first three layers, which are dense there, as well.
constexpr int kContext = 131072;

class RandomCheckpoint final : public Checkpoint {
 public:
  explicit RandomCheckpoint(const PublishedShape& shape) : shape_(shape) {
    const std::string prefix = std::string(shape.architecture) + ".";
    metadata_.Set("general.architecture", std::string(shape.architecture));
    metadata_.Set("general.name", std::string(shape.name) + " (random weights)");
    const auto set = [&](const char* key, int value) { metadata_.Set(prefix + key, int64_t{value}); };
    set("block_count", shape.layers);
    set("embedding_length", shape.hidden);
    set(shape.experts > 0 ? "expert_feed_forward_length" : "feed_forward_length", shape.ffn);
    if (shape.experts > 0) {
      set("expert_count", shape.experts);
      set("expert_used_count", shape.used_experts);
    }
    set("attention.head_count", shape.query_heads);
    set("attention.head_count_kv", shape.kv_heads);
    set("attention.key_length", shape.head_dim);
    set("attention.value_length", shape.head_dim);
    set("vocab_size", shape.vocab);
    set("context_length", kContext);
    metadata_.Set(prefix + "attention.layer_norm_rms_epsilon", 1e-6);
    metadata_.Set(prefix + "rope.freq_base", shape.rope_base);
  }

  const io::GgufMetadata& metadata() const override { return metadata_; }
  Result<const Weight*> Require(std::string_view name, std::span<const int64_t> dims) override {
    Weight& weight = weights_.emplace_back();
    weight.name = std::string(name);
    weight.dims.assign(dims.begin(), dims.end());
    weight.is_random = true;
    uint64_t elements = 1;
    for (const int64_t dim : dims) elements *= static_cast<uint64_t>(dim);
    weight_bytes_ += 2 * elements;
    return &weight;
  }
  // None of the shapes has optional tensors but the output layer.
  Result<const Weight*> Find(std::string_view name, std::span<const int64_t> dims) override {
    if (name == "output.weight" && !shape_.is_tied) return Require(name, dims);
    return nullptr;
  }
  Status CheckAllUsed() const override { return {}; }
  uint64_t weight_bytes() const override { return weight_bytes_; }

 private:
  const PublishedShape shape_;
  io::GgufMetadata metadata_;
  std::list<Weight> weights_;
  uint64_t weight_bytes_ = 0;  // as BF16
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> MakeRandomCheckpoint(std::string_view name) {
  std::string names;
  for (const PublishedShape& shape : kShapes) {
    if (shape.name == name) return std::unique_ptr<Checkpoint>(std::make_unique<RandomCheckpoint>(shape));
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
  }
  return {StatusCode::kInvalidArgument, "no published shape is called \"" + std::string(name.substr(0, 64)) + "\"; there are " + names};
}

}  // namespace oscar::engine
