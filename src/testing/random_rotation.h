// Profiles with random transforms, for tests that need an OSCAR-like or a general transform without calibration.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "oscar/codec_profile.h"
#include "src/testing/seeds.h"

namespace oscar::testing {

// Rows of a random matrix made orthonormal by Gram-Schmidt, in double, row-major.
inline std::vector<double> RandomRotation(std::mt19937_64& rng, int d) {
  const size_t n = static_cast<size_t>(d);
  std::normal_distribution<double> normal;
  std::vector<double> m(n * n);
  for (double& value : m) value = normal(rng);
  for (size_t i = 0; i < n; ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t j = 0; j < i; ++j) {
        double dot = 0;
        for (size_t c = 0; c < n; ++c) dot += m[i * n + c] * m[j * n + c];
        for (size_t c = 0; c < n; ++c) m[i * n + c] -= dot * m[j * n + c];
      }
    }
    double norm = 0;
    for (size_t c = 0; c < n; ++c) norm += m[i * n + c] * m[i * n + c];
    for (size_t c = 0; c < n; ++c) m[i * n + c] /= std::sqrt(norm);
  }
  return m;
}

inline Result<CodecProfile> ProfileOf(const KvShape& shape, std::vector<KvTransform> transforms, std::vector<float> mean) {
  std::vector<CodecProfile::Row> rows;
  for (int i = 0; i < shape.num_layers * shape.num_kv_heads * 2; ++i) {
    CodecProfile::Row row;
    row.transform = i % static_cast<int>(transforms.size());
    row.mean = mean;
    row.clip_ratio = i % 2 == 0 ? 0.96f : 0.92f;
    rows.push_back(std::move(row));
  }
  return CodecProfile::Create("int2:oscar", shape, std::move(transforms), std::move(rows), Provenance{});
}

// int2:oscar with a random rotation for K and another for V, the clip ratios of method.md 3.2.
inline Result<CodecProfile> RandomRotationProfile(const KvShape& shape, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<KvTransform> transforms;
  for (int i = 0; i < 2; ++i) {
    const std::vector<double> matrix = RandomRotation(rng, shape.head_dim);
    transforms.push_back(KvTransform::Orthogonal(shape.head_dim, std::vector<float>(matrix.begin(), matrix.end())).value());
  }
  return ProfileOf(shape, std::move(transforms), {});
}

// A = R1 diag(s) R2 with s from 1/2 to 2, A^-1 = R2^T diag(1/s) R1^T.
inline KvTransform RandomInvertible(std::mt19937_64& rng, int head_dim) {
  const size_t d = static_cast<size_t>(head_dim);
  const std::vector<double> left = RandomRotation(rng, head_dim), right = RandomRotation(rng, head_dim);
  std::vector<float> matrix(d * d), inverse(d * d);
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j < d; ++j) {
      double forward = 0, back = 0;
      for (size_t k = 0; k < d; ++k) {
        const double s = std::exp2(2.0 * static_cast<double>(k) / static_cast<double>(d) - 1.0);
        forward += left[i * d + k] * s * right[k * d + j];
        back += right[k * d + i] / s * left[j * d + k];
      }
      matrix[i * d + j] = static_cast<float>(forward);
      inverse[i * d + j] = static_cast<float>(back);
    }
  }
  return KvTransform::Invertible(head_dim, std::move(matrix), std::move(inverse)).value();
}

// int2:oscar in name, with a random invertible transform for K and V and a constant mean.
inline Result<CodecProfile> RandomInvertibleProfile(const KvShape& shape, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<KvTransform> transforms;
  for (int side = 0; side < 2; ++side) transforms.push_back(RandomInvertible(rng, shape.head_dim));
  return ProfileOf(shape, std::move(transforms), NormalVector(rng, static_cast<size_t>(shape.head_dim), 0.3f));
}

// Weights of an error metric, log-normal: the largest of d = 128 is some hundred times the smallest.
inline std::vector<float> RandomMetric(std::mt19937_64& rng, int head_dim) {
  std::vector<float> metric = NormalVector(rng, static_cast<size_t>(head_dim));
  for (float& weight : metric) weight = std::exp(weight);
  return metric;
}

// "int1:balanced" or "int2:balanced" with random transforms, metrics and means. Means of keys turn: all pairs, or three
// quarters of them when `partial`.
inline Result<CodecProfile> RandomBalancedProfile(const std::string& method, const KvShape& shape, uint64_t seed,
                                                  bool halves = true, bool partial = false) {
  std::mt19937_64 rng(seed);
  std::vector<KvTransform> transforms;
  for (int side = 0; side < 2; ++side) transforms.push_back(RandomInvertible(rng, shape.head_dim));
  std::vector<CodecProfile::Row> rows;
  for (int i = 0; i < shape.num_layers * shape.num_kv_heads * 2; ++i) {
    CodecProfile::Row row;
    row.transform = i % 2;
    row.mean = NormalVector(rng, static_cast<size_t>(shape.head_dim), 0.5f);
    row.mean_kind = i % 2 == 0 ? MeanKind::kRotating : MeanKind::kConstant;
    row.metric = RandomMetric(rng, shape.head_dim);
    row.encoder = EncoderKind::kErrorFeedback;
    rows.push_back(std::move(row));
  }
  RotaryEmbedding rotary{{}, halves};
  const int pairs = shape.head_dim / 2 * (partial ? 3 : 4) / 4;
  for (int j = 0; j < pairs; ++j) rotary.angles.push_back(static_cast<float>(std::pow(10000.0, -static_cast<double>(j) / pairs)));
  return CodecProfile::Create(method, shape, std::move(transforms), std::move(rows), Provenance{}, std::move(rotary));
}

// Angles 10000^(-2 j / d) of all d / 2 pairs.
inline RotaryEmbedding PowersOfTenRotary(int head_dim, bool halves) {
  RotaryEmbedding rotary{{}, halves};
  for (int j = 0; j < head_dim / 2; ++j) rotary.angles.push_back(static_cast<float>(std::pow(10000.0, -2.0 * j / head_dim)));
  return rotary;
}

}  // namespace oscar::testing
