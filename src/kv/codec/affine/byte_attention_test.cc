// The two ways to take byte dot products, with and without the processor's own instruction, give the same bits, and so does a row alone and beside
// others. Closeness to the judge is a matter of the tests of Attend.
#include "src/base/cpu_features.h"
#include "src/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kv/codec/affine/byte_attention_test.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kv/codec/affine/byte_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::affine {
namespace HWY_NAMESPACE {

// False where this target has one way only.
template <int kBits>
bool DecodeWith(bool instruction, const kernels::AttendPartParams& params) {
#if OSCAR_TARGET_MAY_HAVE_BYTE_DOT_INSTRUCTION
  if (instruction && !base::HasByteDotInstruction()) return false;
  instruction ? ByteAttentionPart<kBits, true>(params).Run() : ByteAttentionPart<kBits, false>(params).Run();
  return true;
#elif OSCAR_TARGET_HAS_BYTE_DOTS
  if (instruction) return false;
  ByteAttentionPart<kBits, false>(params).Run();
  return true;
#else
  (void)instruction, (void)params;
  return false;
#endif
}
bool DecodeForTarget(int bits, bool instruction, const kernels::AttendPartParams& params) {
  switch (bits) {
    case 1: return DecodeWith<1>(instruction, params);
    case 2: return DecodeWith<2>(instruction, params);
    default: return DecodeWith<4>(instruction, params);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::affine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "src/base/buffer.h"
#include "src/base/float_bits.h"
#include "src/testing/seeds.h"
#include "src/testing/simd_targets.h"

namespace oscar::affine {
namespace {

HWY_EXPORT(DecodeForTarget);

template <int kBits>
base::Buffer RandomPages(int num_pages, int d, std::mt19937_64& rng) {
  using Layout = PageLayout<kBits>;
  base::Buffer pages = base::Buffer::Allocate(static_cast<size_t>(num_pages) * Layout::PageBytes(d)).value();
  for (std::byte& byte : pages.bytes()) byte = static_cast<std::byte>(rng());
  std::normal_distribution<float> normal;
  for (int page = 0; page < num_pages; ++page) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      std::byte* head = pages.data() + static_cast<size_t>(page) * Layout::PageBytes(d);
      auto* scales = reinterpret_cast<uint16_t*>(head + Layout::ScalesStart(side, d));
      for (int i = 0; i < 2 * kPageTokens; ++i) scales[i] = base::F16FromF32(normal(rng));  // scales, then offsets
    }
  }
  return pages;
}

struct Rows {
  int d = 0;
  std::vector<float> queries;        // [rows, d]
  std::vector<float> terms, phases;  // of a turning key mean, [rows, d] and [3 pages, d], or empty
};

// Outputs of all rows, then their maxima, then their sums; empty where this target has no such way.
std::vector<float> Decode(int bits, bool instruction, const base::Buffer& pages, const Rows& rows_of) {
  const int d = rows_of.d, rows = static_cast<int>(rows_of.queries.size()) / d;
  const std::vector<int32_t> ids = {2, 0, 1};
  std::vector<float> result(static_cast<size_t>(rows * (d + 2)));
  kernels::AttendPartParams params;
  params.head_dim = d;
  params.num_rows = rows;
  params.queries = base::StridedRows<const float>{rows_of.queries.data(), rows, d, d};
  params.scale_log2 = 0.1f;
  params.pages = pages.data();
  params.page_stride = pages.size() / ids.size();
  params.runs.ids[0] = ids.data();
  params.runs.num_pages[0] = static_cast<int>(ids.size());
  if (!rows_of.terms.empty()) {
    params.mean_terms = rows_of.terms.data();
    params.page_phases = rows_of.phases.data();
  }
  params.sums = {result.data(), result.data() + rows * d, result.data() + rows * (d + 1)};
  if (!HWY_DYNAMIC_DISPATCH(DecodeForTarget)(bits, instruction, params)) return {};
  return result;
}

TEST(ByteAttention, TheInstructionAndItsReplacementGiveTheSameBits) {
  std::mt19937_64 rng(testing::TestSeed(3));
  testing::OnEverySimdTarget([&](const char* target) {
    for (int d : {64, 96, 128, 256}) {
      for (int rows : {1, 2, 3, 7, 9, 16}) {
        for (int bits : {1, 2, 4}) {
          const base::Buffer pages = bits == 1 ? RandomPages<1>(3, d, rng) : bits == 2 ? RandomPages<2>(3, d, rng) : RandomPages<4>(3, d, rng);
          const Rows all = {d, testing::NormalVector(rng, static_cast<size_t>(rows * d)), {}, {}};
          const std::vector<float> with = Decode(bits, true, pages, all);
          if (with.empty()) return;
          EXPECT_EQ(with, Decode(bits, false, pages, all)) << target << " bits " << bits << " d " << d << " rows " << rows;
        }
      }
    }
  });
}

// What batch-invariant answers rest on: rows are taken in blocks of up to eight, and no step may depend on how many.
TEST(ByteAttention, ARowGivesTheSameBitsAloneAndBesideOthers) {
  std::mt19937_64 rng(testing::TestSeed(4));
  testing::OnEverySimdTarget([&](const char* target) {
    for (int d : {64, 128}) {
      for (int rows : {2, 3, 5, 7, 8, 13}) {
        const base::Buffer pages = RandomPages<2>(3, d, rng);
        const auto values = static_cast<size_t>(rows * d);
        const Rows all = {d, testing::NormalVector(rng, values), testing::NormalVector(rng, values), testing::NormalVector(rng, static_cast<size_t>(3 * d))};
        const std::vector<float> together = Decode(2, false, pages, all);
        if (together.empty()) return;
        for (int r = 0; r < rows; ++r) {
          const auto row = [&](const std::vector<float>& of_all) { return std::vector<float>(of_all.begin() + r * d, of_all.begin() + (r + 1) * d); };
          std::vector<float> expected = row(together);
          for (int of_rows : {0, 1}) expected.push_back(together[static_cast<size_t>(rows * d + of_rows * rows + r)]);
          EXPECT_EQ(Decode(2, false, pages, {d, row(all.queries), row(all.terms), all.phases}), expected) << target << " d " << d << " row " << r << " of " << rows;
        }
      }
    }
  });
}

}  // namespace
}  // namespace oscar::affine
#endif  // HWY_ONCE
