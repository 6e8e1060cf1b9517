#include "src/engine/ops/cpu/tiled_product.h"

#include <gtest/gtest.h>

#include <ggml.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "src/base/buffer.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

constexpr ggml_type kTypes[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K};

// Random weights of a type, as stored and as f32.
struct Stored {
  Stored(ggml_type type, int64_t width, int64_t rows, std::mt19937_64& rng)
      : bytes(base::Buffer::Allocate(ggml_row_size(type, width) * static_cast<size_t>(rows)).value()), values(static_cast<size_t>(width * rows)) {
    const std::vector<float> wanted = testing::NormalVector(rng, values.size());
    ggml_quantize_chunk(type, wanted.data(), bytes.data(), 0, rows, width, nullptr);
    ggml_get_type_traits(type)->to_float(bytes.data(), values.data(), width * rows);
  }
  base::Buffer bytes;
  std::vector<float> values;
};

struct Prepared {
  Prepared(const std::vector<float>& x, int64_t width, int64_t tokens)
      : memory(base::Buffer::Allocate(TiledActivationBytes(width, tokens)).value()), activations{memory.data(), width, tokens} {
    PrepareTiledActivations(x.data(), activations, tokens / 2, tokens);
    PrepareTiledActivations(x.data(), activations, 0, tokens / 2);
  }
  double value(int64_t token, int64_t i) const {
    const auto* values = reinterpret_cast<const int8_t*>(memory.data());
    const auto* scales = reinterpret_cast<const float*>(memory.data() + activations.num_tokens * activations.width);
    return values[token * activations.width + i] * static_cast<double>(scales[token * (activations.width / 32) + i / 32]);
  }
  base::Buffer memory;
  TiledActivations activations;
};

TEST(TiledProduct, IsExactForTheRoundedActivations) {
  if (!HasTiledProduct(GGML_TYPE_Q5_0)) GTEST_SKIP() << "this processor has no AVX-512 with VNNI";
  std::mt19937_64 rng(testing::TestSeed(1));
  for (const ggml_type type : kTypes) {
    for (const int64_t width : {256, 768}) {
      for (const int64_t rows : {1, 33, 70}) {
        const int64_t tokens = 7;
        const Stored weights(type, width, rows, rng);
        std::vector<float> x = testing::NormalVector(rng, static_cast<size_t>(width * tokens));
        for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = 0.0f;  // a block of nothing
        const Prepared prepared(x, width, tokens);
        base::Buffer panel = base::Buffer::Allocate(TiledPanelBytes(width)).value();
        std::vector<float> out(static_cast<size_t>(tokens * rows), -1.0f);
        MultiplyTiled({type, weights.bytes.data(), rows}, prepared.activations, 0, std::min<int64_t>(32, rows), panel.data(), out.data());
        if (rows > 32) {
          EXPECT_EQ(out[33], rows == 33 ? out[33] : -1.0f);
          MultiplyTiled({type, weights.bytes.data(), rows}, prepared.activations, 32, rows, panel.data(), out.data());
        }
        for (int64_t token = 0; token < tokens; ++token) {
          for (int64_t r = 0; r < rows; ++r) {
            double expected = 0, magnitude = 0;
            for (int64_t i = 0; i < width; ++i) {
              const double product = static_cast<double>(weights.values[static_cast<size_t>(r * width + i)]) * prepared.value(token, i);
              expected += product;
              magnitude += std::abs(product);
            }
            ASSERT_NEAR(out[static_cast<size_t>(token * rows + r)], expected, 2e-6 * magnitude + 1e-30) << ggml_type_name(type) << " width " << width << " row " << r << " token " << token;
          }
        }
      }
    }
  }
}

TEST(TiledProduct, AnOutputDependsOnItsOwnRowsOnly) {
  if (!HasTiledProduct(GGML_TYPE_Q5_0)) GTEST_SKIP() << "this processor has no AVX-512 with VNNI";
  std::mt19937_64 rng(testing::TestSeed(2));
  constexpr int64_t kWidth = 256, kRows = 40, kTokens = 9;
  for (const ggml_type type : kTypes) {
    const Stored weights(type, kWidth, kRows, rng);
    const std::vector<float> x = testing::NormalVector(rng, static_cast<size_t>(kWidth * kTokens));
    base::Buffer panel = base::Buffer::Allocate(TiledPanelBytes(kWidth)).value();
    const Prepared all(x, kWidth, kTokens);
    std::vector<float> out(static_cast<size_t>(kTokens * kRows));
    MultiplyTiled({type, weights.bytes.data(), kRows}, all.activations, 0, kRows, panel.data(), out.data());
    for (int64_t token = 0; token < kTokens; ++token) {
      const Prepared one({x.begin() + token * kWidth, x.begin() + (token + 1) * kWidth}, kWidth, 1);
      std::vector<float> alone(static_cast<size_t>(kRows));
      MultiplyTiled({type, weights.bytes.data(), kRows}, one.activations, 0, kRows, panel.data(), alone.data());
      EXPECT_EQ(alone, std::vector<float>(out.begin() + token * kRows, out.begin() + (token + 1) * kRows)) << ggml_type_name(type) << " token " << token;
    }
  }
}

TEST(TiledProduct, KnowsItsTypes) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q2_K, GGML_TYPE_IQ4_XS}) EXPECT_FALSE(HasTiledProduct(type)) << ggml_type_name(type);
}

}  // namespace
}  // namespace oscar::engine
