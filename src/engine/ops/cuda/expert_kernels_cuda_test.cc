// Mixtures of experts on a CUDA device against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "src/base/cuda_memory.h"
#include "src/base/float_bits.h"
#include "src/engine/ops/cuda/expert_kernels.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

bool HasDevice() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

// A matrix of normal values, rounded to bf16: its bits and their values.
struct Matrix {
  std::vector<double> values;
  cuda::DeviceArray<uint16_t> device;

  Matrix(std::mt19937_64& rng, size_t rows, size_t width) {
    std::vector<uint16_t> bits;
    for (const float value : testing::NormalVector(rng, rows * width, 1 / std::sqrt(static_cast<float>(width)))) {
      bits.push_back(base::Bf16FromF32(value));
      values.push_back(static_cast<double>(base::F32FromBf16(bits.back())));
    }
    EXPECT_TRUE(device.Upload(bits, nullptr).ok());
  }
  // Rows [first, first + out.size()) times x.
  std::vector<double> Multiply(size_t first, size_t count, const std::vector<double>& x) const {
    std::vector<double> out(count);
    for (size_t row = 0; row < count; ++row) {
      for (size_t i = 0; i < x.size(); ++i) out[row] += values[(first + row) * x.size() + i] * x[i];
    }
    return out;
  }
};

struct Mixture {
  int hidden, ffn, num_experts, num_used;
  std::mt19937_64 rng{testing::TestSeed(17)};
  Matrix router{rng, static_cast<size_t>(num_experts), static_cast<size_t>(hidden)};
  Matrix gate{rng, static_cast<size_t>(num_experts * ffn), static_cast<size_t>(hidden)};
  Matrix up{rng, static_cast<size_t>(num_experts * ffn), static_cast<size_t>(hidden)};
  Matrix down{rng, static_cast<size_t>(num_experts * hidden), static_cast<size_t>(ffn)};

  std::vector<double> Expected(const float* row) const {
    const std::vector<double> x(row, row + hidden);
    const auto f = static_cast<size_t>(ffn), h = static_cast<size_t>(hidden);
    const std::vector<double> logits = router.Multiply(0, static_cast<size_t>(num_experts), x);
    std::vector<std::pair<double, size_t>> scores;
    for (size_t e = 0; e < logits.size(); ++e) scores.emplace_back(-logits[e], e);
    std::ranges::sort(scores);
    scores.resize(static_cast<size_t>(num_used));
    double sum = 0;
    std::vector<double> out(h);
    for (const auto& [score, e] : scores) {
      std::vector<double> gated = gate.Multiply(e * f, f, x);
      const std::vector<double> second = up.Multiply(e * f, f, x);
      for (size_t i = 0; i < f; ++i) gated[i] = gated[i] / (1 + std::exp(-gated[i])) * second[i];
      const std::vector<double> part = down.Multiply(e * h, h, gated);
      for (size_t i = 0; i < h; ++i) out[i] += std::exp(-score) * part[i];
      sum += std::exp(-score);
    }
    for (double& value : out) value /= sum;
    return out;
  }

  std::vector<float> OnDevice(const std::vector<float>& rows) const {
    const int num_rows = static_cast<int>(rows.size()) / hidden, pairs = num_rows * num_used, chunks = MostChunks(pairs, num_experts);
    cuda::DeviceArray<float> x, logits, shares, gated, parts, out;
    cuda::DeviceArray<int32_t> experts, order;
    cuda::DeviceArray<ExpertChunk> table;
    const auto count = static_cast<size_t>(pairs);
    EXPECT_TRUE(x.Upload(rows, nullptr).ok() && logits.Grow(static_cast<size_t>(num_rows * num_experts)).ok() && shares.Grow(count).ok() && gated.Grow(count * static_cast<size_t>(ffn)).ok() &&
                parts.Grow(count * static_cast<size_t>(hidden)).ok() && out.Grow(rows.size()).ok() && experts.Grow(count).ok() &&
                order.Grow(count).ok() && table.Grow(static_cast<size_t>(chunks)).ok());
    EXPECT_EQ(LaunchExpertRoutes({x.data(), router.device.data(), logits.data(), experts.data(), shares.data(), order.data(), table.data(), num_rows, hidden,
                                  num_experts, num_used}, nullptr), cudaSuccess);
    EXPECT_EQ(LaunchExpertProducts({x.data(), gate.device.data(), up.device.data(), order.data(), table.data(), gated.data(), num_used, chunks,
                                    hidden, ffn}, nullptr), cudaSuccess);
    EXPECT_EQ(LaunchExpertProducts({gated.data(), down.device.data(), nullptr, order.data(), table.data(), parts.data(), 1, chunks, ffn, hidden},
                                   nullptr), cudaSuccess);
    EXPECT_EQ(LaunchExpertSum({parts.data(), shares.data(), out.data(), num_rows, hidden, num_used}, nullptr), cudaSuccess);
    std::vector<float> result(rows.size());
    EXPECT_EQ(cudaMemcpy(result.data(), out.data(), rows.size() * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    return result;
  }
};

TEST(CudaExperts, MixturesOfEverySizeAreThoseInDouble) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  const struct {
    int hidden, ffn, num_experts, num_used, num_rows;
  } cases[] = {{64, 96, 8, 3, 1},    {64, 96, 8, 3, 70},   {72, 40, 4, 4, 9},     {1024, 192, 161, 9, 1}, {1024, 192, 40, 9, 33},
               {2048, 24, 1, 1, 17}, {512, 520, 16, 2, 5}, {128, 16, 1024, 32, 8}};
  for (const auto& shape : cases) {
    SCOPED_TRACE(std::to_string(shape.hidden) + " " + std::to_string(shape.num_experts) + " " + std::to_string(shape.num_rows));
    Mixture mixture{shape.hidden, shape.ffn, shape.num_experts, shape.num_used};
    const auto width = static_cast<size_t>(shape.hidden);
    const std::vector<float> rows = testing::NormalVector(mixture.rng, width * static_cast<size_t>(shape.num_rows));
    const std::vector<float> actual = mixture.OnDevice(rows);
    double squares = 0, error = 0;
    for (size_t row = 0; row < static_cast<size_t>(shape.num_rows); ++row) {
      const std::vector<double> expected = mixture.Expected(rows.data() + row * width);
      for (size_t i = 0; i < width; ++i) {
        squares += expected[i] * expected[i];
        error += std::pow(expected[i] - static_cast<double>(actual[row * width + i]), 2);
      }
      // Whatever is beside a row.
      if (row % 8 == 3) {
        const std::vector<float> alone = mixture.OnDevice({rows.begin() + static_cast<std::ptrdiff_t>(row * width), rows.begin() + static_cast<std::ptrdiff_t>((row + 1) * width)});
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), actual.begin() + static_cast<std::ptrdiff_t>(row * width))) << row;
      }
    }
    EXPECT_LE(std::sqrt(error / squares), 1e-4);
  }
}

TEST(CudaExperts, ARowThatIsNotFiniteSpoilsItselfAlone) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  Mixture mixture{64, 32, 8, 2};
  std::vector<float> rows = testing::NormalVector(mixture.rng, 64 * 3);
  const std::vector<float> clean = mixture.OnDevice(rows);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    rows[64 + 5] = bad;
    const std::vector<float> actual = mixture.OnDevice(rows);
    EXPECT_TRUE(std::equal(actual.begin(), actual.begin() + 64, clean.begin()));
    EXPECT_TRUE(std::equal(actual.begin() + 128, actual.end(), clean.begin() + 128));
    for (size_t i = 64; i < 128; ++i) EXPECT_TRUE(std::isnan(actual[i])) << i;
  }
}

}  // namespace
}  // namespace oscar::engine
