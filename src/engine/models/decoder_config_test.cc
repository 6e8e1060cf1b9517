#include "src/engine/models/decoder_config.h"

#include <cmath>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "src/engine/ops/rope_angles.h"

namespace oscar::engine {
namespace {

using Value = io::GgufMetadata::Value;

// The keys of a good small model; tests change single ones.
io::GgufMetadata GoodKeys() {
  io::GgufMetadata metadata;
  metadata.Set("general.architecture", std::string("llama"));
  metadata.Set("llama.block_count", int64_t{2});
  metadata.Set("llama.context_length", int64_t{4096});
  metadata.Set("llama.embedding_length", int64_t{256});
  metadata.Set("llama.feed_forward_length", int64_t{512});
  metadata.Set("llama.attention.head_count", int64_t{4});
  metadata.Set("llama.attention.head_count_kv", int64_t{2});
  metadata.Set("llama.attention.layer_norm_rms_epsilon", 1e-5);
  metadata.Set("llama.vocab_size", int64_t{100});
  return metadata;
}

Result<ModelConfig> Read(const io::GgufMetadata& metadata) { return ReadDecoderConfig(metadata, "llama", RopePairs::kAdjacent); }

// GoodKeys with one key changed.
Result<ModelConfig> ReadWith(const std::string& suffix, Value value) {
  io::GgufMetadata metadata = GoodKeys();
  metadata.Set("llama." + suffix, std::move(value));
  return Read(metadata);
}

RopeParams Rope(const io::GgufMetadata& metadata) {
  const auto config = Read(metadata);
  EXPECT_TRUE(config.ok()) << config.status().message();
  const auto rope = ReadRopeParams(metadata, "llama", *config);
  EXPECT_TRUE(rope.ok()) << rope.status().message();
  return *rope;
}

TEST(DecoderConfig, DefaultsAreThoseOfTheFormat) {
  const auto config = Read(GoodKeys());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->kv, (KvShape{2, 4, 2, 64}));
  EXPECT_EQ(config->rope_base, 10000);
  EXPECT_EQ(config->rope_dims, 64);
  EXPECT_FALSE(config->rope_neox);
  EXPECT_EQ(config->max_context, 4096);
  EXPECT_FLOAT_EQ(config->attention_scale, 0.125f);
  EXPECT_EQ(ReadWith("attention.key_length", int64_t{128})->kv.head_dim, 128);
  EXPECT_FLOAT_EQ(ReadWith("attention.scale", 0.5)->attention_scale, 0.5f);
}

TEST(DecoderConfig, EveryBadKeyIsNamed) {
  const struct {
    const char* suffix;
    Value value;
    StatusCode code;
  } cases[] = {
      {"block_count", int64_t{0}, StatusCode::kCorruptData},
      {"block_count", int64_t{1} << 40, StatusCode::kCorruptData},
      {"block_count", std::string("2"), StatusCode::kCorruptData},
      {"embedding_length", int64_t{-256}, StatusCode::kCorruptData},
      {"embedding_length", int64_t{258}, StatusCode::kCorruptData},
      {"feed_forward_length", std::vector<int64_t>{512, 256}, StatusCode::kCorruptData},
      {"attention.head_count", int64_t{3}, StatusCode::kCorruptData},
      {"attention.head_count_kv", int64_t{0}, StatusCode::kCorruptData},
      {"attention.layer_norm_rms_epsilon", 0.0, StatusCode::kCorruptData},
      {"attention.layer_norm_rms_epsilon", std::nan(""), StatusCode::kCorruptData},
      {"attention.key_length", int64_t{63}, StatusCode::kUnsupported},
      {"attention.value_length", int64_t{32}, StatusCode::kUnsupported},
      {"attention.scale", -1.0, StatusCode::kCorruptData},
      {"attention.sliding_window", int64_t{1024}, StatusCode::kUnsupported},
      {"attention.causal", false, StatusCode::kUnsupported},
      {"expert_count", int64_t{8}, StatusCode::kUnsupported},
      {"vocab_size", int64_t{0}, StatusCode::kCorruptData},
      {"context_length", int64_t{1} << 33, StatusCode::kCorruptData},
      {"rope.dimension_count", int64_t{32}, StatusCode::kUnsupported},
      {"rope.freq_base", 0.0, StatusCode::kCorruptData},
      {"rope.freq_base", std::numeric_limits<double>::infinity(), StatusCode::kCorruptData},
      {"rope.scaling.type", std::string("longrope"), StatusCode::kUnsupported},
      {"rope.scaling.factor", -2.0, StatusCode::kCorruptData},
      {"rope.scaling.alpha", -1.0, StatusCode::kCorruptData},
      {"rope.scaling.yarn_log_multiplier", 0.1, StatusCode::kUnsupported},
      {"rope.scaling.yarn_attn_factor", 0.5, StatusCode::kUnsupported},
  };
  for (const auto& bad : cases) {
    const auto config = ReadWith(bad.suffix, bad.value);
    ASSERT_FALSE(config.ok()) << bad.suffix;
    EXPECT_EQ(config.status().code(), bad.code) << config.status().message();
    const std::string suffix = std::string(bad.suffix) == "attention.key_length" ? "attention." : bad.suffix;
    EXPECT_NE(config.status().message().find("llama." + suffix), std::string::npos) << config.status().message();
  }
}

TEST(DecoderConfig, AMixtureOfExpertsHasItsOwnSizes) {
  const auto read = [](int64_t count, int64_t used, int64_t width) {
    io::GgufMetadata metadata = GoodKeys();
    metadata.Set("llama.expert_count", count);
    metadata.Set("llama.expert_used_count", used);
    metadata.Set("llama.expert_feed_forward_length", width);
    return ReadDecoderConfig(metadata, "llama", RopePairs::kAdjacent, FeedForward::kExperts);
  };
  const auto config = read(128, 8, 768);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_experts, 128);
  EXPECT_EQ(config->num_used_experts, 8);
  EXPECT_EQ(config->ffn_size, 768);
  EXPECT_EQ(config->step_ffn_size(), 8 * 768);
  EXPECT_EQ(read(128, 0, 768).status().code(), StatusCode::kCorruptData);
  EXPECT_EQ(read(128, 33, 768).status().code(), StatusCode::kCorruptData);
  EXPECT_EQ(read(4, 5, 768).status().code(), StatusCode::kCorruptData);
  EXPECT_EQ(read(1 << 20, 8, 768).status().code(), StatusCode::kCorruptData);
  EXPECT_EQ(read(128, 8, 0).status().code(), StatusCode::kCorruptData);
  EXPECT_EQ(ReadDecoderConfig(GoodKeys(), "llama", RopePairs::kAdjacent, FeedForward::kExperts).status().code(), StatusCode::kNotFound);
}

TEST(DecoderConfig, EveryRequiredKeyIsMissed) {
  for (const char* suffix : {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
                             "attention.layer_norm_rms_epsilon", "vocab_size"}) {
    const io::GgufMetadata whole = GoodKeys();
    io::GgufMetadata without;
    for (const auto& [key, value] : whole.entries()) {
      if (key != std::string("llama.") + suffix) without.Set(key, value);
    }
    const auto config = Read(without);
    ASSERT_FALSE(config.ok()) << suffix;
    EXPECT_EQ(config.status().code(), StatusCode::kNotFound);
    EXPECT_NE(config.status().message().find(suffix), std::string::npos) << config.status().message();
  }
}

TEST(DecoderConfig, TheVocabularyIsTheTokenizers) {
  io::GgufMetadata metadata = GoodKeys();
  metadata.Set("tokenizer.ggml.tokens", std::vector<std::string>(100, "x"));
  EXPECT_EQ(Read(metadata)->vocab_size, 100);
  metadata.Set("tokenizer.ggml.tokens", std::vector<std::string>(99, "x"));
  EXPECT_EQ(Read(metadata).status().code(), StatusCode::kCorruptData);
}

TEST(DecoderConfig, ContextIsCountedAfterScaling) {
  io::GgufMetadata metadata = GoodKeys();
  metadata.Set("llama.rope.scaling.type", std::string("yarn"));
  metadata.Set("llama.rope.scaling.factor", 4.0);
  EXPECT_EQ(Read(metadata)->max_context, 16384);
  metadata.Set("llama.rope.scaling.original_context_length", int64_t{1024});
  EXPECT_EQ(Read(metadata)->max_context, 4096);
}

TEST(DecoderConfig, ScalingFactorsAreReadFromOldAndNewKeys) {
  io::GgufMetadata metadata = GoodKeys();
  metadata.Set("llama.rope.scale_linear", 2.0);
  EXPECT_FLOAT_EQ(Rope(metadata).frequency_scale, 0.5f);
  metadata.Set("llama.rope.scaling.factor", 8.0);
  EXPECT_FLOAT_EQ(Rope(metadata).frequency_scale, 0.125f);
  metadata.Set("llama.rope.scaling.type", std::string("none"));
  EXPECT_FLOAT_EQ(Rope(metadata).frequency_scale, 1);
  metadata.Set("llama.rope.scaling.type", std::string("linear"));
  metadata.Set("llama.rope.scaling.factor", 0.0);
  EXPECT_FLOAT_EQ(Rope(metadata).frequency_scale, 1);
}

TEST(DecoderConfig, YarnReadsItsKeys) {
  io::GgufMetadata metadata = GoodKeys();
  metadata.Set("llama.rope.scaling.type", std::string("yarn"));
  metadata.Set("llama.rope.scaling.factor", 4.0);
  const RopeParams plain = Rope(metadata);
  EXPECT_EQ(plain.yarn_mix, 1);
  EXPECT_EQ(plain.beta_fast, 32);
  EXPECT_EQ(plain.beta_slow, 1);
  EXPECT_EQ(plain.original_context, 4096);
  EXPECT_EQ(plain.magnitude, 1);
  metadata.Set("llama.rope.scaling.yarn_ext_factor", 0.0);
  metadata.Set("llama.rope.scaling.yarn_beta_fast", 16.0);
  metadata.Set("llama.rope.scaling.yarn_beta_slow", 2.0);
  metadata.Set("llama.rope.scaling.attn_factor", 0.5);
  const RopeParams changed = Rope(metadata);
  EXPECT_EQ(changed.yarn_mix, 0);
  EXPECT_EQ(changed.beta_fast, 16);
  EXPECT_EQ(changed.beta_slow, 2);
  EXPECT_EQ(changed.magnitude, 0.5f);
  metadata.Set("llama.rope.scaling.yarn_ext_factor", 1.5);
  EXPECT_EQ(Read(metadata).status().code(), StatusCode::kCorruptData);
}

TEST(RopeAngles, FactorsDivideTheFrequencies) {
  const RopeParams params{.dims = 4, .base = 100};
  const float factors[] = {1, 8};
  EXPECT_EQ(RopeAngles(params, {}), (std::vector<float>{1, 0.1f}));
  EXPECT_EQ(RopeAngles(params, factors), (std::vector<float>{1, 0.0125f}));
}

}  // namespace
}  // namespace oscar::engine
