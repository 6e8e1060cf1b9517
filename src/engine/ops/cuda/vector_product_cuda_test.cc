// Products of few rows on a CUDA device against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

#include "src/base/cuda_memory.h"
#include "src/base/float_bits.h"
#include "src/engine/ops/cuda/dense_kernels.h"
#include "src/engine/ops/cuda/fp8_kernels.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

struct Shape {
  int in_width;
  std::vector<int> out_widths;
};

// The value of an E4M3 code (OCP FP8, revision 1.0).
double ValueOfE4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code >= 128 ? -magnitude : magnitude;
}

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
      std::vector<double>& rounded = weights.emplace_back();
      for (const float value : values) {
        bits.push_back(base::Bf16FromF32(value));
        rounded.push_back(static_cast<double>(base::F32FromBf16(bits.back())));
      }
      biases.push_back(testing::NormalVector(rng, out));
      residuals.push_back(testing::NormalVector(rng, out * static_cast<size_t>(num_rows)));
      EXPECT_TRUE(device_matrices.emplace_back().Upload(bits, nullptr).ok());
      EXPECT_TRUE(device_biases.emplace_back().Upload(biases.back(), nullptr).ok());
      EXPECT_TRUE(device_outputs.emplace_back().Upload(residuals.back(), nullptr).ok());  // the residual is where the result goes
    }
  }

  // The matrices in FP8 from now on, here and on the device.
  void Quantize() {
    is_fp8 = true;
    const int in = shape.in_width;
    for (size_t job = 0; job < matrices.size(); ++job) {
      const int rows = shape.out_widths[job];
      const size_t bytes = Fp8Bytes(rows, in);
      cuda::DeviceArray<uint16_t> place;
      ASSERT_TRUE(place.Grow(bytes / 2).ok());
      auto* const codes = reinterpret_cast<uint8_t*>(place.data());
      ASSERT_EQ(LaunchQuantizeRows({nullptr, device_matrices[job].data(), codes, Fp8Scales(codes, rows, in), rows, PaddedFp8Rows(rows), in}, nullptr), cudaSuccess);
      std::vector<uint8_t> all(bytes);
      ASSERT_EQ(cudaMemcpy(all.data(), codes, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
      const float* const scales = Fp8Scales(all.data(), rows, in);
      double worst = 0;
      for (size_t i = 0; i < weights[job].size(); ++i) {
        const double value = ValueOfE4m3(all[i]) * static_cast<double>(scales[i / static_cast<size_t>(in)]);
        worst = std::max(worst, std::abs(value - weights[job][i]) / std::max(std::abs(weights[job][i]), 1e-2 * 448 * static_cast<double>(scales[i / static_cast<size_t>(in)])));
        weights[job][i] = value;
      }
      EXPECT_LE(worst, 1.0 / 16 + 1e-6);  // half a step of three bits
      device_matrices[job] = std::move(place);
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
    params.is_fp8 = is_fp8;
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
             weights[job][static_cast<size_t>(output) * in + k];
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
  bool is_fp8 = false;
  std::vector<float> x, gain;
  std::vector<std::vector<uint16_t>> matrices;
  std::vector<std::vector<double>> weights;
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

// FP8: other edges of units, which have 128 elements.
const Shape kFp8Shapes[] = {{16, {1}},           {64, {3, 2, 5}},  {576, {576, 192, 192}}, {2064, {7, 65}}, {1040, {9001}},
                            {4096, {48, 16}},    {5120, {17}},     {12304, {18, 3}}};

void ExpectProductsAreThoseInDouble(std::span<const Shape> shapes, bool is_fp8) {
  for (const Shape& shape : shapes) {
    for (int rows = 1; rows <= kMostVectorRows; ++rows) {
      for (const bool has_norm : {false, true}) {
        Operands operands(shape, rows);
        if (is_fp8) operands.Quantize();
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

TEST(CudaVectorProduct, ProductsWithNormBiasAndResidualAreThoseInDouble) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  ExpectProductsAreThoseInDouble(kShapes, false);
}

TEST(CudaVectorProduct, Fp8ProductsAreThoseOfTheCodesInDouble) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  ExpectProductsAreThoseInDouble(kFp8Shapes, true);
}

void ExpectGatedProductsAreThoseInDouble(std::span<const Shape> shapes, bool is_fp8) {
  for (const Shape& shape : shapes) {
    for (int rows = 1; rows <= kMostVectorRows; ++rows) {
      for (const bool has_norm : {false, true}) {
        Operands operands(shape, rows);
        if (is_fp8) operands.Quantize();
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

TEST(CudaVectorProduct, GatedProductsAreThoseInDouble) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  const Shape shapes[] = {{8, {1, 1}}, {576, {1537, 1537}}, {2056, {65, 65}}, {12296, {9, 9}}};
  ExpectGatedProductsAreThoseInDouble(shapes, false);
}

TEST(CudaVectorProduct, GatedFp8ProductsAreThoseOfTheCodesInDouble) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  const Shape shapes[] = {{16, {1, 1}}, {576, {1537, 1537}}, {2064, {65, 65}}, {12304, {9, 9}}};
  ExpectGatedProductsAreThoseInDouble(shapes, true);
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
