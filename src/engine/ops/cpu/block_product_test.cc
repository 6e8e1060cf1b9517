#include "src/engine/ops/cpu/block_product.h"

#include <gtest/gtest.h>

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "src/base/buffer.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

class BlockProduct : public ::testing::TestWithParam<ggml_type> {};

TEST_P(BlockProduct, IsExactForTheRoundedActivations) {
  const ggml_type type = GetParam();
  const RowProduct* product = BlockProductOf(type);
  if (product == nullptr) GTEST_SKIP() << "this processor has no AVX-512 with VNNI";
  std::mt19937_64 rng(testing::TestSeed(1));
  for (const int64_t width : {32, 64, 896, 4864}) {
    constexpr int64_t kRows = 11;
    base::Buffer weights = base::Buffer::Allocate(ggml_row_size(type, width) * kRows).value();
    const std::vector<float> values = testing::NormalVector(rng, static_cast<size_t>(width * kRows));
    ggml_quantize_chunk(type, values.data(), weights.data(), 0, kRows, width, nullptr);
    std::vector<float> stored(values.size());
    ggml_get_type_traits(type)->to_float(weights.data(), stored.data(), width * kRows);
    std::vector<float> x = testing::NormalVector(rng, static_cast<size_t>(width));
    if (width > 32) std::fill_n(x.begin(), 32, 0.0f);  // a block of nothing
    base::Buffer prepared = base::Buffer::Allocate(product->activation_bytes(width)).value();
    product->prepare(x.data(), width, prepared.data());
    const auto* rounded = reinterpret_cast<const int8_t*>(prepared.data());
    const auto* scales = reinterpret_cast<const float*>(prepared.data() + 2 * width);
    for (int64_t i = 0; i < width; ++i) {
      EXPECT_LE(std::abs(rounded[i] * scales[i / 32] - x[static_cast<size_t>(i)]), 0.55f * scales[i / 32]) << i;
    }
    // Rows 2 .. 10: two steps of four rows and one row.
    std::vector<float> out(kRows, -1.0f);
    product->multiply(weights.data(), prepared.data(), width, 2, kRows, out.data());
    EXPECT_EQ(out[0], -1.0f);
    EXPECT_EQ(out[1], -1.0f);
    for (int64_t r = 2; r < kRows; ++r) {
      double expected = 0, magnitude = 0;
      for (int64_t i = 0; i < width; ++i) {
        const double term = static_cast<double>(stored[static_cast<size_t>(r * width + i)]) * rounded[i] * static_cast<double>(scales[i / 32]);
        expected += term;
        magnitude += std::abs(term);
      }
      EXPECT_NEAR(out[static_cast<size_t>(r)], expected, 1e-6 * magnitude) << "width " << width << " row " << r;
      float alone = 0;
      product->multiply(weights.data() + ggml_row_size(type, width) * static_cast<size_t>(r), prepared.data(), width, 0, 1, &alone);
      EXPECT_EQ(alone, out[static_cast<size_t>(r)]) << "a row by itself";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BlockProduct, ::testing::Values(GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0),
                         [](const auto& type) { return std::string(ggml_type_name(type.param)); });

}  // namespace
}  // namespace oscar::engine
