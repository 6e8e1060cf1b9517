// The error-feedback encoder: what it must achieve, judged on reference.cc, and the vectorised one beside it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "oscar/reference.h"
#include "src/base/float_bits.h"
#include "src/kv/codec/affine/simd_encoder_for_test.h"
#include "src/kv/profile/error_feedback.h"
#include "src/testing/random_rotation.h"
#include "src/testing/seeds.h"
#include "src/testing/simd_targets.h"

namespace oscar::affine {
namespace {

using reference::AffineRow;
using Rows = std::vector<std::vector<float>>;

// A row description of error feedback with its derived matrices.
struct Description {
  Description(std::mt19937_64& rng, int d) : Description(testing::RandomMetric(rng, d)) {}
  explicit Description(std::vector<float> weights)
      : metric(std::move(weights)), matrices(profile::DeriveErrorFeedback(static_cast<int>(metric.size()), metric)) {}
  RowProfile Row(int effort) const {
    return {.metric = metric, .encoder = EncoderKind::kErrorFeedback, .encode_effort = effort, .feedback = &matrices};
  }
  // u G v^T
  double Product(const std::vector<double>& u, const std::vector<double>& v) const {
    double sum = 0;
    for (size_t i = 0; i < u.size(); ++i) {
      for (size_t j = 0; j < v.size(); ++j) sum += u[i] * matrices.metric[i * u.size() + j] * v[j];
    }
    return sum;
  }
  std::vector<float> metric;
  ErrorFeedback matrices;
};

std::vector<double> Centred(std::span<const float> y) {
  double mean = 0;
  for (const float value : y) mean += double{value} / static_cast<double>(y.size());
  std::vector<double> centred;
  for (const float value : y) centred.push_back(double{value} - mean);
  return centred;
}

std::vector<double> Errors(std::span<const float> y, const AffineRow& row) {
  std::vector<double> errors = reference::DecodeRow(row);
  for (size_t i = 0; i < errors.size(); ++i) errors[i] -= double{y[i]};
  return errors;
}

TEST(ErrorFeedbackEncoder, EachEffortLowersTheWeightedError) {
  std::mt19937_64 rng(testing::TestSeed(41));
  for (const int bits : {1, 2, 4}) {
    double error[3] = {}, energy = 0;
    for (int repeat = 0; repeat < 4; ++repeat) {
      const Description description(rng, 64);
      for (int i = 0; i < 40; ++i) {
        const std::vector<float> y = testing::NormalVector(rng, 64);
        energy += description.Product(Centred(y), Centred(y));
        for (int effort = 0; effort <= 2; ++effort) {
          const std::vector<double> e = Errors(y, *reference::EncodeRow(y, bits, description.Row(effort)));
          error[effort] += description.Product(e, e);
        }
      }
    }
    EXPECT_LT(error[1], 0.95 * error[0]) << bits << " bits";
    EXPECT_LT(error[2], 0.98 * error[1]) << bits << " bits";
    const double most = bits == 1 ? 0.45 : bits == 2 ? 0.11 : 0.012;
    EXPECT_LT(error[2], most * energy) << bits << " bits";
  }
}

// quality.md 5, step 6: the reconstruction has the full length along the row, in the metric.
TEST(ErrorFeedbackEncoder, TheGainIsUnbiased) {
  std::mt19937_64 rng(testing::TestSeed(42));
  for (const int bits : {1, 2}) {
    for (const int effort : {0, 1, 2}) {
      const Description description(rng, 128);
      for (int i = 0; i < 10; ++i) {
        std::vector<float> y = testing::NormalVector(rng, 128, 3.0f);
        for (float& value : y) value += 0.7f;
        const AffineRow row = *reference::EncodeRow(y, bits, description.Row(effort));
        const std::vector<double> decoded = reference::DecodeRow(row), centred = Centred(y);
        const std::vector<float> narrow(decoded.begin(), decoded.end());
        EXPECT_NEAR(description.Product(Centred(narrow), centred) / description.Product(centred, centred), 1, 2e-3);
        double mean = 0, decoded_mean = 0;
        for (size_t c = 0; c < y.size(); ++c) mean += double{y[c]} / 128, decoded_mean += decoded[c] / 128;
        EXPECT_NEAR(decoded_mean, mean, 4e-3);
      }
    }
  }
}

TEST(ErrorFeedbackEncoder, AFlatMetricNeedsNoFeedback) {
  std::mt19937_64 rng(testing::TestSeed(43));
  const Description flat(std::vector<float>(64, 2.5f));
  const std::vector<float> y = testing::NormalVector(rng, 64);
  const AffineRow plain = *reference::EncodeRow(y, 2, flat.Row(0));
  for (const int effort : {1, 2}) {
    const AffineRow row = *reference::EncodeRow(y, 2, flat.Row(effort));
    EXPECT_EQ(row.codes, plain.codes);
    EXPECT_EQ(row.scale_f16, plain.scale_f16);
  }
}

// Codes of the two encoders may part at ties of f32 sums (quality.md 5: at least 99.9 % equal); scale and offset follow.
TEST(SimdErrorFeedback, AgreesWithTheJudge) {
  testing::OnEverySimdTarget([](const char* target) {
    std::mt19937_64 rng(testing::TestSeed(44));
    int64_t equal = 0, total = 0;
    double error = 0, judged_error = 0;
    for (const int d : {64, 80, 96, 112, 128, 192, 256}) {
      for (const int bits : {1, 2, 4}) {
        const Description description(rng, d);
        for (const int effort : {0, 1, 2}) {
          Rows rows;
          for (int t = 0; t < 16; ++t) {
            rows.push_back(testing::NormalVector(rng, static_cast<size_t>(d), std::exp2(static_cast<float>(t % 12) - 6.0f)));
            if (t % 3 == 0) rows.back()[static_cast<size_t>(t)] *= 20;
            for (float& value : rows.back()) value += t % 2 == 0 ? 0.0f : 5.0f;
          }
          const auto encoded = EncodeFeedbackOnTarget(rows, bits, description.Row(effort));
          ASSERT_TRUE(encoded.ok()) << target << " d " << d << ": " << encoded.status().message();
          for (size_t t = 0; t < rows.size(); ++t) {
            const AffineRow judge = *reference::EncodeRow(rows[t], bits, description.Row(effort));
            const AffineRow& actual = (*encoded)[t];
            for (size_t c = 0; c < judge.codes.size(); ++c) equal += actual.codes[c] == judge.codes[c];
            total += d;
            const std::vector<double> e = Errors(rows[t], actual), judged = Errors(rows[t], judge);
            const double energy = description.Product(Centred(rows[t]), Centred(rows[t]));
            error += description.Product(e, e) / energy;
            judged_error += description.Product(judged, judged) / energy;
            if (actual.codes != judge.codes) continue;
            EXPECT_NEAR(base::F32FromF16(actual.scale_f16) / base::F32FromF16(judge.scale_f16), 1, 2e-3);
          }
        }
      }
    }
    EXPECT_GE(static_cast<double>(equal) / static_cast<double>(total), 0.999) << target;
    EXPECT_NEAR(error / judged_error, 1, 1e-3) << target;
  });
}

TEST(SimdErrorFeedback, BytesDoNotDependOnTheTarget) {
  std::mt19937_64 rng(testing::TestSeed(45));
  for (const int d : {64, 112, 256}) {
    const Description description(rng, d);
    Rows rows;
    for (int t = 0; t < 16; ++t) rows.push_back(testing::NormalVector(rng, static_cast<size_t>(d)));
    for (const int bits : {1, 2, 4}) {
      std::vector<AffineRow> first;
      testing::OnEverySimdTarget([&](const char* target) {
        const std::vector<AffineRow> encoded = EncodeFeedbackOnTarget(rows, bits, description.Row(2)).value();
        if (first.empty()) first = encoded;
        for (size_t t = 0; t < 16; ++t) {
          EXPECT_EQ(encoded[t].codes, first[t].codes) << target;
          EXPECT_EQ(encoded[t].scale_f16, first[t].scale_f16) << target;
          EXPECT_EQ(encoded[t].offset_f16, first[t].offset_f16) << target;
        }
      });
    }
  }
}

TEST(SimdErrorFeedback, ConstantAndTinyRowsAreTheirMean) {
  testing::OnEverySimdTarget([](const char* target) {
    std::mt19937_64 rng(testing::TestSeed(46));
    const Description description(rng, 64);
    Rows rows(16, testing::NormalVector(rng, 64));
    rows[0].assign(64, 0.0f);
    rows[1].assign(64, -2.71f);
    rows[2].assign(64, 65504.0f);
    for (size_t c = 0; c < 64; ++c) rows[3][c] = 1.0f + (c % 2 == 0 ? 1e-9f : 0.0f), rows[4][c] = c % 2 == 0 ? 1e-9f : 0.0f;
    const auto encoded = EncodeFeedbackOnTarget(rows, 2, description.Row(2));
    ASSERT_TRUE(encoded.ok()) << target << encoded.status().message();
    for (size_t t = 0; t < 5; ++t) {
      const AffineRow judge = *reference::EncodeRow(rows[t], 2, description.Row(2));
      EXPECT_EQ((*encoded)[t].scale_f16, 0) << target << " row " << t;
      EXPECT_EQ(judge.scale_f16, 0);
      EXPECT_EQ((*encoded)[t].codes, std::vector<uint8_t>(64, 0));
      EXPECT_EQ((*encoded)[t].offset_f16, base::F16FromF32(rows[t][1])) << target << " row " << t;
      EXPECT_EQ(judge.offset_f16, (*encoded)[t].offset_f16);
    }
  });
}

TEST(SimdErrorFeedback, RowsThatAreNotFiniteOrBeyondFp16AreRefusedByTheirNumber) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  testing::OnEverySimdTarget([&](const char* target) {
    std::mt19937_64 rng(testing::TestSeed(47));
    const Description description(rng, 64);
    for (const float bad : {nan, infinity, -infinity, 3e38f, 4e6f}) {
      for (const size_t row : {size_t{0}, size_t{7}, size_t{15}}) {
        Rows rows(16, testing::NormalVector(rng, 64));
        rows[row][row * 4] = bad;
        const auto encoded = EncodeFeedbackOnTarget(rows, 2, description.Row(2));
        EXPECT_EQ(encoded.status().message(), "row " + std::to_string(row)) << target << " " << bad;
        EXPECT_EQ(reference::EncodeRow(rows[row], 2, description.Row(2)).status().code(), StatusCode::kNonFinite);
      }
    }
  });
}

}  // namespace
}  // namespace oscar::affine
