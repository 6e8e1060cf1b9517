#include "src/engine/ops/cpu/ggml_ops.h"

#include <atomic>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "src/testing/closeness.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

using oscar::testing::NormalVector;
using oscar::testing::RelativeL2;

// A weight over quantised bytes of our own, and the values that those bytes stand for.
class TestWeight {
 public:
  TestWeight(ggml_type type, std::vector<int64_t> dims, const std::vector<float>& values) {
    context_ = ggml_init({.mem_size = 2 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true});
    weight.name = ggml_type_name(type);
    weight.type = type;
    weight.dims = dims;
    weight.tensor = ggml_new_tensor(context_, type, static_cast<int>(dims.size()), dims.data());
    bytes_ = std::move(base::Buffer::Allocate(ggml_nbytes(weight.tensor))).value();
    weight.tensor->data = bytes_.data();
    weight.bytes = bytes_.bytes();
    if (IsSlowToQuantize(type)) FillWithRandomBlocks(type);
    else ggml_quantize_chunk(type, values.data(), bytes_.data(), 0, static_cast<int64_t>(values.size()) / dims[0], dims[0], nullptr);
    stored.resize(values.size());
    if (type == GGML_TYPE_F32) stored = values;
    else ggml_get_type_traits(type)->to_float(bytes_.data(), stored.data(), static_cast<int64_t>(stored.size()));
  }
  ~TestWeight() { ggml_free(context_); }
  TestWeight(const TestWeight&) = delete;
  TestWeight& operator=(const TestWeight&) = delete;

  Weight weight;
  std::vector<float> stored;

 private:
  // Types whose quantiser first builds tables for seconds; any bytes are a block of theirs.
  static bool IsSlowToQuantize(ggml_type type) {
    return type == GGML_TYPE_IQ2_XXS || type == GGML_TYPE_IQ2_XS || type == GGML_TYPE_IQ2_S || type == GGML_TYPE_IQ1_S ||
           type == GGML_TYPE_IQ1_M;
  }
  void FillWithRandomBlocks(ggml_type type) {
    std::mt19937_64 rng(type);
    for (std::byte& byte : bytes_.bytes()) byte = static_cast<std::byte>(rng());
    for (size_t block = 0; block < bytes_.size(); block += ggml_type_size(type)) {
      // The high byte of the f16 scale: first in the block, or for iq1_m spread over the last bytes. 2^-4 to 2^-7.
      const size_t high = type == GGML_TYPE_IQ1_M ? ggml_type_size(type) - 1 : 1;
      bytes_.data()[block + high] = type == GGML_TYPE_IQ1_M ? (bytes_.data()[block + high] & std::byte{0x0F}) | std::byte{0x20}
                                                            : std::byte{0x2C};
    }
  }

  ggml_context* context_;
  base::Buffer bytes_;
};

std::vector<ggml_type> WeightTypes() {
  ggml_cpu_init();
  std::vector<ggml_type> types;
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (ggml_blck_size(type) > 0 && ggml_get_type_traits_cpu(type)->vec_dot != nullptr) types.push_back(type);
  }
  return types;
}

// x rows times stored rows, in double.
std::vector<double> Product(const std::vector<float>& stored, const std::vector<float>& x, size_t in) {
  std::vector<double> y;
  for (size_t row = 0; row < x.size() / in; ++row) {
    for (size_t out = 0; out < stored.size() / in; ++out) {
      double sum = 0;
      for (size_t i = 0; i < in; ++i) sum += static_cast<double>(x[row * in + i]) * stored[out * in + i];
      y.push_back(sum);
    }
  }
  return y;
}

TEST(GgmlOps, MatMulAndEmbedWorkForEveryTypeOfWeights) {
  constexpr int kIn = 512, kOut = 24;
  // ggml rounds the activations to 8 bits per element (to the weights' own 16 bits for f16 and bf16).
  constexpr double kActivationRounding = 0.02;
  std::mt19937_64 rng(5);
  const std::vector<float> values = NormalVector(rng, kIn * kOut);
  const std::vector<ggml_type> types = WeightTypes();
  EXPECT_GE(types.size(), 25u);
  GgmlOps ops(2, 32);
  int shape = 0;
  for (ggml_type type : types) {
    const TestWeight matrix(type, {kIn, kOut}, values);
    for (int rows : {1, 3, 7, 8, 17}) {
      std::vector<float> x = NormalVector(rng, static_cast<size_t>(kIn * rows));
      std::vector<float> y(static_cast<size_t>(kOut * rows)), embedded(static_cast<size_t>(kIn * rows));
      ops.Bind(Slot::kHidden, x.data());
      ops.Bind(Slot::kQuery, y.data());
      ops.Bind(Slot::kKey, embedded.data());
      std::vector<int32_t> tokens, positions(static_cast<size_t>(rows));
      for (int i = 0; i < rows; ++i) tokens.push_back((7 * i + 5) % kOut);
      ops.SetInputs(tokens, positions, {});
      ASSERT_TRUE(ops.Begin({.segment = shape++, .num_tokens = rows}));
      ops.Store(ops.MatMul(matrix.weight, ops.Load(Slot::kHidden, kIn)), Slot::kQuery);
      ops.Store(ops.Embed(matrix.weight), Slot::kKey);
      ASSERT_TRUE(ops.Submit().ok());
      const std::vector<double> expected = Product(matrix.stored, x, kIn);
      EXPECT_LE(RelativeL2(std::span(y), std::span(expected)), kActivationRounding) << matrix.weight.name << " " << rows;
      for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < kIn; ++j) {
          ASSERT_EQ(embedded[static_cast<size_t>(i * kIn + j)], matrix.stored[static_cast<size_t>(tokens[static_cast<size_t>(i)] * kIn + j)])
              << matrix.weight.name;
        }
      }
    }
  }
}

// Rows [count, out] of x times the weight, in one step.
std::vector<float> RowsOf(GgmlOps& ops, const Weight& weight, std::span<const float> x, int count, int segment) {
  std::vector<float> rows(x.begin(), x.end()), y(static_cast<size_t>(weight.dims[1] * count));
  ops.Bind(Slot::kHidden, rows.data());
  ops.Bind(Slot::kQuery, y.data());
  const std::vector<int32_t> inputs(static_cast<size_t>(count));
  ops.SetInputs(inputs, inputs, {});
  EXPECT_TRUE(ops.Begin({.segment = segment, .num_tokens = count}));
  ops.Store(ops.MatMul(weight, ops.Load(Slot::kHidden, static_cast<int>(weight.dims[0]))), Slot::kQuery);
  EXPECT_TRUE(ops.Submit().ok());
  return y;
}

TEST(GgmlOps, InvariantProductsHaveTheBitsOfARowAloneForEveryTypeOfWeights) {
  constexpr int kIn = 512, kOut = 37, kRows = 19;
  std::mt19937_64 rng(6);
  const std::vector<float> values = NormalVector(rng, kIn * kOut), x = NormalVector(rng, kIn * kRows);
  GgmlOps plain(2, 32), invariant(2, 32, BatchRounding::kInvariant);
  int segment = 0;
  for (const ggml_type type : WeightTypes()) {
    const TestWeight matrix(type, {kIn, kOut}, values);
    const std::vector<float> together = RowsOf(invariant, matrix.weight, x, kRows, segment);
    for (int row = 0; row < kRows; ++row) {
      const std::span<const float> part = std::span(x).subspan(static_cast<size_t>(row * kIn), kIn);
      const std::vector<float> expected(together.begin() + row * kOut, together.begin() + (row + 1) * kOut);
      ++segment;
      ASSERT_EQ(RowsOf(invariant, matrix.weight, part, 1, segment), expected) << matrix.weight.name << " row " << row;
      if (row < 2) {
        EXPECT_EQ(RowsOf(plain, matrix.weight, part, 1, segment), expected) << matrix.weight.name << ": not what a step of one row computes";
      }
    }
    ++segment;
  }
}

TEST(GgmlOps, AKeptRecordingRunsOnNewInputsAndNewMemory) {
  constexpr int kWidth = 8;
  GgmlOps ops(2, 4);
  const TestWeight table(GGML_TYPE_F32, {kWidth, 3}, [] {
    std::vector<float> values;
    for (int i = 0; i < 3 * kWidth; ++i) values.push_back(static_cast<float>(i));
    return values;
  }());
  std::vector<float> first(2 * kWidth), second(2 * kWidth);
  const std::vector<int32_t> ids_a = {2, 0}, ids_b = {1, 1}, positions = {0, 1};
  ops.Bind(Slot::kHidden, first.data());
  ops.SetInputs(ids_a, positions, {});
  ASSERT_TRUE(ops.Begin({.num_tokens = 2}));
  ops.Store(ops.Embed(table.weight), Slot::kHidden);
  ASSERT_TRUE(ops.Submit().ok());
  EXPECT_EQ(first[0], 16);
  EXPECT_EQ(first[kWidth], 0);
  ops.Bind(Slot::kHidden, second.data());
  ops.SetInputs(ids_b, positions, {});
  ASSERT_FALSE(ops.Begin({.num_tokens = 2})) << "the recording must be kept";
  ASSERT_TRUE(ops.Submit().ok());
  EXPECT_EQ(second[0], 8);
  EXPECT_EQ(first[0], 16) << "the old memory is left alone";
}

TEST(GgmlOps, GatherOutputRowsKeepsTheRowsAskedFor) {
  GgmlOps ops(1, 4);
  std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8}, twice(4);
  ops.Bind(Slot::kHidden, x.data());
  ops.Bind(Slot::kLogits, twice.data());
  const std::vector<int32_t> tokens(4), output_rows = {1, 3};
  ops.SetInputs(tokens, tokens, output_rows);
  ASSERT_TRUE(ops.Begin({.num_tokens = 4, .num_output_rows = 2}));
  const Tensor gathered = ops.GatherOutputRows(ops.Load(Slot::kHidden, 2));
  ops.Store(ops.Add(gathered, gathered), Slot::kLogits);
  ASSERT_TRUE(ops.Submit().ok());
  EXPECT_EQ(twice, (std::vector<float>{6, 8, 14, 16}));
}

TEST(GgmlOps, RmsNormTakesWholeRowsOrEachHead) {
  constexpr int kHeadDim = 4;
  std::mt19937_64 rng(8);
  std::vector<float> x = NormalVector(rng, 3 * 2 * kHeadDim), y(x.size());
  const TestWeight gain(GGML_TYPE_F32, {kHeadDim}, {1, 2, 3, 4});
  GgmlOps ops(2, 3);
  ops.Bind(Slot::kHidden, x.data());
  ops.Bind(Slot::kQuery, y.data());
  const std::vector<int32_t> tokens(3);
  ops.SetInputs(tokens, tokens, {});
  ASSERT_TRUE(ops.Begin({.num_tokens = 3}));
  ops.Store(ops.RmsNorm(ops.Load(Slot::kHidden, 2 * kHeadDim), gain.weight, 1e-6f), Slot::kQuery);
  ASSERT_TRUE(ops.Submit().ok());
  for (size_t head = 0; head < 6; ++head) {
    double squares = 0;
    for (size_t i = 0; i < kHeadDim; ++i) squares += std::pow(x[head * kHeadDim + i], 2);
    for (size_t i = 0; i < kHeadDim; ++i) {
      const double expected = x[head * kHeadDim + i] / std::sqrt(squares / kHeadDim + 1e-6) * static_cast<double>(i + 1);
      EXPECT_NEAR(y[head * kHeadDim + i], expected, 1e-5);
    }
  }
}

TEST(GgmlExecutor, EveryThreadRunsTheTaskOncePerRun) {
  for (int num_threads : {1, 2, 3}) {
    GgmlExecutor executor(num_threads);
    std::vector<std::atomic<int>> calls(static_cast<size_t>(num_threads));
    std::atomic<int> wrong_counts = 0;
    for (int run = 0; run < 50; ++run) {
      RunOn(executor, [&](int thread, int count) {
        ++calls[static_cast<size_t>(thread)];
        wrong_counts += count != num_threads;
      });
    }
    for (const auto& count : calls) EXPECT_EQ(count, 50);
    EXPECT_EQ(wrong_counts, 0);
  }
}

TEST(GgmlExecutorDeathTest, ARunInsideARunAborts) {
  EXPECT_DEATH(
      {
        GgmlExecutor executor(1);
        RunOn(executor, [&](int, int) { RunOn(executor, [](int, int) {}); });
      },
      "re-entrant");
}

TEST(MakeOps, ADeviceThatIsNotThereIsRefused) {
  EXPECT_TRUE(MakeOps(Device::kCpu, 1, 1).ok());
  const auto ops = MakeOps(Device::kCuda, 1, 1);  // fine where there is a GPU
  if (!ops.ok()) {
    EXPECT_EQ(ops.status().code(), StatusCode::kUnsupported) << ops.status().message();
  }
}

}  // namespace
}  // namespace oscar::engine
