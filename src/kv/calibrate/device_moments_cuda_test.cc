// The moments on a CUDA device against those on the CPU: the same rows, cut into other pieces, give the same sums.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "oscar/cuda.h"
#include "src/base/cuda_memory.h"
#include "src/kv/calibrate/balanced_moments.h"
#include "src/kv/calibrate/moments.h"
#include "src/testing/seeds.h"

namespace oscar {
namespace {

using calibrate::Matrix;

bool HasDevice() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

// Windows of rows of all layers, with a few keys that draw much attention.
struct Rows {
  Rows(const KvShape& of, std::vector<int> window_lengths) : shape(of), windows(std::move(window_lengths)) {
    std::mt19937_64 rng(testing::TestSeed(81));
    std::size_t tokens = 0;
    for (const int length : windows) tokens += static_cast<std::size_t>(length);
    num_tokens = static_cast<int>(tokens);
    const auto d = static_cast<std::size_t>(shape.head_dim);
    const std::size_t query_width = static_cast<std::size_t>(shape.num_query_heads) * d, width = static_cast<std::size_t>(shape.num_kv_heads) * d;
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      queries.push_back(testing::NormalVector(rng, tokens * query_width));
      keys.push_back(testing::NormalVector(rng, tokens * width));
      values.push_back(testing::NormalVector(rng, tokens * width, 2.0f));
      for (std::size_t i = 0; i < keys.back().size(); ++i) {
        if (i / width % 37 == 5) keys.back()[i] *= 3.0f;
        values.back()[i] += static_cast<float>(i % width) / 50.0f;
      }
    }
  }
  RowsView<const float> View(const std::vector<std::vector<float>>& rows, int layer, int heads) const {
    return PackedRows<const float>(rows[static_cast<std::size_t>(layer)].data(), num_tokens, heads, shape.head_dim);
  }
  KvShape shape;
  std::vector<int> windows;
  int num_tokens = 0;
  std::vector<std::vector<float>> queries, keys, values;
};

// The rows on the device.
struct DeviceCopy {
  explicit DeviceCopy(const Rows& rows) {
    for (const auto& [from, to] : {std::pair{&rows.queries, &queries}, std::pair{&rows.keys, &keys}, std::pair{&rows.values, &values}}) {
      for (const std::vector<float>& layer : *from) EXPECT_TRUE(to->emplace_back().Upload(layer, nullptr).ok());
    }
  }
  RowsView<const float> View(const std::vector<cuda::DeviceArray<float>>& rows, const Rows& of, int layer, int heads) const {
    return PackedRows<const float>(rows[static_cast<std::size_t>(layer)].data(), of.num_tokens, heads, of.shape.head_dim);
  }
  std::vector<cuda::DeviceArray<float>> queries, keys, values;
};

// All passes over all windows in steps of `step` tokens; add(layer, first position, first row, count).
template <class Moments, class Add>
void RunPasses(const Rows& rows, int step, int num_passes, Moments& moments, const Add& add) {
  for (int pass = 0; pass < num_passes; ++pass) {
    int start = 0;
    for (const int length : rows.windows) {
      for (int at = 0; at < length; at += step) {
        for (int layer = 0; layer < rows.shape.num_layers; ++layer) {
          const Status added = add(layer, at, start + at, std::min(step, length - at));
          ASSERT_TRUE(added.ok()) << added.message();
        }
      }
      start += length;
    }
    moments.EndPass();
  }
}

// The lower triangles.
void ExpectNear(const Matrix& expected, const Matrix& actual, const char* what) {
  const Matrix a = calibrate::Full(expected), b = calibrate::Full(actual);
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_GT(a.norm(), 0) << what;
  EXPECT_LE((a - b).norm(), 1e-5 * a.norm()) << what;
}
void ExpectNear(const Eigen::VectorXd& expected, const Eigen::VectorXd& actual, const char* what) {
  EXPECT_LE((expected - actual).norm(), 1e-5 * expected.norm()) << what;
}

RotaryEmbedding Rotary(int pairs) {
  RotaryEmbedding rotary{{}, true};
  for (int j = 0; j < pairs; ++j) rotary.angles.push_back(static_cast<float>(std::pow(10000.0, -static_cast<double>(j) / pairs)));
  return rotary;
}

BalancedMoments BalancedOnDevice(const Rows& rows, const DeviceCopy& copy, const RotaryEmbedding& rotary, int step) {
  BalancedMoments moments = std::move(CreateCudaBalancedMoments(rows.shape, rotary, rows.num_tokens, nullptr)).value();
  const KvShape& shape = rows.shape;
  RunPasses(rows, step, BalancedMoments::kNumPasses, moments, [&](int layer, int position, int first, int count) {
    return moments.Add(layer, position, copy.View(copy.queries, rows, layer, shape.num_query_heads).Slice(first, count),
                       copy.View(copy.keys, rows, layer, shape.num_kv_heads).Slice(first, count),
                       copy.View(copy.values, rows, layer, shape.num_kv_heads).Slice(first, count));
  });
  return moments;
}

void ExpectSameBalanced(const BalancedMoments& host, const BalancedMoments& device) {
  for (std::size_t layer = 0; layer < host.impl().layers.size(); ++layer) {
    const calibrate::BalancedLayer &a = host.impl().layers[layer], &b = device.impl().layers[layer];
    EXPECT_EQ(a.num_tokens, b.num_tokens);
    EXPECT_EQ(a.sample_pages, b.sample_pages);
    for (std::size_t h = 0; h < a.heads.size(); ++h) {
      const calibrate::BalancedHead &x = a.heads[h], &y = b.heads[h];
      ExpectNear(x.query, y.query, "queries");
      ExpectNear(x.key_sum, y.key_sum, "sum of keys");
      ExpectNear(x.value_sum, y.value_sum, "sum of values");
      EXPECT_NEAR(x.weight, y.weight, 1e-5 * x.weight);
      ExpectNear(x.key_covariance, y.key_covariance, "keys");
      ExpectNear(x.value_covariance, y.value_covariance, "values");
      EXPECT_NEAR(x.covariance_weight, y.covariance_weight, 1e-5 * x.covariance_weight);
      ExpectNear(x.scored_value, y.scored_value, "scored values");
      EXPECT_NEAR(x.score_weight, y.score_weight, 1e-9 * x.score_weight);
      EXPECT_EQ(x.sample_keys, y.sample_keys);
      EXPECT_EQ(x.sample_values, y.sample_values);
    }
  }
}

TEST(CudaMoments, BalancedMomentsAreThoseOfTheCpuHoweverRowsComeIn) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  struct Case {
    KvShape shape;
    int turning_pairs, step, device_step;
  };
  for (const Case& run : {Case{{2, 6, 2, 64}, 32, 512, 512}, Case{{1, 12, 2, 128}, 64, 300, 512}, Case{{1, 4, 4, 128}, 48, 512, 77},
                          Case{{1, 2, 1, 256}, 0, 512, 1000}}) {
    const Rows rows(run.shape, {1300, 512, 90, 2048 - 1902});
    const DeviceCopy copy(rows);
    const RotaryEmbedding rotary = Rotary(run.turning_pairs);
    const KvShape& shape = run.shape;
    BalancedMoments host(shape, rotary, rows.num_tokens);
    RunPasses(rows, run.step, BalancedMoments::kNumPasses, host, [&](int layer, int position, int first, int count) {
      return host.Add(layer, position, rows.View(rows.queries, layer, shape.num_query_heads).Slice(first, count),
                      rows.View(rows.keys, layer, shape.num_kv_heads).Slice(first, count),
                      rows.View(rows.values, layer, shape.num_kv_heads).Slice(first, count));
    });
    const BalancedMoments device = BalancedOnDevice(rows, copy, rotary, run.device_step);
    ExpectSameBalanced(host, device);
    // The same every time, to the bit.
    const BalancedMoments again = BalancedOnDevice(rows, copy, rotary, run.device_step);
    for (std::size_t h = 0; h < device.impl().layers[0].heads.size(); ++h) {
      const Matrix &x = device.impl().layers[0].heads[h].key_covariance, &y = again.impl().layers[0].heads[h].key_covariance;
      EXPECT_EQ(std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.size()) * sizeof(double)), 0);
    }
  }
}

TEST(CudaMoments, MomentsOfEveryValueMetricAreThoseOfTheCpu) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  const KvShape shape = {2, 6, 2, 64};
  const Rows rows(shape, {1300, 700});
  const DeviceCopy copy(rows);
  for (const VMetric metric : {VMetric::kScore, VMetric::kPlain, VMetric::kSoftmax}) {
    OscarFitOptions options;
    options.v_metric = metric;
    options.expected_tokens = rows.num_tokens;
    MomentAccumulator host(shape, options);
    MomentAccumulator device = std::move(CreateCudaMoments(shape, options, nullptr)).value();
    const auto run = [&](MomentAccumulator& moments, int step, const auto& view) {
      RunPasses(rows, step, moments.num_passes(), moments, [&](int layer, int /*position*/, int first, int count) {
        const RowsView<const float> queries = view(rows.queries, copy.queries, layer, shape.num_query_heads).Slice(first, count);
        const Status added = moments.Add(layer, queries, view(rows.keys, copy.keys, layer, shape.num_kv_heads).Slice(first, count),
                                         view(rows.values, copy.values, layer, shape.num_kv_heads).Slice(first, count));
        // Any rows of query heads serve as outputs.
        return added.ok() && metric == VMetric::kSoftmax ? moments.AddOutputs(layer, queries) : added;
      });
    };
    run(host, 512, [&](const auto& of, const auto&, int layer, int heads) { return rows.View(of, layer, heads); });
    run(device, 333, [&](const auto&, const auto& of, int layer, int heads) { return copy.View(of, rows, layer, heads); });
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const calibrate::LayerMoments &a = host.impl().layers[layer], &b = device.impl().layers[layer];
      EXPECT_EQ(a.num_tokens, b.num_tokens);
      EXPECT_EQ(a.early_tokens, b.early_tokens);
      EXPECT_EQ(a.output_tokens, b.output_tokens);
      for (std::size_t h = 0; h < a.heads.size(); ++h) {
        ExpectNear(a.heads[h].query, b.heads[h].query, "queries");
        ExpectNear(a.heads[h].key, b.heads[h].key, "keys");
        ExpectNear(a.heads[h].value, b.heads[h].value, "values");
        ExpectNear(a.heads[h].early_query, b.heads[h].early_query, "early queries");
        EXPECT_NEAR(a.heads[h].weight, b.heads[h].weight, 1e-9 * a.heads[h].weight);
      }
    }
    const auto fitted = FitOscar(device, options, {}, nullptr);
    EXPECT_TRUE(fitted.ok()) << fitted.status().message();
  }
}

TEST(CudaMoments, ARowThatIsNotFiniteIsNamedAsOnTheCpu) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  const KvShape shape = {1, 6, 2, 64};
  Rows rows(shape, {200});
  rows.keys[0][(130 * 2 + 1) * 64 + 7] = std::numeric_limits<float>::infinity();
  rows.keys[0][(150 * 2 + 0) * 64 + 3] = 3.4e38f;  // beyond BF16
  const DeviceCopy copy(rows);
  BalancedMoments host(shape, Rotary(32), 200);
  BalancedMoments device = std::move(CreateCudaBalancedMoments(shape, Rotary(32), 200, nullptr)).value();
  const Status expected = host.Add(0, 0, rows.View(rows.queries, 0, 6), rows.View(rows.keys, 0, 2), rows.View(rows.values, 0, 2));
  const Status actual = device.Add(0, 0, copy.View(copy.queries, rows, 0, 6), copy.View(copy.keys, rows, 0, 2), copy.View(copy.values, rows, 0, 2));
  EXPECT_EQ(actual.code(), StatusCode::kNonFinite);
  EXPECT_EQ(actual.message(), expected.message());
  EXPECT_NE(actual.message().find("KV head 1, token 130"), std::string::npos) << actual.message();
}

TEST(CudaMoments, AHeadDimensionWithoutKernelsIsRefused) {
  EXPECT_EQ(CreateCudaBalancedMoments({1, 2, 1, 80}, Rotary(0), 0, nullptr).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(CreateCudaMoments({1, 2, 1, 16}, {}, nullptr).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace oscar
