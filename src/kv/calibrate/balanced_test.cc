// The balanced fit on synthetic rows whose covariance, mean and metric are known.
#include <gtest/gtest.h>

#include <cmath>
#include <Eigen/Dense>
#include <limits>
#include <random>

#include "oscar/calibrate.h"
#include "oscar/reference.h"
#include "src/kv/calibrate/balanced_transform.h"
#include "src/kv/calibrate/captured_rows.h"
#include "src/kv/transform/hadamard.h"
#include "src/testing/seeds.h"

namespace oscar {
namespace {

using calibrate::Matrix;

Matrix RandomSpd(std::mt19937_64& rng, int d, double decades) {
  std::normal_distribution<double> normal;
  const Matrix mix = Matrix::NullaryExpr(d, d, [&] { return normal(rng); });
  const Eigen::HouseholderQR<Matrix> qr(mix);
  const Matrix q = qr.householderQ();
  Eigen::VectorXd spectrum(d);
  for (int i = 0; i < d; ++i) spectrum[i] = std::pow(10.0, -decades * i / (d - 1));
  return q * spectrum.asDiagonal() * q.transpose();
}

TEST(BalancedTransform, WhitensTheMetricAndTheDataToTheSameSpectrum) {
  std::mt19937_64 rng(testing::TestSeed(51));
  for (const int d : {8, 64, 80, 96}) {
    for (const double alpha : {0.25, 0.3}) {
      const Matrix data = RandomSpd(rng, d, 2), metric = RandomSpd(rng, d, 2);
      const auto fit = calibrate::FitBalancedTransform(data, metric, alpha, 1e-2);
      ASSERT_TRUE(fit.ok()) << fit.status().message();
      const calibrate::RowMatrix t = Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(fit->transform.matrix().data(), d, d).cast<double>();
      const calibrate::RowMatrix inverse = Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(fit->transform.inverse().data(), d, d).cast<double>();
      const std::vector<double> q_values = transform::MixingMatrix(d);
      const Matrix q = Eigen::Map<const calibrate::RowMatrix>(q_values.data(), d, d);
      // Q T^T S T Q^T is diagonal with w^(1 - 2 alpha), unit mean; Q T^-1 M T^-T Q^T is the stored metric.
      const Matrix code_covariance = q * t.transpose() * data * t * q.transpose();
      const Matrix code_metric = q * inverse * fit->error_metric * inverse.transpose() * q.transpose();
      const double metric_mean = code_metric.trace() / d, covariance_mean = code_covariance.trace() / d;
      for (int i = 0; i < d; ++i) {
        const double w = fit->spectrum[i];
        EXPECT_NEAR(code_metric(i, i) / metric_mean, fit->metric[static_cast<size_t>(i)], 1e-3 * fit->metric[static_cast<size_t>(i)]);
        const double expected = std::pow(w, 1 - 2 * alpha) / fit->spectrum.array().pow(1 - 2 * alpha).mean();
        EXPECT_NEAR(code_covariance(i, i) / covariance_mean, expected, 5e-2 * expected) << "component " << i;
        for (int j = 0; j < i; ++j) {
          EXPECT_NEAR(code_metric(i, j) / metric_mean, 0, 1e-3);
          EXPECT_NEAR(code_covariance(i, j) / covariance_mean, 0, 1e-3);
        }
      }
      EXPECT_LT(CheckTransform(fit->transform).inverse_error, 1e-3);
      EXPECT_NEAR(CheckTransform(fit->transform).condition / fit->condition, 1, 1e-2);
    }
  }
}

TEST(BalancedTransform, AnIllMetricIsRegularisedUntilItCanBeInverted) {
  std::mt19937_64 rng(testing::TestSeed(52));
  const Matrix data = RandomSpd(rng, 64, 1);
  const auto mild = calibrate::FitBalancedTransform(data, RandomSpd(rng, 64, 3), 0.3, 1e-2);
  ASSERT_TRUE(mild.ok());
  EXPECT_EQ(mild->gamma, 1e-2);
  const auto ill = calibrate::FitBalancedTransform(data, RandomSpd(rng, 64, 18), 0.3, 1e-15);
  ASSERT_TRUE(ill.ok()) << ill.status().message();
  EXPECT_GT(ill->gamma, 1e-15);
  EXPECT_LE(ill->condition, 1e6);
  EXPECT_LT(CheckTransform(ill->transform).inverse_error, 2.1e-3);
  const auto zero = calibrate::FitBalancedTransform(Matrix::Zero(64, 64), Matrix::Zero(64, 64), 0.3, 1e-2);
  ASSERT_TRUE(zero.ok()) << zero.status().message();
  EXPECT_NEAR(zero->condition, 1, 1e-9);
  Matrix bad = data;
  bad(3, 3) = std::nan("");
  EXPECT_EQ(calibrate::FitBalancedTransform(bad, data, 0.3, 1e-2).status().code(), StatusCode::kNonFinite);
}

constexpr KvShape kShape = {2, 4, 2, 16};

RotaryEmbedding Rotary() {
  RotaryEmbedding rotary{{}, true};
  for (int j = 0; j < 8; ++j) rotary.angles.push_back(static_cast<float>(std::pow(100.0, -j / 8.0)));
  return rotary;
}

// Keys around a mean that turns with the position; values around a constant one.
struct Rows {
  explicit Rows(int tokens) : num_tokens(tokens) {
    std::mt19937_64 rng(testing::TestSeed(53));
    key_mean = testing::NormalVector(rng, 16, 3.0f);
    value_mean = testing::NormalVector(rng, 16);
    queries = testing::NormalVector(rng, static_cast<size_t>(tokens) * 64);
    keys = testing::NormalVector(rng, static_cast<size_t>(tokens) * 32);
    values = testing::NormalVector(rng, static_cast<size_t>(tokens) * 32);
    const RotaryEmbedding rotary = Rotary();
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      for (size_t head = 0; head < 2; ++head) {
        for (size_t j = 0; j < 8; ++j) {
          float* key = keys.data() + (t * 2 + head) * 16;
          const double angle = static_cast<double>(t) * double{rotary.angles[j]};
          key[j] += static_cast<float>(key_mean[j] * std::cos(angle) - key_mean[j + 8] * std::sin(angle));
          key[j + 8] += static_cast<float>(key_mean[j] * std::sin(angle) + key_mean[j + 8] * std::cos(angle));
        }
        for (size_t c = 0; c < 16; ++c) values[(t * 2 + head) * 16 + c] += value_mean[c];
      }
    }
    output = testing::NormalVector(rng, 40 * 64);
  }
  Status AddTo(BalancedMoments& moments, int layer, int first, int count) const {
    return moments.Add(layer, first, PackedRows<const float>(queries.data(), num_tokens, 4, 16).Slice(first, count),
                       PackedRows<const float>(keys.data(), num_tokens, 2, 16).Slice(first, count),
                       PackedRows<const float>(values.data(), num_tokens, 2, 16).Slice(first, count));
  }
  // Both passes, in steps of some tokens.
  BalancedMoments Moments(int step) const {
    BalancedMoments moments(kShape, Rotary(), num_tokens);
    for (int layer = 0; layer < 2; ++layer) {
      EXPECT_TRUE(moments.AddOutputProjection(layer, PackedRows<const float>(output.data(), 40, 4, 16)).ok());
    }
    for (int pass = 0; pass < 2; ++pass) {
      for (int layer = 0; layer < 2; ++layer) {
        for (int first = 0; first < num_tokens; first += step) {
          EXPECT_TRUE(AddTo(moments, layer, first, std::min(step, num_tokens - first)).ok());
        }
      }
      moments.EndPass();
    }
    return moments;
  }
  int num_tokens;
  std::vector<float> key_mean, value_mean, queries, keys, values, output;
};

TEST(FitBalanced, FindsTheMeanThatTurnsAndReportsErrors) {
  const Rows rows(1200);
  BalancedReport report;
  const auto profile = FitBalanced(rows.Moments(500), {}, {.model_name = "m"}, &report);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->method(), "int2:balanced");
  EXPECT_EQ(profile->provenance().num_tokens, 1200);
  EXPECT_EQ(profile->provenance().composition, "hadamard16");
  EXPECT_EQ(profile->provenance().v_metric, "output");
  EXPECT_EQ(profile->rotary().angles, Rotary().angles);
  for (int head = 0; head < 2; ++head) {
    const RowProfile key = profile->row(1, head, KvSide::kKey), value = profile->row(1, head, KvSide::kValue);
    EXPECT_EQ(key.mean_kind, MeanKind::kRotating);
    EXPECT_EQ(value.mean_kind, MeanKind::kConstant);
    EXPECT_EQ(key.encoder, EncoderKind::kErrorFeedback);
    for (size_t c = 0; c < 16; ++c) {  // weighted by the attention of random queries: fewer rows count than there are
      EXPECT_NEAR(key.mean[c], rows.key_mean[c], 0.5) << "channel " << c;
      EXPECT_NEAR(value.mean[c], rows.value_mean[c], 0.5) << "channel " << c;
    }
  }
  EXPECT_EQ(profile->eigenvalues(0, KvSide::kKey).size(), 32u);
  ASSERT_EQ(report.layers.size(), 2u);
  for (const BalancedReport::Layer& layer : report.layers) {
    for (const BalancedReport::Side& side : {layer.key, layer.value}) {
      EXPECT_GE(side.condition, 1);
      EXPECT_GT(side.measured, 0.02);
      EXPECT_LT(side.measured, 0.3);
      EXPECT_GT(side.predicted, 0.02);
      EXPECT_LT(side.predicted, 0.2);
      EXPECT_GT(side.measured_oscar, side.measured);
      EXPECT_GT(side.measured_hadamard, side.measured);
    }
  }
  BalancedFitOptions one_bit;
  one_bit.bits = 1;
  EXPECT_EQ(FitBalanced(rows.Moments(500), one_bit, {}, nullptr)->method(), "int1:balanced");
}

// One token in fifty is an attention sink: every query points at its key, and its value is near zero but for the first channel.
TEST(FitBalanced, AttentionSinksDecideMeansAndCovariances) {
  Rows rows(1200);
  std::mt19937_64 rng(testing::TestSeed(54));
  for (size_t t = 0; t < 1200; ++t) {
    for (size_t h = 0; h < 4; ++h) rows.queries[(t * 4 + h) * 16 + 7] = 16.0f;  // channels 7 and 15 turn slowest
    if (t % 50 != 20) continue;
    for (size_t i = t * 32; i < (t + 1) * 32; ++i) {
      rows.values[i] = i % 16 != 0 ? 0.0f : t % 100 == 20 ? 3.0f : -3.0f;
      rows.keys[i] = i % 16 == 7 ? 12.0f : 0.0f;
    }
  }
  const CodecProfile profile = FitBalanced(rows.Moments(500), {}, {}, nullptr).value();
  double norm = 0, plain = 0;
  for (size_t c = 0; c < 16; ++c) {
    norm += std::pow(double{profile.row(0, 0, KvSide::kValue).mean[c]}, 2);
    plain += std::pow(double{rows.value_mean[c]}, 2);
  }
  EXPECT_LT(norm, 0.25 * plain);
  // All other tokens vary alike in 16 channels, so that counted by tokens no component has much of the whole.
  const std::vector<float> spectrum(profile.eigenvalues(0, KvSide::kValue).begin(), profile.eigenvalues(0, KvSide::kValue).begin() + 16);
  double sum = 0;
  for (const float w : spectrum) sum += static_cast<double>(w);
  EXPECT_GT(*std::ranges::max_element(spectrum), 0.5 * sum);
}

TEST(FitBalanced, HowTokensAreCutIntoStepsChangesOnlyTheLastBits) {
  const Rows rows(400);
  const CodecProfile whole = FitBalanced(rows.Moments(400), {}, {}, nullptr).value();
  const CodecProfile cut = FitBalanced(rows.Moments(37), {}, {}, nullptr).value();
  for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
    for (size_t c = 0; c < 16; ++c) {
      EXPECT_NEAR(whole.row(0, 1, side).mean[c], cut.row(0, 1, side).mean[c], 1e-6);
      EXPECT_NEAR(whole.eigenvalues(0, side)[c] / cut.eigenvalues(0, side)[c], 1, 1e-5);
    }
  }
}

TEST(FitBalanced, WithoutRopeTheMeanIsConstant) {
  const Rows rows(200);
  BalancedMoments moments(kShape, {}, 200);
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(moments.AddOutputProjection(layer, PackedRows<const float>(rows.output.data(), 40, 4, 16)).ok());
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (int layer = 0; layer < 2; ++layer) ASSERT_TRUE(rows.AddTo(moments, layer, 0, 200).ok());
    moments.EndPass();
  }
  const CodecProfile profile = FitBalanced(moments, {}, {}, nullptr).value();
  EXPECT_EQ(profile.row(0, 0, KvSide::kKey).mean_kind, MeanKind::kConstant);
  EXPECT_FALSE(profile.has_turning_mean());
}

TEST(FitBalanced, WhatIsMissingOrSpoiledIsRefusedWithTheReason) {
  const Rows rows(200);
  const auto refused = [](const Result<CodecProfile>& profile, StatusCode code, const std::string& expected) {
    EXPECT_EQ(profile.status().code(), code);
    EXPECT_NE(profile.status().message().find(expected), std::string::npos) << profile.status().message();
  };
  BalancedMoments moments(kShape, Rotary(), 200);
  for (int layer = 0; layer < 2; ++layer) ASSERT_TRUE(rows.AddTo(moments, layer, 0, 200).ok());
  moments.EndPass();
  refused(FitBalanced(moments, {}, {}, nullptr), StatusCode::kFailedPrecondition, "1 of 2 passes");
  ASSERT_TRUE(rows.AddTo(moments, 0, 0, 200).ok());
  moments.EndPass();
  refused(FitBalanced(moments, {}, {}, nullptr), StatusCode::kFailedPrecondition, "layer 0 has no output projection");
  EXPECT_EQ(rows.AddTo(moments, 0, 0, 1).code(), StatusCode::kFailedPrecondition);
  refused(FitBalanced(Rows(64).Moments(64), {}, {}, nullptr), StatusCode::kFailedPrecondition, "the text is too short: 64 tokens");
  BalancedFitOptions options;
  options.bits = 4;
  refused(FitBalanced(rows.Moments(200), options, {}, nullptr), StatusCode::kUnsupported, "1 or 2 bits");
  options = {};
  options.gamma = 0;
  refused(FitBalanced(rows.Moments(200), options, {}, nullptr), StatusCode::kInvalidArgument, "gamma");

  Rows spoiled(200);
  spoiled.values[(70 * 2 + 1) * 16 + 3] = std::numeric_limits<float>::infinity();
  BalancedMoments fresh(kShape, Rotary(), 200);
  const Status status = spoiled.AddTo(fresh, 1, 0, 200);
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_NE(status.message().find("layer 1, KV head 1, token 70"), std::string::npos) << status.message();
  EXPECT_EQ(fresh.num_tokens(), 0);
  EXPECT_EQ(fresh.AddOutputProjection(0, PackedRows<const float>(rows.output.data(), 40, 2, 16)).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace oscar
