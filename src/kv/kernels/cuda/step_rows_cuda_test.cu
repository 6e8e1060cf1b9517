// The rows of a decode step before attention against double precision and the layout of pages. Needs a GPU; label cuda.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/base/float_bits.h"
#include "src/kv/kernels/cuda/decode_fixture.h"
#include "src/kv/kernels/cuda/row_layout.h"
#include "src/kv/kernels/cuda/step_rows.h"

namespace oscar::kernels::cuda {
namespace {

using fixture::DeviceBuffer;

struct StepCase {
  int head_dim, group, kv_heads, num_rows, pairs;  // pairs 0: no RoPE
  bool halves, has_gain, has_matrix, has_mean;
};

std::vector<float> RandomValues(size_t count, std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(rng);
  return values;
}

constexpr float kEpsilon = 1e-6f, kKappa = 0.3f;
constexpr int kPages = 9;

class StepRows {
 public:
  explicit StepRows(const StepCase& test) : test_(test), rng_(17) {
    const size_t d = test.head_dim, rows = test.num_rows, heads = test.kv_heads;
    queries_ = RandomValues(rows * heads * test.group * d, rng_);
    keys_ = RandomValues(rows * heads * d, rng_);
    values_ = RandomValues(rows * heads * d, rng_);
    query_gain_ = RandomValues(d, rng_);
    key_gain_ = RandomValues(d, rng_);
    matrix_ = RandomValues(heads * d * d, rng_);
    mean_ = RandomValues(heads * d, rng_);
    for (size_t i = 0; i < rows * std::max(test.pairs, 1); ++i) {
      const float angle = static_cast<float>(rng_() % 628) * 0.01f;
      turns_.push_back(make_float2(std::cos(angle), std::sin(angle)));
    }
    for (size_t i = 0; i < rows; ++i) {
      positions_.push_back(static_cast<int32_t>(rng_() % 5000));
      pages_.push_back(static_cast<int32_t>((5 * i + 3) % kPages));
    }
  }

  void Run() {
    const size_t d = test_.head_dim, query_heads = static_cast<size_t>(test_.kv_heads) * test_.group;
    const DeviceBuffer<float> queries(queries_), keys(keys_), values(values_), query_gain(query_gain_), key_gain(key_gain_), matrix(matrix_),
        mean(mean_);
    const DeviceBuffer<float2> turns(turns_);
    const DeviceBuffer<int32_t> positions(positions_), pages(pages_);
    DeviceBuffer<uint8_t> pool(static_cast<size_t>(kPages) * test_.kv_heads * Bf16BlockBytes(test_.head_dim));
    DeviceBuffer<DeviceStatus> status(1);
    DeviceBuffer<uint16_t> raw(queries_.size()), code(queries_.size());
    DeviceBuffer<float> beta(queries_.size() / d);
    pool.Fill(0xFF);
    status.Fill(0);
    raw.Fill(0xFF);
    code.Fill(0xFF);
    StepRowsParams params = {};
    params.queries = {queries.data(), static_cast<int64_t>(query_heads * d), static_cast<int64_t>(d)};
    params.keys = {keys.data(), static_cast<int64_t>(test_.kv_heads * d), static_cast<int64_t>(d)};
    params.values = {values.data(), static_cast<int64_t>(test_.kv_heads * d), static_cast<int64_t>(d)};
    params.query_gain = test_.has_gain ? query_gain.data() : nullptr;
    params.key_gain = test_.has_gain ? key_gain.data() : nullptr;
    params.epsilon = kEpsilon;
    params.turns = test_.pairs > 0 ? turns.data() : nullptr;
    params.pairs = test_.pairs;
    params.halves = test_.halves ? 1 : 0;
    params.positions = positions.data();
    params.newest_pages = pages.data();
    params.row_pool = pool.data();
    params.status = status.data();
    params.layer = 3;
    params.num_rows = test_.num_rows;
    params.kv_heads = test_.kv_heads;
    params.group = test_.group;
    params.head_dim = test_.head_dim;
    params.query_map = {test_.has_matrix ? matrix.data() : nullptr, static_cast<int64_t>(d * d)};
    params.key_mean = {mean.data(), static_cast<int64_t>(d)};
    params.kappa = kKappa;
    params.raw = raw.data();
    params.in_code_space = code.data();
    params.beta = test_.has_mean ? beta.data() : nullptr;
    OSCAR_FIXTURE_CHECK(LaunchStepRows(params, nullptr));
    OSCAR_FIXTURE_CHECK(cudaDeviceSynchronize());
    pool_ = pool.Download();
    status_ = status.Download()[0];
    raw_ = raw.Download();
    code_ = code.Download();
    beta_ = beta.Download();
  }

  // A head of queries or keys of a row, turned.
  std::vector<double> Turned(const std::vector<float>& source, const std::vector<float>& gain, size_t row, size_t head, size_t num_heads) const {
    const size_t d = test_.head_dim;
    const float* x = source.data() + (row * num_heads + head) * d;
    std::vector<double> y(x, x + d);
    if (test_.has_gain) {
      double squares = 0;
      for (const double v : y) squares += v * v;
      for (size_t i = 0; i < d; ++i)
        y[i] *= static_cast<double>(gain[i]) / std::sqrt(squares / static_cast<double>(d) + static_cast<double>(kEpsilon));
    }
    for (int pair = 0; pair < test_.pairs; ++pair) {
      const size_t a = test_.halves ? pair : 2 * pair, b = test_.halves ? pair + test_.pairs : a + 1;
      const float2 turn = turns_[row * test_.pairs + pair];
      const double first = y[a], second = y[b];
      y[a] = first * static_cast<double>(turn.x) - second * static_cast<double>(turn.y);
      y[b] = first * static_cast<double>(turn.y) + second * static_cast<double>(turn.x);
    }
    return y;
  }

  void ExpectQueries() const {
    const size_t d = test_.head_dim, heads = static_cast<size_t>(test_.kv_heads) * test_.group;
    for (size_t row = 0; row < static_cast<size_t>(test_.num_rows); ++row) {
      for (size_t head = 0; head < heads; ++head) {
        const std::vector<double> query = Turned(queries_, query_gain_, row, head, heads);
        const size_t kv_head = head / test_.group;
        double score = 0;
        for (size_t i = 0; i < d; ++i) {
          const size_t at = (row * heads + head) * d + i;
          ASSERT_NEAR(base::F32FromBf16(raw_[at]), query[i], 4e-3 * std::abs(query[i]) + 1e-5) << "raw, row " << row << " head " << head;
          double code = test_.has_matrix ? 0 : query[i];
          for (size_t j = 0; test_.has_matrix && j < d; ++j) code += query[j] * static_cast<double>(matrix_[(kv_head * d + j) * d + i]);
          ASSERT_NEAR(base::F32FromBf16(code_[at]), code, 4e-3 * std::abs(code) + 1e-4) << "code, row " << row << " head " << head << " " << i;
          score += query[i] * static_cast<double>(mean_[kv_head * d + i]);
        }
        if (test_.has_mean) {
          ASSERT_NEAR(beta_[row * heads + head], static_cast<double>(kKappa) * score, 1e-4);
        }
      }
    }
  }

  // Rows stand where the layout says, and nothing else was written.
  void ExpectPages() const {
    const size_t d = test_.head_dim, heads = test_.kv_heads;
    std::vector<uint8_t> rest = pool_;
    for (size_t row = 0; row < static_cast<size_t>(test_.num_rows); ++row) {
      for (size_t head = 0; head < heads; ++head) {
        const std::vector<double> key = Turned(keys_, key_gain_, row, head, heads);
        uint8_t* block = rest.data() + (pages_[row] * heads + head) * Bf16BlockBytes(test_.head_dim);
        for (int i = 0; i < test_.head_dim; ++i) {
          const int slot = positions_[row] % 64;
          uint8_t* const at[2] = {block + Bf16KeyOffset(test_.head_dim, slot, i), block + Bf16ValueOffset(test_.head_dim, slot, i)};
          uint16_t bits[2];
          for (int side = 0; side < 2; ++side) {
            std::memcpy(&bits[side], at[side], 2);
            std::memset(at[side], 0xFF, 2);
          }
          ASSERT_NEAR(base::F32FromBf16(bits[0]), key[i], 4e-3 * std::abs(key[i]) + 1e-5);
          ASSERT_EQ(bits[1], base::Bf16FromF32(values_[(row * heads + head) * d + i]));
        }
      }
    }
    for (const uint8_t byte : rest) ASSERT_EQ(byte, 0xFF);
  }

  std::vector<float>& values() { return values_; }
  const DeviceStatus& status() const { return status_; }

 private:
  const StepCase test_;
  std::mt19937_64 rng_;
  std::vector<float> queries_, keys_, values_, query_gain_, key_gain_, matrix_, mean_, beta_;
  std::vector<float2> turns_;
  std::vector<int32_t> positions_, pages_;
  std::vector<uint8_t> pool_;
  std::vector<uint16_t> raw_, code_;
  DeviceStatus status_ = {};
};

bool HasDevice() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

TEST(StepRows, QueriesAndNewRowsAreThoseInDouble) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  int number = 0;
  for (const int d : {64, 128, 192, 256}) {
    for (const int group : {1, 4, 7, 16}) {
      for (const int pairs : {0, d / 4, d / 2}) {
        const int kind = number++;
        const StepCase test = {d, group, 2, 1 + kind % 3, pairs, kind % 2 == 0, kind % 3 != 1, kind % 4 != 2, kind % 5 < 3};
        SCOPED_TRACE("d " + std::to_string(d) + " group " + std::to_string(group) + " pairs " + std::to_string(pairs));
        StepRows rows(test);
        rows.Run();
        EXPECT_EQ(rows.status().code, 0);
        rows.ExpectQueries();
        rows.ExpectPages();
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(StepRows, AValueThatIsNotFiniteIsReported) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  StepRows rows({128, 4, 2, 2, 64, true, true, true, false});
  rows.values()[(1 * 2 + 1) * 128 + 127] = -INFINITY;
  rows.Run();
  EXPECT_NE(rows.status().code, 0);
  EXPECT_EQ(rows.status().layer, 3);
  EXPECT_EQ(rows.status().head, 1);
  EXPECT_EQ(rows.status().side, 1);
}

}  // namespace
}  // namespace oscar::kernels::cuda
