// The golden vectors of tests/data/golden/baselines.json (baselines.md 11) for the compared methods in plain C++.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "oscar/kernels.h"
#include "src/kv/codec/code_groups.h"
#include "src/kv/codec/turboquant/codebook.h"
#include "src/kv/pool/ledger.h"
#include "src/testing/golden_file.h"
#include "src/testing/row_codec_pages.h"

namespace oscar::codec {
namespace {

using testing::CompareLogits;
using testing::Golden;
using testing::HadamardBlocks;
using testing::HadamardBlocksInDouble;
using testing::Input;
using testing::json;
using testing::LogitError;
using testing::RelativeMse;
using testing::RowCodecUnit;
using testing::Rows;
using DoubleRows = std::vector<std::vector<double>>;

// Rows through one side of a codec, with a Hadamard matrix of blocks of `order` around it; order 0 for none.
DoubleRows Through(const std::string& codec, KvSide side, const Rows& x, int order = 0, bool round = false) {
  const int d = static_cast<int>(x[0].size());
  DoubleRows decoded;
  for (size_t first = 0; first < x.size();) {
    RowCodecUnit unit(codec, d);
    Rows rows;
    for (size_t t = first; t < x.size() && t < first + static_cast<size_t>(unit.num_tokens()); ++t) {
      rows.push_back(order > 0 ? HadamardBlocks(x[t], order, round) : x[t]);
    }
    EXPECT_EQ(unit.Encode(side, rows), -1);
    const DoubleRows all = unit.Decode(side);
    for (size_t t = 0; t < rows.size(); ++t) decoded.push_back(order > 0 ? HadamardBlocksInDouble(all[t], order) : all[t]);
    first += rows.size();
  }
  return decoded;
}

std::string HexBytes(const std::byte* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof(byte), "%s%02x", i == 0 ? "" : " ", std::to_integer<unsigned>(bytes[i]));
    text += byte;
  }
  return text;
}

uint16_t StoredF16(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return bits;
}

std::string Digits(int bits, size_t count, const std::byte* string) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += "0123456789abcdef"[GetCode(bits, i, string)];
  return text;
}

void ExpectNearRelative(double actual, double expected, double tolerance) { EXPECT_NEAR(actual, expected, tolerance * std::abs(expected)); }

TEST(ComparedGolden, SawInt4HasTheBytesAndErrorsOfTheGoldenFile) {
  int num_cases = 0;
  for (const json& item : Golden()["rows"]) {
    const Rows x = Input(item["input"]);
    if (item["codec"] != "saw_int4" || x[0].size() < 64) continue;
    SCOPED_TRACE(item["id"].get<std::string>());
    const int order = item.value("hadamard", 0);
    ExpectNearRelative(RelativeMse(x, Through("saw_int4", KvSide::kKey, x, order, true)), item["stored"]["relmse"], 1e-6);
    if (x.size() == 1) {
      const int d = static_cast<int>(x[0].size());
      RowCodecUnit unit("saw_int4", d);
      ASSERT_EQ(unit.Encode(KvSide::kKey, {order > 0 ? HadamardBlocks(x[0], order, true) : x[0]}), -1);
      if (item["code_exact"].get<bool>()) {
        EXPECT_EQ(HexBytes(unit.page(0).data(), static_cast<size_t>(d / 2)), item["bytes_half"]);
      }
      EXPECT_EQ(StoredF16(unit.page(0).data() + d / 2), std::stoi(item["scale_f16"][0].get<std::string>(), nullptr, 16));
    }
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 14);
}

TEST(ComparedGolden, TurboQuantKeysAndValuesHaveTheCodesOfTheGoldenFile) {
  const std::map<int, std::string> codecs = {{3, "turboquant3"}, {4, "turboquant4"}};
  for (const json& item : Golden()["turboquant"]["cases"]) {
    const int bits = item["bits"];
    if (!codecs.contains(bits)) continue;  // vLLM has no 2-bit keys
    SCOPED_TRACE(item["id"].get<std::string>());
    const Rows x = Input(item["input"]);
    const int d = static_cast<int>(x[0].size());
    ExpectNearRelative(RelativeMse(x, Through(codecs.at(bits), KvSide::kKey, x, d)), item["relmse_f16_norm"], 1e-4);
    if (!item.contains("codes")) continue;
    RowCodecUnit unit(codecs.at(bits), d);
    ASSERT_EQ(unit.Encode(KvSide::kKey, {HadamardBlocks(x[0], d, false)}), -1);
    EXPECT_EQ(HexBytes(unit.page(0).data(), static_cast<size_t>(d * bits / 8)), item["bytes"]);
    EXPECT_EQ(Digits(bits, static_cast<size_t>(d), unit.page(0).data()), item["codes"]);
    EXPECT_EQ(StoredF16(unit.page(0).data() + d * bits / 8), std::stoi(item["norm_f16"].get<std::string>(), nullptr, 16));
  }
  for (const json& item : Golden()["rows"]) {
    if (item["codec"] != "turboquant3") continue;
    SCOPED_TRACE(item["id"].get<std::string>());
    const Rows x = Input(item["input"]);
    const std::string& codec = codecs.at(item["bits"]);
    ExpectNearRelative(RelativeMse(x, Through(codec, KvSide::kValue, x)), item["stored"]["relmse"], 1e-6);
    RowCodecUnit unit(codec, 128);
    ASSERT_EQ(unit.Encode(KvSide::kValue, x), -1);
    const size_t key_bytes = static_cast<size_t>(16 * item["bits"].get<int>() + 2);
    EXPECT_EQ(Digits(item["bits"], 128, unit.page(0).data() + 64 * key_bytes), item["stored"]["codes"]);
  }
}

TEST(ComparedGolden, ATurboQuantKeyInOneChannelKeepsItsNormAndAZeroKeyIsZero) {
  const json& section = Golden()["turboquant"]["one_hot"];
  std::vector<float> key(128, 0.0f);
  key[0] = 7;
  for (const json& item : section["cases"]) {
    const int bits = item["bits"];
    if (bits == 2) continue;
    const std::string codec = bits == 3 ? "turboquant3" : "turboquant4";
    RowCodecUnit unit(codec, 128);
    ASSERT_EQ(unit.Encode(KvSide::kKey, {HadamardBlocks(key, 128, false)}), -1);
    EXPECT_EQ(HexBytes(unit.page(0).data(), item["bytes_repeat"].get<std::string>().size() / 3 + 1), item["bytes_repeat"]);
    EXPECT_EQ(HexBytes(unit.page(0).data() + 16 * bits, 2), section["norm_f16_bytes"]);
    ExpectNearRelative(Through(codec, KvSide::kKey, {key}, 128)[0][0], item["xhat_0"], 1e-5);
    EXPECT_EQ(Through(codec, KvSide::kKey, {std::vector<float>(128, 0.0f)}, 128)[0], std::vector<double>(128, 0.0));
  }
  std::byte packed[3] = {};
  for (unsigned i = 0; i < 8; ++i) PutCode(3, i, i, packed);
  EXPECT_EQ(HexBytes(packed, 3), Golden()["turboquant"]["packing"]["bytes"]);
}

TEST(ComparedGolden, CodebooksHaveTheConstantsOfTheGoldenFile) {
  const auto check = [](const json& table, auto centroid, auto nearest, unsigned half) {
    for (unsigned i = 0; i < half; ++i) {
      EXPECT_FLOAT_EQ(centroid(half + i), table["centroids"][i].get<float>());
      EXPECT_FLOAT_EQ(centroid(half - 1 - i), -table["centroids"][i].get<float>());
    }
    EXPECT_EQ(nearest(0.0f), half);
    for (unsigned i = 0; i + 1 < half; ++i) {
      const float threshold = table["thresholds"][i];
      EXPECT_EQ(nearest(threshold * 0.9999f), half + i);
      EXPECT_EQ(nearest(threshold * 1.0001f), half + i + 1);
    }
  };
  using namespace turboquant;
  check(Golden()["codebooks"]["normal"]["2"], Centroid<2>, NearestCentroid<2>, 2);
  check(Golden()["codebooks"]["normal"]["3"], Centroid<3>, NearestCentroid<3>, 4);
  check(Golden()["codebooks"]["normal"]["4"], Centroid<4>, NearestCentroid<4>, 8);
}

TEST(ComparedGolden, KiviHasTheWordsScalesAndErrorsOfTheGoldenFile) {
  for (const json& item : Golden()["kivi"]["key"]) {
    SCOPED_TRACE(item["id"].get<std::string>());
    const Rows x = Input(item["input"]);
    const int group = item["group"], d = static_cast<int>(x[0].size());
    const std::string codec = "kivi_g" + std::to_string(group);
    ExpectNearRelative(RelativeMse(x, Through(codec, KvSide::kKey, x)), item["relmse_f16_meta"], 1e-5);
    RowCodecUnit unit(codec, d);
    ASSERT_EQ(unit.Encode(KvSide::kKey, x), -1);
    const json& grid = item["channel_5_group_0"];
    EXPECT_EQ(StoredF16(unit.page(0).data() + 10), base::F16FromF32(grid["scale"]));
    EXPECT_EQ(StoredF16(group == 32 ? unit.page(0).data() + 4 * d + 10 : unit.page(1).data() + 10), base::F16FromF32(grid["min"]));
  }
  int num_values = 0;
  for (const json& item : Golden()["rows"]) {
    if (item["codec"] != "kivi") continue;
    SCOPED_TRACE(item["id"].get<std::string>());
    const Rows x = Input(item["input"]);
    const auto d = x[0].size();
    const std::string codec = item["group"] == 32 ? "kivi" : "kivi_g128";
    ExpectNearRelative(RelativeMse(x, Through(codec, KvSide::kValue, x)), item["relmse_f16_meta"], 1e-5);
    ++num_values;
    if (x.size() > 1) continue;
    RowCodecUnit unit(codec, static_cast<int>(d));
    ASSERT_EQ(unit.Encode(KvSide::kValue, x), -1);
    const size_t key_bytes = codec == "kivi" ? 20 * d : 18 * d;
    for (size_t i = 0; i < d / 16; ++i) {
      uint32_t word;
      std::memcpy(&word, unit.page(0).data() + key_bytes + 4 * i, 4);
      EXPECT_EQ(word, std::stoul(item["words"][i].get<std::string>(), nullptr, 16));
    }
  }
  EXPECT_EQ(num_values, 8);
}

TEST(ComparedGolden, KiviPacksACodeStringAsTheGoldenFile) {
  const json& item = Golden()["kivi"]["packing"]["linspace32"];
  std::vector<float> x;
  for (int i = 0; i < 32; ++i) x.push_back(static_cast<float>(-1 + 3.0 * i / 31));
  std::byte codes[8] = {};
  const GroupGrid grid = EncodeUnrounded({x.data(), 32, 1}, 3, 0.0f, HalfRounding::kEven,
                                         [&](size_t i, unsigned code) { PutCode(2, i, code, codes); });
  EXPECT_EQ(base::F32FromF16(grid.scale_f16), item["scale"].get<float>());
  EXPECT_EQ(base::F32FromF16(grid.offset_f16), item["offset"].get<float>());
  for (size_t i = 0; i < 2; ++i) {
    uint32_t word;
    std::memcpy(&word, codes + 4 * i, 4);
    EXPECT_EQ(word, std::stoul(item["words"][i].get<std::string>(), nullptr, 16));
  }
}

// The K schedule of KIVI is our tier rule with sink 0, recent 0 and the residual as unit; a flush happens when a unit is full.
TEST(ComparedGolden, TheTierRuleQuantisesKeysWhenKiviDoes) {
  for (const json& item : Golden()["kivi"]["schedule"]) {
    EXPECT_EQ(EncodedEnd(item["length"], 0, 0, item["residual"]), item["key_quantised"]) << item;
  }
  const json& flush = Golden()["kivi"]["next_key_flush"];
  int length = flush["length"];
  const int encoded = EncodedEnd(length, 0, 0, flush["residual"]);
  while (EncodedEnd(length, 0, 0, flush["residual"]) == encoded) ++length;
  EXPECT_EQ(length, flush["at_length"]);
}

TEST(ComparedGolden, KittyBoostsTheChannelsOfTheGoldenFile) {
  for (const json& item : Golden()["kitty"]["cases"]) {
    SCOPED_TRACE(item["id"].get<std::string>());
    const Rows x = Input(item["input"]);
    const size_t d = x[0].size();
    const std::string codec = item["ratio"] == 0.125 ? "kitty" : "kitty_pro";
    ExpectNearRelative(RelativeMse(x, Through(codec, KvSide::kKey, x)), item["relmse_f16_meta"], 1e-5);
    RowCodecUnit unit(codec, static_cast<int>(d));
    ASSERT_EQ(unit.Encode(KvSide::kKey, x), -1);
    std::vector<int> boosted;
    for (size_t c = 0; c < d; ++c) {
      const auto row = std::to_integer<size_t>(unit.page(c < d / 2 ? 0 : 1)[2 * d + c % (d / 2)]);
      if (row == item["boosted"].size()) continue;
      EXPECT_EQ(row, boosted.size());
      boosted.push_back(static_cast<int>(c));
    }
    EXPECT_EQ(boosted, item["boosted"].get<std::vector<int>>());
  }
}

TEST(ComparedGolden, KittySplitsFourBitCodesOverTwoPlanes) {
  const json& item = Golden()["kitty"]["planes"];
  Rows rows(128, std::vector<float>(64, 0.0f));
  for (size_t t = 0; t < 128; ++t) rows[t][0] = static_cast<float>(15.0 * static_cast<double>(t) / 127);
  RowCodecUnit unit("kitty", 64);
  ASSERT_EQ(unit.Encode(KvSide::kKey, rows), -1);
  constexpr size_t kLow = 2 * 64 + 32, kHigh = kLow + 16 * 64;
  for (const auto& [name, start] : {std::pair{"low_bytes", kLow}, std::pair{"high_bytes", kHigh}}) {
    EXPECT_EQ(HexBytes(unit.page(0).data() + start, 16) + " " + HexBytes(unit.page(1).data() + start, 16), item[name]) << name;
  }
}

TEST(ComparedGolden, GgmlBlocksHaveTheBytesOfTheGoldenFile) {
  const json& section = Golden()["ggml"];
  const auto block_of = [](int first) {
    std::vector<float> x;
    for (int i = 0; i < 64; ++i) x.push_back(static_cast<float>(i % 32 + first));
    return x;
  };
  RowCodecUnit q8("q8_0", 64);
  ASSERT_EQ(q8.Encode(KvSide::kKey, {block_of(-16)}), -1);
  EXPECT_EQ(HexBytes(q8.page(0).data(), 2), section["q8_0"][0]["d_bytes"]);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(static_cast<int8_t>(q8.page(0)[2 + i]), section["q8_0"][0]["codes"][i].get<int>());
  for (const auto& [index, first] : {std::pair{0, -16}, std::pair{1, -15}}) {
    const json& item = section["q4_0"][static_cast<size_t>(index)];
    RowCodecUnit q4("q4_0", 64);
    ASSERT_EQ(q4.Encode(KvSide::kValue, {block_of(first)}), -1);
    const std::byte* block = q4.page(0).data() + 64 * 36;
    EXPECT_EQ(HexBytes(block, 2), item["d_bytes"]);
    EXPECT_EQ(HexBytes(block + 2, 16), item["bytes"]);
    const std::vector<double> x = q4.Decode(KvSide::kValue)[0];
    EXPECT_EQ(*std::min_element(x.begin(), x.end()), item["xhat_min"].get<double>());
    EXPECT_EQ(*std::max_element(x.begin(), x.end()), item["xhat_max"].get<double>());
  }
  for (const json& item : section["block_bytes"]) {
    for (const char* name : {"q8_0", "q4_0"}) {
      EXPECT_EQ(FindCodec(name)->page_bytes(item["dim"]), 128 * item[name].get<size_t>());
    }
  }
  for (const json& item : section["cases"]) {
    const Rows x = Input(item["input"]);
    ExpectNearRelative(RelativeMse(x, Through("q8_0", KvSide::kKey, x)), item["q8_0_relmse"], 1e-5);
    ExpectNearRelative(RelativeMse(x, Through("q4_0", KvSide::kValue, x)), item["q4_0_relmse"], 1e-5);
  }
}

// baselines.md 3: steady bits of the published settings that exist here.
TEST(ComparedGolden, StoredBitsAreThoseOfTheLedger) {
  struct Case {
    const char* codec;
    int d;
    double bits;
  };
  for (const Case& item : {Case{"q8_0", 64, 8.5}, Case{"q4_0", 128, 4.5}, Case{"saw_int4", 128, 4.25}, Case{"saw_int4", 64, 4.5},
                           Case{"turboquant3", 128, 3.1875}, Case{"turboquant3", 64, 3.375}, Case{"turboquant4", 128, 4.1875},
                           Case{"turboquant4", 64, 4.375}, Case{"turboquant3v4", 128, 3.6875}, Case{"turboquant3v4", 64, 3.875},
                           Case{"turboquant_mse2", 128, 2.125}, Case{"turboquant_mse3", 64, 3.25}, Case{"turboquant_product3", 128, 3.25},
                           Case{"kivi", 128, 2.75}, Case{"kivi", 64, 2.75}, Case{"kivi_g32", 128, 3.0}, Case{"kivi_g32", 64, 3.0},
                           Case{"kivi_g128", 128, 2.25}, Case{"kivi_g128", 64, 2.375}, Case{"kitty", 128, 2.40625},
                           Case{"kitty", 64, 2.53125}, Case{"kitty_pro", 128, 2.53125}, Case{"kitty_pro", 64, 2.65625}}) {
    EXPECT_DOUBLE_EQ(pool::SteadyBits(*FindCodec(item.codec), item.d), item.bits) << item.codec << " d " << item.d;
  }
  for (const json& item : Golden()["kitty"]["page_bytes"]) {
    const int d = item["dim"];
    const char* codec = item["boosted"] == d / 8 ? "kitty" : "kitty_pro";
    EXPECT_EQ(2 * FindCodec(codec)->page_bytes(d), item["key_page_bytes"].get<size_t>() + item["value_page_bytes"].get<size_t>());
  }
  for (const json& item : Golden()["ledger"]["turboquant_slots"]) {
    const auto method = ParseKvMethod(item["type"].get<std::string>());
    if (!method.ok()) continue;  // turboquant_k8v4 needs FP8 keys
    EXPECT_EQ(method->codec->page_bytes(item["dim"]), 64 * item["slot_bytes"].get<size_t>()) << item;
  }
}

// baselines.md 7.2 and 7.3: names of the golden file to codecs and Hadamard orders.
struct KeyMethod {
  const char* codec;
  int order;
};
const std::map<std::string, KeyMethod> kKeyMethods = {
    {"kivi 32", {"kivi_g32", 0}},           {"kivi 128", {"kivi_g128", 0}},         {"q8_0", {"q8_0", 0}},
    {"q4_0", {"q4_0", 0}},                  {"saw_int4 order 128", {"saw_int4", 128}}, {"saw_int4 unrotated", {"saw_int4", 0}},
    {"turboquant 3 bits", {"turboquant3", 128}}, {"turboquant 4 bits", {"turboquant4", 128}}};

TEST(ComparedGolden, KeyBiasErrorsAreThoseOfTheGoldenFile) {
  const Rows keys = Input("bias_keys"), queries = Input("bias_queries");
  size_t num_cases = 0;
  for (const json& item : Golden()["key_bias"]["rows"]) {
    const auto method = kKeyMethods.find(item["codec"]);
    if (method == kKeyMethods.end()) continue;
    const bool round = std::string(method->second.codec) == "saw_int4";
    const DoubleRows stored = Through(method->second.codec, KvSide::kKey, keys, method->second.order, round);
    LogitError mean;
    for (const std::vector<float>& query : queries) {
      const LogitError error = CompareLogits(query, keys, stored, true);
      mean.mean_squared += error.mean_squared / static_cast<double>(queries.size());
      mean.divergence += error.divergence / static_cast<double>(queries.size());
    }
    ExpectNearRelative(std::sqrt(mean.mean_squared), item["logit_rmse"], 0.03);
    ExpectNearRelative(mean.divergence, item["kl"], 0.03);
    ++num_cases;
  }
  EXPECT_EQ(num_cases, kKeyMethods.size());
}

// baselines.md 7.1: on M128, smallest error first.
TEST(ComparedGolden, ErrorsOfTheMatrixStandInTheStatedOrder) {
  const Rows x = Input("M128");
  const std::pair<const char*, int> order[] = {{"turboquant4", 128}, {"saw_int4", 128}, {"turboquant3", 128}, {"saw_int4", 0},
                                               {"kitty_pro", 0},     {"kivi_g32", 0},   {"kitty", 0},         {"kivi_g128", 0}};
  double last = 0;
  for (const auto& [codec, hadamard] : order) {
    const double error = RelativeMse(x, Through(codec, KvSide::kKey, x, hadamard, std::string(codec) == "saw_int4"));
    EXPECT_GT(error, last) << codec;
    last = error;
  }
}

}  // namespace
}  // namespace oscar::codec
