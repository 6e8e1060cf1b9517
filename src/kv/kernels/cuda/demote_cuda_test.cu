// The demotion kernel against the scalar rules of method.md 3.1 and 3.2: bytes are equal. Needs a GPU; label cuda.
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
bool EncodePlain(std::vector<float> y, int clip_index, uint8_t* codes, uint16_t& scale, uint16_t& offset) {
  for (const float value : y) {
    if (!std::isfinite(value)) return false;
  }
  if (clip_index >= 0) {
    const float threshold = affine::ClipThreshold(y, clip_index);
    for (float& value : y) value = std::min(std::max(value, -threshold), threshold);
  }
  affine::RowGrid grid;
  if (!affine::MinMaxGrid(*std::min_element(y.begin(), y.end()), *std::max_element(y.begin(), y.end()), 3, grid))
    return false;
  for (size_t i = 0; i < y.size(); ++i) {
    const float steps = (y[i] - grid.shift) * grid.reciprocal;
    codes[i] = grid.constant ? 0 : static_cast<uint8_t>(std::min(std::max(std::floor(steps + 0.5f), 0.0f), 3.0f));
  }
  scale = grid.scale_f16;
  offset = grid.offset_f16;
  return true;
}

// Rows of many kinds: plain, with outliers, constant, zero, signed zeros, tiny, large, few distinct values.
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
    default:
      return base::Bf16FromF32(normal(rng));
  }
}

class Demote : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(Demote, BytesEqualTheScalarRules) {
  const int d = GetParam(), heads = 3, jobs = 4, layers = 2;
  std::mt19937_64 rng(d);
  const size_t row_block = layout::Bf16BlockBytes(d), code_block = layout::BlockBytes(d);
  for (const bool clips : {false, true}) {
    std::vector<uint8_t> rows(static_cast<size_t>(layers) * jobs * heads * row_block);
    std::vector<uint8_t> expected(static_cast<size_t>(layers) * jobs * heads * code_block);
    const int clip[2] = {clips ? affine::ClipIndex(0.96f, d) : -1, clips ? affine::ClipIndex(0.92f, d) : -1};
    // Row page r goes to code page jobs - 1 - r.
    for (int layer = 0; layer < layers; ++layer) {
      for (int page = 0; page < jobs; ++page) {
        for (int head = 0; head < heads; ++head) {
          uint8_t* block = &rows[((static_cast<size_t>(layer) * jobs + page) * heads + head) * row_block];
          Side sides[2] = {Side(d), Side(d)};
          for (int side = 0; side < 2; ++side) {
            for (int token = 0; token < 64; ++token) {
              std::vector<float> y(d);
              const int kind = static_cast<int>(rng() % 9);
              for (int i = 0; i < d; ++i) {
                const uint16_t bits = RandomValue(rng, kind);
                y[i] = base::F32FromBf16(bits);
                std::memcpy(
                    block + (side == 0 ? layout::Bf16KeyOffset(d, token, i) : layout::Bf16ValueOffset(d, token, i)),
                    &bits, 2);
              }
              ASSERT_TRUE(EncodePlain(y, clip[side], &sides[side].codes[static_cast<size_t>(token) * d],
                                      sides[side].scales[token], sides[side].offsets[token]));
            }
          }
          affine::DeviceBlockFromRows(
              d, {sides[0].codes, sides[0].scales, sides[0].offsets},
              {sides[1].codes, sides[1].scales, sides[1].offsets},
              std::span(expected).subspan(
                  ((static_cast<size_t>(layer) * jobs + jobs - 1 - page) * heads + head) * code_block, code_block));
        }
      }
    }
    std::vector<DemoteJob> list;
    for (int page = 0; page < jobs; ++page) list.push_back({page, jobs - 1 - page});
    DeviceBuffer<uint8_t> row_pool(rows), code_pool(expected.size());
    code_pool.Fill(0xFF);
    DeviceBuffer<DemoteJob> job_list(list);
    DeviceBuffer<DeviceStatus> status(1);
    status.Fill(0);
    const DemotePagesParams params{row_pool.data(),
                                   code_pool.data(),
                                   static_cast<int64_t>(jobs * heads * row_block),
                                   static_cast<int64_t>(jobs * heads * code_block),
                                   job_list.data(),
                                   status.data(),
                                   heads,
                                   clip[0],
                                   clip[1]};
    ASSERT_EQ(affine::LaunchDemote(d, params, jobs, layers, nullptr), cudaSuccess);
    const std::vector<uint8_t> actual = code_pool.Download();
    EXPECT_EQ(status.Download()[0].code, 0);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(actual[i], expected[i]) << "d " << d << " clip " << clips << " block " << i / code_block << " byte "
                                        << i % code_block;
    }
  }
}

TEST_P(Demote, ARowThatIsNotFiniteOrOverflowsIsNamed) {
  const int d = GetParam(), heads = 2;
  for (const uint16_t bad : {uint16_t{0x7FC0}, uint16_t{0xFF80}, base::Bf16FromF32(1e6f)}) {
    std::vector<uint8_t> rows(static_cast<size_t>(heads) * layout::Bf16BlockBytes(d), 0);
    std::memcpy(&rows[layout::Bf16BlockBytes(d) + layout::Bf16ValueOffset(d, 41, d - 1)], &bad, 2);
    DeviceBuffer<uint8_t> row_pool(rows), code_pool(static_cast<size_t>(heads) * layout::BlockBytes(d));
    DeviceBuffer<DemoteJob> jobs(std::vector<DemoteJob>{{0, 0}});
    DeviceBuffer<DeviceStatus> status(1);
    status.Fill(0);
    ASSERT_EQ(
        affine::LaunchDemote(d, {row_pool.data(), code_pool.data(), 0, 0, jobs.data(), status.data(), heads, -1, -1}, 1,
                             1, nullptr),
        cudaSuccess);
    const DeviceStatus seen = status.Download()[0];
    EXPECT_EQ(seen.code, 1);
    EXPECT_EQ(seen.head, 1);
    EXPECT_EQ(seen.token, 41);
    EXPECT_EQ(seen.side, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Demote, ::testing::Values(64, 128, 192, 256));

}  // namespace
}  // namespace oscar::kernels::cuda
