#include "src/engine/models/model.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <unistd.h>

#include "gtest/gtest.h"
#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "src/testing/closeness.h"
#include "src/testing/exact_kv_cache.h"
#include "src/testing/gguf_builder.h"
#include "src/testing/seeds.h"
#include "src/testing/tiny_model.h"

namespace oscar::engine {
namespace {

using oscar::testing::ExactKvCache;
using oscar::testing::RelativeL2;
using oscar::testing::TinyLayerRows;
using oscar::testing::TinyModel;
using oscar::testing::TinyModelOptions;

// f32 products of up to 256 terms through two layers against float64.
constexpr double kLogitsRelativeL2 = 2e-5;

std::filesystem::path TemporaryPath() {
  return std::filesystem::path(::testing::TempDir()) /
         ("oscar_model_test_" + std::to_string(::getpid()) + "_" +
          std::to_string(::testing::UnitTest::GetInstance()->random_seed()) + ".gguf");
}

// One thread unless a test is about threads: ggml's barriers spin, and a machine that also runs other tests would crawl.
Result<std::unique_ptr<Model>> LoadBytes(const std::vector<std::byte>& bytes, int num_threads = 1) {
  const auto path = TemporaryPath();
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
  auto model = Model::Load(path, num_threads);
  std::filesystem::remove(path);  // the mapping stays
  return model;
}

std::unique_ptr<Model> MustLoad(const TinyModel& tiny) {
  auto model = LoadBytes(tiny.Bytes());
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(model).value();
}

std::vector<int32_t> RandomTokens(int count, int vocab, uint64_t seed = 3) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab)));
  return tokens;
}

std::vector<double> Flat(const std::vector<std::vector<double>>& rows) {
  std::vector<double> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

// Runs one sequence in steps of the given sizes, all logits.
std::vector<float> RunSteps(Model& model, KvCache& cache, SequenceId id, std::span<const int32_t> tokens, int step_tokens) {
  std::vector<float> all, logits;
  for (size_t start = 0; start < tokens.size(); start += static_cast<size_t>(step_tokens)) {
    const size_t count = std::min<size_t>(static_cast<size_t>(step_tokens), tokens.size() - start);
    const StepSequence step{.sequence = id, .tokens = tokens.subspan(start, count), .all_logits = true};
    const Status status = model.Forward({&step, 1}, cache, &logits);
    EXPECT_TRUE(status.ok()) << status.message();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

struct Variant {
  std::string name;
  TinyModelOptions options;
};

std::vector<Variant> Variants() {
  return {{"llama", {}},
          {"llama_untied", {.tied = false}},
          {"llama_mha", {.num_query_heads = 2, .num_kv_heads = 2, .head_dim = 96}},
          {"llama_single_head", {.num_query_heads = 1, .num_kv_heads = 1}},
          {"llama_linear", {.scaling_type = "linear", .scaling_factor = 4}},
          {"llama_factor_without_type", {.scaling_factor = 2}},
          {"llama_none", {.scaling_type = "none", .scaling_factor = 4}},
          {"llama_yarn", {.scaling_type = "yarn", .scaling_factor = 4, .original_context = 64}},
          {"llama_yarn_below_one", {.scaling_type = "yarn", .scaling_factor = 0.5f, .original_context = 64}},
          {"llama_ntk", {.ntk_alpha = 4}},
          {"llama3_factors", {.rope_factors = true}},
          {"qwen2", {.architecture = "qwen2"}},
          {"qwen2_yarn", {.architecture = "qwen2", .scaling_type = "yarn", .scaling_factor = 4, .original_context = 64}},
          {"qwen3", {.architecture = "qwen3"}},
          {"qwen3_single_head", {.architecture = "qwen3", .num_query_heads = 1, .num_kv_heads = 1}},
          {"qwen3moe", {.architecture = "qwen3moe"}},
          {"qwen3moe_one_of_many", {.architecture = "qwen3moe", .num_experts = 40, .num_used_experts = 1}},
          {"qwen3moe_all", {.architecture = "qwen3moe", .num_experts = 4, .num_used_experts = 4}}};
}

class ModelVariantTest : public ::testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(Variants, ModelVariantTest, ::testing::ValuesIn(Variants()),
                         [](const auto& variant) { return variant.param.name; });

TEST_P(ModelVariantTest, LogitsAreThoseOfTheDoublePrecisionReference) {
  const TinyModel tiny(GetParam().options);
  const auto model = MustLoad(tiny);
  const std::vector<int32_t> tokens = RandomTokens(80, tiny.options().vocab);
  const std::vector<double> expected = Flat(tiny.Logits(tokens));
  for (int step_tokens : {80, 33, 1}) {
    ExactKvCache cache(tiny.shape());
    const std::vector<float> logits = RunSteps(*model, cache, *cache.NewSequence(), tokens, step_tokens);
    EXPECT_LE(RelativeL2(std::span(logits), std::span(expected)), kLogitsRelativeL2) << step_tokens;
  }
}

TEST_P(ModelVariantTest, RopeAnglesAreThoseOfTheReference) {
  const TinyModel tiny(GetParam().options);
  const auto model = MustLoad(tiny);
  const std::vector<float> angles = model->rope_angles();
  ASSERT_EQ(angles.size(), static_cast<size_t>(tiny.options().head_dim / 2));
  for (int pair = 0; pair < tiny.options().head_dim / 2; ++pair) {
    EXPECT_NEAR(angles[static_cast<size_t>(pair)] / tiny.AngleOf(pair), 1, 1e-5) << pair;
  }
}

TEST(Model, EveryKindOfRopeScalingChangesTheLogits) {
  const std::vector<int32_t> tokens = RandomTokens(80, 97);
  const std::vector<double> plain = Flat(TinyModel(TinyModelOptions{}).Logits(tokens));
  for (const Variant& variant : Variants()) {
    if (variant.options.architecture != "llama" || variant.name.find('_') == std::string::npos) continue;
    if (variant.options.scaling_type.empty() && variant.options.ntk_alpha == 0 && !variant.options.rope_factors) continue;
    if (variant.options.scaling_type == "none") continue;
    const std::vector<double> scaled = Flat(TinyModel(variant.options).Logits(tokens));
    EXPECT_GT(RelativeL2(std::span(scaled), std::span(plain)), 100 * kLogitsRelativeL2) << variant.name;
  }
}

class RowCollector final : public AttentionObserver {
 public:
  Status Observe(int layer, RowsView<const float> queries, RowsView<const float> keys, RowsView<const float> values) override {
    if (layer == fail_at) return {StatusCode::kCancelled, "enough"};
    if (layer == 0) layers.emplace_back();
    EXPECT_LT(layer, 8);
    layers.resize(std::max(layers.size(), static_cast<size_t>(layer) + 1));
    Collect(queries, layers[static_cast<size_t>(layer)].queries);
    Collect(keys, layers[static_cast<size_t>(layer)].keys);
    Collect(values, layers[static_cast<size_t>(layer)].values);
    return {};
  }
  std::vector<TinyLayerRows> layers;
  int fail_at = -1;

 private:
  static void Collect(RowsView<const float> rows, std::vector<std::vector<double>>& to) {
    for (int token = 0; token < rows.num_tokens; ++token) {
      to.emplace_back();
      for (int head = 0; head < rows.num_heads; ++head) to.back().insert(to.back().end(), rows.Row(token, head), rows.Row(token, head) + rows.head_dim);
    }
  }
};

TEST_P(ModelVariantTest, TheObserverSeesQueriesKeysAndValuesAsAttentionDoes) {
  const TinyModel tiny(GetParam().options);
  const auto model = MustLoad(tiny);
  const std::vector<int32_t> tokens = RandomTokens(20, tiny.options().vocab);
  std::vector<TinyLayerRows> expected;
  tiny.Logits(tokens, &expected);
  ExactKvCache cache(tiny.shape());
  RowCollector observer;
  const StepSequence step{.sequence = *cache.NewSequence(), .tokens = tokens};
  ASSERT_TRUE(model->Forward({&step, 1}, cache, nullptr, &observer).ok());
  ASSERT_EQ(observer.layers.size(), expected.size());
  for (size_t layer = 0; layer < expected.size(); ++layer) {
    const auto close = [&](const auto& actual, const auto& wanted) {
      const std::vector<double> a = Flat(actual), w = Flat(wanted);
      EXPECT_LE(RelativeL2(std::span(a), std::span(w)), kLogitsRelativeL2) << layer;
    };
    close(observer.layers[layer].queries, expected[layer].queries);
    close(observer.layers[layer].keys, expected[layer].keys);
    close(observer.layers[layer].values, expected[layer].values);
  }
}

TEST(Model, ConfigHasTheShapeOfTheFile) {
  const TinyModel tiny({.architecture = "qwen3", .scaling_type = "yarn", .scaling_factor = 4, .original_context = 128});
  const auto model = MustLoad(tiny);
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.architecture, "qwen3");
  EXPECT_EQ(config.name, "tiny qwen3");
  EXPECT_EQ(config.kv, tiny.shape());
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.ffn_size, 96);
  EXPECT_EQ(config.vocab_size, 97);
  EXPECT_EQ(config.max_context, 512);
  EXPECT_TRUE(config.rope_neox);
  EXPECT_EQ(config.rope_dims, 64);
  EXPECT_FLOAT_EQ(config.attention_scale, 0.125f);
  size_t bytes = 0;
  TinyModel copy = tiny;
  for (const auto& [name, values] : copy.tensors()) bytes += values.data.size() * sizeof(float);
  EXPECT_EQ(model->weight_bytes(), bytes);
  const bool tied = !copy.tensors().contains("output.weight");
  EXPECT_EQ(model->step_weight_bytes(), bytes - (tied ? 0 : 97 * 64 * sizeof(float)));
}

TEST(Model, SequencesOfOneBatchDoNotSeeEachOther) {
  const TinyModel tiny({.architecture = "qwen2"});
  const auto model = MustLoad(tiny);
  ExactKvCache cache(tiny.shape());
  const SequenceId a = *cache.NewSequence(), b = *cache.NewSequence(), c = *cache.NewSequence();
  const std::vector<int32_t> first = RandomTokens(30, 97, 1), second = RandomTokens(17, 97, 2), third = RandomTokens(1, 97, 3);
  RunSteps(*model, cache, b, std::span(second).first(5), 5);
  const StepSequence batch[] = {{.sequence = a, .tokens = first},
                                {.sequence = b, .tokens = std::span(second).subspan(5), .all_logits = true},
                                {.sequence = c, .tokens = third}};
  std::vector<float> logits;
  ASSERT_TRUE(model->Forward(batch, cache, &logits).ok());
  ASSERT_EQ(logits.size(), 97u * (1 + 12 + 1));
  std::vector<std::vector<double>> expected = {tiny.Logits(first).back()};
  const auto of_second = tiny.Logits(second);
  expected.insert(expected.end(), of_second.begin() + 5, of_second.end());
  expected.push_back(tiny.Logits(third).back());
  const std::vector<double> flat = Flat(expected);
  EXPECT_LE(RelativeL2(std::span(logits), std::span(flat)), kLogitsRelativeL2);
  EXPECT_EQ(cache.length(a), 30);
  EXPECT_EQ(cache.length(b), 17);
  EXPECT_EQ(cache.length(c), 1);
}

TEST(Model, GreedyStepsGiveTheTokensOfTheLargestLogits) {
  const TinyModel tiny({});
  const auto model = MustLoad(tiny);
  ExactKvCache caches[2] = {ExactKvCache(tiny.shape()), ExactKvCache(tiny.shape())};
  const std::vector<int32_t> tokens = RandomTokens(23, tiny.options().vocab);
  std::vector<float> logits;
  std::vector<int32_t> best;
  for (ExactKvCache& cache : caches) {
    const StepSequence step{*cache.NewSequence(), tokens, true};
    ASSERT_TRUE((&cache == caches ? model->Forward({&step, 1}, cache, &logits) : model->ForwardGreedy({&step, 1}, cache, &best)).ok());
    EXPECT_EQ(cache.length(step.sequence), 23);
  }
  ASSERT_EQ(best.size(), tokens.size());
  for (size_t row = 0; row < best.size(); ++row) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row) * tiny.options().vocab;
    EXPECT_EQ(best[row], std::max_element(begin, begin + tiny.options().vocab) - begin);
  }
}

TEST(Model, AFilledCacheIsAsLongAsAskedFor) {
  const TinyModel tiny({.context_length = 2048});
  const auto model = MustLoad(tiny);
  ExactKvCache cache(tiny.shape(), ExactKvCache::Precision::kF32, /*max_tokens=*/1500);
  const SequenceId sequence = *cache.NewSequence();
  const std::vector<int32_t> tokens = RandomTokens(kMaxStepTokens, tiny.options().vocab);
  const StepSequence step{sequence, tokens, false}, next{sequence, std::span(tokens).first(1), false};
  ASSERT_TRUE(model->Forward({&step, 1}, cache, nullptr).ok());
  ASSERT_TRUE(model->FillCache(sequence, 700, cache).ok());
  EXPECT_EQ(cache.length(sequence), kMaxStepTokens + 700);
  std::vector<float> logits;
  EXPECT_TRUE(model->Forward({&next, 1}, cache, &logits).ok());
  EXPECT_FALSE(model->FillCache(sequence, 700, cache).ok());  // no room
  EXPECT_TRUE(model->Forward({&next, 1}, cache, &logits).ok());
}

TEST(Model, AStepRepeatedGivesTheSameBits) {
  const TinyModel tiny(TinyModelOptions{});
  const auto model = MustLoad(tiny);
  const std::vector<int32_t> tokens = RandomTokens(40, 97);
  std::vector<std::vector<float>> runs;
  for (int run = 0; run < 2; ++run) {
    ExactKvCache cache(tiny.shape());
    runs.push_back(RunSteps(*model, cache, *cache.NewSequence(), tokens, 7));
  }
  EXPECT_EQ(runs[0], runs[1]);
}

// Logits of a sequence whose tokens come in steps of `step_tokens`, beside `others` sequences that take one token of their own in each step.
std::vector<float> InvariantLogits(Model& model, std::string_view method, std::span<const int32_t> tokens, size_t step_tokens, int others) {
  const KvShape& shape = model.config().kv;
  KvCacheConfig config{.shape = shape, .sink = 64, .recent = 64, .max_tokens = 8192, .max_sequences = 32, .batch_invariant = true};
  auto cache = KvCache::Create(*ParseKvMethod(method), std::move(DataFreeProfile(method, shape, model.rotary())).value(), config, model.executor());
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  std::vector<SequenceId> ids;
  for (int i = 0; i <= others; ++i) ids.push_back(*(*cache)->NewSequence());
  std::vector<float> all, logits;
  const size_t vocab = static_cast<size_t>(model.config().vocab_size);
  for (size_t start = 0; start < tokens.size(); start += step_tokens) {
    const size_t count = std::min(step_tokens, tokens.size() - start);
    std::vector<StepSequence> batch;
    for (int i = 1; i <= others; ++i) batch.push_back({.sequence = ids[static_cast<size_t>(i)], .tokens = tokens.subspan((start + static_cast<size_t>(i)) % tokens.size(), 1)});
    batch.push_back({.sequence = ids[0], .tokens = tokens.subspan(start, count), .all_logits = true});
    EXPECT_TRUE(model.Forward(batch, **cache, &logits).ok());
    all.insert(all.end(), logits.end() - static_cast<std::ptrdiff_t>(count * vocab), logits.end());
  }
  return all;
}

TEST(Model, InvariantRoundingMakesLogitsTheSameBitsInEveryBatchAndEveryStepSize) {
  for (const char* const architecture : {"qwen3", "qwen3moe"}) {
    const TinyModel tiny({.architecture = architecture, .context_length = 512});
    const auto path = TemporaryPath();
    tiny.WriteTo(path);
    auto model = Model::Load(std::move(io::GgufFile::Open(path)).value(), 2, Device::kCpu,
                             WeightPrecision::kStored, BatchRounding::kInvariant);
    std::filesystem::remove(path);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const std::vector<int32_t> tokens = RandomTokens(330, tiny.options().vocab);
    for (const char* method : {"int2:hadamard", "bf16"}) {
      const std::vector<float> one_by_one = InvariantLogits(**model, method, tokens, 1, 0);
      for (const auto& [step_tokens, others] :
           {std::pair<size_t, int>{64, 0}, {330, 0}, {1, 15}, {7, 3}, {256, 1}}) {
        EXPECT_EQ(InvariantLogits(**model, method, tokens, step_tokens, others), one_by_one)
            << architecture << " " << method << " " << step_tokens << " " << others;
      }
    }
  }
}

TEST(Model, TheNumberOfThreadsDoesNotChangeTheLogits) {
  const TinyModel tiny({.architecture = "qwen3"});
  const std::vector<int32_t> tokens = RandomTokens(12, 97);
  std::vector<std::vector<float>> runs;
  for (int num_threads : {1, 2, 3}) {
    auto model = LoadBytes(tiny.Bytes(), num_threads);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ((*model)->executor().num_threads(), num_threads);
    ExactKvCache cache(tiny.shape());
    runs.push_back(RunSteps(**model, cache, *cache.NewSequence(), tokens, 6));
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
}

TEST(Model, ManyStepShapesInTurnStayCorrect) {
  const TinyModel tiny(TinyModelOptions{});
  const auto model = MustLoad(tiny);
  const std::vector<int32_t> tokens = RandomTokens(140, 97);
  const std::vector<double> expected = Flat(tiny.Logits(tokens));
  ExactKvCache cache(tiny.shape());
  const SequenceId id = *cache.NewSequence();
  std::vector<float> all, logits;
  size_t start = 0;
  for (size_t count : {3, 1, 2, 5, 1, 20, 4, 1, 3, 60, 6, 1, 1, 20, 12}) {  // more shapes than are kept, and growing scratch
    const StepSequence step{.sequence = id, .tokens = std::span(tokens).subspan(start, count), .all_logits = true};
    ASSERT_TRUE(model->Forward({&step, 1}, cache, &logits).ok());
    all.insert(all.end(), logits.begin(), logits.end());
    start += count;
  }
  ASSERT_EQ(start, tokens.size());
  EXPECT_LE(RelativeL2(std::span(all), std::span(expected)), kLogitsRelativeL2);
}

TEST(Model, BadStepsAreRefusedAndCommitNothing) {
  const TinyModel tiny(TinyModelOptions{});
  const auto model = MustLoad(tiny);
  ExactKvCache cache(tiny.shape(), ExactKvCache::Precision::kF32, /*max_tokens=*/600);
  const SequenceId a = *cache.NewSequence(), b = *cache.NewSequence();
  std::vector<float> logits;
  const std::vector<int32_t> good = {1, 2, 3}, negative = {1, -1}, beyond = {97}, long_step(513, 1), half(300, 1);
  const auto expect = [&](std::vector<StepSequence> batch, StatusCode code, const char* part) {
    const Status status = model->Forward(batch, cache, &logits);
    EXPECT_EQ(status.code(), code) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_EQ(cache.length(a), 0);
    EXPECT_EQ(cache.length(b), 0);
  };
  expect({}, StatusCode::kInvalidArgument, "0 tokens");
  expect({{.sequence = a, .tokens = {}}}, StatusCode::kInvalidArgument, "0 tokens");
  expect({{.sequence = a, .tokens = negative}}, StatusCode::kInvalidArgument, "token -1");
  expect({{.sequence = a, .tokens = good}, {.sequence = b, .tokens = beyond}}, StatusCode::kInvalidArgument, "token 97");
  expect({{.sequence = a, .tokens = good}, {.sequence = a, .tokens = good}}, StatusCode::kInvalidArgument, "twice");
  expect({{.sequence = a, .tokens = long_step}}, StatusCode::kInvalidArgument, "513");
  expect({{.sequence = a, .tokens = half}, {.sequence = b, .tokens = half}}, StatusCode::kInvalidArgument, "600");
  expect({{.sequence = a, .tokens = good}, {.sequence = 99, .tokens = good}}, StatusCode::kNotFound, "99");
  ExactKvCache other({2, 4, 4, 64});
  const StepSequence step{.sequence = *other.NewSequence(), .tokens = good};
  EXPECT_EQ(model->Forward({&step, 1}, other, &logits).code(), StatusCode::kFailedPrecondition);
}

TEST(Model, AFullCacheOrAnObserverThatStopsCommitsNothing) {
  const TinyModel tiny(TinyModelOptions{});
  const auto model = MustLoad(tiny);
  ExactKvCache cache(tiny.shape(), ExactKvCache::Precision::kF32, /*max_tokens=*/8);
  const SequenceId a = *cache.NewSequence(), b = *cache.NewSequence();
  const std::vector<int32_t> four = {1, 2, 3, 4}, nine(9, 5);
  std::vector<float> logits;
  const StepSequence full[] = {{.sequence = a, .tokens = four}, {.sequence = b, .tokens = nine}};
  EXPECT_EQ(model->Forward(full, cache, &logits).code(), StatusCode::kResourceExhausted);
  RowCollector observer;
  observer.fail_at = 1;
  EXPECT_EQ(model->Forward({full, 1}, cache, &logits, &observer).code(), StatusCode::kCancelled);
  EXPECT_EQ(cache.length(a), 0);
  // And the sequence is as good as new.
  const std::vector<float> after = RunSteps(*model, cache, a, four, 4);
  const std::vector<double> expected = Flat(tiny.Logits(four));
  EXPECT_LE(RelativeL2(std::span(after), std::span(expected)), kLogitsRelativeL2);
}

TEST(Model, NonFiniteWeightsGiveAStatusThatNamesThePosition) {
  TinyModel tiny(TinyModelOptions{});
  tiny.tensors()["output_norm.weight"].data[3] = std::numeric_limits<float>::quiet_NaN();
  const auto model = MustLoad(tiny);
  ExactKvCache cache(tiny.shape());
  const SequenceId id = *cache.NewSequence();
  const std::vector<int32_t> tokens = {1, 2, 3};
  const StepSequence step{.sequence = id, .tokens = tokens};
  std::vector<float> logits;
  const Status status = model->Forward({&step, 1}, cache, &logits);
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_NE(status.message().find("position 2"), std::string::npos) << status.message();
  EXPECT_EQ(cache.length(id), 0);

  TinyModel bad_key(TinyModelOptions{});
  bad_key.tensors()["blk.1.attn_k.weight"].data[5] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(MustLoad(bad_key)->Forward({&step, 1}, cache, &logits).code(), StatusCode::kNonFinite);
  EXPECT_EQ(cache.length(id), 0);
}

TEST(Model, BadFilesAreRefusedByName) {
  const auto expect = [](const std::vector<std::byte>& bytes, StatusCode code, const std::string& part) {
    const auto model = LoadBytes(bytes);
    ASSERT_FALSE(model.ok()) << part;
    EXPECT_EQ(model.status().code(), code) << model.status().message();
    EXPECT_NE(model.status().message().find(part), std::string::npos) << model.status().message();
    EXPECT_NE(model.status().message().find(".gguf: "), std::string::npos) << model.status().message();
  };
  expect(oscar::testing::GgufBuilder().String("general.architecture", "mamba").Build(), StatusCode::kUnsupported, "\"mamba\"");
  expect(oscar::testing::GgufBuilder().String("x", "y").Build(), StatusCode::kNotFound, "general.architecture");
  const auto changed = [&](const auto& change) {
    TinyModel tiny(TinyModelOptions{});
    change(tiny.tensors());
    return tiny.Bytes();
  };
  expect(changed([](auto& t) { t.erase("blk.1.ffn_up.weight"); }), StatusCode::kNotFound, "blk.1.ffn_up.weight");
  expect(changed([](auto& t) { t["blk.0.attn_norm.weight"] = {{63}, std::vector<float>(63)}; }), StatusCode::kCorruptData,
         "\"blk.0.attn_norm.weight\" has dims [63] where the metadata asks for [64]");
  expect(changed([](auto& t) { t["token_embd.weight"].dims = {97, 64}; }), StatusCode::kCorruptData, "token_embd.weight");
  expect(changed([](auto& t) { t["blk.0.attn_sinks.weight"] = {{4}, std::vector<float>(4)}; }), StatusCode::kUnsupported,
         "blk.0.attn_sinks.weight");
  expect(changed([](auto& t) { t["rope_freqs.weight"] = {{32}, std::vector<float>(32)}; }), StatusCode::kCorruptData,
         "rope_freqs.weight");
  expect(TinyModel({.architecture = "llama", .scaling_type = "longrope"}).Bytes(), StatusCode::kUnsupported, "longrope");
  const auto whole = TinyModel(TinyModelOptions{}).Bytes();
  expect({whole.begin(), whole.end() - 100}, StatusCode::kCorruptData, "cut off");
  EXPECT_EQ(Model::Load("no/such/file.gguf", 1).status().code(), StatusCode::kNotFound);
  for (int num_threads : {0, -1, 513}) {
    EXPECT_EQ(LoadBytes(whole, num_threads).status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace oscar::engine
