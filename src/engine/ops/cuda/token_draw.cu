// One CTA per row. What lies too far below the best logit to be drawn is no candidate; candidates are sorted into bins by their distance
// from it, and the token at which a running sum (of candidates, or of probabilities) passes a bound is found bin first, then bit by bit
// among the keys of that bin. Top-k, top-p and the draw are such searches; nothing is sorted.
#include "src/engine/ops/cuda/token_draw.h"

namespace oscar::engine {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kBins = 2 * kThreads;
constexpr float kSpan = 40.0f;                          // temperatures: the smallest step of a draw is 2^-53
constexpr float kLeastTemperature = 1e-6f;              // for the span, as in Sampler
constexpr float kUnitWeight = 17592186044416.0f;        // 2^44: the weight of the best candidate

struct Shared {
  uint32_t counts[kBins];
  unsigned long long weights[kBins];
  unsigned long long parts[2][kWarps];
  unsigned long long before;  // of a search: sum ahead of the bin
  int bin;
  uint32_t num_keys;
};

enum class Measure { kCount, kWeight };

// A key orders candidates: more likely is larger, the lower token at equals.
__device__ __forceinline__ uint64_t KeyOf(float logit, int token) {
  const uint32_t bits = __float_as_uint(logit);
  // -0 counts as 0.
  const uint32_t ordered = (bits << 1) == 0 ? 0x80000000u : ((bits >> 31) != 0 ? ~bits : bits | 0x80000000u);
  return (static_cast<uint64_t>(ordered) << 32) | ~static_cast<uint32_t>(token);
}
__device__ __forceinline__ float LogitOf(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ordered >> 31) != 0 ? ordered & 0x7FFFFFFFu : ~ordered);
}
__device__ __forceinline__ int TokenOf(uint64_t key) { return static_cast<int>(~static_cast<uint32_t>(key)); }

// Largest or sum over the CTA, on every thread. `parity` alternates from call to call.
template <bool kIsSum>
__device__ __forceinline__ unsigned long long OverCta(unsigned long long value, Shared& shared, int& parity) {
  const auto join = [](unsigned long long a, unsigned long long b) { return kIsSum ? a + b : (a > b ? a : b); };
  for (int mask = 16; mask > 0; mask >>= 1) value = join(value, __shfl_xor_sync(~0u, value, mask));
  if (threadIdx.x % 32 == 0) shared.parts[parity][threadIdx.x / 32] = value;
  __syncthreads();
  value = shared.parts[parity][threadIdx.x % 32];
  for (int mask = 16; mask > 0; mask >>= 1) value = join(value, __shfl_xor_sync(~0u, value, mask));
  parity ^= 1;
  return value;
}

// Sum over the threads before this one.
__device__ __forceinline__ unsigned long long SumBefore(unsigned long long value, Shared& shared, int& parity) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  unsigned long long running = value;
  for (int step = 1; step < 32; step <<= 1) {
    const unsigned long long other = __shfl_up_sync(~0u, running, step);
    if (lane >= step) running += other;
  }
  if (lane == 31) shared.parts[parity][warp] = running;
  __syncthreads();
  unsigned long long ahead = lane < warp ? shared.parts[parity][lane] : 0;
  for (int mask = 16; mask > 0; mask >>= 1) ahead += __shfl_xor_sync(~0u, ahead, mask);
  parity ^= 1;
  return ahead + running - value;
}

// The candidates of a row.
struct Candidates {
  const float* logits;
  uint64_t* keys;
  int width;
  float best, floor, inverse_temperature;

  __device__ __forceinline__ bool Has(float logit) const { return logit >= floor; }
  __device__ __forceinline__ float Distance(float logit) const { return __fmul_rn(__fsub_rn(best, logit), inverse_temperature); }
  __device__ __forceinline__ int BinOf(float logit) const {
    return static_cast<int>(fminf(__fmul_rn(Distance(logit), kBins / kSpan), static_cast<float>(kBins - 1)));
  }
  __device__ __forceinline__ unsigned long long WeightOf(float logit) const {
    return __float2ull_rn(__fmul_rn(expf(-Distance(logit)), kUnitWeight));
  }
};

__device__ void FillBins(const Candidates& row, Shared& shared) {
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) {
    shared.counts[i] = 0;
    shared.weights[i] = 0;
  }
  __syncthreads();
  for (int token = static_cast<int>(threadIdx.x); token < row.width; token += kThreads) {
    const float logit = row.logits[token];
    if (!row.Has(logit)) continue;
    const int bin = row.BinOf(logit);
    const unsigned long long weight = row.WeightOf(logit);
    atomicAdd(&shared.counts[bin], 1u);
    if (weight != 0) atomicAdd(&shared.weights[bin], weight);
  }
  __syncthreads();
}

struct Found {
  uint64_t key;
  unsigned long long sum;  // of this key and all above
};

// The largest key with which the running sum passes `bound`, and the weights down to it. Precondition: the sum of all does.
template <Measure kMeasure>
__device__ Found Search(const Candidates& row, unsigned long long bound, Shared& shared, int& parity) {
  constexpr bool kCounts = kMeasure == Measure::kCount;
  const int thread = static_cast<int>(threadIdx.x), first = 2 * thread;
  const unsigned long long a = kCounts ? shared.counts[first] : shared.weights[first];
  const unsigned long long b = kCounts ? shared.counts[first + 1] : shared.weights[first + 1];
  const unsigned long long before = SumBefore(a + b, shared, parity);
  if (thread == 0) shared.num_keys = 0;
  if (before <= bound && before + a + b > bound) {
    const bool is_second = before + a <= bound;
    shared.bin = first + (is_second ? 1 : 0);
    shared.before = before + (is_second ? a : 0);
  }
  __syncthreads();
  const int bin = shared.bin;
  const unsigned long long ahead = shared.before;
  for (int token = thread; token < row.width; token += kThreads) {
    const float logit = row.logits[token];
    if (row.Has(logit) && row.BinOf(logit) == bin) row.keys[atomicAdd(&shared.num_keys, 1u)] = KeyOf(logit, token);
  }
  __syncthreads();
  const int count = static_cast<int>(shared.num_keys);
  // The bits that all keys have need no search.
  unsigned long long unset = 0, set = 0;
  for (int i = thread; i < count; i += kThreads) {
    unset |= ~row.keys[i];
    set |= row.keys[i];
  }
  for (int mask = 16; mask > 0; mask >>= 1) {
    unset |= __shfl_xor_sync(~0u, unset, mask);
    set |= __shfl_xor_sync(~0u, set, mask);
  }
  if (thread % 32 == 0) {
    shared.parts[0][thread / 32] = unset;
    shared.parts[1][thread / 32] = set;
  }
  __syncthreads();
  unset = shared.parts[0][thread % 32];
  set = shared.parts[1][thread % 32];
  __syncthreads();
  for (int mask = 16; mask > 0; mask >>= 1) {
    unset |= __shfl_xor_sync(~0u, unset, mask);
    set |= __shfl_xor_sync(~0u, set, mask);
  }
  const unsigned long long differing = unset & set;
  const int bits = differing == 0 ? 0 : 64 - __clzll(static_cast<long long>(differing));
  uint64_t key = bits == 64 ? 0 : (set >> bits) << bits;
  if (bits == 0) key = set;
  const auto sum_from = [&](uint64_t least, auto value_of) {
    unsigned long long sum = 0;
    for (int i = thread; i < count; i += kThreads) {
      const uint64_t other = row.keys[i];
      if (other >= least) sum += value_of(other);
    }
    return OverCta<true>(sum, shared, parity);
  };
  const auto weight_of = [&](uint64_t other) { return row.WeightOf(LogitOf(other)); };
  const auto one = [](uint64_t) { return 1ull; };
  for (int bit = bits - 1; bit >= 0; --bit) {
    const uint64_t trial = key | (uint64_t{1} << bit);
    const unsigned long long sum = kCounts ? sum_from(trial, one) : sum_from(trial, weight_of);
    if (ahead + sum > bound) key = trial;
  }
  unsigned long long weights_ahead = ahead;
  if (kCounts) {
    unsigned long long weights = 0;
    for (int i = thread; i < bin; i += kThreads) weights += shared.weights[i];
    weights_ahead = OverCta<true>(weights, shared, parity);
  }
  return {key, weights_ahead + sum_from(key, weight_of)};
}

// The weights of candidates down to `least_key` that are at least min_p of the best one's.
__device__ unsigned long long WeightAbove(const Candidates& row, uint64_t least_key, float min_p, Shared& shared, int& parity) {
  const double least = static_cast<double>(min_p) * static_cast<double>(kUnitWeight);
  unsigned long long sum = 0;
  for (int token = static_cast<int>(threadIdx.x); token < row.width; token += kThreads) {
    const float logit = row.logits[token];
    if (!row.Has(logit) || KeyOf(logit, token) < least_key) continue;
    const unsigned long long weight = row.WeightOf(logit);
    if (static_cast<double>(weight) >= least) sum += weight;
  }
  return OverCta<true>(sum, shared, parity);
}

__device__ int Draw(const Candidates& row, const DrawRow& draw, Shared& shared, int& parity) {
  FillBins(row, shared);
  const int first = 2 * static_cast<int>(threadIdx.x);
  const unsigned long long count = OverCta<true>(shared.counts[first] + shared.counts[first + 1], shared, parity);
  unsigned long long total = OverCta<true>(shared.weights[first] + shared.weights[first + 1], shared, parity);
  uint64_t least_key = 0;
  if (draw.top_k > 0 && static_cast<unsigned long long>(draw.top_k) < count) {
    const Found last = Search<Measure::kCount>(row, static_cast<unsigned long long>(draw.top_k - 1), shared, parity);
    least_key = last.key;
    total = last.sum;
  }
  if (draw.top_p < 1.0f) {
    const auto wanted = static_cast<unsigned long long>(ceil(static_cast<double>(draw.top_p) * static_cast<double>(total)));
    const Found last = Search<Measure::kWeight>(row, max(1ull, min(wanted, total)) - 1, shared, parity);
    least_key = last.key;
    total = last.sum;
  }
  if (draw.min_p > 0.0f) total = WeightAbove(row, least_key, draw.min_p, shared, parity);
  const auto bound = static_cast<unsigned long long>(draw.uniform * static_cast<double>(total));
  return TokenOf(Search<Measure::kWeight>(row, min(bound, total - 1), shared, parity).key);
}

__global__ void __launch_bounds__(kThreads, 1) TokenDrawKernel(const TokenDrawParams params) {
  __shared__ Shared shared;
  const int64_t start = static_cast<int64_t>(blockIdx.x) * params.width;
  const DrawRow draw = params.rows[blockIdx.x];
  float* const logits = params.logits + start;
  for (int i = static_cast<int>(threadIdx.x); i < draw.num_changes; i += kThreads) {
    const LogitChange change = params.changes[draw.first_change + i];
    const float logit = __fsub_rn(__fadd_rn(logits[change.token], change.bias), change.penalty);
    logits[change.token] = logit > 0 ? __fdiv_rn(logit, change.repetition) : __fmul_rn(logit, change.repetition);
  }
  __syncthreads();
  int parity = 0;
  unsigned long long best = 0, bad = 0;
  for (int token = static_cast<int>(threadIdx.x); token < params.width; token += kThreads) {
    const float logit = logits[token];
    if ((__float_as_uint(logit) & 0x7F800000u) == 0x7F800000u) bad = max(bad, static_cast<unsigned long long>(~static_cast<uint32_t>(token)));
    best = max(best, static_cast<unsigned long long>(KeyOf(logit, token)));
  }
  best = OverCta<false>(best, shared, parity);
  bad = OverCta<false>(bad, shared, parity);
  int token = TokenOf(best);
  if (bad == 0 && draw.temperature > 0.0f && draw.top_k != 1) {
    const float logit = LogitOf(best);
    const float span = __fmul_rn(kSpan, fmaxf(draw.temperature, kLeastTemperature));
    const Candidates row = {logits, params.keys + start, params.width, logit, __fsub_rn(logit, span), 1.0f / fmaxf(draw.temperature, 1e-30f)};
    token = Draw(row, draw, shared, parity);
  }
  if (threadIdx.x != 0) return;
  params.drawn[blockIdx.x] = bad != 0 ? (uint64_t{1} << 32) | static_cast<uint32_t>(TokenOf(bad)) : static_cast<uint32_t>(token);
}

}  // namespace

cudaError_t LaunchTokenDraw(const TokenDrawParams& params, cudaStream_t stream) {
  if (params.num_rows < 1 || params.width < 1 || params.width > kMostDrawWidth) return cudaErrorInvalidValue;
  TokenDrawKernel<<<static_cast<unsigned>(params.num_rows), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace oscar::engine
