// Test support: the golden vectors of tests/data/golden/baselines.json, their inputs (baselines.md 11), and the errors that the
// file states.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/base/float_bits.h"
#include "src/kv/transform/hadamard.h"

namespace oscar::testing {

using nlohmann::json;
using Rows = std::vector<std::vector<float>>;

inline const json& Golden() {
  static const json golden = [] {
    std::ifstream file("tests/data/golden/baselines.json");
    return json::parse(file);
  }();
  return golden;
}

// baselines.md 11, "Inputs".
inline Rows Input(const std::string& name) {
  const auto row = [](int n, const std::function<double(int)>& value) {
    std::vector<float> values;
    for (int i = 0; i < n; ++i) values.push_back(static_cast<float>(value(i)));
    return Rows{values};
  };
  if (name == "M128" || name == "M64" || name == "bias_keys") {
    Rows rows(128);
    for (int t = 0; t < 128; ++t) {
      for (int c = 0; c < (name == "M64" ? 64 : 128); ++c) {
        double value = ((7 * t * t + 3 * t * c + 5 * c * c + 11) % 251 - 125) / 32.0;
        if (c == 5) value += 16;
        if (c == 70) value -= 12;
        if (name == "bias_keys" && (c == 10 || c == 11)) value += c == 10 ? 700 : -700;
        rows[static_cast<size_t>(t)].push_back(static_cast<float>(value));
      }
    }
    return rows;
  }
  if (name == "bias_queries") {
    Rows rows(256);
    const json& numerators = Golden()["inputs"]["bias_queries"]["numerators"];
    for (size_t i = 0; i < numerators.size(); ++i) rows[i / 128].push_back(numerators[i].get<float>() / 256.0f);
    return rows;
  }
  if (name == "G128" || name == "G64") {
    return row(name == "G64" ? 64 : 128, [](int i) { return i == 5 ? 24.0 : i == 70 ? -20.0 : ((17 * i * i + 29 * i + 5) % 257 - 128) / 32.0; });
  }
  if (name == "qvec") return row(128, [](int i) { return ((11 * i + 3) % 19 - 9) / 8.0; });
  if (name == "ramp128" || name == "ramp64") return row(name == "ramp64" ? 64 : 128, [](int i) { return i; });
  if (name == "alternating_ramp128") return row(128, [](int i) { return i % 2 == 0 ? i : -i; });
  if (name == "alternating_spike128") return row(128, [](int i) { return i == 7 ? 99 : i % 2 == 0 ? 1 : -1; });
  if (name == "small16") return row(16, [](int i) { return i - 5; });
  if (name == "int4_16") return row(16, [](int i) { return i - 3; });
  if (name == "zero128") return row(128, [](int) { return 0; });
  if (name == "five128") return row(128, [](int) { return 5; });
  if (name == "offset5000") return row(128, [](int i) { return 5000 + i / 127.0; });
  if (name == "rounding8") return {{-1, 0, 0.49f, 0.5f, 1, 1.5f, 2, 2}};
  if (name == "worked8") return {{1.5f, -0.25f, 0.75f, -3, 0.125f, 2, -1, 0.5f}};
  ADD_FAILURE() << "unknown input " << name;
  return {};
}

inline std::vector<float> HadamardBlocks(std::vector<float> row, int order, bool round) {
  for (size_t i = 0; i < row.size(); i += static_cast<size_t>(order)) transform::ApplyHadamard(std::span(row).subspan(i, static_cast<size_t>(order)));
  if (round) {
    for (float& value : row) value = base::RoundToBf16(value);
  }
  return row;
}

// Block-diagonal Hadamard in double, for the error after undoing the transform.
inline std::vector<double> HadamardBlocksInDouble(const std::vector<double>& row, int order) {
  std::vector<double> out(row.size(), 0.0);
  const size_t n = static_cast<size_t>(order);
  for (size_t j = 0; j < row.size(); ++j) {
    for (size_t i = j / n * n; i < j / n * n + n; ++i) {
      out[j] += row[i] * (std::popcount((i % n) & (j % n)) % 2 == 0 ? 1.0 : -1.0) / std::sqrt(order);
    }
  }
  return out;
}

inline double RelativeMse(const Rows& x, const std::vector<std::vector<double>>& x_hat) {
  double error = 0, power = 0;
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t c = 0; c < x[t].size(); ++c) {
      error += (x[t][c] - x_hat[t][c]) * (x[t][c] - x_hat[t][c]);
      power += double{x[t][c]} * x[t][c];
    }
  }
  return error / power;
}

inline std::string Hex(uint16_t bits) {
  char text[5];
  std::snprintf(text, sizeof(text), "%04x", bits);
  return text;
}

struct LogitError {
  double mean_squared = 0, divergence = 0;
};
inline LogitError CompareLogits(const std::vector<float>& query, const Rows& keys, const std::vector<std::vector<double>>& stored, bool centre) {
  std::vector<double> exact, quantised;
  for (size_t t = 0; t < keys.size(); ++t) {
    double a = 0, b = 0;
    for (size_t c = 0; c < query.size(); ++c) {
      a += double{query[c]} * keys[t][c];
      b += double{query[c]} * stored[t][c];
    }
    exact.push_back(a / std::sqrt(128.0));
    quantised.push_back(b / std::sqrt(128.0));
  }
  const auto log_sum = [](const std::vector<double>& scores) {
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double score : scores) sum += std::exp(score - max);
    return max + std::log(sum);
  };
  const double n = static_cast<double>(exact.size()), exact_sum = log_sum(exact), quantised_sum = log_sum(quantised);
  double mean = 0;
  for (size_t t = 0; t < exact.size(); ++t) mean += (quantised[t] - exact[t]) / n;
  LogitError result;
  for (size_t t = 0; t < exact.size(); ++t) {
    const double error = quantised[t] - exact[t] - (centre ? mean : 0.0);
    result.mean_squared += error * error / n;
    result.divergence += std::exp(exact[t] - exact_sum) * ((exact[t] - exact_sum) - (quantised[t] - quantised_sum));
  }
  return result;
}

}  // namespace oscar::testing
