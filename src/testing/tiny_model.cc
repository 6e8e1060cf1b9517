#include "src/testing/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "src/testing/gguf_builder.h"
#include "src/testing/seeds.h"

namespace oscar::testing {
namespace {

constexpr double kEpsilon = 1e-5;

}  // namespace

TinyModel::TinyModel(const TinyModelOptions& options) : options_(options) {
  std::mt19937_64 rng(options.seed);
  const auto matrix = [&](const std::string& name, int in, int out, float gain) {
    tensors_[name] = {{static_cast<uint64_t>(in), static_cast<uint64_t>(out)},
                      NormalVector(rng, static_cast<size_t>(in) * static_cast<size_t>(out), gain / std::sqrt(static_cast<float>(in)))};
  };
  const auto vector = [&](const std::string& name, int size, float mean, float deviation) {
    std::vector<float> values = NormalVector(rng, static_cast<size_t>(size), deviation);
    for (float& value : values) value += mean;
    tensors_[name] = {{static_cast<uint64_t>(size)}, std::move(values)};
  };
  const int query_width = options.num_query_heads * options.head_dim, kv_width = options.num_kv_heads * options.head_dim;
  matrix("token_embd.weight", options.hidden, options.vocab, 8);
  if (!options.tied) matrix("output.weight", options.hidden, options.vocab, 3);
  vector("output_norm.weight", options.hidden, 0.4f, 0.1f);
  if (options.rope_factors) {
    vector("rope_freqs.weight", options.head_dim / 2, 0, 0);
    std::vector<float>& factors = tensors_["rope_freqs.weight"].data;
    for (size_t i = 0; i < factors.size(); ++i) factors[i] = i < factors.size() / 2 ? 1.0f : 8.0f;
  }
  for (int layer = 0; layer < options.num_layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    vector(prefix + "attn_norm.weight", options.hidden, 1, 0.2f);
    vector(prefix + "ffn_norm.weight", options.hidden, 1, 0.2f);
    // Large enough that the scores, and with them the positions, decide the answer.
    matrix(prefix + "attn_q.weight", options.hidden, query_width, 1.5f);
    matrix(prefix + "attn_k.weight", options.hidden, kv_width, 1.5f);
    matrix(prefix + "attn_v.weight", options.hidden, kv_width, 1.5f);
    matrix(prefix + "attn_output.weight", query_width, options.hidden, 2);
    if (options.architecture == "qwen3moe") {
      const auto experts = [&](const std::string& name, int in, int out) {
        matrix(name, in, out * options.num_experts, 1);
        tensors_[name].dims = {static_cast<uint64_t>(in), static_cast<uint64_t>(out), static_cast<uint64_t>(options.num_experts)};
      };
      matrix(prefix + "ffn_gate_inp.weight", options.hidden, options.num_experts, 2);
      experts(prefix + "ffn_gate_exps.weight", options.hidden, options.ffn);
      experts(prefix + "ffn_up_exps.weight", options.hidden, options.ffn);
      experts(prefix + "ffn_down_exps.weight", options.ffn, options.hidden);
    } else {
      matrix(prefix + "ffn_gate.weight", options.hidden, options.ffn, 1);
      matrix(prefix + "ffn_up.weight", options.hidden, options.ffn, 1);
      matrix(prefix + "ffn_down.weight", options.ffn, options.hidden, 1);
    }
    if (options.architecture == "qwen2") {
      vector(prefix + "attn_q.bias", query_width, 0, 1);
      vector(prefix + "attn_k.bias", kv_width, 0, 1);
      vector(prefix + "attn_v.bias", kv_width, 0, 1);
    }
    if (options.architecture.starts_with("qwen3")) {
      vector(prefix + "attn_q_norm.weight", options.head_dim, 1.5f, 0.2f);
      vector(prefix + "attn_k_norm.weight", options.head_dim, 1, 0.2f);
    }
  }
}

std::vector<std::byte> TinyModel::Bytes() const {
  const TinyModelOptions& o = options_;
  const auto key = [&](const char* suffix) { return o.architecture + "." + suffix; };
  const auto u32 = [](int value) { return static_cast<uint32_t>(value); };
  GgufBuilder file;
  file.String("general.architecture", o.architecture).String("general.name", "tiny " + o.architecture);
  file.U32(key("block_count"), u32(o.num_layers)).U32(key("context_length"), u32(o.context_length));
  file.U32(key("embedding_length"), u32(o.hidden)).U32(key("feed_forward_length"), u32(o.ffn)).U32(key("vocab_size"), u32(o.vocab));
  file.U32(key("attention.head_count"), u32(o.num_query_heads)).U32(key("attention.head_count_kv"), u32(o.num_kv_heads));
  file.U32(key("attention.key_length"), u32(o.head_dim)).U32(key("attention.value_length"), u32(o.head_dim));
  file.F32(key("attention.layer_norm_rms_epsilon"), static_cast<float>(kEpsilon)).F32(key("rope.freq_base"), o.rope_base);
  if (o.architecture == "qwen3moe") {
    file.U32(key("expert_count"), u32(o.num_experts)).U32(key("expert_used_count"), u32(o.num_used_experts));
    file.U32(key("expert_feed_forward_length"), u32(o.ffn));
  }
  if (!o.scaling_type.empty()) file.String(key("rope.scaling.type"), o.scaling_type);
  if (o.scaling_factor != 0) file.F32(key("rope.scaling.factor"), o.scaling_factor);
  if (o.original_context != 0) file.U32(key("rope.scaling.original_context_length"), u32(o.original_context));
  if (o.ntk_alpha != 0) file.F32(key("rope.scaling.alpha"), o.ntk_alpha);
  for (const auto& [name, values] : tensors_) file.Tensor(name, values.dims, values.data);
  return file.Build();
}

void TinyModel::WriteTo(const std::filesystem::path& path) const {
  const std::vector<std::byte> bytes = Bytes();
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
}

std::vector<double> TinyModel::Multiply(const std::string& name, const std::vector<double>& x) const {
  const std::vector<float>& matrix = Data(name);
  std::vector<double> y(matrix.size() / x.size());
  for (size_t row = 0; row < y.size(); ++row) {
    for (size_t i = 0; i < x.size(); ++i) y[row] += matrix[row * x.size() + i] * x[i];
  }
  return y;
}

// Each group of the gain's length is normalised: a whole row, or each head.
std::vector<double> TinyModel::Normed(const std::string& gain, const std::vector<double>& x) const {
  const std::vector<float>& weights = Data(gain);
  std::vector<double> y(x.size());
  for (size_t start = 0; start < x.size(); start += weights.size()) {
    double squares = 0;
    for (size_t i = 0; i < weights.size(); ++i) squares += x[start + i] * x[start + i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(weights.size()) + kEpsilon);
    for (size_t i = 0; i < weights.size(); ++i) y[start + i] = x[start + i] * scale * weights[i];
  }
  return y;
}

std::vector<double> TinyModel::Project(const std::string& prefix, const std::vector<double>& x) const {
  std::vector<double> y = Multiply(prefix + ".weight", x);
  if (const auto bias = tensors_.find(prefix + ".bias"); bias != tensors_.end()) {
    for (size_t i = 0; i < y.size(); ++i) y[i] += bias->second.data[i];
  }
  return y;
}

// Radians per position of a pair. YaRN: arXiv 2309.00071, section 3.2 with alpha = 1, beta = 32.
double TinyModel::AngleOf(int pair) const {
  const double d = options_.head_dim;
  double base = options_.rope_base;
  if (options_.ntk_alpha != 0) base *= std::pow(options_.ntk_alpha, d / (d - 2));
  double angle = std::pow(base, -2 * pair / d);
  if (options_.rope_factors) angle /= Data("rope_freqs.weight")[static_cast<size_t>(pair)];
  if (options_.scaling_type == "none" || options_.scaling_factor == 0) return angle;
  const double scaled = angle / options_.scaling_factor;
  if (options_.scaling_type != "yarn") return scaled;
  const double context = options_.original_context != 0 ? options_.original_context : options_.context_length;
  const double two_pi = 2 * std::acos(-1.0);
  const auto pair_with = [&](double rotations) { return d * std::log(context / (rotations * two_pi)) / (2 * std::log(base)); };
  const double low = std::max(std::floor(pair_with(32)), 0.0), high = std::min(std::ceil(pair_with(1)), d - 1);
  const double ramp = std::clamp((pair - low) / std::max(high - low, 0.001), 0.0, 1.0);
  return scaled * ramp + angle * (1 - ramp);
}

std::vector<double> TinyModel::Expert(const std::string& prefix, size_t expert, const std::vector<double>& x) const {
  const auto ffn = static_cast<size_t>(options_.ffn);
  const std::string suffix = tensors_.contains(prefix + "ffn_gate.weight") ? ".weight" : "_exps.weight";
  const auto multiply = [&](const char* name, const std::vector<double>& in, size_t rows) {
    const std::vector<float>& matrices = Data(prefix + name + suffix);
    std::vector<double> out(rows);
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < in.size(); ++i) out[row] += matrices[(expert * rows + row) * in.size() + i] * in[i];
    }
    return out;
  };
  std::vector<double> gate = multiply("ffn_gate", x, ffn);
  const std::vector<double> up = multiply("ffn_up", x, ffn);
  for (size_t i = 0; i < ffn; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  return multiply("ffn_down", gate, x.size());
}

// With experts: those of the largest probabilities, weighted by them; the weights are made to sum to one.
std::vector<double> TinyModel::FeedForward(const std::string& prefix, const std::vector<double>& x) const {
  if (options_.architecture != "qwen3moe") return Expert(prefix, 0, x);
  std::vector<std::pair<double, size_t>> scores;
  const std::vector<double> router = Multiply(prefix + "ffn_gate_inp.weight", x);
  for (size_t e = 0; e < router.size(); ++e) scores.emplace_back(-router[e], e);
  std::ranges::sort(scores);
  scores.resize(static_cast<size_t>(options_.num_used_experts));
  double sum = 0;
  std::vector<double> out(x.size());
  for (const auto& [score, e] : scores) {
    sum += std::exp(-score);
    const std::vector<double> part = Expert(prefix, e, x);
    for (size_t i = 0; i < x.size(); ++i) out[i] += std::exp(-score) * part[i];
  }
  for (double& value : out) value /= sum;
  return out;
}

void TinyModel::NormAndRotate(const std::string& norm, int position, std::vector<double>& heads) const {
  if (tensors_.contains(norm)) heads = Normed(norm, heads);
  const int d = options_.head_dim;
  const bool halves = options_.architecture != "llama";
  const double magnitude =
      options_.scaling_type == "yarn" && options_.scaling_factor > 1 ? 1 + 0.1 * std::log(options_.scaling_factor) : 1;
  for (size_t start = 0; start < heads.size(); start += static_cast<size_t>(d)) {
    for (int pair = 0; pair < d / 2; ++pair) {
      double& a = heads[start + static_cast<size_t>(halves ? pair : 2 * pair)];
      double& b = heads[start + static_cast<size_t>(halves ? pair + d / 2 : 2 * pair + 1)];
      const double angle = position * AngleOf(pair);
      const double cosine = std::cos(angle) * magnitude, sine = std::sin(angle) * magnitude;
      const double turned = a * cosine - b * sine;
      b = a * sine + b * cosine;
      a = turned;
    }
  }
}

std::vector<double> TinyModel::AttentionOf(const TinyLayerRows& rows, size_t token) const {
  const auto d = static_cast<size_t>(options_.head_dim);
  std::vector<double> out(static_cast<size_t>(options_.num_query_heads) * d);
  for (size_t head = 0; head < static_cast<size_t>(options_.num_query_heads); ++head) {
    const size_t kv_head = head / static_cast<size_t>(options_.num_query_heads / options_.num_kv_heads);
    double total = 0;
    for (size_t t = 0; t <= token; ++t) {
      double score = 0;
      for (size_t i = 0; i < d; ++i) score += rows.queries[token][head * d + i] * rows.keys[t][kv_head * d + i];
      const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
      total += weight;
      for (size_t i = 0; i < d; ++i) out[head * d + i] += weight * rows.values[t][kv_head * d + i];
    }
    for (size_t i = 0; i < d; ++i) out[head * d + i] /= total;
  }
  return out;
}

std::vector<std::vector<double>> TinyModel::Logits(const std::vector<int32_t>& tokens, std::vector<TinyLayerRows>* layers) const {
  const auto hidden = static_cast<size_t>(options_.hidden);
  const auto add = [](std::vector<double>& x, const std::vector<double>& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  };
  Rows x;
  for (int32_t token : tokens) {
    const auto begin = Data("token_embd.weight").begin() + static_cast<long>(static_cast<size_t>(token) * hidden);
    x.emplace_back(begin, begin + static_cast<long>(hidden));
  }
  for (int layer = 0; layer < options_.num_layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    TinyLayerRows rows;
    for (size_t t = 0; t < x.size(); ++t) {
      const std::vector<double> normed = Normed(prefix + "attn_norm.weight", x[t]);
      rows.queries.push_back(Project(prefix + "attn_q", normed));
      rows.keys.push_back(Project(prefix + "attn_k", normed));
      rows.values.push_back(Project(prefix + "attn_v", normed));
      NormAndRotate(prefix + "attn_q_norm.weight", static_cast<int>(t), rows.queries.back());
      NormAndRotate(prefix + "attn_k_norm.weight", static_cast<int>(t), rows.keys.back());
    }
    for (size_t t = 0; t < x.size(); ++t) {
      add(x[t], Project(prefix + "attn_output", AttentionOf(rows, t)));
      const std::vector<double> normed = Normed(prefix + "ffn_norm.weight", x[t]);
      add(x[t], FeedForward(prefix, normed));
    }
    if (layers != nullptr) layers->push_back(std::move(rows));
  }
  Rows logits;
  for (const std::vector<double>& row : x) {
    logits.push_back(Multiply(options_.tied ? "token_embd.weight" : "output.weight", Normed("output_norm.weight", row)));
  }
  return logits;
}

}  // namespace oscar::testing
