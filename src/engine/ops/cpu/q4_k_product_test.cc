#include "src/engine/ops/cpu/q4_k_product.h"

#include <gtest/gtest.h>

#include <ggml.h>

#include <cmath>
#include <random>
#include <vector>

#include "src/base/buffer.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

// What the activations are rounded to: 8 bits per block of 32.
std::vector<double> Rounded(const std::vector<float>& x) {
  std::vector<double> rounded;
  for (size_t first = 0; first < x.size(); first += 32) {
    float largest = 0;
    for (size_t i = first; i < first + 32; ++i) largest = std::max(largest, std::abs(x[i]));
    const double scale = static_cast<double>(largest / 127.0f);
    for (size_t i = first; i < first + 32; ++i) rounded.push_back(largest == 0 ? 0 : std::nearbyint(x[i] * (127.0f / largest)) * scale);
  }
  return rounded;
}

TEST(Q4KProduct, IsExactForTheRoundedActivations) {
  if (!HasQ4KProduct()) GTEST_SKIP() << "this processor has no AVX-512 with VNNI";
  std::mt19937_64 rng(testing::TestSeed(1));
  for (const int64_t width : {256, 1536, 8960}) {
    constexpr int64_t kRows = 9;
    base::Buffer weights = base::Buffer::Allocate(ggml_row_size(GGML_TYPE_Q4_K, width) * kRows).value();
    const std::vector<float> values = testing::NormalVector(rng, static_cast<size_t>(width * kRows));
    ggml_quantize_chunk(GGML_TYPE_Q4_K, values.data(), weights.data(), 0, kRows, width, nullptr);
    std::vector<float> stored(values.size());
    ggml_get_type_traits(GGML_TYPE_Q4_K)->to_float(weights.data(), stored.data(), width * kRows);
    std::vector<float> x = testing::NormalVector(rng, static_cast<size_t>(width));
    for (size_t i = 0; i < x.size(); ++i) x[i] = i < 32 ? 0.0f : x[i] + 0.5f;  // a block of nothing; sums that matter
    base::Buffer prepared = base::Buffer::Allocate(Q4KActivationBytes(width)).value();
    PrepareQ4KActivations(x.data(), width, prepared.data());
    const std::vector<double> rounded = Rounded(x);
    // Rows 2 .. 8: a step of four rows and three rows.
    std::vector<float> out(kRows, -1.0f);
    MultiplyQ4KRows(weights.data(), prepared.data(), width, 2, kRows, out.data());
    EXPECT_EQ(out[0], -1.0f);
    EXPECT_EQ(out[1], -1.0f);
    for (int64_t r = 2; r < kRows; ++r) {
      double expected = 0, magnitude = 0;
      for (int64_t i = 0; i < width; ++i) {
        const double product = static_cast<double>(stored[static_cast<size_t>(r * width + i)]) * rounded[static_cast<size_t>(i)];
        expected += product;
        magnitude += std::abs(product);
      }
      EXPECT_NEAR(out[static_cast<size_t>(r)], expected, 2e-6 * magnitude) << "width " << width << " row " << r;
      float alone = 0;
      MultiplyQ4KRows(weights.data() + ggml_row_size(GGML_TYPE_Q4_K, width) * static_cast<size_t>(r), prepared.data(), width, 0, 1, &alone);
      EXPECT_EQ(alone, out[static_cast<size_t>(r)]) << "a row by itself";
    }
  }
}

}  // namespace
}  // namespace oscar::engine
