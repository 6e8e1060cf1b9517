// The two halves of a sequence in separate spaces, joined by the attention kernel, against float64. Needs a GPU; label cuda.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "src/kv/kernels/cuda/decode_fixture.h"

namespace oscar::kernels::cuda {
namespace {

using fixture::DeviceBuffer;
using fixture::Launch;
using fixture::Problem;

struct JoinCase {
  int head_dim, group, kv_heads, num_ctas;
  std::vector<SequenceExtent> sequences;
  bool has_matrix, has_mean, is_shared;  // is_shared: one matrix and mean for all heads
};

// Sequences twice: their pages, then their rows; without any page once.
Problem ProblemOf(const JoinCase& test, int* num_code_sequences) {
  Problem problem;
  problem.head_dim = test.head_dim;
  problem.group = test.group;
  problem.kv_heads = test.kv_heads;
  problem.has_mean = true;
  *num_code_sequences = 0;
  for (const SequenceExtent& extent : test.sequences) *num_code_sequences += extent.num_code_pages > 0 ? 1 : 0;
  if (*num_code_sequences > 0) {
    *num_code_sequences = static_cast<int>(test.sequences.size());
    for (const SequenceExtent& extent : test.sequences) problem.sequences.push_back({extent.num_code_pages, 0});
  }
  for (const SequenceExtent& extent : test.sequences) problem.sequences.push_back({0, extent.num_rows});
  return problem;
}

std::vector<float> RandomValues(size_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = fixture::Normal(seed * 1000003 + i);
  return values;
}

class Joined {
 public:
  explicit Joined(const JoinCase& test) : test_(test), problem_(ProblemOf(test, &num_code_)), launch_(problem_, Options(test)) {
    const size_t d = test.head_dim, heads = test.is_shared ? 1 : test.kv_heads;
    matrix_ = RandomValues(heads * d * d, 5);
    for (float& x : matrix_) x /= std::sqrt(static_cast<float>(d));
    mean_ = RandomValues(heads * d, 6);
  }

  // Twice, so that counters that a launch does not leave at zero show. Output rows have gaps.
  std::vector<float> Run() {
    const DecodePlan plan = num_code_ > 0 ? PlanSpaces(test_.sequences, Options(test_)) : launch_.plan();
    const DeviceBuffer<DecodeStart> starts(plan.starts);
    const DeviceBuffer<DecodeItem> items(plan.items);
    const DeviceBuffer<float> matrix(matrix_), mean(mean_);
    DeviceBuffer<float> out(test_.sequences.size() * TokenStride());
    DecodeParams params = launch_.Params();
    params.value_mean = nullptr;
    params.starts = starts.data();
    params.items = items.data();
    params.out = nullptr;
    params.out_f32 = nullptr;
    const int d = test_.head_dim;
    params.join.out = out.data();
    params.join.token_stride = static_cast<int64_t>(TokenStride());
    params.join.head_stride = d + 4;
    params.join.matrix = test_.has_matrix ? matrix.data() : nullptr;
    params.join.matrix_stride = test_.is_shared ? 0 : d * d;
    params.join.mean = test_.has_mean ? mean.data() : nullptr;
    params.join.mean_stride = test_.is_shared ? 0 : d;
    params.join.num_code_sequences = num_code_;
    const affine::DecodeKernel* kernel = affine::FindDecodeKernel(d, test_.group, affine::DecodeKernelKind::kNormal);
    OSCAR_FIXTURE_CHECK(affine::PrepareDecodeKernel(*kernel));
    for (int i = 0; i < 2; ++i) {
      out.Fill(0xFF);
      OSCAR_FIXTURE_CHECK(affine::LaunchDecode(*kernel, params, test_.num_ctas, i == 1, nullptr));
    }
    OSCAR_FIXTURE_CHECK(cudaDeviceSynchronize());
    for (const int32_t count : launch_.Counters()) EXPECT_EQ(count, 0);
    return out.Download();
  }

  // [sequence, query head, d].
  std::vector<double> Judge() const {
    const Launch::Parts parts = launch_.JudgeParts();
    const size_t d = test_.head_dim, heads = problem_.query_heads(), count = test_.sequences.size();
    std::vector<double> expected(count * heads * d);
    for (size_t row = 0; row < count * heads; ++row) {
      const size_t kv_head = row % heads / test_.group, first_row = num_code_ > 0 ? count * heads : 0;
      const double row_mass = parts.log_mass[first_row + row];
      const double code_mass = num_code_ > 0 ? parts.log_mass[row] : -std::numeric_limits<double>::infinity();
      const double top = std::max(row_mass, code_mass);
      const double code_weight = std::exp2(code_mass - top), row_weight = std::exp2(row_mass - top);
      for (size_t column = 0; column < d; ++column) {
        double code = 0;
        if (num_code_ > 0) {
          const float* matrix = matrix_.data() + (test_.is_shared ? 0 : kv_head * d * d);
          code = test_.has_matrix ? 0 : parts.out[row * d + column];
          for (size_t j = 0; test_.has_matrix && j < d; ++j)
            code += parts.out[row * d + j] * static_cast<double>(matrix[j * d + column]);
          if (test_.has_mean) code += static_cast<double>(mean_[(test_.is_shared ? 0 : kv_head * d) + column]);
        }
        expected[row * d + column] =
            (code_weight * code + row_weight * parts.out[(first_row + row) * d + column]) / (code_weight + row_weight);
      }
    }
    return expected;
  }
  size_t TokenStride() const { return static_cast<size_t>(problem_.query_heads()) * (test_.head_dim + 4) + 8; }
  const Problem& problem() const { return problem_; }

 private:
  static DecodePlanOptions Options(const JoinCase& test) {
    DecodePlanOptions options;
    options.kv_heads = test.kv_heads;
    options.head_dim = test.head_dim;
    options.num_ctas = test.num_ctas;
    return options;
  }
  const JoinCase test_;
  int num_code_ = 0;
  const Problem problem_;
  const Launch launch_;
  std::vector<float> matrix_, mean_;
};

void ExpectJoined(const JoinCase& test) {
  Joined joined(test);
  const std::vector<float> actual = joined.Run();
  const std::vector<double> expected = joined.Judge();
  const size_t d = test.head_dim, heads = joined.problem().query_heads();
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t token = i / (heads * d), head = i / d % heads;
    const double difference = static_cast<double>(actual[token * joined.TokenStride() + head * (d + 4) + i % d]) - expected[i];
    error += difference * difference;
    norm += expected[i] * expected[i];
  }
  const double relative = std::sqrt(error / norm);
  EXPECT_LE(relative, 1e-3) << "d " << test.head_dim << " group " << test.group << " CTAs " << test.num_ctas << " sequences "
                            << test.sequences.size() << " matrix " << test.has_matrix << " mean " << test.has_mean;
}

TEST(DecodeJoin, BothSpacesAreJoinedAsInDouble) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  const std::vector<std::vector<SequenceExtent>> batches = {
      {{100, 384}}, {{1, 321}}, {{0, 70}}, {{17, 64}, {0, 1}, {300, 350}}, {{40, 330}, {40, 330}, {40, 330}, {40, 330}}};
  int number = 0;
  for (const int d : {64, 128, 192, 256}) {
    for (const int group : {1, 4, 7, 8, 12, 16}) {
      for (const std::vector<SequenceExtent>& sequences : batches) {
        const int kind = number++;
        ExpectJoined({d, group, 2, kind % 3 == 0 ? 5 : 132, sequences, kind % 4 != 3, kind % 2 == 0, kind % 5 < 2});
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace oscar::kernels::cuda
