// Versions of decode attention over encoded pages of one KV head, naive first (bench/ladders/cpu_decode_attention.md), beside the
// rate of the byte dot products themselves. One thread, int2, pages in the second-level cache. Items are multiply-adds: two per
// (row, token, channel).
#include "src/base/cpu_features.h"
#include "src/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kv/codec/affine/attention_bench.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kv/codec/affine/byte_attention-inl.h"
#include "src/kv/codec/affine/tile-inl.h"
#include "src/kv/kernels/cpu/decode_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::affine {
namespace HWY_NAMESPACE {

void DecodeInFloats(const kernels::AttendPartParams& params) { kernels::HWY_NAMESPACE::DecodePart<PageReader<2>>(params).Run(); }

// False where the target has no such dot products.
bool DecodeInBytes(const kernels::AttendPartParams& params, bool instruction) {
#if OSCAR_TARGET_MAY_HAVE_BYTE_DOT_INSTRUCTION
  instruction ? ByteAttentionPart<2, true>(params).Run() : ByteAttentionPart<2, false>(params).Run();
  return true;
#elif OSCAR_TARGET_HAS_BYTE_DOTS
  if (!instruction) ByteAttentionPart<2, false>(params).Run();
  return !instruction;
#else
  (void)params, (void)instruction;
  return false;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::affine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <vector>

#include "src/base/buffer.h"
#include "src/base/float_bits.h"
#include "src/base/machine_ceiling.h"
#include "src/testing/seeds.h"

namespace oscar::affine {
namespace {

HWY_EXPORT(DecodeInFloats);
HWY_EXPORT(DecodeInBytes);

constexpr int kPages = 64;

struct Work {
  Work(int rows, int d) : rng(5), pages(base::Buffer::Allocate(kPages * PageLayout<2>::PageBytes(d)).value()) {
    for (std::byte& byte : pages.bytes()) byte = static_cast<std::byte>(rng());
    std::normal_distribution<float> normal;
    for (int page = 0; page < kPages; ++page) {
      for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
        std::byte* head = pages.data() + static_cast<size_t>(page) * PageLayout<2>::PageBytes(d);
        auto* grids = reinterpret_cast<uint16_t*>(head + PageLayout<2>::ScalesStart(side, d));
        for (int i = 0; i < 2 * kPageTokens; ++i) grids[i] = base::F16FromF32(0.5f + 0.1f * normal(rng));
      }
      ids.push_back(page);
    }
    queries = testing::NormalVector(rng, static_cast<size_t>(rows * d));
    sums.resize(static_cast<size_t>(rows * (d + 2)));
    params.head_dim = d;
    params.num_rows = rows;
    params.queries = {queries.data(), rows, d, d};
    params.scale_log2 = 1.44f / std::sqrt(static_cast<float>(d));
    params.pages = pages.data();
    params.page_stride = PageLayout<2>::PageBytes(d);
    params.runs.ids[0] = ids.data();
    params.runs.num_pages[0] = kPages;
    params.sums = {sums.data(), sums.data() + rows * d, sums.data() + rows * (d + 1)};
  }
  std::mt19937_64 rng;
  base::Buffer pages;
  std::vector<int32_t> ids;
  std::vector<float> queries, sums;
  kernels::AttendPartParams params;
};

// Each row and token by itself, each code by its formula.
void DecodeNaively(const kernels::AttendPartParams& params) {
  using Layout = PageLayout<2>;
  const int d = params.head_dim;
  const auto value_of = [&](const std::byte* page, KvSide side, int token, int channel) {
    const auto* words = reinterpret_cast<const uint32_t*>(page + Layout::CodesStart(side, d));
    const auto* scales = reinterpret_cast<const uint16_t*>(page + Layout::ScalesStart(side, d));
    const bool key = side == KvSide::kKey;
    const uint32_t word = words[key ? Layout::KeyWord(token, channel, d) : Layout::ValueWord(token, channel)];
    const uint32_t code = word >> (key ? Layout::KeyShift(channel) : Layout::ValueShift(token)) & 3;
    return base::F32FromF16(scales[token]) * static_cast<float>(code) + base::F32FromF16(scales[kPageTokens + token]);
  };
  for (int r = 0; r < params.num_rows; ++r) {
    float* output = params.sums.output + r * d;
    std::fill_n(output, d, 0.0f);
    float sum = 0;
    for (int i = 0; i < params.runs.num_pages[0]; ++i) {
      const std::byte* page = params.pages + static_cast<size_t>(params.runs.ids[0][i]) * params.page_stride;
      for (int token = 0; token < kPageTokens; ++token) {
        float score = 0;
        for (int c = 0; c < d; ++c) score += params.queries.Row(r)[c] * value_of(page, KvSide::kKey, token, c);
        const float p = std::exp2(score * params.scale_log2 - 20.0f);  // a reference that no score comes near
        sum += p;
        for (int c = 0; c < d; ++c) output[c] += p * value_of(page, KvSide::kValue, token, c);
      }
    }
    params.sums.sum[r] = sum;
  }
}

template <class Fn>
void Measure(benchmark::State& state, const Fn& fn) {
  const int rows = static_cast<int>(state.range(0)), d = static_cast<int>(state.range(1));
  Work work(rows, d);
  for (auto _ : state) {
    if (!fn(work.params)) {
      state.SkipWithError("not on this processor");
      break;
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 2 * rows * kPages * kPageTokens * d);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(work.pages.size()));
}
void Naive(benchmark::State& state) {
  Measure(state, [](const auto& params) { return DecodeNaively(params), true; });
}
void Floats(benchmark::State& state) {
  Measure(state, [](const auto& params) { return HWY_DYNAMIC_DISPATCH(DecodeInFloats)(params), true; });
}
void BytesMultiplyAdd(benchmark::State& state) {
  Measure(state, [](const auto& params) { return HWY_DYNAMIC_DISPATCH(DecodeInBytes)(params, false); });
}
void BytesInstruction(benchmark::State& state) {
  Measure(state, [](const auto& params) { return base::HasByteDotInstruction() && HWY_DYNAMIC_DISPATCH(DecodeInBytes)(params, true); });
}
void ByteDots(benchmark::State& state) {
  int32_t result = 0x01020304;
  int64_t done = 0;
  for (auto _ : state) done += base::RunByteDots(1000, &result);
  benchmark::DoNotOptimize(result);
  state.SetItemsProcessed(done);
}

void Shapes(benchmark::internal::Benchmark* bench) {
  for (const int rows : {1, 4, 7}) {
    for (const int d : {64, 128}) bench->Args({rows, d});
  }
  bench->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ByteDots);
BENCHMARK(Naive)->Apply(Shapes);
BENCHMARK(Floats)->Apply(Shapes);
BENCHMARK(BytesMultiplyAdd)->Apply(Shapes);
BENCHMARK(BytesInstruction)->Apply(Shapes);

}  // namespace
}  // namespace oscar::affine
#endif  // HWY_ONCE
