// The golden vectors of tests/data/golden/baselines.json (baselines.md 11) for every method of the affine codec that exists, on
// the slow judge and on the vectorised encoder of each SIMD target.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "oscar/kv_transform.h"
#include "oscar/reference.h"
#include "src/base/float_bits.h"
#include "src/kv/codec/affine/clip.h"
#include "src/kv/codec/affine/simd_encoder_for_test.h"
#include "src/kv/transform/bit_reversal.h"
#include "src/testing/golden_file.h"
#include "src/testing/simd_targets.h"

namespace oscar::affine {
namespace {

using nlohmann::json;
using reference::AffineRow;
using testing::CompareLogits;
using testing::Golden;
using testing::HadamardBlocks;
using testing::HadamardBlocksInDouble;
using testing::Hex;
using testing::Input;
using testing::LogitError;
using testing::RelativeMse;
using testing::Rows;

std::string Fnv1a64(const std::vector<AffineRow>& rows) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const AffineRow& row : rows) {
    for (uint8_t code : row.codes) hash = (hash ^ code) * 0x100000001B3ull;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::string Digits(const AffineRow& row) {
  std::string text;
  for (uint8_t code : row.codes) text += "0123456789abcdef"[code];
  return text;
}

using Encoder = std::function<Result<AffineRow>(const std::vector<float>&, int bits, const RowProfile&)>;

// Runs `check` with the judge, then with the vectorised encoder of each target.
void WithEveryEncoder(const std::function<void(const std::string&, bool simd, const Encoder&)>& check) {
  check("judge", false, [](const std::vector<float>& y, int bits, const RowProfile& row) { return reference::EncodeRow(y, bits, row); });
  testing::OnEverySimdTarget([&](const char* target) {
    check(target, true, [](const std::vector<float>& y, int, const RowProfile& row) { return EncodeOnTarget(y, row); });
  });
}

TEST(Golden, StoredRowsHaveTheCodesHashesAndErrorsOfTheGoldenFile) {
  WithEveryEncoder([](const std::string& name, bool simd, const Encoder& encode) {
    int num_cases = 0;
    for (const json& item : Golden()["rows"]) {
      const std::string codec = item["codec"];
      const bool ours = codec == "int2:naive" || codec == "int2:clip" || codec == "int2:hadamard" || codec == "saw_int4";
      const int bits = item["bits"];
      const Rows x = Input(item["input"]);
      if (!ours || (simd && (bits != 2 || x[0].size() % 16 != 0))) continue;
      SCOPED_TRACE(name + " " + item["id"].get<std::string>());
      const int order = item.value("hadamard", 0);
      const RowProfile profile{.clip_ratio = item.value("clip", 0.0f)};
      std::vector<AffineRow> rows;
      std::vector<std::vector<double>> x_hat;
      for (const std::vector<float>& row : x) {
        const std::vector<float> y = order > 0 ? HadamardBlocks(row, order, item["bf16_after_hadamard"]) : row;
        rows.push_back(encode(y, bits, profile).value());
        x_hat.push_back(reference::DecodeRow(rows.back()));
        if (order > 0) x_hat.back() = HadamardBlocksInDouble(x_hat.back(), order);
      }
      if (item.contains("scale_f16")) {
        EXPECT_EQ(Hex(rows[0].scale_f16), item["scale_f16"][0]);
        EXPECT_EQ(Hex(rows[0].offset_f16), item["offset_f16"][0]);
      }
      if (item.contains("xhat")) {
        EXPECT_EQ(x_hat[0], std::vector<double>(x_hat[0].size(), item["xhat"].get<double>()));
      }
      ++num_cases;
      if (!item.contains("stored")) continue;
      const json& stored = item["stored"];
      EXPECT_EQ(Fnv1a64(rows), stored["fnv1a64"]);
      if (stored.contains("codes")) {
        EXPECT_EQ(Digits(rows[0]), stored["codes"]);
      }
      const double expected = stored["relmse"];
      EXPECT_NEAR(RelativeMse(x, x_hat), expected, 1e-6 * expected);
    }
    EXPECT_GE(num_cases, simd ? 41 : 60);
  });
}

TEST(Golden, QuaRotRowsHaveTheCodesOfTheGoldenFile) {
  WithEveryEncoder([](const std::string& name, bool, const Encoder& encode) {
    int num_cases = 0;
    for (const json& item : Golden()["quarot"]) {
      if (item["symmetric"]) continue;  // another quantiser of the tool; not a method here
      SCOPED_TRACE(name + " " + item["id"].get<std::string>());
      std::vector<float> y = Input(item["input"])[0];
      if (item.contains("hadamard")) y = HadamardBlocks(y, item["hadamard"], item["bf16_after_hadamard"]);
      const AffineRow row = encode(y, 2, {.range_factor = item["clip"], .encoder = EncoderKind::kIntegerZeroPoint}).value();
      EXPECT_EQ(Digits(row), item["codes"]);
      EXPECT_EQ(row.scale_f16, base::F16FromF32(item["scale"].get<float>()));
      EXPECT_EQ(row.offset_f16, base::F16FromF32(item["offset"].get<float>()));
      ++num_cases;
    }
    EXPECT_EQ(num_cases, 3);
  });
}

TEST(Golden, LloydAffineRowsHaveTheCodesOfTheGoldenFile) {
  WithEveryEncoder([](const std::string& name, bool, const Encoder& encode) {
    int num_cases = 0;
    for (const json& item : Golden()["oscar_lloyd"]["cases"]) {
      SCOPED_TRACE(name + " " + item["id"].get<std::string>());
      const Rows x = Input(item["input"]);
      for (const auto& [ratio, expected] : {std::pair{1.16f, item["relmse_f16_meta"].get<double>()}, std::pair{1.0f, item["relmse_ratio_1.00"].get<double>()}}) {
        std::vector<std::vector<double>> x_hat;
        for (const std::vector<float>& row : x) {
          const std::vector<float> y = HadamardBlocks(row, item["hadamard"], item["bf16_after_hadamard"]);
          const AffineRow encoded =
              encode(y, 2, {.clip_ratio = item["clip"], .range_factor = ratio, .encoder = EncoderKind::kLloydAffine}).value();
          if (item.contains("codes")) {
            EXPECT_EQ(Digits(encoded), item["codes"]);
          }
          if (item.contains("scale_f16") && ratio > 1) {
            EXPECT_EQ(Hex(encoded.scale_f16), item["scale_f16"]);
            EXPECT_EQ(Hex(encoded.offset_f16), item["offset_f16"]);
          }
          x_hat.push_back(HadamardBlocksInDouble(reference::DecodeRow(encoded), item["hadamard"]));
        }
        EXPECT_NEAR(RelativeMse(x, x_hat), expected, item["tol_rel"].get<double>() * expected);
      }
      ++num_cases;
    }
    EXPECT_EQ(num_cases, 5);
  });
}

TEST(Golden, ALargeOffsetHasTheErrorOfTheGoldenFile) {
  const json& item = Golden()["large_offset"];
  for (const auto& [shift, expected] : {std::pair{0.0f, item["max_abs_error"]["fp16 scale, fp16 offset"].get<double>()},
                                        std::pair{2.0f, item["shifted_by_2"]["stored"].get<double>()}}) {
    std::vector<float> y = Input("offset5000")[0];
    for (float& value : y) value += shift;
    const std::vector<double> x = reference::DecodeRow(*reference::EncodeRow(y, 2, {}));
    double worst = 0;
    for (size_t i = 0; i < y.size(); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
    EXPECT_NEAR(worst, expected, item["tol_abs"].get<double>());
  }
}

TEST(Golden, ClipIndicesAndBitReversalAreThoseOfTheGoldenFile) {
  for (const json& item : Golden()["clip_index"]) {
    EXPECT_EQ(ClipIndex(item["ratio"], item["dim"]), item["index"]) << item;
  }
  EXPECT_EQ(transform::BitReversalPermutation(8), Golden()["bit_reversal"]["perm"].get<std::vector<int>>());
  for (const auto& [value, reversed] : Golden()["bit_reversal"]["bitrev7"].items()) {
    EXPECT_EQ(transform::ReverseBits(static_cast<uint32_t>(std::stoi(value)), 7), reversed.get<uint32_t>());
  }
}

TEST(Golden, TheHadamardTransformHasTheValuesOfTheGoldenFile) {
  const json& item = Golden()["hadamard"]["G128_order_128"];
  const std::vector<float> y = HadamardBlocks(Input("G128")[0], 128, false), rounded = HadamardBlocks(Input("G128")[0], 128, true);
  for (size_t i = 0; i < 8; ++i) {
    const double expected = item["first"][i];
    EXPECT_NEAR(y[i], expected, 1e-6 * std::abs(expected));
    EXPECT_EQ(rounded[i], item["bf16_first"][i].get<float>());
  }
  const std::vector<float> ramp = HadamardBlocks(Input("ramp128")[0], 128, false);
  for (int i = 0; i < 128; ++i) {
    const double expected = Golden()["hadamard"]["H128_of_ramp128_nonzero"].value(std::to_string(i), 0.0);
    EXPECT_NEAR(ramp[static_cast<size_t>(i)], expected, 1e-4) << i;
  }
}

// baselines.md 7.2 and 7.3. Keys of one token each through a method's whole row pipeline.
std::vector<std::vector<double>> KeysThrough(const std::string& method, const Rows& keys) {
  std::vector<std::vector<double>> out;
  for (const std::vector<float>& key : keys) {
    if (method == "bf16") {
      out.emplace_back();
      for (float value : key) out.back().push_back(base::RoundToBf16(value));
      continue;
    }
    const bool hadamard = method.find("hadamard") != std::string::npos;
    const KvTransform transform = hadamard ? KvTransform::Hadamard(128).value() : KvTransform::Identity(128);
    const RowProfile profile{.clip_ratio = method.find("clip 0.96") != std::string::npos ? 0.96f : 0.0f};
    const std::vector<float> y = hadamard ? reference::TransformRow(key, transform, {}) : key;
    out.push_back(reference::InverseTransformRow(reference::DecodeRow(*reference::EncodeRow(y, 2, profile)), transform, {}));
  }
  return out;
}

TEST(Golden, LogitErrorsAreThoseOfTheGoldenFile) {
  const json& section = Golden()["logits"];
  for (const json& item : section["cases"]) {
    const std::string method = item["codec"];
    const LogitError error = CompareLogits(Input("qvec")[0], Input("M128"), KeysThrough(method, Input("M128")), false);
    EXPECT_NEAR(std::sqrt(error.mean_squared), item["logit_rmse"].get<double>(), 0.02 * item["logit_rmse"].get<double>()) << method;
    EXPECT_NEAR(error.divergence, item["kl"].get<double>(), 0.02 * item["kl"].get<double>()) << method;
  }
}

TEST(Golden, KeyBiasErrorsAreThoseOfTheGoldenFile) {
  const Rows keys = Input("bias_keys"), queries = Input("bias_queries");
  int num_cases = 0;
  for (const json& item : Golden()["key_bias"]["rows"]) {
    const std::string method = item["codec"];
    if (method != "bf16" && method.substr(0, 5) != "int2:") continue;
    const std::vector<std::vector<double>> stored = KeysThrough(method, keys);
    LogitError mean;
    for (const std::vector<float>& query : queries) {
      const LogitError error = CompareLogits(query, keys, stored, true);
      mean.mean_squared += error.mean_squared / static_cast<double>(queries.size());
      mean.divergence += error.divergence / static_cast<double>(queries.size());
    }
    EXPECT_NEAR(std::sqrt(mean.mean_squared), item["logit_rmse"].get<double>(), 0.03 * item["logit_rmse"].get<double>()) << method;
    EXPECT_NEAR(mean.divergence, item["kl"].get<double>(), 0.03 * item["kl"].get<double>()) << method;
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 4);
}

}  // namespace
}  // namespace oscar::affine
