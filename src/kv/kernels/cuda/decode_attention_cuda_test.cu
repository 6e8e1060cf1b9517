// The decode attention kernels against the float64 judge (gpu.md 6 and 10). Needs a GPU; label
// cuda.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "src/kv/kernels/cuda/decode_fixture.h"

namespace oscar::kernels::cuda {
namespace {

using fixture::Data;
using fixture::Launch;
using fixture::Problem;

constexpr int kSink = 64, kRecent = 256;

struct Bounds {
  double whole, per_head;
};
// gpu.md 6.
Bounds BoundsFor(const Problem& problem) {
  if (problem.logit_deviation <= 4.0f) return {1e-3, 2e-3};
  return {problem.group <= 4 ? 1e-3 : 2e-3, 5e-3};
}

int NumCtas() {
  cudaDeviceProp properties;
  OSCAR_FIXTURE_CHECK(cudaGetDeviceProperties(&properties, 0));
  return properties.multiProcessorCount;
}

DecodePlanOptions Options(const Problem& problem) {
  DecodePlanOptions options;
  options.kv_heads = problem.kv_heads;
  options.head_dim = problem.head_dim;
  options.num_ctas = NumCtas();
  return options;
}

struct Errors {
  double whole, worst_head;
};
// size: what a row's error is relative to; the expected values themselves, or the sums of |values|
// where they may cancel.
Errors ErrorsOf(const std::vector<float>& actual, const std::vector<double>& expected,
                const std::vector<double>& size, int d) {
  double error = 0, norm = 0, worst = 0;
  for (size_t row = 0; row < expected.size() / d; ++row) {
    double row_error = 0, row_norm = 0;
    for (int i = 0; i < d; ++i) {
      const double difference = actual[row * d + i] - expected[row * d + i];
      row_error += difference * difference;
      row_norm += size[row * d + i] * size[row * d + i];
    }
    error += row_error;
    norm += row_norm;
    const double relative = std::sqrt(row_norm > 0 ? row_error / row_norm : row_error);
    worst = relative > worst || std::isnan(relative) ? relative : worst;
    if (std::isnan(worst)) break;
  }
  return {std::sqrt(norm > 0 ? error / norm : error), worst};
}

Errors g_largest = {0, 0};

void ExpectAccurate(const Problem& problem, const DecodePlanOptions& options, const Bounds& bounds,
                    const std::string& what) {
  Launch launch(problem, options);
  ASSERT_EQ(launch.Run(), cudaSuccess) << what;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what;
  const std::vector<float> out = launch.OutF32();
  const Errors errors =
      ErrorsOf(out, launch.Judge(), launch.Judge(problem.data != Data::kNormal), problem.head_dim);
  std::printf("%-44s %.2e  worst head %.2e\n", what.c_str(), errors.whole, errors.worst_head);
  EXPECT_LE(errors.whole, bounds.whole) << what;
  EXPECT_LE(errors.worst_head, bounds.per_head) << what;
  if (errors.whole > g_largest.whole) g_largest = errors;
  const std::vector<uint16_t> rounded = launch.Out();
  for (size_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(rounded[i], base::Bf16FromF32(out[i])) << what << " element " << i;
  for (const int32_t counter : launch.Counters()) ASSERT_EQ(counter, 0) << what;
}

class DecodeAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no CUDA device";
    for (const int d : {64, 128, 192, 256}) {
      for (const int group : {4, 8, 16}) {
        for (const int bits : {1, 2, 4}) {
          const auto* kernel = affine::FindDecodeKernel(d, group, affine::DecodeKernelKind::kNormal, bits);
          ASSERT_NE(kernel, nullptr);
          ASSERT_EQ(affine::PrepareDecodeKernel(*kernel), cudaSuccess);
        }
      }
    }
  }
  void TearDown() override { RecordProperty("largest_error", std::to_string(g_largest.whole)); }
};

std::vector<SequenceExtent> EqualSequences(int batch, SequenceExtent extent) {
  return std::vector<SequenceExtent>(batch, extent);
}

TEST_F(DecodeAttention, TheJudgeOnTheDeviceAgreesWithAPlainHostComputation) {
  Problem problem;
  problem.kv_heads = 2;
  problem.group = 3;
  problem.has_mean = true;
  problem.sequences = {{2, 70}};
  Launch launch(problem, Options(problem));
  const std::vector<double> judged = launch.Judge();
  const std::vector<double> plain = fixture::PlainAttention(launch);
  ASSERT_EQ(judged.size(), plain.size());
  for (size_t i = 0; i < judged.size(); ++i) ASSERT_NEAR(judged[i], plain[i], 1e-9) << i;
}

TEST_F(DecodeAttention, EveryPageCountAndGroupIsAccurate) {
  for (const int pages : {0, 1, 2, 15, 16, 17, 31, 32, 33, 511, 512, 513, 1594}) {
    for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16}) {
      if (pages > 500 && group != 3 && group != 4 && group != 8 && group != 12) continue;
      Problem problem;
      problem.kv_heads = 2;
      problem.group = group;
      problem.sequences = {{pages, 321 + pages % 64}};
      problem.seed = pages * 16 + group;
      ExpectAccurate(problem, Options(problem), BoundsFor(problem),
                     "pages " + std::to_string(pages) + " g " + std::to_string(group));
    }
  }
}

TEST_F(DecodeAttention, EveryLengthByTheTierRuleIsAccurate) {
  for (const int tokens : {1, 2, 15, 16, 17, 63, 64, 65, 320, 383, 384, 385, 448, 449, 512, 1000}) {
    for (const int group : {4, 7, 11}) {
      Problem problem;
      problem.kv_heads = 3;
      problem.group = group;
      problem.sequences = EqualSequences(2, ExtentOfSequence(tokens, kSink, kRecent));
      problem.seed = tokens;
      ExpectAccurate(problem, Options(problem), BoundsFor(problem),
                     "tokens " + std::to_string(tokens) + " g " + std::to_string(group));
    }
  }
}

TEST_F(DecodeAttention, EqualAndRaggedBatchesAreAccurateWithAndWithoutMeans) {
  std::mt19937_64 rng(5);
  for (const int batch : {1, 2, 3, 4, 8, 16, 17, 33, 64}) {
    for (const int group : {4, 8, 16}) {
      for (const bool ragged : {false, true}) {
        Problem problem;
        problem.kv_heads = 8;
        problem.group = group;
        problem.has_mean = ragged;
        problem.seed = batch;
        for (int i = 0; i < batch; ++i) {
          const int tokens = ragged ? (i % 5 == 4 ? 0 : 1 + static_cast<int>(rng() % 6000)) : 2500;
          problem.sequences.push_back(ExtentOfSequence(tokens, kSink, kRecent));
        }
        DecodePlanOptions options = Options(problem);
        if (batch % 2) options.whole_splits_below_bytes = 0;
        ExpectAccurate(problem, options, BoundsFor(problem),
                       "batch " + std::to_string(batch) + " g " + std::to_string(group) +
                           (ragged ? " ragged" : ""));
      }
    }
  }
}

TEST_F(DecodeAttention, EveryHeadDimIsAccurate) {
  for (const int d : {64, 192, 256}) {
    for (const int group : {1, 4, 5, 8, 9, 16}) {
      for (const int pages : {0, 1, 17, 33, 300}) {
        for (const float deviation : {0.65f, 4.0f}) {
          Problem problem;
          problem.head_dim = d;
          problem.kv_heads = 3;
          problem.group = group;
          problem.logit_deviation = deviation;
          problem.has_mean = pages == 17;
          problem.sequences = EqualSequences(2, {pages, 333});
          problem.seed = d + pages;
          ExpectAccurate(problem, Options(problem), BoundsFor(problem),
                         "d " + std::to_string(d) + " g " + std::to_string(group) + " pages " +
                             std::to_string(pages));
        }
      }
    }
  }
}

TEST_F(DecodeAttention, CodesOfOneAndFourBitsAreAccurate) {
  for (const int bits : {1, 4}) {
    for (const int d : {64, 128, 192, 256}) {
      for (const int group : {1, 4, 7, 8, 12}) {
        for (const int pages : {1, 16, 33, 300}) {
          Problem problem;
          problem.bits = bits;
          problem.head_dim = d;
          problem.kv_heads = 2;
          problem.group = group;
          problem.logit_deviation = pages == 33 ? 4.0f : 0.65f;
          problem.has_mean = pages == 16;
          problem.sequences = EqualSequences(2, {pages, 333});
          problem.seed = d + pages;
          ExpectAccurate(problem, Options(problem), BoundsFor(problem),
                         std::to_string(bits) + " bits d " + std::to_string(d) + " g " + std::to_string(group) + " pages " +
                             std::to_string(pages));
        }
      }
    }
    for (const Data data : {Data::kRising, Data::kDominatingCode, Data::kZeroScales, Data::kLargeOffsets, Data::kOutlier}) {
      for (const int group : {4, 8}) {
        Problem problem;
        problem.bits = bits;
        problem.kv_heads = 2;
        problem.group = group;
        problem.data = data;
        problem.logit_deviation = 2.0f;
        problem.sequences = {{200, 350}};
        const Bounds bounds = data == Data::kOutlier ? Bounds{2e-3, 5e-3} : BoundsFor(problem);
        ExpectAccurate(problem, Options(problem), bounds,
                       std::to_string(bits) + " bits data " + std::to_string(static_cast<int>(data)) + " g " + std::to_string(group));
      }
    }
  }
}

TEST_F(DecodeAttention, EveryPageAddsItsOwnScore) {
  for (const int d : {64, 128, 192, 256}) {
    for (const int group : {3, 8, 13}) {
      for (const int pages : {1, 17, 33, 300}) {
        Problem problem;
        problem.head_dim = d;
        problem.kv_heads = 2;
        problem.group = group;
        problem.has_mean = pages == 33;
        problem.has_page_beta = true;
        problem.sequences = {{pages, 333}, {2 * pages + 1, 350}, {0, 17}};
        problem.seed = d + pages;
        ExpectAccurate(problem, Options(problem), BoundsFor(problem),
                       "d " + std::to_string(d) + " g " + std::to_string(group) + " pages " +
                           std::to_string(pages));
      }
    }
  }
}

TEST_F(DecodeAttention, LargeLogitsAreAccurate) {
  for (const float deviation : {0.65f, 4.0f, 16.0f}) {
    for (const int group : {4, 8, 16}) {
      for (const int pages : {3, 40, 700}) {
        Problem problem;
        problem.group = group;
        problem.logit_deviation = deviation;
        problem.sequences = EqualSequences(2, {pages, 333});
        problem.seed = 1000 + pages;
        const std::string what = "deviation " + std::to_string(deviation) + " g " +
                                 std::to_string(group) + " pages " + std::to_string(pages);
        ExpectAccurate(problem, Options(problem), BoundsFor(problem), what);
      }
    }
  }
}

TEST_F(DecodeAttention, HostileDataIsAccurate) {
  const std::pair<Data, const char*> kinds[] = {{Data::kAllEqualLogits, "equal logits"},
                                                {Data::kRising, "rising"},
                                                {Data::kDominatingCode, "dominating code"},
                                                {Data::kDominatingRow, "dominating row"},
                                                {Data::kHugeQuery, "huge query"},
                                                {Data::kZeroScales, "zero scales"},
                                                {Data::kSubnormalScales, "subnormal scales"},
                                                {Data::kLargeOffsets, "large offsets"},
                                                {Data::kOutlier, "outlier"}};
  for (const auto& [data, name] : kinds) {
    for (const int group : {4, 8, 16}) {
      for (const int pages : {1, 17, 200}) {
        Problem problem;
        problem.kv_heads = 2;
        problem.group = group;
        problem.data = data;
        problem.logit_deviation = 2.0f;
        problem.sequences = {{pages, 350}};
        problem.seed = pages;
        Bounds bounds = BoundsFor(problem);
        // Logits near 1e5: their last fp32 bit alone is 0.008.
        if (data == Data::kHugeQuery) bounds = {0.05, 0.05};
        // The huge row has logits of 16 nats and holds nearly all of the value.
        if (data == Data::kOutlier) bounds = {2e-3, 5e-3};
        ExpectAccurate(
            problem, Options(problem), bounds,
            std::string(name) + " g " + std::to_string(group) + " pages " + std::to_string(pages));
      }
    }
  }
}

TEST_F(DecodeAttention, AHundredRunsAreBitEqualAlsoWithAnOverlappedStart) {
  for (const int group : {4, 8, 16}) {
    Problem problem;
    problem.group = group;
    for (int i = 0; i < 19; ++i)
      problem.sequences.push_back(ExtentOfSequence(500 + 731 * i, kSink, kRecent));
    DecodePlanOptions options = Options(problem);
    Launch launch(problem, options);
    ASSERT_EQ(launch.Run(), cudaSuccess);
    const std::vector<float> first = launch.OutF32();
    for (int run = 0; run < 100; ++run) {
      launch.PoisonOutputs();
      const bool overlap = run % 2 == 1;
      for (int i = 0; i < (overlap ? 3 : 1); ++i) {
        ASSERT_EQ(launch.Run(nullptr, 0, affine::DecodeKernelKind::kNormal, overlap), cudaSuccess);
      }
      const std::vector<float> again = launch.OutF32();
      ASSERT_EQ(0, std::memcmp(first.data(), again.data(), first.size() * sizeof(float)))
          << "run " << run << " g " << group;
    }
  }
}

}  // namespace
}  // namespace oscar::kernels::cuda
