// A model on a CUDA device against the same model on the CPU: distributions and greedy answers. Needs a GPU, and the .gguf files
// in the folder OSCAR_TEST_MODELS.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "src/base/cuda_memory.h"
#include "src/engine/models/model.h"
#include "src/engine/text/tokenizer.h"

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

struct Side {
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCache> cache;
  SequenceId sequence = 0;
  std::vector<float> logits;

  void Start(const std::string& method) {
    cache.reset();
    const KvMethod parsed = *ParseKvMethod(method);
    CodecProfile profile = *DataFreeProfile(method, model->config().kv, model->rotary());
    auto made = model->NewCache(parsed, std::move(profile), {.shape = model->config().kv, .max_tokens = 2048});
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

INSTANTIATE_TEST_SUITE_P(Real, CudaModelTest,
                         ::testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf", "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf"),
                         [](const auto& model) { return model.index == 0 ? "SmolLM2_135M" : "Qwen2_5_Coder_0_5B"; });

}  // namespace
}  // namespace oscar::engine
