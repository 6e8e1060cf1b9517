#include <gtest/gtest.h>

#include <cmath>
#include <Eigen/Dense>
#include <limits>
#include <random>

#include "oscar/calibrate.h"
#include "src/base/float_bits.h"
#include "src/base/thread_pool.h"
#include "src/kv/calibrate/fit_report.h"
#include "src/kv/calibrate/moments.h"
#include "src/testing/seeds.h"

namespace oscar {
namespace {

using calibrate::Full;
using calibrate::Matrix;

constexpr KvShape kShape = {2, 6, 3, 8};

// Q, K and V of some tokens of one layer. Rows of head h are correlated by a matrix of that head alone.
struct Rows {
  Rows(const KvShape& model_shape, int tokens, uint64_t seed) : shape(model_shape), num_tokens(tokens) {
    std::mt19937_64 rng(testing::TestSeed(seed));
    const auto fill = [&](int heads) {
      const size_t d = static_cast<size_t>(shape.head_dim), h = static_cast<size_t>(heads);
      std::vector<std::vector<float>> mixes;
      for (size_t i = 0; i < h; ++i) mixes.push_back(testing::NormalVector(rng, d * d));
      std::vector<float> rows;
      for (int token = 0; token < tokens; ++token) {
        for (size_t head = 0; head < h; ++head) {
          const std::vector<float> x = testing::NormalVector(rng, d);
          for (size_t j = 0; j < d; ++j) {
            float sum = 0;
            for (size_t i = 0; i < d; ++i) sum += x[i] * mixes[head][i * d + j] / static_cast<float>(1 + i);
            rows.push_back(sum);
          }
        }
      }
      return rows;
    };
    queries = fill(shape.num_query_heads);
    keys = fill(shape.num_kv_heads);
    values = fill(shape.num_kv_heads);
  }
  RowsView<const float> Q() const {
    return PackedRows<const float>(queries.data(), num_tokens, shape.num_query_heads, shape.head_dim);
  }
  RowsView<const float> K() const {
    return PackedRows<const float>(keys.data(), num_tokens, shape.num_kv_heads, shape.head_dim);
  }
  RowsView<const float> V() const {
    return PackedRows<const float>(values.data(), num_tokens, shape.num_kv_heads, shape.head_dim);
  }
  KvShape shape;
  int num_tokens;
  std::vector<float> queries, keys, values;
};

double Bf16(float value) { return base::RoundToBf16(value); }

// Runs all passes over the same rows in every layer, `step` tokens a call.
MomentAccumulator Accumulate(const Rows& rows, const OscarFitOptions& options, int step = 1 << 20) {
  MomentAccumulator moments(rows.shape, options);
  for (int pass = 0; pass < moments.num_passes(); ++pass) {
    for (int layer = 0; layer < rows.shape.num_layers; ++layer) {
      for (int first = 0; first < rows.num_tokens; first += step) {
        const int count = std::min(step, rows.num_tokens - first);
        const Status status = moments.Add(layer, rows.Q().Slice(first, count), rows.K().Slice(first, count),
                                          rows.V().Slice(first, count));
        EXPECT_TRUE(status.ok()) << status.message();
      }
    }
    moments.EndPass();
  }
  return moments;
}

// ---- moments ----

TEST(MomentAccumulator, QueryAndKeyMomentsEqualTheDoubleLoops) {
  const Rows rows(kShape, 300, 1);
  const MomentAccumulator moments = Accumulate(rows, {}, 77);
  for (int h = 0; h < 3; ++h) {
    const calibrate::HeadMoments& head = moments.impl().layers[1].heads[static_cast<size_t>(h)];
    for (int i = 0; i < 8; ++i) {
      for (int j = 0; j < 8; ++j) {
        double query = 0, key = 0;
        for (int t = 0; t < 300; ++t) {
          for (int g = 0; g < 2; ++g)
            query += Bf16(rows.Q().Row(t, 2 * h + g)[i]) * Bf16(rows.Q().Row(t, 2 * h + g)[j]);
          key += Bf16(rows.K().Row(t, h)[i]) * Bf16(rows.K().Row(t, h)[j]);
        }
        EXPECT_NEAR(Full(head.query)(i, j), query, 1e-10 * std::abs(query) + 1e-9);
        EXPECT_NEAR(Full(head.key)(i, j), key, 1e-10 * std::abs(key) + 1e-9);
      }
    }
  }
  EXPECT_EQ(moments.num_tokens(), 300);
}

// method.md 2.3, `score`, written as it stands there.
Matrix ScoreCovariance(const Rows& rows, int h) {
  const int d = rows.shape.head_dim, g = rows.shape.group(), tokens = rows.num_tokens;
  Matrix m = Matrix::Zero(d, d);
  for (int t = 0; t < tokens; ++t) {
    for (int q = h * g; q < (h + 1) * g; ++q) {
      for (int i = 0; i < d; ++i) {
        for (int j = 0; j < d; ++j)
          m(i, j) += Bf16(rows.Q().Row(t, q)[i]) * Bf16(rows.Q().Row(t, q)[j]) / (1.0 * tokens * g);
      }
    }
  }
  std::vector<double> weight;
  double sum = 0;
  for (int t = 0; t < tokens; ++t) {
    double w = 0;
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) w += Bf16(rows.K().Row(t, h)[i]) * m(i, j) * Bf16(rows.K().Row(t, h)[j]);
    }
    weight.push_back(std::max(0.0, w));
    sum += weight.back();
  }
  Matrix c = Matrix::Zero(d, d);
  for (int t = 0; t < tokens; ++t) {
    const double w = weight[static_cast<size_t>(t)] * tokens / std::max(sum, 1e-12);
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) c(i, j) += w * Bf16(rows.V().Row(t, h)[i]) * Bf16(rows.V().Row(t, h)[j]) / tokens;
    }
  }
  return c;
}

TEST(MomentAccumulator, ScoreWeightsEqualTheDoubleLoops) {
  const Rows rows(kShape, 200, 2);
  const MomentAccumulator moments = Accumulate(rows, {}, 64);
  for (int h = 0; h < 3; ++h) {
    const calibrate::HeadMoments& head = moments.impl().layers[0].heads[static_cast<size_t>(h)];
    const Matrix expected = ScoreCovariance(rows, h);
    EXPECT_LT((Full(head.value) / head.weight - expected).norm(), 1e-11 * expected.norm());
  }
}

TEST(MomentAccumulator, PlainValuesNeedOnePass) {
  const Rows rows(kShape, 100, 3);
  const MomentAccumulator moments = Accumulate(rows, {.v_metric = VMetric::kPlain});
  EXPECT_EQ(moments.num_passes(), 1);
  const calibrate::HeadMoments& head = moments.impl().layers[0].heads[1];
  EXPECT_EQ(head.weight, 100);
  double expected = 0;
  for (int t = 0; t < 100; ++t) expected += Bf16(rows.V().Row(t, 1)[2]) * Bf16(rows.V().Row(t, 1)[5]);
  EXPECT_NEAR(Full(head.value)(2, 5), expected, 1e-10);
}

// V^T A^T A V with A the causal softmax of each query head (method.md 11, test 12), from its definition.
TEST(MomentAccumulator, SoftmaxValuesAreTheMomentOfAttentionOutputs) {
  constexpr int kTokens = 100;
  const Rows rows(kShape, kTokens, 4);
  const auto matrix = [&](RowsView<const float> view, int head) {
    return Matrix(Matrix::NullaryExpr(kTokens, kShape.head_dim, [&](Eigen::Index t, Eigen::Index c) {
      return static_cast<double>(view.Row(static_cast<int>(t), head)[c]);
    }));
  };
  std::vector<float> outputs(static_cast<size_t>(kTokens * kShape.num_query_heads * kShape.head_dim));
  const RowsView<float> into = PackedRows(outputs.data(), kTokens, kShape.num_query_heads, kShape.head_dim);
  std::vector<Matrix> expected(3, Matrix::Zero(kShape.head_dim, kShape.head_dim));
  for (int h = 0; h < kShape.num_query_heads; ++h) {
    const int kv_head = h / kShape.group();
    Matrix attention = matrix(rows.Q(), h) * matrix(rows.K(), kv_head).transpose() / std::sqrt(kShape.head_dim);
    for (Eigen::Index t = 0; t < kTokens; ++t) {
      attention.row(t).tail(kTokens - t - 1).setConstant(-std::numeric_limits<double>::infinity());
      attention.row(t) = (attention.row(t).array() - attention.row(t).maxCoeff()).exp();
      attention.row(t) /= attention.row(t).sum();
    }
    const Matrix values = matrix(rows.V(), kv_head);
    expected[static_cast<size_t>(kv_head)] += values.transpose() * attention.transpose() * attention * values / (kTokens * kShape.group());
    const Matrix pooled = attention * values;
    for (int t = 0; t < kTokens; ++t) {
      for (int c = 0; c < kShape.head_dim; ++c) into.Row(t, h)[c] = static_cast<float>(pooled(t, c));
    }
  }
  const OscarFitOptions options{.v_metric = VMetric::kSoftmax};
  MomentAccumulator moments(kShape, options);
  EXPECT_EQ(moments.num_passes(), 1);
  const RowsView<const float> given = PackedRows<const float>(outputs.data(), kTokens, kShape.num_query_heads, kShape.head_dim);
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(moments.Add(layer, rows.Q(), rows.K(), rows.V()).ok());
    ASSERT_TRUE(moments.AddOutputs(layer, given.Slice(0, 60)).ok());
    if (layer == 0) {
      ASSERT_TRUE(moments.AddOutputs(layer, given.Slice(60, 40)).ok());
    }
  }
  for (size_t h = 0; h < 3; ++h) {
    const calibrate::HeadMoments& head = moments.impl().layers[0].heads[h];
    EXPECT_LT((Full(head.value) / head.weight - expected[h]).norm(), 1e-6 * expected[h].norm());
  }
  moments.EndPass();
  const Status incomplete = FitOscar(moments, options, {}, nullptr).status();
  EXPECT_NE(incomplete.message().find("layer 1 saw the attention outputs of 60 of 100 tokens"), std::string::npos) << incomplete.message();
  MomentAccumulator score(kShape, {});
  EXPECT_EQ(score.AddOutputs(0, given).code(), StatusCode::kFailedPrecondition);
}

TEST(MomentAccumulator, BatchSizeDoesNotChangeTheMoments) {
  const Rows rows(kShape, 700, 4);
  const OscarFitOptions options = {.expected_tokens = 700};
  const MomentAccumulator whole = Accumulate(rows, options);
  for (const int step : {1, 6, 256, 257, 699}) {
    const MomentAccumulator split = Accumulate(rows, options, step);
    for (int layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(split.impl().layers[static_cast<size_t>(layer)].early_tokens, 525);
      for (size_t h = 0; h < 3; ++h) {
        const auto &a = whole.impl().layers[static_cast<size_t>(layer)].heads[h],
                   &b = split.impl().layers[static_cast<size_t>(layer)].heads[h];
        EXPECT_LT((a.query - b.query).norm(), 1e-12 * a.query.norm()) << step;
        EXPECT_LT((a.key - b.key).norm(), 1e-12 * a.key.norm()) << step;
        EXPECT_LT((a.value - b.value).norm(), 1e-12 * a.value.norm()) << step;
        EXPECT_LT((a.early_query - b.early_query).norm(), 1e-12 * a.query.norm()) << step;
        EXPECT_NEAR(a.weight, b.weight, 1e-12 * a.weight) << step;
      }
    }
  }
}

// The rows of KV heads [first, first + count) as a rank of its own sees them.
MomentAccumulator AccumulateRank(const Rows& rows, int first, int count) {
  const int g = rows.shape.group();
  const KvShape shape = {rows.shape.num_layers, count * g, count, rows.shape.head_dim};
  const auto part = [](RowsView<const float> view, int head, int heads) {
    view.data += head * view.head_stride;
    view.num_heads = heads;
    return view;
  };
  MomentAccumulator moments(shape, {});
  for (int pass = 0; pass < 2; ++pass) {
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      EXPECT_TRUE(moments
                      .Add(layer, part(rows.Q(), first * g, count * g), part(rows.K(), first, count),
                           part(rows.V(), first, count))
                      .ok());
    }
    moments.EndPass();
  }
  return moments;
}

TEST(MomentAccumulator, TensorParallelRanksGiveTheMomentsOfOneProcess) {
  const Rows rows({2, 8, 4, 8}, 200, 5);
  const MomentAccumulator single = Accumulate(rows, {});
  for (const int num_ranks : {1, 2, 4}) {
    std::vector<MomentAccumulator> ranks;
    for (int rank = 0; rank < num_ranks; ++rank)
      ranks.push_back(AccumulateRank(rows, rank * 4 / num_ranks, 4 / num_ranks));
    const Result<MomentAccumulator> joined = MomentAccumulator::JoinHeads(std::move(ranks));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    EXPECT_EQ(joined->impl().shape, rows.shape);
    for (size_t layer = 0; layer < 2; ++layer) {
      ASSERT_EQ(joined->impl().layers[layer].heads.size(), 4u);
      for (size_t h = 0; h < 4; ++h) {
        const auto &a = single.impl().layers[layer].heads[h], &b = joined->impl().layers[layer].heads[h];
        EXPECT_LT((a.query - b.query).norm(), 1e-9 * a.query.norm());
        EXPECT_LT((a.value - b.value).norm(), 1e-9 * a.value.norm());
      }
    }
    const CodecProfile one = FitOscar(single, {}, {}, nullptr).value(),
                       many = FitOscar(*joined, {}, {}, nullptr).value();
    for (size_t i = 0; i < 8; ++i)
      EXPECT_NEAR(one.eigenvalues(1, KvSide::kValue)[i], many.eigenvalues(1, KvSide::kValue)[i], 1e-6);
  }
}

TEST(MomentAccumulator, RanksThatDoNotBelongTogetherAreRefused) {
  const Rows rows({1, 4, 2, 8}, 64, 6), longer({1, 4, 2, 8}, 65, 6), other_shape({1, 4, 1, 8}, 64, 6);
  const auto join = [](MomentAccumulator a, MomentAccumulator b) {
    std::vector<MomentAccumulator> ranks;
    ranks.push_back(std::move(a));
    ranks.push_back(std::move(b));
    return MomentAccumulator::JoinHeads(std::move(ranks)).status();
  };
  EXPECT_EQ(MomentAccumulator::JoinHeads({}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(join(Accumulate(rows, {}), Accumulate(longer, {})).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(join(Accumulate(rows, {}), Accumulate(other_shape, {})).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(join(Accumulate(rows, {}), Accumulate(rows, {.v_metric = VMetric::kPlain})).code(),
            StatusCode::kInvalidArgument);
}

TEST(MomentAccumulator, LayersMayBeAddedFromManyThreads) {
  const Rows rows({8, 6, 3, 8}, 150, 7);
  const MomentAccumulator serial = Accumulate(rows, {});
  MomentAccumulator parallel(rows.shape, {});
  base::ThreadPool pool(4);
  for (int pass = 0; pass < 2; ++pass) {
    RunOn(pool, [&](int thread, int num_threads) {
      for (int layer = thread; layer < 8; layer += num_threads)
        EXPECT_TRUE(parallel.Add(layer, rows.Q(), rows.K(), rows.V()).ok());
    });
    parallel.EndPass();
  }
  for (size_t layer = 0; layer < 8; ++layer) {
    for (size_t h = 0; h < 3; ++h)
      EXPECT_EQ(serial.impl().layers[layer].heads[h].value, parallel.impl().layers[layer].heads[h].value);
  }
}

TEST(MomentAccumulator, ANonFiniteRowIsNamedAndNothingIsAdded) {
  Rows rows(kShape, 20, 8);
  MomentAccumulator moments(kShape, {});
  ASSERT_TRUE(moments.Add(1, rows.Q(), rows.K(), rows.V()).ok());
  const Matrix before = moments.impl().layers[1].heads[2].key;
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()}) {
    Rows broken = rows;
    broken.keys[(7 * 3 + 2) * 8 + 5] = bad;  // token 7, KV head 2
    const Status status = moments.Add(1, broken.Q(), broken.K(), broken.V());
    EXPECT_EQ(status.code(), StatusCode::kNonFinite);
    for (const char* part : {"layer 1", "KV head 2", "token 27", "keys"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
    Rows broken_query = rows;
    broken_query.queries[5 * 8] = bad;
    EXPECT_NE(moments.Add(1, broken_query.Q(), rows.K(), rows.V()).message().find("query head 5, token 20"),
              std::string::npos);
    Rows broken_value = rows;
    broken_value.values[0] = bad;
    EXPECT_NE(moments.Add(1, rows.Q(), rows.K(), broken_value.V()).message().find("values"), std::string::npos);
  }
  EXPECT_EQ(moments.impl().layers[1].heads[2].key, before);
  EXPECT_EQ(moments.impl().layers[1].num_tokens[0], 20);
}

TEST(MomentAccumulator, MissingHeadsLayersAndPassesAreRefused) {
  const Rows rows(kShape, 20, 9), one_head({2, 2, 1, 8}, 20, 9);
  MomentAccumulator moments(kShape, {});
  EXPECT_NE(moments.Add(0, one_head.Q(), rows.K(), rows.V()).message().find("all heads must be captured"),
            std::string::npos);
  EXPECT_EQ(moments.Add(0, rows.Q(), one_head.K(), rows.V()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(moments.Add(0, rows.Q(), rows.K(), rows.V().Slice(0, 19)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(moments.Add(2, rows.Q(), rows.K(), rows.V()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(moments.Add(-1, rows.Q(), rows.K(), rows.V()).code(), StatusCode::kInvalidArgument);
  moments.EndPass();
  moments.EndPass();
  EXPECT_EQ(moments.Add(0, rows.Q(), rows.K(), rows.V()).code(), StatusCode::kFailedPrecondition);
}

TEST(MomentAccumulator, NoTokensAreNoFault) {
  const Rows rows(kShape, 0, 10);
  MomentAccumulator moments(kShape, {});
  EXPECT_TRUE(moments.Add(0, rows.Q(), rows.K(), rows.V()).ok());
  EXPECT_EQ(moments.num_tokens(), 0);
}

// ---- fit ----

TEST(FitOscar, TheProfileCarriesWhatTheOptionsSay) {
  const Rows rows(kShape, 100, 20);
  const OscarFitOptions options = {.per_head = true, .clip_k = 0.9f, .clip_v = 0.0f};
  const Result<CodecProfile> profile = FitOscar(Accumulate(rows, options), options, {.model_name = "m"}, nullptr);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->method(), "int2:oscar");
  EXPECT_EQ(profile->provenance().model_name, "m");
  EXPECT_EQ(profile->provenance().scope, "head");
  EXPECT_EQ(profile->provenance().v_metric, "score");
  EXPECT_EQ(profile->provenance().num_tokens, 100);
  EXPECT_EQ(profile->row(1, 2, KvSide::kKey).clip_ratio, 0.9f);
  EXPECT_EQ(profile->row(1, 2, KvSide::kValue).clip_ratio, 0.0f);
  EXPECT_EQ(profile->row(1, 2, KvSide::kValue).encoder, EncoderKind::kMinMax);
  EXPECT_EQ(profile->row(1, 2, KvSide::kKey).transform->kind(), TransformKind::kOrthogonal);
  EXPECT_NE(profile->row(0, 0, KvSide::kKey).transform, profile->row(0, 1, KvSide::kKey).transform);
  EXPECT_EQ(profile->eigenvalues(1, KvSide::kKey).size(), 24u);
}

TEST(FitOscar, ScopeLayerSharesOneBasisOfTheMeanCovariance) {
  const Rows rows(kShape, 100, 21);
  const MomentAccumulator moments = Accumulate(rows, {});
  const CodecProfile profile = FitOscar(moments, {}, {}, nullptr).value();
  EXPECT_EQ(profile.row(0, 0, KvSide::kKey).transform, profile.row(0, 2, KvSide::kKey).transform);
  EXPECT_NE(profile.row(0, 0, KvSide::kKey).transform, profile.row(0, 0, KvSide::kValue).transform);
  Matrix keys = Matrix::Zero(8, 8), values = keys;
  for (size_t h = 0; h < 3; ++h) {
    keys += Full(moments.impl().layers[0].heads[h].query) / (100.0 * 2 * 3);
    values += ScoreCovariance(rows, static_cast<int>(h)) / 3;
  }
  for (const auto& [side, covariance] : {std::pair(KvSide::kKey, keys), std::pair(KvSide::kValue, values)}) {
    // diag(R^T C R) by its definition; every entry is the mean eigenvalue.
    const std::span<const float> r = profile.row(0, 0, side).transform->matrix();
    double sum = 0;
    for (const float lambda : profile.eigenvalues(0, side)) sum += lambda / 8.0;
    EXPECT_NEAR(sum, covariance.trace() / 8, 1e-6 * sum);
    for (size_t j = 0; j < 8; ++j) {
      double entry = 0;
      for (size_t a = 0; a < 8; ++a) {
        for (size_t b = 0; b < 8; ++b) {
          entry += double{r[a * 8 + j]} * covariance(static_cast<Eigen::Index>(a), static_cast<Eigen::Index>(b)) *
                   double{r[b * 8 + j]};
        }
      }
      EXPECT_NEAR(entry / sum, 1.0, 1e-6);
    }
  }
}

TEST(FitOscar, PlainKeysUseTheKeyMoment) {
  const Rows rows(kShape, 100, 22);
  const MomentAccumulator moments = Accumulate(rows, {});
  const CodecProfile profile = FitOscar(moments, {.k_metric = KMetric::kPlain}, {}, nullptr).value();
  double trace = 0, eigen_sum = 0;
  for (size_t h = 0; h < 3; ++h) trace += moments.impl().layers[0].heads[h].key.trace() / 300;
  for (const float lambda : profile.eigenvalues(0, KvSide::kKey)) eigen_sum += lambda;
  EXPECT_NEAR(eigen_sum, trace, 1e-6 * trace);
  EXPECT_EQ(profile.provenance().k_metric, "plain");
}

// Test 14 of method.md 11: heads with unrelated bases and steep spectra.
TEST(FitOscar, UnrelatedHeadsAreFlatWithTheirOwnBasisAndWarnedAboutWithASharedOne) {
  const KvShape shape = {2, 8, 4, 64};
  std::mt19937_64 rng(testing::TestSeed(23));
  MomentAccumulator moments(shape, {.v_metric = VMetric::kPlain});
  const int tokens = 600;
  for (int layer = 0; layer < 2; ++layer) {
    Rows rows({1, 8, 4, 64}, tokens, 24);
    for (int head = 0; head < 4; ++head) {
      const Matrix basis = Eigen::HouseholderQR<Matrix>(Matrix::NullaryExpr(64, 64, [&] {
                             return std::normal_distribution<double>()(rng);
                           })).householderQ();
      for (int t = 0; t < tokens; ++t) {
        for (int q = 2 * head; q < 2 * head + 2; ++q) {
          const std::vector<float> z = testing::NormalVector(rng, 64);
          for (int j = 0; j < 64; ++j) {
            double sum = 0;
            for (int i = 0; i < 64; ++i) sum += z[static_cast<size_t>(i)] * std::exp(-0.15 * i) * basis(i, j);
            rows.queries[static_cast<size_t>((t * 8 + q) * 64 + j)] = static_cast<float>(sum);
          }
        }
      }
    }
    ASSERT_TRUE(moments.Add(layer, rows.Q(), rows.K(), rows.V()).ok());
  }
  moments.EndPass();
  OscarFitOptions options = {.v_metric = VMetric::kPlain};
  FitReport shared, own;
  const CodecProfile shared_profile = FitOscar(moments, options, {}, &shared).value();
  options.per_head = true;
  const CodecProfile own_profile = FitOscar(moments, options, {}, &own).value();
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_EQ(own.layers[static_cast<size_t>(layer)].head_spread.size(), 4u);
    for (const double spread : own.layers[static_cast<size_t>(layer)].head_spread) EXPECT_LT(spread, 1.000001);
    EXPECT_GT(shared.layers[static_cast<size_t>(layer)].worst_head_spread, calibrate::kMaxSharedSpread);
  }
  EXPECT_TRUE(own.warnings.empty());
  ASSERT_EQ(shared.warnings.size(), 1u);
  EXPECT_NE(shared.warnings[0].find("--per-head"), std::string::npos) << shared.warnings[0];
  const size_t worst = shared.layers[0].worst_head_spread > shared.layers[1].worst_head_spread ? 0 : 1;
  const std::string name =
      "layer " + std::to_string(worst) + ", KV head " + std::to_string(shared.layers[worst].worst_head);
  EXPECT_NE(shared.warnings[0].find(name), std::string::npos) << shared.warnings[0];
  // Both load and serve.
  EXPECT_EQ(shared_profile.row(0, 3, KvSide::kKey).transform, shared_profile.row(0, 0, KvSide::kKey).transform);
  EXPECT_NE(own_profile.row(0, 3, KvSide::kKey).transform, own_profile.row(0, 0, KvSide::kKey).transform);
}

TEST(FitOscar, OneHeadIsItsOwnBasisInEitherScope) {
  const Rows rows({1, 4, 1, 16}, 200, 25);
  FitReport report;
  ASSERT_TRUE(FitOscar(Accumulate(rows, {}), {}, {}, &report).ok());
  EXPECT_LT(report.layers[0].worst_head_spread, 1.000001);
  EXPECT_TRUE(report.warnings.empty());
  EXPECT_LT(report.layers[0].orthogonality_error, 1e-7);
  EXPECT_GT(report.layers[0].k_condition, 1);
  EXPECT_GT(report.layers[0].k_top8_share, 0.5);
  EXPECT_LE(report.layers[0].k_top8_share, 1);
}

TEST(FitOscar, ConvergenceComparesThreeQuartersWithAll) {
  const Rows rows({1, 1, 1, 8}, 400, 26);
  const OscarFitOptions options = {.expected_tokens = 400};
  FitReport report;
  ASSERT_TRUE(FitOscar(Accumulate(rows, options, 33), options, {}, &report).ok());
  const auto moment = [&](int tokens) {
    Matrix sum = Matrix::Zero(8, 8);
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < 8; ++i) {
        for (int j = 0; j < 8; ++j) sum(i, j) += Bf16(rows.Q().Row(t, 0)[i]) * Bf16(rows.Q().Row(t, 0)[j]) / tokens;
      }
    }
    return sum;
  };
  EXPECT_NEAR(report.k_convergence, (moment(300) - moment(400)).norm() / moment(400).norm(), 1e-10);

  for (const int64_t wrong : {0, 200, 4000}) {
    const OscarFitOptions unknown = {.expected_tokens = wrong};
    ASSERT_TRUE(FitOscar(Accumulate(rows, unknown), unknown, {}, &report).ok());
    EXPECT_LT(report.k_convergence, 0) << wrong;
  }
}

TEST(FitOscar, AllZeroRowsAreWarnedAbout) {
  Rows rows(kShape, 100, 27);
  std::fill(rows.values.begin(), rows.values.end(), 0.0f);
  FitReport report;
  const Result<CodecProfile> profile = FitOscar(Accumulate(rows, {}), {}, {}, &report);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  bool warned = false;
  for (const std::string& warning : report.warnings)
    warned |= warning.find("layer 0, values: all rows are zero") != std::string::npos;
  EXPECT_TRUE(warned);
}

TEST(FitOscar, IncompleteMomentsAreRefusedWithTheReason) {
  const Rows rows(kShape, 100, 28), too_short(kShape, 63, 28);
  const auto fit = [](const MomentAccumulator& moments, const OscarFitOptions& options) {
    const Status status = FitOscar(moments, options, {}, nullptr).status();
    return std::string(StatusCodeName(status.code())) + ": " + status.message();
  };
  EXPECT_NE(fit(Accumulate(too_short, {}), {}).find("63 tokens, where head_dim 8 needs at least 64"),
            std::string::npos);
  EXPECT_NE(fit(Accumulate(rows, {}), {.v_metric = VMetric::kPlain}).find("V metric score, not plain"),
            std::string::npos);
  EXPECT_NE(fit(Accumulate(rows, {}), {.clip_k = 1.5f}).find("clip ratio of keys"), std::string::npos);
  EXPECT_NE(fit(Accumulate(rows, {}), {.clip_v = std::nanf("")}).find("clip ratio of values"), std::string::npos);

  MomentAccumulator one_pass(kShape, {});
  for (int layer = 0; layer < 2; ++layer) ASSERT_TRUE(one_pass.Add(layer, rows.Q(), rows.K(), rows.V()).ok());
  one_pass.EndPass();
  EXPECT_NE(fit(one_pass, {}).find("1 of 2 passes"), std::string::npos);
  ASSERT_TRUE(one_pass.Add(0, rows.Q(), rows.K(), rows.V()).ok());
  one_pass.EndPass();
  EXPECT_NE(fit(one_pass, {}).find("layer 1 saw 100 and 0 tokens"), std::string::npos) << fit(one_pass, {});
}

TEST(CheckOscarFit, HeadDimensionsThatAreNoPowerOfTwoAreUnsupported) {
  const Status status = CheckOscarFit({2, 4, 2, 80}, {});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("layer 0"), std::string::npos) << status.message();
  EXPECT_EQ(CheckOscarFit({2, 4, 3, 64}, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckOscarFit({2, 4, 2, 64}, {}).ok());
}

TEST(FitNames, AreReadAsTheyAreWritten) {
  for (const Composition composition :
       {Composition::kPlain, Composition::kRH, Composition::kRHPbr, Composition::kHPbr, Composition::kHadamard}) {
    EXPECT_EQ(ParseComposition(CompositionName(composition)).value(), composition);
  }
  EXPECT_EQ(CompositionName(Composition::kRHPbr), "r_h_pbr");
  for (const KMetric metric : {KMetric::kQuery, KMetric::kPlain})
    EXPECT_EQ(ParseKMetric(KMetricName(metric)).value(), metric);
  for (const VMetric metric : {VMetric::kScore, VMetric::kPlain, VMetric::kSoftmax})
    EXPECT_EQ(ParseVMetric(VMetricName(metric)).value(), metric);
  const Status status = ParseComposition("rh").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("plain, r_h, r_h_pbr, h_pbr, hadamard"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace oscar
