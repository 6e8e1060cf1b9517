// A model on a CUDA device against the same model on the CPU: distributions and greedy answers. Needs a GPU, and the .gguf files
// in the folder OSCAR_TEST_MODELS.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "src/base/cuda_memory.h"
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
  const auto tokenizer = std::move(Tokenizer::Create(cpu.model->metadata())).value();
  std::string text;
  while (text.size() < 4000) text += kText + std::to_string(text.size()) + " bytes so far. ";
  std::vector<int32_t> tokens = *tokenizer->Encode(text, {});
  tokens.resize(std::min<size_t>(tokens.size(), 800));
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

// Single tokens of two sequences: the first steps run segment by segment, the others as one recording, in which norm and RoPE of Q and K
// are the cache's. Every other step takes the best tokens only.
TEST(CudaTinyModel, LogitsAndBestTokensAreThoseInDouble) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* const architecture : {"llama", "qwen2", "qwen3"}) {
    SCOPED_TRACE(architecture);
    testing::TinyModelOptions options;
    options.architecture = architecture;
    const testing::TinyModel tiny(options);
    const auto path = std::filesystem::path(::testing::TempDir()) / ("oscar_tiny_" + std::to_string(::getpid()) + ".gguf");
    tiny.WriteTo(path);
    Side side;
    side.model = std::move(Model::Load(path, 1, Device::kCuda)).value();
    std::filesystem::remove(path);
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

INSTANTIATE_TEST_SUITE_P(Real, CudaModelTest,
                         ::testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf", "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf"),
                         [](const auto& model) { return model.index == 0 ? "SmolLM2_135M" : "Qwen2_5_Coder_0_5B"; });

}  // namespace
}  // namespace oscar::engine
