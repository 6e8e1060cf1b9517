// Products of few rows on a CUDA device against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "src/base/cuda_memory.h"
#include "src/base/float_bits.h"
#include "src/engine/ops/cuda/dense_kernels.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

struct Shape {
  int in_width;
  std::vector<int> out_widths;
};

// Host and device copies of one case.
struct Operands {
  Operands(const Shape& of, int rows) : shape(of), num_rows(rows) {
    std::mt19937_64 rng(testing::TestSeed(91));
    const auto in = static_cast<size_t>(shape.in_width);
    x = testing::NormalVector(rng, in * static_cast<size_t>(num_rows));
    gain = testing::NormalVector(rng, in);
    EXPECT_TRUE(device_x.Upload(x, nullptr).ok() && device_gain.Upload(gain, nullptr).ok());
    for (const int width : shape.out_widths) {
      const auto out = static_cast<size_t>(width);
      const std::vector<float> values = testing::NormalVector(rng, in * out);
      std::vector<uint16_t>& bits = matrices.emplace_back();
      for (const float value : values) bits.push_back(base::Bf16FromF32(value));
      biases.push_back(testing::NormalVector(rng, out));
      residuals.push_back(testing::NormalVector(rng, out * static_cast<size_t>(num_rows)));
      EXPECT_TRUE(device_matrices.emplace_back().Upload(bits, nullptr).ok());
      EXPECT_TRUE(device_biases.emplace_back().Upload(biases.back(), nullptr).ok());
      EXPECT_TRUE(device_outputs.emplace_back().Upload(residuals.back(), nullptr).ok());  // the residual is where the result goes
    }
  }

  VectorProductParams Params(bool has_norm) const {
    VectorProductParams params = {};
    params.x = device_x.data();
    params.num_rows = num_rows;
    params.in_width = shape.in_width;
    params.num_jobs = static_cast<int32_t>(shape.out_widths.size());
    params.gain = has_norm ? device_gain.data() : nullptr;
    params.epsilon = kEpsilon;
    return params;
  }
  double Dot(int row, size_t job, int output, bool has_norm) const {
    const auto in = static_cast<size_t>(shape.in_width);
    const float* values = x.data() + static_cast<size_t>(row) * in;
    double sum = 0, squares = 0;
    for (size_t k = 0; k < in; ++k) {
      const double value = values[k];
      squares += value * value;
      sum += value * (has_norm ? static_cast<double>(gain[k]) : 1.0) *
             static_cast<double>(base::F32FromBf16(matrices[job][static_cast<size_t>(output) * in + k]));
    }
    return has_norm ? sum / std::sqrt(squares / static_cast<double>(in) + static_cast<double>(kEpsilon)) : sum;
  }
  std::vector<float> Output(size_t job) const {
    std::vector<float> values(residuals[job].size());
    EXPECT_EQ(cudaMemcpy(values.data(), device_outputs[job].data(), values.size() * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

  static constexpr float kEpsilon = 1e-5f;
  Shape shape;
  int num_rows;
  std::vector<float> x, gain;
  std::vector<std::vector<uint16_t>> matrices;
  std::vector<std::vector<float>> biases, residuals;
  cuda::DeviceArray<float> device_x, device_gain;
  std::vector<cuda::DeviceArray<uint16_t>> device_matrices;
  std::vector<cuda::DeviceArray<float>> device_biases, device_outputs;
};

// Inner widths around the units of a warp and around what it holds in registers; outputs that no tile divides; more tiles than CTAs.
const Shape kShapes[] = {{8, {1}},           {64, {3, 2, 5}}, {576, {576, 192, 192}}, {2048 + 8, {7, 65}}, {1032, {9001}},
                         {4096, {48, 16}}, {5120, {17}},      {12288, {40}},          {12288 + 8, {18, 3}}};

bool HasDevice() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

TEST(CudaVectorProduct, ProductsWithNormBiasAndResidualAreThoseInDouble) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  for (const Shape& shape : kShapes) {
    for (int rows = 1; rows <= kMostVectorRows; ++rows) {
      for (const bool has_norm : {false, true}) {
        const Operands operands(shape, rows);
        VectorProductParams params = operands.Params(has_norm);
        for (size_t job = 0; job < shape.out_widths.size(); ++job) {
          float* const out = operands.device_outputs[job].data();
          params.jobs[job] = {operands.device_matrices[job].data(), job != 1 ? operands.device_biases[job].data() : nullptr, out, out,
                              shape.out_widths[job]};
        }
        ASSERT_EQ(LaunchVectorProducts(params, nullptr), cudaSuccess);
        for (size_t job = 0; job < shape.out_widths.size(); ++job) {
          const std::vector<float> actual = operands.Output(job);
          for (int row = 0; row < rows; ++row) {
            for (int n = 0; n < shape.out_widths[job]; n += shape.out_widths[job] > 1000 ? 37 : 1) {
              const auto at = static_cast<size_t>(row * shape.out_widths[job] + n);
              const double bias = job != 1 ? static_cast<double>(operands.biases[job][static_cast<size_t>(n)]) : 0.0;
              const double expected = operands.Dot(row, job, n, has_norm) + bias + static_cast<double>(operands.residuals[job][at]);
              ASSERT_NEAR(static_cast<double>(actual[at]), expected, 1e-4 * std::sqrt(shape.in_width))
                  << shape.in_width << " rows " << rows << " norm " << has_norm << " job " << job << " row " << row << " output " << n;
            }
          }
        }
      }
    }
  }
}

TEST(CudaVectorProduct, GatedProductsAreThoseInDouble) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  for (const Shape& shape : {Shape{8, {1, 1}}, Shape{576, {1537, 1537}}, Shape{2056, {65, 65}}, Shape{12296, {9, 9}}}) {
    for (int rows = 1; rows <= kMostVectorRows; ++rows) {
      for (const bool has_norm : {false, true}) {
        const Operands operands(shape, rows);
        VectorProductParams params = operands.Params(has_norm);
        params.jobs[0] = {operands.device_matrices[0].data(), nullptr, nullptr, operands.device_outputs[0].data(), shape.out_widths[0]};
        params.jobs[1] = {operands.device_matrices[1].data(), nullptr, nullptr, nullptr, shape.out_widths[1]};
        ASSERT_EQ(LaunchGatedVectorProduct(params, nullptr), cudaSuccess);
        const std::vector<float> actual = operands.Output(0);
        for (int row = 0; row < rows; ++row) {
          for (int n = 0; n < shape.out_widths[0]; n += shape.out_widths[0] > 1000 ? 37 : 1) {
            const double gate = operands.Dot(row, 0, n, has_norm), up = operands.Dot(row, 1, n, has_norm);
            const double expected = gate / (1 + std::exp(-gate)) * up;
            ASSERT_NEAR(static_cast<double>(actual[static_cast<size_t>(row * shape.out_widths[0] + n)]), expected,
                        1e-4 * (std::abs(expected) + shape.in_width))
                << shape.in_width << " rows " << rows << " norm " << has_norm << " row " << row << " output " << n;
          }
        }
      }
    }
  }
}

TEST(CudaBestLogits, TheLargestOfEachRowTheFirstAtEquals) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  constexpr int kWidth = 5003;
  std::mt19937_64 rng(testing::TestSeed(92));
  std::vector<float> logits = testing::NormalVector(rng, size_t{6} * kWidth);
  const auto at = [&](int row, int index) -> float& { return logits[static_cast<size_t>(row * kWidth + index)]; };
  at(1, 4999) = at(1, 77) = 40.0f;
  for (int i = 0; i < kWidth; ++i) at(2, i) = i == 3000 || i == 17 ? -0.0f : (i == 1000 ? 0.0f : -1.0f - static_cast<float>(i));
  at(3, 600) = std::nanf(""), at(3, 2) = 1e30f;
  at(4, 4000) = -INFINITY, at(4, 300) = INFINITY;
  cuda::DeviceArray<float> device_logits;
  cuda::DeviceArray<uint64_t> best;
  ASSERT_TRUE(device_logits.Upload(logits, nullptr).ok() && best.Upload(std::vector<uint64_t>(6), nullptr).ok());
  ASSERT_EQ(LaunchBestLogits({device_logits.data(), best.data(), 6, kWidth}, nullptr), cudaSuccess);
  uint64_t keys[6];
  ASSERT_EQ(cudaMemcpy(keys, best.data(), sizeof(keys), cudaMemcpyDeviceToHost), cudaSuccess);
  const int first_tokens[6] = {-1, 77, 17, 600, 300, -1};
  for (int row = 0; row < 6; ++row) {
    const auto begin = logits.begin() + row * kWidth;
    const int expected = first_tokens[row] >= 0 ? first_tokens[row] : static_cast<int>(std::max_element(begin, begin + kWidth) - begin);
    EXPECT_EQ(static_cast<int>(~static_cast<uint32_t>(keys[row])), expected) << row;
    EXPECT_EQ(keys[row] >> 32 == kNotFiniteLogit, row == 3 || row == 4) << row;
  }
}

}  // namespace
}  // namespace oscar::engine
