// The demotion kernel against the scalar rules of method.md 3.1 and 3.2: bytes are equal. Needs a
// GPU; label cuda.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "src/base/float_bits.h"
#include "src/kv/codec/affine/clip.h"
#include "src/kv/codec/affine/cuda_demote.h"
#include "src/kv/codec/affine/device_convert.h"
#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/codec/affine/encoder.h"
#include "src/kv/kernels/cuda/decode_fixture.h"

namespace oscar::kernels::cuda {
namespace {

namespace layout = affine::device;
using fixture::DeviceBuffer;

struct Side {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales, offsets;
  explicit Side(int d) : codes(static_cast<size_t>(64) * d), scales(64), offsets(64) {}
};

// One row by the scalar rules. False when it must be refused.
bool EncodePlain(std::vector<float> y, int clip_index, uint8_t* codes, uint16_t& scale,
                 uint16_t& offset) {
  for (const float value : y) {
    if (!std::isfinite(value)) return false;
  }
  if (clip_index >= 0) {
    const float threshold = affine::ClipThreshold(y, clip_index);
    for (float& value : y) value = std::min(std::max(value, -threshold), threshold);
  }
  affine::RowGrid grid;
  if (!affine::MinMaxGrid(*std::min_element(y.begin(), y.end()),
                          *std::max_element(y.begin(), y.end()), 3, grid))
    return false;
  for (size_t i = 0; i < y.size(); ++i) {
    const float steps = (y[i] - grid.shift) * grid.reciprocal;
    codes[i] = grid.constant
                   ? 0
                   : static_cast<uint8_t>(std::min(std::max(std::floor(steps + 0.5f), 0.0f), 3.0f));
  }
  scale = grid.scale_f16;
  offset = grid.offset_f16;
  return true;
}

// Rows of many kinds: plain, with outliers, constant, zero, signed zeros, tiny, large, few distinct
// values, far from zero with and without outliers (there the clip decides codes), all of one sign,
// and symmetric ones whose middle threshold is zero.
constexpr int kRowKinds = 12, kHugeKind = 11;
uint16_t RandomValue(std::mt19937_64& rng, int kind) {
  std::normal_distribution<float> normal;
  switch (kind) {
    case 1:
      return base::Bf16FromF32(rng() % 20 == 0 ? 40.0f * normal(rng) : normal(rng));
    case 2:
      return base::Bf16FromF32(1.25f);
    case 3:
      return rng() % 2 ? 0x8000 : 0;
    case 4:
      return static_cast<uint16_t>(rng() % 64 | (rng() % 2 << 15));  // bf16 subnormals
    case 5:
      return base::Bf16FromF32(9000.0f * normal(rng));
    case 6:
      return base::Bf16FromF32(static_cast<float>(static_cast<int>(rng() % 3)) - 1.0f);
    case 7:
      return base::Bf16FromF32(100.0f + 1e-2f * normal(rng));
    case 8:
      return base::Bf16FromF32(rng() % 12 == 0 ? 300.0f * std::fabs(normal(rng))
                                               : 100.0f + normal(rng));
    case 9:
      return base::Bf16FromF32(std::fabs(normal(rng)) + 0.01f);
    case 10: {
      const float magnitude =
          rng() % 8 == 0 ? 3.0f : std::ldexp(normal(rng), -static_cast<int>(rng() % 30));
      return base::Bf16FromF32(rng() % 2 ? magnitude : -magnitude);
    }
    case kHugeKind:
      return base::Bf16FromF32(rng() % 40 == 0 ? 1e30f : 1e-3f * normal(rng));
    default:
      return base::Bf16FromF32(normal(rng));
  }
}

// method.md 3.1, in the order of the CPU: every product and every sum rounded.
std::vector<float> TransformPlain(const std::vector<float>& x, const float* matrix,
                                  const float* mean) {
  const size_t d = x.size();
  std::vector<float> y(d, 0.0f);
  for (size_t i = 0; i < d; ++i) {
    const float centred = mean != nullptr ? x[i] - mean[i] : x[i];
    for (size_t j = 0; j < d; ++j) {
      const volatile float product = matrix[i * d + j] * centred;  // not fused with the sum
      y[j] = product + y[j];
    }
  }
  for (float& value : y) value = base::RoundToBf16(value);
  return y;
}

// Pages of random rows; with matrices, they are raw and the layers and heads have matrices of their
// own.
struct Case {
  int d = 128, heads = 3, jobs = 4, layers = 2;
  bool clips = true, transforms = false, has_mean = false;
  uint64_t seed = 1;
};

// Without a clip, and in sums, huge values leave fp16.
int RowKind(const Case& c, std::mt19937_64& rng) {
  const int kind = static_cast<int>(rng() % kRowKinds);
  return kind == kHugeKind && (c.transforms || !c.clips) ? 0 : kind;
}

class Demote : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no CUDA device";
  }
};

// Demotes `rows` and compares with `expected`.
void ExpectDemoted(const Case& c, const int (&clip)[2], const std::vector<uint8_t>& rows,
                   const std::vector<float>& matrices, const std::vector<float>& means,
                   const std::vector<uint8_t>& expected) {
  const int d = c.d;
  const size_t row_block = layout::Bf16BlockBytes(d), code_block = layout::BlockBytes(d),
               square = size_t{1} * d * d;
  std::vector<DemoteJob> list;
  for (int page = 0; page < c.jobs; ++page) list.push_back({page, c.jobs - 1 - page});
  DeviceBuffer<uint8_t> row_pool(rows), code_pool(expected.size());
  code_pool.Fill(0xFF);
  DeviceBuffer<DemoteJob> job_list(list);
  DeviceBuffer<float> matrix_buffer(matrices), mean_buffer(means);
  DeviceBuffer<DeviceStatus> status(1);
  status.Fill(0);
  DemotePagesParams params{row_pool.data(),
                           code_pool.data(),
                           static_cast<int64_t>(c.jobs * c.heads * row_block),
                           static_cast<int64_t>(c.jobs * c.heads * code_block),
                           job_list.data(),
                           status.data(),
                           c.heads,
                           {{clip[0]}, {clip[1]}}};
  for (int side = 0; c.transforms && side < 2; ++side) {
    const size_t own = static_cast<size_t>(side) * c.layers * c.heads;
    DemoteSide& target = params.sides[side];
    target.matrix = matrix_buffer.data() + own * square;
    target.layer_stride = static_cast<int64_t>(c.heads * square);
    target.head_stride = static_cast<int64_t>(square);
    if (c.has_mean) target.mean = mean_buffer.data() + own * d;
    target.mean_layer_stride = int64_t{1} * c.heads * d;
    target.mean_head_stride = d;
  }
  ASSERT_EQ(affine::LaunchDemote(d, params, c.jobs, c.layers, c.clips, nullptr), cudaSuccess);
  const std::vector<uint8_t> actual = code_pool.Download();
  EXPECT_EQ(status.Download()[0].code, 0);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i], expected[i])
        << "d " << d << " clip " << c.clips << " transform " << c.transforms << " block "
        << i / code_block << " byte " << i % code_block;
  }
}

void ExpectScalarBytes(const Case& c) {
  const int d = c.d;
  std::mt19937_64 rng(c.seed);
  const size_t row_block = layout::Bf16BlockBytes(d), code_block = layout::BlockBytes(d),
               square = size_t{1} * d * d;
  std::vector<uint8_t> rows(static_cast<size_t>(c.layers) * c.jobs * c.heads * row_block);
  std::vector<uint8_t> expected(static_cast<size_t>(c.layers) * c.jobs * c.heads * code_block);
  const int clip[2] = {c.clips ? affine::ClipIndex(0.96f, d) : -1,
                       c.clips ? affine::ClipIndex(0.92f, d) : -1};
  std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(d)));
  std::vector<float> matrices(2 * c.layers * c.heads * square),
      means(static_cast<size_t>(2) * c.layers * c.heads * d);
  for (float& m : matrices) m = normal(rng);
  for (float& m : means) m = 10.0f * normal(rng);
  // Row page r goes to code page jobs - 1 - r.
  for (int layer = 0; layer < c.layers; ++layer) {
    for (int page = 0; page < c.jobs; ++page) {
      for (int head = 0; head < c.heads; ++head) {
        uint8_t* block =
            &rows[((static_cast<size_t>(layer) * c.jobs + page) * c.heads + head) * row_block];
        Side sides[2] = {Side(d), Side(d)};
        for (int side = 0; side < 2; ++side) {
          const size_t own = (static_cast<size_t>(side) * c.layers + layer) * c.heads + head;
          for (int token = 0; token < 64; ++token) {
            const int kind = RowKind(c, rng);
            std::vector<float> y(d);
            int num_huge = 0;
            for (int i = 0; i < d; ++i) {
              uint16_t bits = RandomValue(rng, kind);
              if (kind == kHugeKind && base::F32FromBf16(bits) > 1e29f && num_huge++ > 0) bits = 0;
              y[i] = base::F32FromBf16(bits);
              std::memcpy(block + (side == 0 ? layout::Bf16KeyOffset(d, token, i)
                                             : layout::Bf16ValueOffset(d, token, i)),
                          &bits, 2);
            }
            if (c.transforms) {
              y = TransformPlain(y, &matrices[own * square],
                                 c.has_mean ? &means[own * d] : nullptr);
            }
            ASSERT_TRUE(EncodePlain(y, clip[side],
                                    &sides[side].codes[static_cast<size_t>(token) * d],
                                    sides[side].scales[token], sides[side].offsets[token]))
                << "kind " << kind;
          }
        }
        affine::DeviceBlockFromRows(
            d, {sides[0].codes, sides[0].scales, sides[0].offsets},
            {sides[1].codes, sides[1].scales, sides[1].offsets},
            std::span(expected).subspan(
                ((static_cast<size_t>(layer) * c.jobs + c.jobs - 1 - page) * c.heads + head) *
                    code_block,
                code_block));
      }
    }
  }
  ExpectDemoted(c, clip, rows, matrices, means, expected);
}

TEST_P(Demote, BytesEqualTheScalarRules) {
  for (const bool clips : {false, true})
    ExpectScalarBytes({.d = GetParam(), .jobs = 24, .clips = clips});
}

TEST_P(Demote, BytesOfRawRowsEqualTheScalarRules) {
  for (const bool has_mean : {false, true}) {
    ExpectScalarBytes(
        {.d = GetParam(), .jobs = 2, .transforms = true, .has_mean = has_mean, .seed = 7});
  }
}

TEST_P(Demote, ARowThatIsNotFiniteOrOverflowsIsNamed) {
  const int d = GetParam(), heads = 2;
  std::vector<float> unit(static_cast<size_t>(d) * d, 0.0f);
  for (int i = 0; i < d; ++i) unit[static_cast<size_t>(i) * d + i] = 1.0f;
  DeviceBuffer<float> matrix(unit);
  for (const uint16_t bad : {uint16_t{0x7FC0}, uint16_t{0xFF80}, base::Bf16FromF32(1e6f)}) {
    for (const bool transforms : {false, true}) {
      std::vector<uint8_t> rows(static_cast<size_t>(heads) * layout::Bf16BlockBytes(d), 0);
      std::memcpy(&rows[layout::Bf16BlockBytes(d) + layout::Bf16ValueOffset(d, 41, d - 1)], &bad,
                  2);
      DeviceBuffer<uint8_t> row_pool(rows),
          code_pool(static_cast<size_t>(heads) * layout::BlockBytes(d));
      DeviceBuffer<DemoteJob> jobs(std::vector<DemoteJob>{{0, 0}});
      DeviceBuffer<DeviceStatus> status(1);
      status.Fill(0);
      const float* m = transforms ? matrix.data() : nullptr;
      const DemotePagesParams params{row_pool.data(), code_pool.data(), 0,     0,
                                     jobs.data(),     status.data(),    heads, {{-1, m}, {-1, m}}};
      ASSERT_EQ(affine::LaunchDemote(d, params, 1, 1, false, nullptr), cudaSuccess);
      const DeviceStatus seen = status.Download()[0];
      EXPECT_EQ(seen.code, 1);
      EXPECT_EQ(seen.head, 1);
      EXPECT_EQ(seen.token, 41);
      EXPECT_EQ(seen.side, 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Demote, ::testing::Values(64, 128, 192, 256));

}  // namespace
}  // namespace oscar::kernels::cuda
