// A whole model over the attention kernels, beside the same model over attention in double precision on the same codes: what the kernels' rounding does to
// the answers. Needs SmolLM2-135M-Instruct.Q4_1.gguf in OSCAR_TEST_MODELS, and OSCAR_LONG_TESTS.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "oscar/decode_pages.h"
#include "oscar/executor.h"
#include "oscar/kernels.h"
#include "src/base/float_bits.h"
#include "src/engine/runtime/calibration_text.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/text_source.h"
#include "src/kv/cache/paged_kv_cache.h"
#include "src/kv/kernels/params.h"

namespace oscar::engine {
namespace {

// The verbs of the CPU; attention by loops in double once `is_slow`.
class SlowVerbs final : public cache::KvVerbs {
 public:
  explicit SlowVerbs(const bool& is_slow) : is_slow_(is_slow) {}
  Status Append(const KernelContext& context, const AppendParams& params) override { return oscar::Append(context, params); }
  Status Demote(const KernelContext& context, const DemoteParams& params) override { return oscar::Demote(context, params); }
  std::size_t AttendWorkspaceBytes(const KernelContext& context, const AttendParams& params) override { return oscar::AttendWorkspaceBytes(context, params); }

  Status Attend(const KernelContext& context, const AttendParams& params) override {
    if (!is_slow_) return oscar::Attend(context, params);
    const AttendSequence& sequence = params.sequences.front();
    const int length = sequence.first_position + sequence.num_queries;
    const Rows bf16 = ReadBf16(context, params, length), encoded = ReadEncoded(context, params, length);
    for (int query = 0; query < sequence.num_queries; ++query) {
      for (int head = 0; head < context.shape.num_query_heads; ++head) AttendOne(context.shape, params, {query, head}, bf16, encoded);
    }
    return {};
  }

 private:
  struct Rows {
    std::vector<float> keys, values;  // [tokens, KV heads, d]; what is not there is 0
  };
  struct Place {
    int query, head;
  };

  static Rows Empty(const KvShape& shape, int length) {
    const size_t pages = static_cast<size_t>(length + kPageTokens - 1) / kPageTokens;
    const size_t values = pages * static_cast<size_t>(kPageTokens * shape.num_kv_heads * shape.head_dim);
    return {std::vector<float>(values), std::vector<float>(values)};
  }

  static Rows ReadBf16(const KernelContext& context, const AttendParams& params, int length) {
    const KvShape& shape = context.shape;
    const int d = shape.head_dim;
    Rows rows = Empty(shape, length);
    for (int token = 0; token < length; ++token) {
      const int32_t page = params.sequences.front().bf16_table[static_cast<size_t>(token / kPageTokens)];
      if (page == kNoPage) continue;
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        const std::byte* of_head = params.storage.bf16_pages + static_cast<size_t>(page) * params.storage.bf16_page_stride + static_cast<size_t>(head) * kernels::Bf16HeadBytes(d);
        for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
          const auto* from = reinterpret_cast<const uint16_t*>(of_head + kernels::Bf16SideStart(side, d)) + static_cast<size_t>(token % kPageTokens * d);
          float* to = (side == KvSide::kKey ? rows.keys : rows.values).data() + static_cast<size_t>((token * shape.num_kv_heads + head) * d);
          for (int c = 0; c < d; ++c) to[c] = base::F32FromBf16(from[c]);
        }
      }
    }
    return rows;
  }

  static Rows ReadEncoded(const KernelContext& context, const AttendParams& params, int length) {
    const KvShape& shape = context.shape;
    Rows rows = Empty(shape, length);
    for (int page = 0; page < (length + kPageTokens - 1) / kPageTokens; ++page) {
      const int32_t id = params.sequences.front().encoded_table[static_cast<size_t>(page)];
      if (id == kNoPage) continue;
      const size_t first = static_cast<size_t>(page * kPageTokens * shape.num_kv_heads * shape.head_dim);
      DecodePagesParams decode;
      decode.codec = context.codec;
      decode.profile = context.profile;
      decode.layer = params.layer;
      decode.first_page_index = page;
      decode.pages = {params.storage.encoded_pages + static_cast<size_t>(id) * params.storage.encoded_page_stride, params.storage.encoded_page_stride};
      decode.keys = PackedRows(rows.keys.data() + first, kPageTokens, shape.num_kv_heads, shape.head_dim);
      decode.values = PackedRows(rows.values.data() + first, kPageTokens, shape.num_kv_heads, shape.head_dim);
      const Status status = DecodePages(decode);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return rows;
  }

  static void AttendOne(const KvShape& shape, const AttendParams& params, Place at, const Rows& bf16, const Rows& encoded) {
    const int d = shape.head_dim, kv_head = at.head / shape.group();
    const int position = params.sequences.front().first_position + at.query;
    const float* query = params.queries.Row(at.query, at.head);
    std::vector<double> scores, out(static_cast<size_t>(d));
    const auto row = [&](int token, bool is_key) {
      const Rows& rows = IsEncoded(token, position, params.sink, params.recent) ? encoded : bf16;
      return (is_key ? rows.keys : rows.values).data() + static_cast<size_t>((token * shape.num_kv_heads + kv_head) * d);
    };
    for (int token = 0; token <= position; ++token) {
      double score = 0;
      for (int c = 0; c < d; ++c) score += static_cast<double>(query[c]) * static_cast<double>(row(token, true)[c]);
      scores.push_back(score * static_cast<double>(params.scale));
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (int token = 0; token <= position; ++token) {
      const double weight = std::exp(scores[static_cast<size_t>(token)] - top);
      sum += weight;
      for (int c = 0; c < d; ++c) out[static_cast<size_t>(c)] += weight * static_cast<double>(row(token, false)[c]);
    }
    for (int c = 0; c < d; ++c) params.out.Row(at.query, at.head)[c] = static_cast<float>(out[static_cast<size_t>(c)] / sum);
  }

  const bool& is_slow_;
};

std::vector<double> LogProbabilities(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(static_cast<double>(logit) - top - std::log(sum));
  return result;
}

TEST(ReferenceAttention, TheKernelsLeaveTheAnswersOfAModelAsTheyAre) {
  const char* folder = std::getenv("OSCAR_TEST_MODELS");
  const std::filesystem::path model = std::filesystem::path(folder == nullptr ? "" : folder) / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (folder == nullptr || !std::filesystem::exists(model)) GTEST_SKIP() << "no SmolLM2-135M-Instruct.Q4_1.gguf in OSCAR_TEST_MODELS";
  if (std::getenv("OSCAR_LONG_TESTS") == nullptr) GTEST_SKIP() << "takes several seconds; set OSCAR_LONG_TESTS to run it";
  EngineOptions options;
  options.model = model.string();
  options.weights = WeightPrecision::kF32;  // activations rounded to 8 bits would make every difference a larger one
  options.recent = 64;                      // most of the prefix is encoded
  auto engine = Engine::OpenModel(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  constexpr int kPrefix = 384, kScored = 8;
  const auto tokens = TokenizeSource((*engine)->tokenizer(), {"built-in text", std::string(CalibrationText())}, kPrefix + kScored, kPrefix + kScored);
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  const auto setup = (*engine)->SetUpKv("int2:hadamard", {});
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  const auto fast = (*engine)->NewCache(*setup, kPrefix + kScored);
  ASSERT_TRUE(fast.ok()) << fast.status().message();
  bool is_slow = false;
  const auto slow = cache::PagedKvCache::Create(setup->method, setup->profile, (*fast)->config(), (*engine)->model().executor(), std::make_unique<SlowVerbs>(is_slow));
  ASSERT_TRUE(slow.ok()) << slow.status().message();
  std::vector<float> logits[2];
  for (KvCache* cache : {fast->get(), static_cast<KvCache*>(slow->get())}) {
    const bool second = cache != fast->get();
    const SequenceId sequence = *cache->NewSequence();
    is_slow = false;  // the same prefix, and so the same codes
    for (int first = 0; first < kPrefix; first += kMaxStepTokens) {
      const StepSequence step{sequence, std::span(*tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(std::min(kMaxStepTokens, kPrefix - first))), false};
      ASSERT_TRUE((*engine)->model().Forward({&step, 1}, *cache, nullptr).ok());
    }
    is_slow = second;
    const StepSequence step{sequence, std::span(*tokens).subspan(kPrefix, kScored), true};
    ASSERT_TRUE((*engine)->model().Forward({&step, 1}, *cache, &logits[second ? 1 : 0]).ok());
  }
  const size_t vocabulary = logits[0].size() / kScored;
  double mean = 0;
  for (size_t i = 0; i < kScored; ++i) {
    const std::vector<double> exact = LogProbabilities(std::span(logits[1]).subspan(i * vocabulary, vocabulary));
    const std::vector<double> ours = LogProbabilities(std::span(logits[0]).subspan(i * vocabulary, vocabulary));
    for (size_t v = 0; v < vocabulary; ++v) mean += std::exp(exact[v]) * (exact[v] - ours[v]) / kScored;
  }
  EXPECT_LE(mean, 1e-4);
  EXPECT_GT(mean, 0) << "the two paths are one";
  RecordProperty("kl_nats", std::to_string(mean));
}

}  // namespace
}  // namespace oscar::engine
