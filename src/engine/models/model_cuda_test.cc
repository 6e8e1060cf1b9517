// A model on a CUDA device against the same model on the CPU: distributions and greedy answers. Needs a GPU, and the .gguf files
// in the folder OSCAR_TEST_MODELS.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>

#include "src/base/cuda_memory.h"
#include "src/engine/sample/sampler.h"
#include "src/engine/models/model.h"
#include "src/engine/text/tokenizer.h"
#include "src/testing/tiny_model.h"

namespace oscar::engine {
namespace {

constexpr int kThreads = 8;
constexpr char kText[] =
    "The cache of a transformer holds a key and a value for every token that it has read. It grows with the text, and "
    "when a text is long it is larger than the weights. Most of what it holds is read once per generated token, and so the "
    "speed of long answers is the speed of memory. ";

// KL(p || q) of two rows of logits, in nats.
double Divergence(const float* p, const float* q, int size) {
  const auto log_sum = [&](const float* x) {
    const double top = *std::max_element(x, x + size);
    double sum = 0;
    for (int i = 0; i < size; ++i) sum += std::exp(static_cast<double>(x[i]) - top);
    return top + std::log(sum);
  };
  const double log_p = log_sum(p), log_q = log_sum(q);
  double kl = 0;
  for (int i = 0; i < size; ++i) {
    const double a = static_cast<double>(p[i]) - log_p;
    kl += std::exp(a) * (a - (static_cast<double>(q[i]) - log_q));
  }
  return kl;
}

double SquaresOf(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum;
}

struct Side {
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCache> cache;
  SequenceId sequence = 0;
  std::vector<float> logits;

  void Start(const std::string& method) {
    cache.reset();
    const KvMethod parsed = *ParseKvMethod(method);
    CodecProfile profile = *DataFreeProfile(method, model->config().kv, model->rotary());
    auto made = model->NewCache(parsed, std::move(profile), {.shape = model->config().kv, .max_tokens = 2048, .max_sequences = 2});
    ASSERT_TRUE(made.ok()) << made.status().message();
    cache = std::move(made).value();
    sequence = *cache->NewSequence();
  }
  void Forward(std::span<const int32_t> tokens, bool all_logits) {
    const StepSequence step{sequence, tokens, all_logits};
    const Status done = model->Forward({&step, 1}, *cache, &logits);
    ASSERT_TRUE(done.ok()) << done.message();
  }
};

// 800 tokens of prose.
std::vector<int32_t> TokensOfText(const Model& model) {
  const auto tokenizer = std::move(Tokenizer::Create(model.metadata())).value();
  std::string text;
  while (text.size() < 4000) text += kText + std::to_string(text.size()) + " bytes so far. ";
  std::vector<int32_t> tokens = *tokenizer->Encode(text, {});
  tokens.resize(std::min<size_t>(tokens.size(), 800));
  return tokens;
}

class CudaModelTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaModelTest, DistributionsAndGreedyTokensAreThoseOfTheCpu) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  const char* folder = std::getenv("OSCAR_TEST_MODELS");
  if (folder == nullptr) GTEST_SKIP() << "OSCAR_TEST_MODELS is not set";
  const auto path = std::filesystem::path(folder) / GetParam();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  Side cpu, device;
  cpu.model = std::move(Model::Load(path, kThreads)).value();
  auto loaded = Model::Load(path, kThreads, Device::kCuda);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  device.model = std::move(loaded).value();
  const std::vector<int32_t> tokens = TokensOfText(*cpu.model);
  const int vocab = cpu.model->config().vocab_size;
  // Exact rows only: codes at the edge of two levels would amplify the last bits of a row. kv_cache_cuda_test.cc compares the
  // codes of equal rows.
  {
    const char* const method = "bf16";
    cpu.Start(method);
    device.Start(method);
    double sum = 0, same_top = 0;
    const size_t lengths[] = {300, 1, 180, 2, 317};
    size_t at = 0;
    for (const size_t length : lengths) {
      const auto part = std::span<const int32_t>(tokens).subspan(at, std::min(length, tokens.size() - at));
      cpu.Forward(part, true);
      device.Forward(part, true);
      for (size_t row = 0; row < part.size(); ++row) {
        const float *p = cpu.logits.data() + row * vocab, *q = device.logits.data() + row * vocab;
        sum += Divergence(p, q, vocab);
        same_top += std::max_element(p, p + vocab) - p == std::max_element(q, q + vocab) - q;
      }
      at += part.size();
    }
    const double mean = sum / static_cast<double>(at);
    std::printf("%s %s: KL between devices %.2e nats, same top token %.4f, %zu tokens\n", GetParam(), method, mean,
                same_top / static_cast<double>(at), at);
    EXPECT_LE(mean, 1e-3) << method;
    // Greedy answers, each device on its own; they may part where two tokens are nearly as likely.
    int equal = 0;
    bool parted = false;
    for (int i = 0; i < 64; ++i) {
      const auto best = [&](const Side& side) {
        const float* last = side.logits.data() + side.logits.size() - vocab;
        return static_cast<int32_t>(std::max_element(last, last + vocab) - last);
      };
      const int32_t a = best(cpu), b = best(device);
      parted |= a != b;
      equal += parted ? 0 : 1;
      cpu.Forward({&a, 1}, false);
      device.Forward({&b, 1}, false);
    }
    std::printf("%s %s: the first %d of 64 greedy tokens are equal\n", GetParam(), method, equal);
  }
}

// The same device with weights in BF16 and in FP8: what rounding weights, and rows of large steps, to three bits of mantissa costs.
TEST_P(CudaModelTest, Fp8WeightsKeepDistributions) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  const char* folder = std::getenv("OSCAR_TEST_MODELS");
  if (folder == nullptr) GTEST_SKIP() << "OSCAR_TEST_MODELS is not set";
  const auto path = std::filesystem::path(folder) / GetParam();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  Side stored, rounded;
  for (const auto& [side, precision] : {std::pair{&stored, WeightPrecision::kStored}, {&rounded, WeightPrecision::kFp8}}) {
    auto loaded = Model::Load(std::move(io::GgufFile::Open(path)).value(), kThreads, Device::kCuda, precision);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    side->model = std::move(loaded).value();
  }
  const std::vector<int32_t> tokens = TokensOfText(*stored.model);
  const int vocab = stored.model->config().vocab_size;
  for (const size_t step : {size_t{400}, size_t{1}}) {  // cuBLASLt, and the kernel for few rows
    const size_t end = step == 1 ? 200 : tokens.size();
    double sum = 0, same_top = 0;
    stored.Start("bf16");
    rounded.Start("bf16");
    for (size_t at = 0; at < end; at += step) {
      const auto part = std::span<const int32_t>(tokens).subspan(at, std::min(step, end - at));
      stored.Forward(part, true);
      rounded.Forward(part, true);
      for (size_t row = 0; row < part.size(); ++row) {
        const float *p = stored.logits.data() + row * vocab, *q = rounded.logits.data() + row * vocab;
        sum += Divergence(p, q, vocab);
        same_top += std::max_element(p, p + vocab) - p == std::max_element(q, q + vocab) - q;
      }
    }
    const auto count = static_cast<double>(end);
    std::printf("%s: KL of FP8 weights %.2e nats, same top token %.4f, %zu tokens in steps of %zu\n", GetParam(), sum / count, same_top / count, end, step);
    EXPECT_LE(sum / count, 0.1);
  }
}

std::unique_ptr<Model> LoadTiny(const testing::TinyModel& tiny, BatchRounding rounding, WeightPrecision precision = WeightPrecision::kStored) {
  const auto path = std::filesystem::path(::testing::TempDir()) / ("oscar_tiny_" + std::to_string(::getpid()) + ".gguf");
  tiny.WriteTo(path);
  auto model = Model::Load(std::move(io::GgufFile::Open(path)).value(), 1, Device::kCuda, precision, rounding);
  std::filesystem::remove(path);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::move(model).value() : nullptr;
}

// Single tokens of two sequences: the first steps run segment by segment, the others as one recording, in which norm and RoPE of Q and K
// are the cache's. Every other step takes the best tokens only.
TEST(CudaTinyModel, LogitsAndBestTokensAreThoseInDouble) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* const architecture : {"llama", "qwen2", "qwen3", "qwen3moe"}) {
    SCOPED_TRACE(architecture);
    testing::TinyModelOptions options;
    options.architecture = architecture;
    const testing::TinyModel tiny(options);
    Side side;
    side.model = LoadTiny(tiny, BatchRounding::kFree);
    ASSERT_NE(side.model, nullptr);
    side.Start("bf16");
    const SequenceId sequences[2] = {side.sequence, *side.cache->NewSequence()};
    std::mt19937_64 rng(3);
    std::vector<int32_t> texts[2];
    const auto lengthen = [&](int s, int count) {
      for (int i = 0; i < count; ++i) texts[s].push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(options.vocab)));
      return StepSequence{sequences[s], std::span(texts[s]).last(static_cast<size_t>(count)), false};
    };
    for (int step = 0; step < 16; ++step) {
      const StepSequence batch[2] = {lengthen(0, step == 0 ? 40 : 1), lengthen(1, step == 0 ? 70 : 1)};
      const bool is_greedy = step % 2 == 1;
      std::vector<int32_t> best;
      const Status done = is_greedy ? side.model->ForwardGreedy(batch, *side.cache, &best) : side.model->Forward(batch, *side.cache, &side.logits);
      ASSERT_TRUE(done.ok()) << done.message();
      for (size_t s = 0; s < 2; ++s) {
        const std::vector<double> expected = tiny.Logits(texts[s]).back();
        const double top = *std::max_element(expected.begin(), expected.end()), size = std::sqrt(SquaresOf(expected));
        if (is_greedy) {
          EXPECT_GT(expected[static_cast<size_t>(best[s])], top - 0.02 * size) << "step " << step;
          continue;
        }
        std::vector<double> difference = expected;
        for (size_t i = 0; i < expected.size(); ++i) difference[i] -= static_cast<double>(side.logits[s * expected.size() + i]);
        // Weights are rounded to BF16 on the device.
        EXPECT_LE(std::sqrt(SquaresOf(difference)), 0.02 * size) << "step " << step << " sequence " << s;
      }
    }
  }
}

// Weights and rows in FP8: 3 bits of mantissa, so each product adds about 4 % of noise. Steps of many, few and recorded rows.
TEST(CudaTinyModel, Fp8LogitsAreNearThoseInDouble) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* const architecture : {"llama", "qwen2", "qwen3"}) {
    SCOPED_TRACE(architecture);
    testing::TinyModelOptions options;
    options.architecture = architecture;
    const testing::TinyModel tiny(options);
    Side side;
    side.model = LoadTiny(tiny, BatchRounding::kFree, WeightPrecision::kFp8);
    ASSERT_NE(side.model, nullptr);
    side.Start("bf16");
    std::mt19937_64 rng(5);
    std::vector<int32_t> text;
    double squares = 0, error = 0;
    for (int step = 0; step < 8; ++step) {
      const int count = step == 0 ? 90 : 1;
      for (int i = 0; i < count; ++i) text.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(options.vocab)));
      side.Forward(std::span(text).last(static_cast<size_t>(count)), false);
      std::vector<double> expected = tiny.Logits(text).back();
      squares += SquaresOf(expected);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] -= static_cast<double>(side.logits[i]);
      error += SquaresOf(expected);
    }
    std::printf("%s: FP8 logits are %.3f of their size off\n", architecture, std::sqrt(error / squares));
    EXPECT_LE(std::sqrt(error / squares), 0.2);
  }
  const testing::TinyModel tiny({});
  const auto path = std::filesystem::path(::testing::TempDir()) / ("oscar_tiny_fp8_" + std::to_string(::getpid()) + ".gguf");
  tiny.WriteTo(path);
  const auto refused = Model::Load(std::move(io::GgufFile::Open(path)).value(), 1, Device::kCuda, WeightPrecision::kFp8, BatchRounding::kInvariant);
  std::filesystem::remove(path);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  testing::TinyModel({.architecture = "qwen3moe"}).WriteTo(path);
  const auto experts = Model::Load(std::move(io::GgufFile::Open(path)).value(), 1, Device::kCuda, WeightPrecision::kFp8);
  std::filesystem::remove(path);
  EXPECT_EQ(experts.status().code(), StatusCode::kUnsupported) << experts.status().message();
}

// Tokens drawn on the device are those that a Sampler draws from the logits of the same step, and positions count.
TEST(CudaTinyModel, DrawnTokensAreThoseOfASampler) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  const testing::TinyModel tiny({});
  Side drawing, reading;
  for (Side* const side : {&drawing, &reading}) {
    side->model = LoadTiny(tiny, BatchRounding::kFree);
    ASSERT_NE(side->model, nullptr);
    side->Start("bf16");
  }
  ASSERT_TRUE(drawing.model->draws_tokens());
  const SamplingParams params = {.temperature = 2.0f, .top_k = 40, .top_p = 0.95f, .min_p = 0.01f, .repetition_penalty = 1.2f, .presence_penalty = 0.5f,
                                 .frequency_penalty = 0.25f, .logit_bias = {{7, 3.0f}}, .seed = 11};
  Sampler sampler = std::move(Sampler::Create(params, tiny.options().vocab)).value();
  int32_t token = 5;
  std::set<int32_t> seen;
  for (int64_t position = 0; position < 64; ++position) {
    reading.Forward({&token, 1}, false);
    const StepSequence step{drawing.sequence, {&token, 1}, false};
    const TokenDraw draw = sampler.DrawAt(position);
    std::vector<int32_t> drawn;
    const Status done = drawing.model->ForwardDrawn({&step, 1}, *drawing.cache, {&draw, 1}, &drawn);
    ASSERT_TRUE(done.ok()) << done.message();
    const auto expected = sampler.Sample(reading.logits, position);
    ASSERT_TRUE(expected.ok());
    ASSERT_EQ(drawn, std::vector<int32_t>{*expected}) << position;
    token = *expected;
    sampler.Accept(token, false);
    seen.insert(token);
  }
  EXPECT_GT(seen.size(), 10u);
}

// Logits of a sequence whose tokens come in steps of `step_tokens`, beside `others` sequences that take one token of their own in each.
std::vector<float> InvariantLogits(Model& model, const char* method, std::span<const int32_t> tokens, size_t step_tokens, int others) {
  const KvShape& shape = model.config().kv;
  KvCacheConfig config{.shape = shape, .sink = 64, .recent = 64, .max_tokens = 8192, .max_sequences = 32, .batch_invariant = true};
  auto cache = model.NewCache(*ParseKvMethod(method), std::move(DataFreeProfile(method, shape, model.rotary())).value(), config);
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  std::vector<SequenceId> ids;
  for (int i = 0; i <= others; ++i) ids.push_back(*(*cache)->NewSequence());
  std::vector<float> all, logits;
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  for (size_t start = 0; start < tokens.size(); start += step_tokens) {
    const size_t count = std::min(step_tokens, tokens.size() - start);
    std::vector<StepSequence> batch;
    for (int i = 1; i <= others; ++i) {
      batch.push_back({.sequence = ids[static_cast<size_t>(i)], .tokens = tokens.subspan((start + static_cast<size_t>(i)) % tokens.size(), 1)});
    }
    batch.push_back({.sequence = ids[0], .tokens = tokens.subspan(start, count), .all_logits = true});
    const Status done = model.Forward(batch, **cache, &logits);
    EXPECT_TRUE(done.ok()) << done.message();
    all.insert(all.end(), logits.end() - static_cast<std::ptrdiff_t>(count * vocab), logits.end());
  }
  return all;
}

TEST(CudaTinyModel, InvariantRoundingMakesLogitsTheSameBitsInEveryBatchAndEveryStepSize) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* const architecture : {"qwen2", "qwen3", "qwen3moe"}) {
    const testing::TinyModel tiny({.architecture = architecture, .context_length = 1024});
    const auto model = LoadTiny(tiny, BatchRounding::kInvariant);
    ASSERT_NE(model, nullptr);
    std::mt19937_64 rng(4);
    std::vector<int32_t> tokens(530);
    for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % static_cast<uint64_t>(tiny.options().vocab));
    for (const char* const method : {"int2:hadamard", "bf16"}) {
      const std::vector<float> one_by_one = InvariantLogits(*model, method, tokens, 1, 0);
      for (const auto& [step_tokens, others] : {std::pair<size_t, int>{64, 0}, {512, 0}, {1, 15}, {7, 3}, {256, 1}}) {
        EXPECT_EQ(InvariantLogits(*model, method, tokens, step_tokens, others), one_by_one)
            << architecture << " " << method << " " << step_tokens << " " << others;
      }
    }
  }
}

const char* const kModelNames[] = {"SmolLM2_135M", "Qwen2_5_Coder_0_5B", "Qwen2_5_Coder_1_5B"};
INSTANTIATE_TEST_SUITE_P(Real, CudaModelTest,
                         ::testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf", "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
                                           "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf"),
                         [](const auto& model) { return kModelNames[model.index]; });

}  // namespace
}  // namespace oscar::engine
