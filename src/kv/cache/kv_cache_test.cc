// KvCache over the library's own kernels: encoded bytes do not depend on chunking, and attention is that of the judge
// over rows that the judge has encoded and decoded itself.
#include "oscar/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oscar/reference.h"
#include "src/base/float_bits.h"
#include "src/base/thread_pool.h"
#include "src/kv/codec/affine/layout.h"
#include "src/kv/transform/hadamard.h"
#include "src/testing/closeness.h"
#include "src/testing/random_channel_order.h"
#include "src/testing/random_rotation.h"
#include "src/testing/row_codec_pages.h"
#include "src/testing/seeds.h"

namespace oscar {
namespace {

constexpr KvShape kShape = {.num_layers = 2, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 64};

CodecProfile ProfileFor(const std::string& method, const KvShape& shape) {
  Result<CodecProfile> profile =
      method == "int2:oscar"            ? testing::RandomRotationProfile(shape, 11)
      : method.ends_with(":balanced") ? testing::RandomBalancedProfile(method, shape, 11)
                                      : DataFreeProfile(method, shape);
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return std::move(profile).value();
}

// K, V and query rows of a prompt for all layers: [layer][token][head][d].
struct Prompt {
  Prompt(const KvShape& kv_shape, int num_tokens, uint64_t seed) : shape(kv_shape), length(num_tokens) {
    std::mt19937_64 rng(seed);
    const auto d = static_cast<std::size_t>(shape.head_dim);
    const std::vector<float> deviations = testing::NormalVector(rng, d);  // channels differ, as those of real keys
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      keys.push_back(testing::NormalVector(rng, Count(shape.num_kv_heads)));
      values.push_back(testing::NormalVector(rng, Count(shape.num_kv_heads)));
      queries.push_back(testing::NormalVector(rng, Count(shape.num_query_heads)));
      for (std::vector<float>* rows : {&keys.back(), &values.back()}) {
        for (std::size_t i = 0; i < rows->size(); ++i) (*rows)[i] *= 1 + std::fabs(deviations[i % d]);
      }
    }
  }
  std::size_t Count(int heads) const { return static_cast<std::size_t>(length * heads * shape.head_dim); }
  RowsView<const float> Rows(const std::vector<float>& rows, int heads, int first, int count) const {
    return PackedRows(rows.data(), length, heads, shape.head_dim).Slice(first, count);
  }

  KvShape shape;
  int length;
  std::vector<std::vector<float>> keys, values, queries;
};

struct PromptRun {
  std::vector<std::vector<float>> outputs;  // [layer] like Prompt::queries
  std::vector<std::byte> encoded;           // all encoded pages, page by page, layers inside
  SegmentTokens segments;
};

// Puts the prompt through the cache in steps of the given sizes, the last one cut to fit.
PromptRun RunPrompt(KvCache& cache, const Prompt& prompt, const std::vector<int>& steps) {
  PromptRun run;
  for (const std::vector<float>& queries : prompt.queries) run.outputs.emplace_back(queries.size(), std::nanf(""));
  const SequenceId id = cache.NewSequence().value();
  const KvShape& shape = prompt.shape;
  std::size_t step = 0;
  for (int first = 0; first < prompt.length;) {
    const int count = std::min(steps[step++ % steps.size()], prompt.length - first);
    Status status = cache.Reserve(id, count);
    EXPECT_TRUE(status.ok()) << status.message();
    for (int layer = 0; layer < shape.num_layers && status.ok(); ++layer) {
      const auto index = static_cast<std::size_t>(layer);
      status = cache.Append(id, layer, prompt.Rows(prompt.keys[index], shape.num_kv_heads, first, count),
                            prompt.Rows(prompt.values[index], shape.num_kv_heads, first, count));
      EXPECT_TRUE(status.ok()) << status.message();
      const RowsView<float> out =
          PackedRows(run.outputs[index].data(), prompt.length, shape.num_query_heads, shape.head_dim);
      status = cache.Attend({&id, 1}, layer, 1 / std::sqrt(static_cast<float>(shape.head_dim)),
                            prompt.Rows(prompt.queries[index], shape.num_query_heads, first, count),
                            out.Slice(first, count));
      EXPECT_TRUE(status.ok()) << status.message();
    }
    if (status.ok()) status = cache.Commit(id, count);
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) return run;
    first += count;
  }
  run.segments = cache.segments(id);
  const int first_page = cache.config().sink / kPageTokens;
  for (int page = first_page; page < first_page + run.segments.body / kPageTokens; ++page) {
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      std::vector<std::byte> bytes(cache.stats().encoded_page_bytes / static_cast<std::size_t>(shape.num_layers));
      const Status status = cache.ReadEncodedPage(id, layer, page, bytes);
      EXPECT_TRUE(status.ok()) << status.message();
      run.encoded.insert(run.encoded.end(), bytes.begin(), bytes.end());
    }
  }
  EXPECT_TRUE(cache.Release(id).ok());
  return run;
}

// Encode units of one side under a row codec, read back by the codec: its own tests judge that. Rows outside whole units are
// left empty. The transform is made as the encoder makes it, in f32 without fused operations.
std::vector<std::vector<double>> ThroughRowCodec(const CodecInfo& info, const RowProfile& profile, KvSide side,
                                                 const std::vector<std::vector<double>>& exact, int sink) {
  const auto d = static_cast<std::size_t>(profile.transform->head_dim());
  testing::RowCodecUnit unit(std::string(info.name), static_cast<int>(d));
  std::vector<std::vector<double>> decoded(exact.size());
  for (std::size_t first = static_cast<std::size_t>(sink); first + static_cast<std::size_t>(unit.num_tokens()) <= exact.size();
       first += static_cast<std::size_t>(unit.num_tokens())) {
    std::vector<std::vector<float>> rows;
    for (std::size_t token = first; token < first + static_cast<std::size_t>(unit.num_tokens()); ++token) {
      std::vector<float> y(exact[token].begin(), exact[token].end());
      if (profile.transform->kind() == TransformKind::kHadamard) {
        transform::ApplyHadamard(y);
      } else if (profile.transform->kind() != TransformKind::kIdentity) {
        std::fill(y.begin(), y.end(), 0.0f);
        for (std::size_t i = 0; i < d; ++i) {
          for (std::size_t j = 0; j < d; ++j) y[j] += profile.transform->matrix()[i * d + j] * static_cast<float>(exact[token][i]);
        }
      }
      if (unit.codec().rounds_rows) {
        for (float& value : y) value = base::RoundToBf16(value);
      }
      rows.push_back(std::move(y));
    }
    EXPECT_EQ(unit.Encode(side, rows), -1);
    const std::vector<std::vector<double>> read = unit.Decode(side);
    for (std::size_t t = 0; t < read.size(); ++t) {
      decoded[first + t] = reference::InverseTransformRow(read[t], *profile.transform, profile.mean);
    }
  }
  return decoded;
}

// Rows of one (layer, KV head) as the judge stores them: rounded to bf16, and encoded and decoded. [side][token].
struct JudgedRows {
  std::vector<std::vector<double>> exact[2], decoded[2];
};

// The codes of one row in the encoded bytes of a run, [page from `first_page` on][layer][KV head].
struct RowPlace {
  int layer, kv_head;
  KvSide side;
  int token;
};
template <int kBits>
reference::AffineRow StoredRow(const PromptRun& run, const KvShape& shape, const RowPlace& place, int first_page) {
  using Layout = affine::PageLayout<kBits>;
  const auto& [layer, kv_head, side, token] = place;
  const int d = shape.head_dim, slot = token % kPageTokens;
  const int head = ((token / kPageTokens - first_page) * shape.num_layers + layer) * shape.num_kv_heads + kv_head;
  const std::byte* bytes = run.encoded.data() + static_cast<std::size_t>(head) * Layout::PageBytes(d);
  reference::AffineRow row;
  std::memcpy(&row.scale_f16, bytes + Layout::ScalesStart(side, d) + 2 * slot, 2);
  std::memcpy(&row.offset_f16, bytes + Layout::OffsetsStart(side, d) + 2 * slot, 2);
  for (int c = 0; c < d; ++c) {
    const int word_index = side == KvSide::kKey ? Layout::KeyWord(slot, c, d) : Layout::ValueWord(slot, c);
    uint32_t word;
    std::memcpy(&word, bytes + Layout::CodesStart(side, d) + 4 * word_index, 4);
    row.codes.push_back(static_cast<uint8_t>(word >> (side == KvSide::kKey ? Layout::KeyShift(c) : Layout::ValueShift(slot)) &
                                             ((1u << kBits) - 1)));
  }
  return row;
}

// Balanced rows are decoded from what the run stored, since a code in a thousand may differ from the judge's (quality.md 5);
// rows of all other methods the judge encodes for itself.
JudgedRows Judge(const PromptRun& run, const Prompt& prompt, const CodecProfile& profile, int layer, int kv_head, int sink) {
  const int first_page = sink / kPageTokens, end_token = sink + run.segments.body;
  const bool takes_stored = profile.method().ends_with(":balanced");
  const CodecInfo& codec = *ParseKvMethod(profile.method())->codec;
  const CodecKernelEntry* entry = FindCpuKernels(codec);
  const bool has_row_codec = entry != nullptr && entry->kernels->row_codec != nullptr;
  const int bits = codec.name == "bf16" ? 2 : static_cast<int>(codec.bits);
  JudgedRows judged;
  for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
    const auto index = static_cast<std::size_t>(side);
    const std::vector<float>& source =
        (side == KvSide::kKey ? prompt.keys : prompt.values)[static_cast<std::size_t>(layer)];
    const RowProfile row_profile = profile.row(layer, kv_head, side);
    const RowsView<const float> rows = prompt.Rows(source, prompt.shape.num_kv_heads, 0, prompt.length);
    for (int token = 0; token < prompt.length; ++token) {
      std::vector<float> row(rows.Row(token, kv_head), rows.Row(token, kv_head) + prompt.shape.head_dim);
      for (float& value : row) value = base::RoundToBf16(value);
      judged.exact[index].emplace_back(row.begin(), row.end());
      if (has_row_codec) continue;
      const std::vector<float> mean = reference::PageMean(row_profile, profile.rotary(), token / 64);
      const std::vector<float> y =
          reference::TransformRow(row, *row_profile.transform, mean, reference::RoundingOf(row_profile.encoder));
      Result<reference::AffineRow> encoded = reference::AffineRow{std::vector<uint8_t>(row.size(), 0), 0, 0};
      if (!takes_stored) {
        encoded = reference::EncodeRow(y, bits, row_profile);
      } else if (token >= sink && token < end_token) {
        const RowPlace place = {layer, kv_head, side, token};
        encoded = bits == 1 ? StoredRow<1>(run, prompt.shape, place, first_page) : StoredRow<2>(run, prompt.shape, place, first_page);
      }
      EXPECT_TRUE(encoded.ok()) << encoded.status().message();
      judged.decoded[index].push_back(
          reference::InverseTransformRow(reference::DecodeRow(*encoded), *row_profile.transform, mean));
    }
    if (has_row_codec) judged.decoded[index] = ThroughRowCodec(codec, row_profile, side, judged.exact[index], sink);
  }
  return judged;
}

// Largest relative L2 error over every `stride`-th query of all layers and heads.
double WorstError(const PromptRun& run, const Prompt& prompt, const CodecProfile& profile, int sink, int recent,
                  int stride) {
  const KvShape& shape = prompt.shape;
  const int unit = ParseKvMethod(profile.method())->codec->encode_tokens;
  double worst = 0;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const auto index = static_cast<std::size_t>(layer);
    for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      const JudgedRows judged = Judge(run, prompt, profile, layer, kv_head, sink);
      for (int position = prompt.length - 1; position >= 0; position -= stride) {
        std::vector<std::vector<double>> keys, values;
        for (int token = 0; token <= position; ++token) {
          // method.md 5.1 written out: the whole page (or unit) lies behind the sink and before position - recent.
          const bool is_encoded = token >= sink && (token - sink) / unit * unit + sink + unit - 1 < position - recent;
          const auto t = static_cast<std::size_t>(token);
          keys.push_back(is_encoded ? judged.decoded[0][t] : judged.exact[0][t]);
          values.push_back(is_encoded ? judged.decoded[1][t] : judged.exact[1][t]);
        }
        for (int i = 0; i < shape.group(); ++i) {
          const auto offset = static_cast<std::size_t>(
              (position * shape.num_query_heads + kv_head * shape.group() + i) * shape.head_dim);
          const std::size_t d = static_cast<std::size_t>(shape.head_dim);
          const std::vector<double> expected =
              reference::Attend(std::span(prompt.queries[index]).subspan(offset, d), keys, values,
                                1 / std::sqrt(static_cast<double>(shape.head_dim)));
          const double error =
              testing::RelativeL2(std::span(run.outputs[index]).subspan(offset, d), std::span(expected));
          worst = error <= worst ? worst : error;  // NaN wins
        }
      }
    }
  }
  return worst;
}

KvCacheConfig Config(int max_tokens) {
  KvCacheConfig config;
  config.shape = kShape;
  config.max_tokens = max_tokens;
  config.max_step_tokens = max_tokens;
  return config;
}

std::unique_ptr<KvCache> CreateCache(const std::string& method, const CodecProfile& profile,
                                     const KvCacheConfig& config, Executor& executor) {
  Result<std::unique_ptr<KvCache>> cache = KvCache::Create(*ParseKvMethod(method), profile, config, executor);
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  return std::move(cache).value();
}

class KvCacheMethods : public ::testing::TestWithParam<std::string> {};

TEST_P(KvCacheMethods, ChunkSizeChangesNoByteAndAttentionIsTheJudges) {
  base::ThreadPool executor(2);
  const CodecProfile profile = ProfileFor(GetParam(), kShape);
  const Prompt prompt(kShape, 1000, testing::TestSeed(31));
  const std::unique_ptr<KvCache> cache = CreateCache(GetParam(), profile, Config(prompt.length), executor);
  const int recent = cache->method().is_exact() ? prompt.length : cache->config().recent;

  const double bound = GetParam().starts_with("int") ? testing::kCpuWholeNumberAttentionRelativeL2 : testing::kCpuAttentionRelativeL2;
  const PromptRun whole = RunPrompt(*cache, prompt, {prompt.length});
  EXPECT_EQ(whole.segments.body, cache->method().is_exact() ? 0 : 640);
  EXPECT_LE(WorstError(whole, prompt, profile, 64, recent, 37), bound);
  std::mt19937_64 rng(testing::TestSeed(32));
  std::vector<int> random_steps;
  for (int i = 0; i < 50; ++i) random_steps.push_back(1 + static_cast<int>(rng() % 130));
  for (const std::vector<int>& steps : {std::vector{1}, {7}, {64}, {100}, {512}, random_steps}) {
    const PromptRun run = RunPrompt(*cache, prompt, steps);
    EXPECT_EQ(run.encoded, whole.encoded) << "steps of " << steps[0];
    for (std::size_t layer = 0; layer < run.outputs.size(); ++layer) {
      EXPECT_LE(testing::RelativeL2(std::span(run.outputs[layer]), std::span(whole.outputs[layer])),
                bound)
          << "steps of " << steps[0];
    }
    EXPECT_LE(WorstError(run, prompt, profile, 64, recent, 137), bound)
        << "steps of " << steps[0];
  }
  EXPECT_EQ(cache->stats().used_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, KvCacheMethods,
                         ::testing::Values("bf16", "int2:naive", "int2:clip", "int2:hadamard", "int2:quarot",
                                           "int2:oscar", "int2:balanced", "int1:balanced", "int4:hadamard", "q8_0", "q4_0", "saw_int4:h16", "turboquant3",
                                           "turboquant_mse3", "kivi", "kivi_g32", "kivi_g128", "kitty"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

// Keys turn with their positions, which must be those of the sequence whatever the chunks; four heads are encoded together.
TEST(KvCache, RotateKvHasTheSameBytesForAllChunks) {
  base::ThreadPool executor(2);
  KvCacheConfig config = Config(700);
  config.shape = {.num_layers = 2, .num_query_heads = 8, .num_kv_heads = 8, .head_dim = 64};
  const CodecProfile profile = testing::RandomOrderProfile(config.shape, testing::PowersOfTenRotary(64, false), 36).value();
  const Prompt prompt(config.shape, 700, testing::TestSeed(36));
  const std::unique_ptr<KvCache> cache = CreateCache("rotatekv", profile, config, executor);
  const PromptRun whole = RunPrompt(*cache, prompt, {700});
  EXPECT_EQ(whole.segments.body, 320);
  for (const std::vector<int>& steps : {std::vector{1}, {65}, {300}}) {
    const PromptRun run = RunPrompt(*cache, prompt, steps);
    EXPECT_EQ(run.encoded, whole.encoded) << "steps of " << steps[0];
    for (std::size_t layer = 0; layer < run.outputs.size(); ++layer) {
      EXPECT_LE(testing::RelativeL2(std::span(run.outputs[layer]), std::span(whole.outputs[layer])), testing::kCpuAttentionRelativeL2);
    }
  }
}

TEST(KvCache, AForkThatIsCutBackAndGoesOnHasTheBytesOfAColdRun) {
  base::ThreadPool executor(2);
  const CodecProfile profile = ProfileFor("int2:oscar", kShape);
  KvCacheConfig config = Config(1400);
  config.max_sequences = 3;
  const std::unique_ptr<KvCache> cache = CreateCache("int2:oscar", profile, config, executor);
  const Prompt prompt(kShape, 700, testing::TestSeed(33)), other(kShape, 700, testing::TestSeed(34));
  const auto extend = [&](SequenceId id, const Prompt& source, int first, int count) {
    ASSERT_TRUE(cache->Reserve(id, count).ok());
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      const auto index = static_cast<std::size_t>(layer);
      ASSERT_TRUE(cache
                      ->Append(id, layer, source.Rows(source.keys[index], 2, first, count),
                               source.Rows(source.values[index], 2, first, count))
                      .ok());
    }
    ASSERT_TRUE(cache->Commit(id, count).ok());
  };
  const SequenceId cold = cache->NewSequence().value();
  extend(cold, prompt, 0, 700);
  const SequenceId parent = cache->NewSequence().value();
  extend(parent, prompt, 0, 350);
  const SequenceId child = cache->Fork(parent).value();
  extend(parent, other, 350, 200);  // writes behind the fork
  extend(child, other, 350, 30);
  ASSERT_EQ(cache->Truncate(child, 330).value(), 330);
  extend(child, prompt, 330, 370);
  const std::size_t page_bytes = cache->stats().encoded_page_bytes / 2;
  std::vector<std::byte> expected(page_bytes), actual(page_bytes);
  for (int page = 1; page < 6; ++page) {
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(cache->ReadEncodedPage(cold, layer, page, expected).ok());
      ASSERT_TRUE(cache->ReadEncodedPage(child, layer, page, actual).ok());
      EXPECT_EQ(actual, expected) << "page " << page << " layer " << layer;
    }
  }
  EXPECT_EQ(cache->ReadEncodedPage(child, 0, 6, actual).code(), StatusCode::kNotFound);
}

TEST(KvCache, ARowBeyondTheRangeOfTheCodecFailsTheStepThatEncodesItAndNothingIsLost) {
  base::ThreadPool executor(1);
  const CodecProfile profile = ProfileFor("int2:naive", kShape);
  const std::unique_ptr<KvCache> cache = CreateCache("int2:naive", profile, Config(600), executor);
  Prompt prompt(kShape, 600, testing::TestSeed(35));
  prompt.values[1][static_cast<std::size_t>((100 * 2 + 1) * 64 + 7)] = 1e30f;  // finite, but not in fp16
  const SequenceId id = cache->NewSequence().value();
  const auto append = [&](int layer, int first, int count) {
    const auto index = static_cast<std::size_t>(layer);
    return cache->Append(id, layer, prompt.Rows(prompt.keys[index], 2, first, count),
                         prompt.Rows(prompt.values[index], 2, first, count));
  };
  ASSERT_TRUE(cache->Reserve(id, 383).ok());
  ASSERT_TRUE(append(0, 0, 383).ok());
  ASSERT_TRUE(append(1, 0, 383).ok());
  ASSERT_TRUE(cache->Commit(id, 383).ok());
  ASSERT_TRUE(cache->Reserve(id, 1).ok());
  ASSERT_TRUE(append(0, 383, 1).ok());
  const Status status = append(1, 383, 1);
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  for (const char* part : {"V of layer 1", "head 1", "position 100"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  cache->Abandon(id);
  EXPECT_EQ(cache->length(id), 383);
  EXPECT_EQ(cache->segments(id).body, 0);
}

TEST(KvCache, ShapesWithoutKernelsAreRefusedAtCreation) {
  base::ThreadPool executor(1);
  for (const KvShape& shape : {KvShape{1, 2, 2, 72}, KvShape{1, 34, 2, 64}}) {
    KvCacheConfig config = Config(100);
    config.shape = shape;
    for (const char* method : {"bf16", "int2:naive"}) {
      const auto cache = KvCache::Create(*ParseKvMethod(method), ProfileFor(method, shape), config, executor);
      EXPECT_EQ(cache.status().code(), StatusCode::kUnsupported) << method << " " << shape.head_dim;
    }
  }
}

TEST(KvCache, AProfileOfAnotherMethodOrShapeIsRefusedAtCreation) {
  base::ThreadPool executor(1);
  const auto create = [&](const char* method, CodecProfile profile) {
    return KvCache::Create(*ParseKvMethod(method), std::move(profile), Config(100), executor).status().code();
  };
  EXPECT_EQ(create("int2:clip", ProfileFor("int2:naive", kShape)), StatusCode::kInvalidArgument);
  EXPECT_EQ(create("int2:clip", ProfileFor("int2:clip", {2, 4, 2, 128})), StatusCode::kInvalidArgument);
  EXPECT_EQ(create("int2:clip", ProfileFor("int2:clip", kShape)), StatusCode::kOk);
}

}  // namespace
}  // namespace oscar
