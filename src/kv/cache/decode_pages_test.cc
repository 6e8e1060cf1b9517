// Pages of a real cache read back: rows are those that the double-precision judge encodes and decodes, and attention over them
// is what the attention kernels make of the same bytes, for every method there is.
#include "oscar/decode_pages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "oscar/kernels.h"
#include "oscar/kv_cache.h"
#include "oscar/reference.h"
#include "src/base/float_bits.h"
#include "src/base/thread_pool.h"
#include "src/testing/closeness.h"
#include "src/testing/random_channel_order.h"
#include "src/testing/random_rotation.h"
#include "src/testing/seeds.h"

namespace oscar {
namespace {

constexpr KvShape kShape = {.num_layers = 1, .num_query_heads = 8, .num_kv_heads = 4, .head_dim = 64};
constexpr int kTokens = 512, kSink = 64, kRecent = 64;

CodecProfile ProfileFor(const std::string& method) {
  const RotaryEmbedding rotary = testing::PowersOfTenRotary(kShape.head_dim, true);
  Result<CodecProfile> profile = method == "int2:oscar"          ? testing::RandomRotationProfile(kShape, 11)
                                 : method == "rotatekv"          ? testing::RandomOrderProfile(kShape, rotary, 11)
                                 : method.ends_with(":balanced") ? testing::RandomBalancedProfile(method, kShape, 11)
                                                                 : DataFreeProfile(method, kShape, rotary);
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return std::move(profile).value();
}

// `affine`: those of the affine layout only.
std::vector<std::string> EncodingMethods(bool affine) {
  std::vector<std::string> names;
  for (const CodecInfo& codec : ListCodecs()) {
    if (codec.page_bytes == nullptr || (affine && !codec.name.starts_with("int"))) continue;
    if (codec.methods.empty()) names.emplace_back(codec.name);
    for (const std::string_view method : codec.methods) {
      if (codec.name == "saw_int4" && method == "h128") continue;  // needs 128 channels
      names.push_back(std::string(codec.name) + ":" + std::string(method));
    }
  }
  return names;
}

class EveryMethod : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::mt19937_64 rng(testing::TestSeed(5));
    const auto count = [](int heads) { return static_cast<size_t>(kTokens * heads * kShape.head_dim); };
    keys_ = testing::NormalVector(rng, count(kShape.num_kv_heads));
    values_ = testing::NormalVector(rng, count(kShape.num_kv_heads));
    queries_ = testing::NormalVector(rng, count(kShape.num_query_heads));
    for (std::vector<float>* rows : {&keys_, &values_}) {
      for (float& value : *rows) value = base::RoundToBf16(value);
    }
    const KvMethod method = ParseKvMethod(GetParam()).value();
    profile_ = std::make_unique<CodecProfile>(ProfileFor(GetParam()));
    KvCacheConfig config{.shape = kShape, .sink = kSink, .recent = kRecent, .max_tokens = kTokens, .max_sequences = 1, .max_step_tokens = kTokens};
    auto cache = KvCache::Create(method, *profile_, config, executor_);
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    cache_ = std::move(cache).value();
    sequence_ = cache_->NewSequence().value();
    outputs_.resize(queries_.size());
    ASSERT_TRUE(cache_->Reserve(sequence_, kTokens).ok());
    const Status appended = cache_->Append(sequence_, 0, Rows(keys_, kShape.num_kv_heads), Rows(values_, kShape.num_kv_heads));
    ASSERT_TRUE(appended.ok()) << appended.message();
    ASSERT_TRUE(cache_->Attend({&sequence_, 1}, 0, kScale, Rows(queries_, kShape.num_query_heads),
                               PackedRows(outputs_.data(), kTokens, kShape.num_query_heads, kShape.head_dim)).ok());
    ASSERT_TRUE(cache_->Commit(sequence_, kTokens).ok());
    Decode();
  }
  static RowsView<const float> Rows(const std::vector<float>& rows, int heads) { return PackedRows(rows.data(), kTokens, heads, kShape.head_dim); }

  // Rows as a query at `kTokens - 1` sees them: decoded where they are encoded, else as stored.
  void Decode() {
    decoded_keys_ = keys_;
    decoded_values_ = values_;
    const CodecInfo& codec = *cache_->method().codec;
    const int unit = codec.encode_tokens;
    body_end_ = EndOfBody();
    for (int token = kSink; token < body_end_; token += unit) {
      std::vector<std::byte> pages;
      for (int page = token / kPageTokens; page < (token + unit) / kPageTokens; ++page) {
        std::vector<std::byte> bytes(cache_->stats().encoded_page_bytes);
        ASSERT_TRUE(cache_->ReadEncodedPage(sequence_, 0, page, bytes).ok());
        pages.insert(pages.end(), bytes.begin(), bytes.end());
      }
      const auto out = [&](std::vector<float>& rows) { return PackedRows(rows.data(), kTokens, kShape.num_kv_heads, kShape.head_dim).Slice(token, unit); };
      const Status status = DecodePages({.codec = &codec, .profile = &cache_->profile(), .layer = 0, .first_page_index = token / kPageTokens,
                                         .pages = pages, .keys = out(decoded_keys_), .values = out(decoded_values_)});
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  // As the last query sees it; the cache, one token further, may have encoded one page more.
  int EndOfBody() const { return EncodedEnd(kTokens - 1, kSink, kRecent, cache_->method().codec->encode_tokens); }

  static constexpr float kScale = 0.125f;
  base::ThreadPool executor_{1};
  std::unique_ptr<CodecProfile> profile_;
  std::unique_ptr<KvCache> cache_;
  SequenceId sequence_ = 0;
  std::vector<float> keys_, values_, queries_, outputs_, decoded_keys_, decoded_values_;
  int body_end_ = 0;
};

class AffineMethod : public EveryMethod {};

constexpr auto kNameOf = [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) c = c == ':' ? '_' : c;
  return name;
};
INSTANTIATE_TEST_SUITE_P(Methods, EveryMethod, ::testing::ValuesIn(EncodingMethods(false)), kNameOf);
INSTANTIATE_TEST_SUITE_P(Methods, AffineMethod, ::testing::ValuesIn(EncodingMethods(true)), kNameOf);

TEST_P(EveryMethod, AttentionOverDecodedRowsIsWhatTheKernelsMakeOfTheBytes) {
  ASSERT_GT(body_end_, kSink);
  constexpr int kQuery = kTokens - 1;
  const double bound = GetParam().starts_with("int") ? testing::kCpuWholeNumberAttentionRelativeL2 : testing::kCpuAttentionRelativeL2;
  const auto row = [](const std::vector<float>& rows, int token, int head, int heads) {
    const float* first = rows.data() + (token * heads + head) * kShape.head_dim;
    return std::vector<double>(first, first + kShape.head_dim);
  };
  for (int head = 0; head < kShape.num_query_heads; ++head) {
    std::vector<std::vector<double>> keys, values;
    for (int token = 0; token <= kQuery; ++token) {
      keys.push_back(row(decoded_keys_, token, head / kShape.group(), kShape.num_kv_heads));
      values.push_back(row(decoded_values_, token, head / kShape.group(), kShape.num_kv_heads));
    }
    const size_t first = static_cast<size_t>((kQuery * kShape.num_query_heads + head) * kShape.head_dim);
    const std::span<const float> query = std::span(queries_).subspan(first, static_cast<size_t>(kShape.head_dim));
    const std::vector<double> expected = reference::Attend(query, keys, values, static_cast<double>(kScale));
    EXPECT_LT(testing::RelativeL2(std::span(outputs_).subspan(first, expected.size()), std::span(expected)), bound)
        << "head " << head;
  }
}

TEST_P(EveryMethod, EncodingLosesSomethingButNotTheRows) {
  double error = 0, norm = 0;
  for (int token = kSink; token < body_end_; ++token) {
    for (int i = 0; i < kShape.num_kv_heads * kShape.head_dim; ++i) {
      const auto index = static_cast<size_t>(token * kShape.num_kv_heads * kShape.head_dim + i);
      error += std::pow(static_cast<double>(decoded_values_[index] - values_[index]), 2);
      norm += std::pow(static_cast<double>(values_[index]), 2);
    }
  }
  EXPECT_GT(error, 0);
  // A random transform in place of a fitted one says nothing of the size.
  if (!GetParam().ends_with(":balanced")) {
    EXPECT_LT(error, 0.5 * norm);
  }
}

// They have a judge of single rows.
TEST_P(AffineMethod, RowsAreThoseOfTheJudge) {
  const int bits = static_cast<int>(cache_->method().codec->bits);
  for (const int token : {kSink, kSink + 77, body_end_ - 1}) {
    for (int head = 0; head < kShape.num_kv_heads; ++head) {
      for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
        const bool is_key = side == KvSide::kKey;
        const size_t first = static_cast<size_t>((token * kShape.num_kv_heads + head) * kShape.head_dim);
        const auto d = static_cast<size_t>(kShape.head_dim);
        const RowProfile row = profile_->row(0, head, side);
        const std::vector<float> mean = reference::PageMean(row, profile_->rotary(), token / kPageTokens);
        const std::vector<float> y = reference::TransformRow(std::span(is_key ? keys_ : values_).subspan(first, d), *row.transform, mean,
                                                             reference::RoundingOf(row.encoder));
        const auto encoded = reference::EncodeRow(y, bits, row);
        ASSERT_TRUE(encoded.ok()) << encoded.status().message();
        const std::vector<double> expected = reference::InverseTransformRow(reference::DecodeRow(*encoded), *row.transform, mean);
        const double distance = testing::RelativeL2(std::span(is_key ? decoded_keys_ : decoded_values_).subspan(first, d), std::span(expected));
        // Error feedback in f32 and in double may choose one code of thousands differently (quality.md 5).
        EXPECT_LT(distance, row.encoder == EncoderKind::kErrorFeedback ? 0.1 : 1e-3) << "token " << token << ", head " << head;
      }
    }
  }
}

TEST(DecodePages, RefusesWhatDoesNotFit) {
  const CodecProfile profile = ProfileFor("int2:naive");
  std::vector<float> rows(static_cast<size_t>(kPageTokens * kShape.num_kv_heads * kShape.head_dim));
  const RowsView<float> view = PackedRows(rows.data(), kPageTokens, kShape.num_kv_heads, kShape.head_dim);
  const std::vector<std::byte> page(static_cast<size_t>(kShape.num_kv_heads) * FindCodec("int2")->page_bytes(kShape.head_dim));
  DecodePagesParams params{.codec = FindCodec("int2"), .profile = &profile, .layer = 0, .first_page_index = 1, .pages = page, .keys = view, .values = view};
  EXPECT_TRUE(DecodePages(params).ok());
  params.codec = FindCodec("bf16");
  EXPECT_FALSE(DecodePages(params).ok());
  params.codec = FindCodec("int2");
  params.layer = 1;
  EXPECT_FALSE(DecodePages(params).ok());
  params.layer = 0;
  params.keys.num_tokens = 63;
  EXPECT_FALSE(DecodePages(params).ok());
  params.keys = view;
  params.pages = std::span(page).first(page.size() - 1);
  EXPECT_FALSE(DecodePages(params).ok());
}

}  // namespace
}  // namespace oscar
