// Row codecs against the formulas of baselines.md in obvious double precision, value by value, and at the edges of their formats.
// A value so close to a decision threshold that rounding errors decide is left out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <random>

#include "src/base/float_bits.h"
#include "src/kv/codec/turboquant/random_matrix.h"
#include "src/testing/row_codec_pages.h"
#include "src/testing/seeds.h"

namespace oscar::codec {
namespace {

using testing::RowCodecUnit;
using Rows = std::vector<std::vector<double>>;

double ToF16(double value) { return base::F32FromF16(base::F16FromF32(static_cast<float>(value))); }

// x_hat of every value, and how far the value was from a threshold, in steps.
struct Judged {
  Rows x_hat, margin;
};
Judged Empty(const Rows& x) {
  const Rows zeros(x.size(), std::vector<double>(x[0].size(), 0.0));
  return {zeros, zeros};
}

// A group of values of x by (token, channel).
using Group = std::vector<std::pair<size_t, size_t>>;
std::vector<Group> RowGroups(const Rows& x, size_t channels) {
  std::vector<Group> groups;
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t first = 0; first < x[t].size(); first += channels) {
      groups.emplace_back();
      for (size_t c = first; c < first + channels; ++c) groups.back().emplace_back(t, c);
    }
  }
  return groups;
}
std::vector<Group> ChannelGroups(const Rows& x, size_t tokens) {
  std::vector<Group> groups;
  for (size_t c = 0; c < x[0].size(); ++c) {
    for (size_t first = 0; first < x.size(); first += tokens) {
      groups.emplace_back();
      for (size_t t = first; t < first + tokens; ++t) groups.back().emplace_back(t, c);
    }
  }
  return groups;
}

std::vector<double> ValuesOf(const Rows& x, const Group& group) {
  std::vector<double> values;
  for (const auto& [t, c] : group) values.push_back(x[t][c]);
  return values;
}
double DistanceToHalf(double u) { return std::abs(u - std::floor(u) - 0.5); }

// Affine groups: codes against the stored pair (method.md 3.1), or against the unrounded one (KIVI, Kitty).
void JudgeAffine(const Rows& x, const Group& group, int largest_code, bool against_stored, double smallest_range, Judged& judged) {
  const std::vector<double> values = ValuesOf(x, group);
  const double low = *std::min_element(values.begin(), values.end()), high = *std::max_element(values.begin(), values.end());
  const double scale = std::max(high - low, smallest_range) / largest_code, scale16 = ToF16(scale), low16 = ToF16(low);
  for (size_t i = 0; i < group.size(); ++i) {
    const auto& [t, c] = group[i];
    const double s = against_stored ? scale16 : scale, o = against_stored ? low16 : low;
    const double u = s == 0 ? 0 : std::clamp((values[i] - o) / s, 0.0, static_cast<double>(largest_code));
    judged.x_hat[t][c] = low16 + scale16 * std::floor(u + 0.5);
    judged.margin[t][c] = DistanceToHalf(u);
  }
}

Judged JudgeAffineGroups(const Rows& x, const std::vector<Group>& groups, int largest_code, bool against_stored) {
  Judged judged = Empty(x);
  for (const Group& group : groups) JudgeAffine(x, group, largest_code, against_stored, 0.0, judged);
  return judged;
}

Judged JudgeQ8(const Rows& x) {
  Judged judged = Empty(x);
  for (const Group& group : RowGroups(x, 32)) {
    double largest = 0;
    for (double value : ValuesOf(x, group)) largest = std::max(largest, std::abs(value));
    for (const auto& [t, c] : group) {
      const double u = largest == 0 ? 0 : x[t][c] / (largest / 127);
      judged.x_hat[t][c] = std::round(u) * ToF16(largest / 127);
      judged.margin[t][c] = DistanceToHalf(std::abs(u));
    }
  }
  return judged;
}

Judged JudgeQ4(const Rows& x) {
  Judged judged = Empty(x);
  for (const Group& group : RowGroups(x, 32)) {
    double extreme = 0;
    for (double value : ValuesOf(x, group)) extreme = std::abs(value) > std::abs(extreme) ? value : extreme;
    for (const auto& [t, c] : group) {
      const double u = extreme == 0 ? 8 : x[t][c] / (extreme / -8) + 8;
      judged.x_hat[t][c] = (std::min(15.0, std::floor(u + 0.5)) - 8) * ToF16(extreme / -8);
      judged.margin[t][c] = DistanceToHalf(u);
    }
  }
  return judged;
}

Judged JudgeKittyKeys(const Rows& x, size_t boosted) {
  Judged judged = Empty(x);
  std::vector<double> scores(x[0].size(), 0.0);
  for (const std::vector<double>& row : x) {
    for (size_t c = 0; c < row.size(); ++c) scores[c] += std::abs(row[c]);
  }
  for (const Group& group : ChannelGroups(x, 128)) {
    const size_t channel = group[0].second;
    size_t num_before = 0;  // channels that are boosted rather than this one
    for (size_t c = 0; c < scores.size(); ++c) num_before += scores[c] > scores[channel] || (scores[c] == scores[channel] && c < channel);
    JudgeAffine(x, group, num_before < boosted ? 15 : 3, false, 1e-6, judged);
  }
  return judged;
}

const std::map<int, std::vector<double>> kPositive = {
    {2, {0.452780034637, 1.5104176085}},
    {3, {0.245094178944, 0.756005281206, 1.3439092785, 2.15194570454}},
    {4, {0.128395029851, 0.38804829949, 0.656759118532, 0.942340456487, 1.25623119735, 1.61804638602, 2.06901722653, 2.73258957099}}};

// Nearest centroids of a unit vector times sqrt(d), the smaller margin of the value, and the norm of x.
struct Nearest {
  std::vector<double> centroid, margin;
  double norm = 0;
};
Nearest NearestCentroids(const std::vector<double>& x, int bits) {
  Nearest nearest;
  for (double value : x) nearest.norm += value * value;
  nearest.norm = std::sqrt(nearest.norm);
  std::vector<double> all;
  for (double c : kPositive.at(bits)) all.insert(all.end(), {c, -c});
  for (double value : x) {
    const double y = nearest.norm == 0 ? 0 : value / nearest.norm * std::sqrt(static_cast<double>(x.size()));
    double best = all[0], second = std::numeric_limits<double>::infinity();
    for (double c : all) {
      if (std::abs(y - c) < std::abs(y - best)) best = c;
    }
    for (double c : all) second = c == best ? second : std::min(second, std::abs(y - c));
    nearest.centroid.push_back(best);
    nearest.margin.push_back(second - std::abs(y - best));
  }
  return nearest;
}

Judged JudgeCodebook(const Rows& x, int bits, bool norm_correction) {
  Judged judged = Empty(x);
  for (size_t t = 0; t < x.size(); ++t) {
    const Nearest nearest = NearestCentroids(x[t], bits);
    double length = 0;
    for (double c : nearest.centroid) length += c * c;
    const double divisor = norm_correction ? std::sqrt(length) : std::sqrt(static_cast<double>(x[t].size()));
    // Corrected rows depend on every code of the row.
    const double worst = *std::min_element(nearest.margin.begin(), nearest.margin.end());
    for (size_t c = 0; c < x[t].size(); ++c) {
      judged.x_hat[t][c] = ToF16(nearest.norm) * nearest.centroid[c] / divisor;
      judged.margin[t][c] = norm_correction ? worst : nearest.margin[c];
    }
  }
  return judged;
}

Judged JudgeProduct(const Rows& x) {
  Judged judged = Empty(x);
  const size_t d = x[0].size();
  const std::vector<double> projection = turboquant::NormalMatrix(static_cast<int>(d), 19874);
  const auto s = [&](size_t i, size_t c) { return static_cast<double>(static_cast<float>(projection[i * d + c])); };
  for (size_t t = 0; t < x.size(); ++t) {
    const Nearest nearest = NearestCentroids(x[t], 2);
    double worst = *std::min_element(nearest.margin.begin(), nearest.margin.end());
    std::vector<double> rest(d), sum(d, 0.0);
    double gamma = 0;
    for (size_t c = 0; c < d; ++c) {
      rest[c] = x[t][c] / nearest.norm - nearest.centroid[c] / std::sqrt(static_cast<double>(d));
      gamma += rest[c] * rest[c];
    }
    gamma = std::sqrt(gamma);
    for (size_t i = 0; i < d; ++i) {
      double product = 0;
      for (size_t c = 0; c < d; ++c) product += s(i, c) * rest[c];
      worst = std::min(worst, std::abs(product));
      for (size_t c = 0; c < d; ++c) sum[c] += (product >= 0 ? 1 : -1) * s(i, c);
    }
    for (size_t c = 0; c < d; ++c) {
      judged.x_hat[t][c] = ToF16(nearest.norm) * (nearest.centroid[c] / std::sqrt(static_cast<double>(d)) +
                                                  std::sqrt(std::numbers::pi / 2) / static_cast<double>(d) * ToF16(gamma) * sum[c]);
      judged.margin[t][c] = worst;
    }
  }
  return judged;
}

using JudgeFn = std::function<Judged(const Rows&)>;
struct CodecJudge {
  const char* codec;
  JudgeFn keys, values;
  int divisor = 16, largest_dim = 256;
};

std::vector<CodecJudge> Judges() {
  const auto row = [](int largest_code) {
    return [=](const Rows& x) { return JudgeAffineGroups(x, RowGroups(x, x[0].size()), largest_code, true); };
  };
  const auto codebook = [](int bits, bool corrected) { return [=](const Rows& x) { return JudgeCodebook(x, bits, corrected); }; };
  const auto kivi_keys = [](size_t tokens) { return [=](const Rows& x) { return JudgeAffineGroups(x, ChannelGroups(x, tokens), 3, false); }; };
  const auto kivi_values = [](const Rows& x) { return JudgeAffineGroups(x, RowGroups(x, 32), 3, false); };
  const auto kivi_head_values = [](const Rows& x) { return JudgeAffineGroups(x, RowGroups(x, x[0].size()), 3, false); };
  return {{"q8_0", JudgeQ8, JudgeQ8, 32},
          {"q4_0", JudgeQ4, JudgeQ4, 32},
          {"saw_int4", row(15), row(15)},
          {"turboquant3", codebook(3, true), row(7)},
          {"turboquant4", codebook(4, true), row(15)},
          {"turboquant3v4", codebook(3, true), row(15)},
          {"turboquant_mse2", codebook(2, false), codebook(2, false)},
          {"turboquant_mse3", codebook(3, false), codebook(3, false)},
          {"turboquant_mse4", codebook(4, false), codebook(4, false)},
          {"turboquant_product3", JudgeProduct, JudgeProduct, 16, 128},
          {"kivi", kivi_keys(64), kivi_values, 32},
          {"kivi_g32", kivi_keys(32), kivi_values, 32},
          {"kivi_g128", kivi_keys(128), kivi_head_values, 32},
          {"kitty", [](const Rows& x) { return JudgeKittyKeys(x, x[0].size() / 8); }, row(3), 16, 128},
          {"kitty_pro", [](const Rows& x) { return JudgeKittyKeys(x, x[0].size() / 4); }, row(3), 16, 128}};
}

// Rows of a unit: normal, channels of different spread, some with an offset; bf16 numbers now and then, where ties happen.
std::vector<std::vector<float>> RandomRows(int num_tokens, int d, int kind, std::mt19937_64& rng) {
  const float deviation = std::exp2(static_cast<float>(static_cast<int>(rng() % 16) - 12));
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> rows(static_cast<size_t>(num_tokens));
  for (std::vector<float>& row : rows) {
    for (int c = 0; c < d; ++c) {
      float value = deviation * (normal(rng) * (c % 7 == 3 ? 4.0f : 1.0f) + (kind % 2 == 1 && c % 11 == 5 ? 20.0f : 0.0f));
      row.push_back(kind >= 2 ? base::RoundToBf16(value) : value);
    }
  }
  return rows;
}

TEST(RowCodecs, EveryCodecHasAJudge) {
  size_t num_codecs = 0;
  for (const CodecInfo& codec : ListCodecs()) {
    const CodecKernelEntry* entry = codec.page_bytes == nullptr ? nullptr : FindCpuKernels(codec);
    const kernels::RowCodec* row_codec = entry == nullptr ? nullptr : entry->kernels->row_codec;
    num_codecs += row_codec != nullptr && row_codec->heads_together == 1 ? 1 : 0;  // rotatekv_test.cc judges the other
  }
  EXPECT_EQ(num_codecs, Judges().size());
}

TEST(RowCodecs, DecodedRowsAreThoseOfTheFormulas) {
  std::mt19937_64 rng(testing::TestSeed(101));
  for (const CodecJudge& judge : Judges()) {
    for (int d : {64, 80, 96, 112, 128, 192, 256}) {
      if (d % judge.divisor != 0 || d > judge.largest_dim) continue;
      for (int kind = 0; kind < 4; ++kind) {
        for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
          RowCodecUnit unit(judge.codec, d);
          const std::vector<std::vector<float>> rows = RandomRows(unit.num_tokens(), d, kind, rng);
          ASSERT_EQ(unit.Encode(side, rows), -1) << judge.codec << " d " << d;
          Rows x;
          double largest = 0;
          for (const std::vector<float>& row : rows) {
            x.emplace_back(row.begin(), row.end());
            for (double value : x.back()) largest = std::max(largest, std::abs(value));
          }
          const Judged judged = (side == KvSide::kKey ? judge.keys : judge.values)(x);
          const Rows decoded = unit.Decode(side);
          int64_t num_checked = 0;
          for (size_t t = 0; t < x.size(); ++t) {
            for (size_t c = 0; c < x[t].size(); ++c) {
              if (judged.margin[t][c] < 1e-4) continue;
              // Half a unit of fp16 of the metadata, where float and double round to different sides.
              ASSERT_NEAR(decoded[t][c], judged.x_hat[t][c], std::abs(judged.x_hat[t][c]) * 0x1p-10 + largest * 2e-5)
                  << judge.codec << " d " << d << " side " << static_cast<int>(side) << " token " << t << " channel " << c;
              ++num_checked;
            }
          }
          EXPECT_GE(num_checked, static_cast<int64_t>(x.size()) * d / 2) << judge.codec << " d " << d;
        }
      }
    }
  }
}

// A constant that fp16 holds is exact in every affine layout, zeros in every layout; nothing reads back as not finite.
TEST(RowCodecs, ConstantAndTinyRowsReadBack) {
  for (const CodecJudge& judge : Judges()) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      for (float value : {0.0f, -0.0f, 5.0f, -5.0f, 6e-8f, 1e-30f, -1e-40f, 1e-45f}) {
        RowCodecUnit unit(judge.codec, 64);
        ASSERT_EQ(unit.Encode(side, {std::vector<float>(64, value)}), -1) << judge.codec << " " << value;
        const bool has_noise = std::string(judge.codec) == "turboquant_product3";
        for (const std::vector<double>& row : unit.Decode(side)) {
          for (double decoded : row) {
            ASSERT_TRUE(std::isfinite(decoded)) << judge.codec;
            if (std::abs(value) < 1e-20f) {
              ASSERT_EQ(decoded, 0.0) << judge.codec << " " << value;
            }
            if (std::abs(value) == 5.0f && !has_noise) {
              // Tables of centroids do not hold a constant direction exactly.
              const bool exact = std::string(judge.codec).find("turboquant") != 0 || (side == KvSide::kValue && judge.codec[10] != '_');
              ASSERT_NEAR(decoded, value, exact ? 0.005 : 3.0) << judge.codec;
            }
          }
        }
      }
    }
  }
}

TEST(RowCodecs, ARowBeyondFp16IsRefusedByItsToken) {
  for (const CodecJudge& judge : Judges()) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      for (float value : {3e38f, -3e38f, 1e9f}) {
        RowCodecUnit unit(judge.codec, 64);
        std::vector<std::vector<float>> rows(static_cast<size_t>(unit.num_tokens()), std::vector<float>(64, 1.0f));
        const int bad = unit.num_tokens() - 5;
        rows[static_cast<size_t>(bad)][33] = value;
        rows[static_cast<size_t>(bad)][34] = -value;
        const int refused = unit.Encode(side, rows);
        const bool grouped = side == KvSide::kKey && (judge.codec[0] == 'k');  // groups over tokens name their first one
        if (grouped) {
          EXPECT_GE(refused, 0) << judge.codec;
          EXPECT_LE(refused, bad) << judge.codec;
        } else {
          EXPECT_EQ(refused, bad) << judge.codec << " " << value;
        }
      }
    }
  }
}

// baselines.md 6.2: the inner-product form is unbiased; variance 0.1845 / d for unit vectors at 3 bits. Random pairs with a fixed
// product stand for random matrices.
TEST(TurboQuantProduct, InnerProductsAreUnbiasedWithTheVarianceOfThePaper) {
  constexpr int kDim = 128, kDraws = 24 * 64;
  constexpr double kProduct = -0.03301726472;
  std::mt19937_64 rng(testing::TestSeed(103));
  std::normal_distribution<double> normal;
  double sum = 0, squares = 0;
  for (int first = 0; first < kDraws; first += 64) {
    Rows queries;
    std::vector<std::vector<float>> keys;
    for (int t = 0; t < 64; ++t) {
      std::vector<double> x(kDim), z(kDim);
      double x_norm = 0, z_norm = 0, product = 0;
      for (double& value : x) value = normal(rng), x_norm += value * value;
      for (double& value : x) value /= std::sqrt(x_norm);
      for (double& value : z) value = normal(rng);
      for (int c = 0; c < kDim; ++c) product += x[static_cast<size_t>(c)] * z[static_cast<size_t>(c)];
      for (int c = 0; c < kDim; ++c) z[static_cast<size_t>(c)] -= product * x[static_cast<size_t>(c)];
      for (double value : z) z_norm += value * value;
      queries.emplace_back();
      for (int c = 0; c < kDim; ++c) {
        const auto i = static_cast<size_t>(c);
        queries.back().push_back(kProduct * x[i] + std::sqrt((1 - kProduct * kProduct) / z_norm) * z[i]);
      }
      keys.emplace_back(x.begin(), x.end());
    }
    RowCodecUnit unit("turboquant_product3", kDim);
    ASSERT_EQ(unit.Encode(KvSide::kKey, keys), -1);
    const Rows decoded = unit.Decode(KvSide::kKey);
    for (size_t t = 0; t < 64; ++t) {
      double product = 0;
      for (size_t c = 0; c < kDim; ++c) product += decoded[t][c] * queries[t][c];
      sum += product;
      squares += product * product;
    }
  }
  const double mean = sum / kDraws, variance = squares / kDraws - mean * mean;
  EXPECT_NEAR(mean, kProduct, 4 * std::sqrt(variance / kDraws));
  EXPECT_NEAR(variance * kDim, 0.1845, 0.15 * 0.1845);
}

TEST(RandomMatrix, IsOrthogonalAndTheSameEveryTime) {
  const std::vector<float> matrix = turboquant::OrthogonalMatrix(96, 7);
  EXPECT_EQ(matrix, turboquant::OrthogonalMatrix(96, 7));
  EXPECT_NE(matrix, turboquant::OrthogonalMatrix(96, 8));
  for (size_t i = 0; i < 96; ++i) {
    for (size_t j = 0; j < 96; ++j) {
      double product = 0;
      for (size_t c = 0; c < 96; ++c) product += double{matrix[i * 96 + c]} * double{matrix[j * 96 + c]};
      EXPECT_NEAR(product, i == j ? 1 : 0, 1e-6);
    }
  }
}

}  // namespace
}  // namespace oscar::codec
