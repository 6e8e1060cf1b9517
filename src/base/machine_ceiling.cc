#include "src/base/machine_ceiling.h"

#include "src/base/cpu_features.h"
#include "src/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/base/machine_ceiling.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/base/byte_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::base {
namespace HWY_NAMESPACE {

#if OSCAR_TARGET_HAS_BYTE_DOTS
template <bool kInstruction>
int64_t RunDotsWith(int rounds, int32_t* result) {
  I32Vec sums[4][4];
  for (auto& four : sums) {
    for (I32Vec& sum : four) sum = hn::Zero(I32Tag());
  }
  U32Vec bytes[1][4];
  for (U32Vec& quads : bytes[0]) quads = hn::Set(U32Tag(), 0x03010203u);
  const int32_t coefficients = *result;
  for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 4
    for (auto& four : sums) AddQuadDots<kInstruction>(bytes, &coefficients, four);
  }
  for (const auto& four : sums) {
    for (const I32Vec& sum : four) *result += hn::GetLane(sum);
  }
  return int64_t{rounds} * 16 * 4 * static_cast<int64_t>(hn::Lanes(I32Tag()));
}
#endif

int64_t RunDots(int rounds, int32_t* result) {
#if OSCAR_TARGET_MAY_HAVE_BYTE_DOT_INSTRUCTION
  return HasByteDotInstruction() ? RunDotsWith<true>(rounds, result) : RunDotsWith<false>(rounds, result);
#elif OSCAR_TARGET_HAS_BYTE_DOTS
  return RunDotsWith<false>(rounds, result);
#else
  return 0 * rounds * *result;
#endif
}

// Four independent sums of vectors, so that only memory is waited for.
uint32_t SumWords(const uint32_t* words, std::size_t count) {
  const U32Tag d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::size_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, words + i));
    b = hn::Add(b, hn::LoadU(d, words + i + lanes));
    c = hn::Add(c, hn::LoadU(d, words + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, words + i + 3 * lanes));
  }
  // Not SumOfLanes: GCC adds up signed lanes, which may not overflow.
  uint32_t parts[hn::MaxLanes(d)], sum = 0;
  hn::StoreU(hn::Add(hn::Add(a, b), hn::Add(c, e)), d, parts);
  for (std::size_t i = 0; i < lanes; ++i) sum += parts[i];
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::base
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <atomic>
#include <chrono>
#include <utility>

#include "src/base/buffer.h"

namespace oscar::base {
namespace {

HWY_EXPORT(RunDots);
HWY_EXPORT(SumWords);

constexpr int kRounds = 1 << 19;  // about 20 ms

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int64_t RunByteDots(int rounds, int32_t* result) { return HWY_DYNAMIC_DISPATCH(RunDots)(rounds, result); }

std::vector<double> ByteDotRates(Executor& executor, int repeats) {
  std::vector<double> rates;
  for (int i = 0; i <= repeats; ++i) {  // the first wakes the processor up
    std::atomic<int64_t> done = 0;
    const auto start = std::chrono::steady_clock::now();
    RunOn(executor, [&](int thread, int) {
      int32_t result = thread + 0x01020304;
      done += RunByteDots(kRounds, &result);
    });
    if (done == 0) return {};
    if (i > 0) rates.push_back(static_cast<double>(done.load()) / SecondsSince(start));
  }
  return rates;
}

std::vector<double> ReadRates(Executor& executor, std::size_t bytes, int repeats) {
  auto allocated = Buffer::Allocate(bytes);
  if (!allocated.ok()) return {};
  const Buffer buffer = *std::move(allocated);
  const auto* words = reinterpret_cast<const uint32_t*>(buffer.data());
  const std::size_t count = bytes / sizeof(uint32_t);
  RunOn(executor, [&](int thread, int num_threads) {  // pages come into being where they are read
    const std::size_t first = count * static_cast<std::size_t>(thread) / static_cast<std::size_t>(num_threads);
    const std::size_t end = count * static_cast<std::size_t>(thread + 1) / static_cast<std::size_t>(num_threads);
    for (std::size_t i = first; i < end; ++i) reinterpret_cast<uint32_t*>(buffer.data())[i] = static_cast<uint32_t>(i);
  });
  std::vector<double> rates;
  std::atomic<uint32_t> sum = 0;
  for (int i = 0; i <= repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    RunOn(executor, [&](int thread, int num_threads) {
      const std::size_t first = count * static_cast<std::size_t>(thread) / static_cast<std::size_t>(num_threads);
      const std::size_t end = count * static_cast<std::size_t>(thread + 1) / static_cast<std::size_t>(num_threads);
      sum += HWY_DYNAMIC_DISPATCH(SumWords)(words + first, end - first);
    });
    if (i > 0) rates.push_back(static_cast<double>(bytes) / SecondsSince(start));
  }
  return rates;
}

}  // namespace oscar::base
#endif  // HWY_ONCE
