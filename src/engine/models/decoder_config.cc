#include "src/engine/models/decoder_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

// Far above any model and far below where products of sizes overflow.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxHidden = 1 << 17;
constexpr int64_t kMaxFfn = 1 << 20;
constexpr int64_t kMaxExperts = 1024;
constexpr int64_t kMaxUsedExperts = 32;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxContext = std::numeric_limits<int32_t>::max();

Status BadKey(StatusCode code, std::string_view key, std::string reason) {
  return {code, "metadata key \"" + std::string(key) + "\" " + std::move(reason)};
}

// Look-ups of keys that begin with the architecture's name.
class ArchKeys {
 public:
  ArchKeys(const io::GgufMetadata& metadata, std::string_view name) : metadata_(metadata), prefix_(std::string(name) + ".") {}

  std::string Key(std::string_view suffix) const { return prefix_ + std::string(suffix); }
  bool Has(std::string_view suffix) const { return metadata_.Has(Key(suffix)); }

  Result<int> Size(std::string_view suffix, int64_t largest) const {
    OSCAR_ASSIGN_OR_RETURN(const int64_t value, metadata_.Integer(Key(suffix)));
    if (value < 1 || value > largest) {
      return BadKey(StatusCode::kCorruptData, Key(suffix),
                    "is " + std::to_string(value) + ", not from 1 to " + std::to_string(largest));
    }
    return static_cast<int>(value);
  }
  Result<int> SizeOr(std::string_view suffix, int64_t largest, int fallback) const {
    return Has(suffix) ? Size(suffix, largest) : Result<int>(fallback);
  }
  // Finite, and above `above`.
  Result<float> NumberOr(std::string_view suffix, double above, float fallback) const {
    OSCAR_ASSIGN_OR_RETURN(const double value, metadata_.DoubleOr(Key(suffix), fallback));
    if (!(value > above) || value > std::numeric_limits<float>::max()) {
      return BadKey(StatusCode::kCorruptData, Key(suffix), "is " + std::to_string(value) + ", not a number above " +
                                                               std::to_string(above));
    }
    return static_cast<float>(value);
  }
  // Errors when the key has another value than the one that means "off".
  Status RequireOff(std::string_view suffix, int64_t off, std::string_view feature) const {
    OSCAR_ASSIGN_OR_RETURN(const int64_t value, metadata_.IntegerOr(Key(suffix), off));
    if (value == off) return {};
    return BadKey(StatusCode::kUnsupported, Key(suffix), "is " + std::to_string(value) + ": " + std::string(feature) +
                                                             " is not supported for this architecture");
  }

 private:
  const io::GgufMetadata& metadata_;
  std::string prefix_;
};

// From the key, or from the token list of the tokenizer; both must agree.
Result<int> ReadVocabSize(const io::GgufMetadata& metadata, const ArchKeys& keys) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  OSCAR_ASSIGN_OR_RETURN(int size, keys.SizeOr("vocab_size", kMaxVocab, 0));
  if (metadata.Has(kTokens)) {
    OSCAR_ASSIGN_OR_RETURN(const auto tokens, metadata.Strings(kTokens));
    if (tokens.empty() || static_cast<int64_t>(tokens.size()) > kMaxVocab) {
      return BadKey(StatusCode::kCorruptData, kTokens, "lists " + std::to_string(tokens.size()) + " tokens");
    }
    if (size != 0 && size != static_cast<int>(tokens.size())) {
      return BadKey(StatusCode::kCorruptData, keys.Key("vocab_size"),
                    "is " + std::to_string(size) + ", but the tokenizer has " + std::to_string(tokens.size()) + " tokens");
    }
    size = static_cast<int>(tokens.size());
  }
  if (size == 0) return Status(StatusCode::kNotFound, "metadata key \"" + keys.Key("vocab_size") + "\" is missing");
  return size;
}

Status ReadHeads(const ArchKeys& keys, ModelConfig& config) {
  OSCAR_ASSIGN_OR_RETURN(config.kv.num_query_heads, keys.Size("attention.head_count", kMaxHeads));
  OSCAR_ASSIGN_OR_RETURN(config.kv.num_kv_heads,
                         keys.SizeOr("attention.head_count_kv", kMaxHeads, config.kv.num_query_heads));
  if (config.kv.num_query_heads % config.kv.num_kv_heads != 0) {
    return BadKey(StatusCode::kCorruptData, keys.Key("attention.head_count"),
                  "is " + std::to_string(config.kv.num_query_heads) + ", not a multiple of the " +
                      std::to_string(config.kv.num_kv_heads) + " KV heads");
  }
  if (!keys.Has("attention.key_length") && config.hidden_size % config.kv.num_query_heads != 0) {
    return BadKey(StatusCode::kCorruptData, keys.Key("embedding_length"),
                  "is " + std::to_string(config.hidden_size) + ", not a multiple of the " +
                      std::to_string(config.kv.num_query_heads) + " heads, and attention.key_length is missing");
  }
  const int even_share = config.hidden_size / config.kv.num_query_heads;
  OSCAR_ASSIGN_OR_RETURN(config.kv.head_dim, keys.SizeOr("attention.key_length", kMaxHeadDim, even_share));
  OSCAR_ASSIGN_OR_RETURN(const int value_length, keys.SizeOr("attention.value_length", kMaxHeadDim, config.kv.head_dim));
  if (value_length != config.kv.head_dim) {
    return BadKey(StatusCode::kUnsupported, keys.Key("attention.value_length"),
                  "is " + std::to_string(value_length) + " and attention.key_length " + std::to_string(config.kv.head_dim) +
                      ": key and value rows of different length are not supported");
  }
  if (config.kv.head_dim % 2 != 0 || config.kv.head_dim > kMaxHeadDim) {
    return BadKey(StatusCode::kUnsupported, keys.Key("attention.key_length"),
                  "makes a head dimension of " + std::to_string(config.kv.head_dim) + ": only even ones up to " +
                      std::to_string(kMaxHeadDim) + " are supported");
  }
  OSCAR_ASSIGN_OR_RETURN(config.rope_dims, keys.SizeOr("rope.dimension_count", kMaxHeadDim, config.kv.head_dim));
  if (config.rope_dims != config.kv.head_dim) {
    return BadKey(StatusCode::kUnsupported, keys.Key("rope.dimension_count"),
                  "is " + std::to_string(config.rope_dims) + ", not the head dimension " +
                      std::to_string(config.kv.head_dim) + ": partial rotation is not supported for this architecture");
  }
  return {};
}

Status ReadExperts(const ArchKeys& keys, ModelConfig& config) {
  OSCAR_ASSIGN_OR_RETURN(config.num_experts, keys.Size("expert_count", kMaxExperts));
  OSCAR_ASSIGN_OR_RETURN(config.num_used_experts, keys.Size("expert_used_count", kMaxUsedExperts));
  OSCAR_ASSIGN_OR_RETURN(config.ffn_size, keys.Size("expert_feed_forward_length", kMaxFfn));
  if (config.num_used_experts <= config.num_experts) return {};
  return BadKey(StatusCode::kCorruptData, keys.Key("expert_used_count"),
                "is " + std::to_string(config.num_used_experts) + ", more than the " + std::to_string(config.num_experts) + " experts");
}

// What llama.cpp's converters write for other kinds of models under the same architecture name.
Status RefuseOtherKinds(const io::GgufMetadata& metadata, const ArchKeys& keys, FeedForward feed_forward) {
  if (feed_forward == FeedForward::kDense) OSCAR_TRY(keys.RequireOff("expert_count", 0, "a mixture of experts"));
  OSCAR_TRY(keys.RequireOff("attention.sliding_window", 0, "sliding-window attention"));
  OSCAR_ASSIGN_OR_RETURN(const bool causal, metadata.BoolOr(keys.Key("attention.causal"), true));
  if (!causal) return BadKey(StatusCode::kUnsupported, keys.Key("attention.causal"), "is false: encoders are not supported");
  return {};
}

// Tokens after scaling: a file that states the original context may give either as context_length.
Result<int> ReadMaxContext(const io::GgufMetadata& metadata, std::string_view name, const ModelConfig& config) {
  const ArchKeys keys(metadata, name);
  OSCAR_ASSIGN_OR_RETURN(const int context, keys.Size("context_length", kMaxContext));
  OSCAR_ASSIGN_OR_RETURN(const int original, keys.SizeOr("rope.scaling.original_context_length", kMaxContext, context));
  OSCAR_ASSIGN_OR_RETURN(const RopeParams rope, ReadRopeParams(metadata, name, config));
  const double scaled = static_cast<double>(original) / rope.frequency_scale;
  return static_cast<int>(std::min<double>(std::max<double>(context, std::round(scaled)), kMaxContext));
}

Result<float> ReadYarnMix(const io::GgufMetadata& metadata, const ArchKeys& keys) {
  const std::string key = keys.Key("rope.scaling.yarn_ext_factor");
  OSCAR_ASSIGN_OR_RETURN(const double mix, metadata.DoubleOr(key, 1));
  if (!(mix >= 0 && mix <= 1)) return BadKey(StatusCode::kCorruptData, key, "is " + std::to_string(mix) + ", not from 0 to 1");
  return static_cast<float>(mix);
}

// Factors on the frequencies that only other architectures define.
Status RefuseOtherYarnKeys(const io::GgufMetadata& metadata, const ArchKeys& keys) {
  for (const auto& [suffix, off] : {std::pair{"rope.scaling.yarn_log_multiplier", 0.0}, {"rope.scaling.yarn_attn_factor", 1.0}}) {
    OSCAR_ASSIGN_OR_RETURN(const double value, metadata.DoubleOr(keys.Key(suffix), off));
    if (value != off) {
      return BadKey(StatusCode::kUnsupported, keys.Key(suffix), "is " + std::to_string(value) +
                                                                    ", which is not supported for this architecture");
    }
  }
  return {};
}

}  // namespace

Result<ModelConfig> ReadDecoderConfig(const io::GgufMetadata& metadata, std::string_view name, RopePairs pairs, FeedForward feed_forward) {
  const ArchKeys keys(metadata, name);
  OSCAR_TRY(RefuseOtherKinds(metadata, keys, feed_forward));
  ModelConfig config;
  config.architecture = std::string(name);
  OSCAR_ASSIGN_OR_RETURN(config.name, metadata.StringOr("general.name", ""));
  OSCAR_ASSIGN_OR_RETURN(config.kv.num_layers, keys.Size("block_count", kMaxLayers));
  OSCAR_ASSIGN_OR_RETURN(config.hidden_size, keys.Size("embedding_length", kMaxHidden));
  if (feed_forward == FeedForward::kExperts) {
    OSCAR_TRY(ReadExperts(keys, config));
  } else {
    OSCAR_ASSIGN_OR_RETURN(config.ffn_size, keys.Size("feed_forward_length", kMaxFfn));
  }
  OSCAR_ASSIGN_OR_RETURN(config.vocab_size, ReadVocabSize(metadata, keys));
  OSCAR_TRY(ReadHeads(keys, config));

  if (!keys.Has("attention.layer_norm_rms_epsilon")) {
    return BadKey(StatusCode::kNotFound, keys.Key("attention.layer_norm_rms_epsilon"), "is missing");
  }
  OSCAR_ASSIGN_OR_RETURN(config.norm_epsilon, keys.NumberOr("attention.layer_norm_rms_epsilon", 0, 0));
  const float plain_scale = 1.0f / std::sqrt(static_cast<float>(config.kv.head_dim));
  OSCAR_ASSIGN_OR_RETURN(config.attention_scale, keys.NumberOr("attention.scale", 0, plain_scale));

  config.rope_neox = pairs == RopePairs::kHalves;
  OSCAR_ASSIGN_OR_RETURN(const RopeParams rope, ReadRopeParams(metadata, name, config));
  config.rope_base = rope.base;
  OSCAR_ASSIGN_OR_RETURN(config.max_context, ReadMaxContext(metadata, name, config));
  return config;
}

Result<RopeParams> ReadRopeParams(const io::GgufMetadata& metadata, std::string_view name, const ModelConfig& config) {
  const ArchKeys keys(metadata, name);
  RopeParams rope{.dims = config.rope_dims, .neox = config.rope_neox};
  OSCAR_ASSIGN_OR_RETURN(rope.base, keys.NumberOr("rope.freq_base", 0, 10000.0f));
  // NTK-aware scaling: the base grows so that the slowest pair turns alpha times slower. 0 is how files say "none".
  OSCAR_ASSIGN_OR_RETURN(const double alpha, metadata.DoubleOr(keys.Key("rope.scaling.alpha"), 0));
  if (alpha != 0) {
    OSCAR_ASSIGN_OR_RETURN(const float factor, keys.NumberOr("rope.scaling.alpha", 0, 0));
    if (rope.dims <= 2) return BadKey(StatusCode::kUnsupported, keys.Key("rope.scaling.alpha"), "needs more than 2 rotary dims");
    rope.base = static_cast<float>(rope.base * std::pow(factor, rope.dims / (rope.dims - 2.0)));
  }

  OSCAR_ASSIGN_OR_RETURN(const std::string type, metadata.StringOr(keys.Key("rope.scaling.type"), "linear"));
  if (type != "none" && type != "linear" && type != "yarn") {
    return BadKey(StatusCode::kUnsupported, keys.Key("rope.scaling.type"),
                  "is \"" + type + "\": only none, linear and yarn are supported");
  }
  // "rope.scale_linear" is the old name. A factor of 0 means none.
  const std::string_view factor_key = keys.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  OSCAR_ASSIGN_OR_RETURN(const double stored_factor, metadata.DoubleOr(keys.Key(factor_key), 0));
  float factor = 1;
  if (stored_factor != 0) {
    OSCAR_ASSIGN_OR_RETURN(factor, keys.NumberOr(factor_key, 0, 1));
  }
  OSCAR_TRY(RefuseOtherYarnKeys(metadata, keys));
  OSCAR_ASSIGN_OR_RETURN(rope.magnitude, keys.NumberOr("rope.scaling.attn_factor", 0, 1));
  if (type == "none") return rope;

  rope.frequency_scale = 1.0f / factor;
  if (type == "yarn") {
    OSCAR_ASSIGN_OR_RETURN(rope.yarn_mix, ReadYarnMix(metadata, keys));
    OSCAR_ASSIGN_OR_RETURN(rope.beta_fast, keys.NumberOr("rope.scaling.yarn_beta_fast", 0, 32));
    OSCAR_ASSIGN_OR_RETURN(rope.beta_slow, keys.NumberOr("rope.scaling.yarn_beta_slow", 0, 1));
    OSCAR_ASSIGN_OR_RETURN(const int context, keys.Size("context_length", kMaxContext));
    OSCAR_ASSIGN_OR_RETURN(rope.original_context, keys.SizeOr("rope.scaling.original_context_length", kMaxContext, context));
    // YaRN's magnitude is 1 + 0.1 ln(factor), and 1 for factors below 1, where ggml's own factor has to be undone.
    if (rope.yarn_mix != 0 && factor < 1) rope.magnitude /= 1.0f + 0.1f * std::log(factor);
  }
  return rope;
}

}  // namespace oscar::engine
