#include "src/kv/kernels/cuda/cache_kernels.h"

namespace oscar::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct PlanShared {
  int64_t* starts;          // [num_sequences + 1]
  SequenceExtent* extents;  // [num_sequences]
  DecodeCut* cuts;          // [num_ctas + 1]
};
constexpr size_t PlanSharedBytes(int num_sequences, int num_ctas) {
  return (num_sequences + 1) * sizeof(int64_t) + num_sequences * sizeof(SequenceExtent) +
         (num_ctas + 1) * sizeof(DecodeCut);
}

// Extents of the sequences and, by a scan over one warp, where their pairs start on the line.
__device__ void PlaceSequences(const PlanKernelParams& params, const UnitBytes& bytes,
                               const PlanShared& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  int64_t before = 0;
  for (int first = 0; first < params.num_sequences; first += 32) {
    const int sequence = first + lane;
    int64_t sum = 0;
    if (sequence < params.num_sequences) {
      const SequenceExtent extent =
          ExtentOfSequence(params.num_tokens[sequence], params.sink, params.recent);
      shared.extents[sequence] = extent;
      sum = params.kv_heads * PairLength(extent, bytes);
    }
    for (int distance = 1; distance < 32; distance <<= 1) {
      const int64_t other = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (sequence < params.num_sequences) shared.starts[sequence + 1] = before + sum;
    before += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) shared.starts[0] = 0;
}

__global__ void __launch_bounds__(kThreads) PlanKernel(const PlanKernelParams params) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  PlanShared shared;
  shared.starts = reinterpret_cast<int64_t*>(shared_bytes);
  shared.extents = reinterpret_cast<SequenceExtent*>(shared.starts + params.num_sequences + 1);
  shared.cuts = reinterpret_cast<DecodeCut*>(shared.extents + params.num_sequences);
  const UnitBytes bytes = BytesOfUnits(params.head_dim);
  if (threadIdx.x < 32) PlaceSequences(params, bytes, shared);
  __syncthreads();
  bool is_equal = true;
  for (int i = threadIdx.x; i < params.num_sequences; i += kThreads) {
    is_equal &= shared.extents[i].num_code_pages == shared.extents[0].num_code_pages &&
                shared.extents[i].num_rows == shared.extents[0].num_rows;
  }
  const bool all_equal = __syncthreads_and(is_equal);
  const int num_pairs = params.num_sequences * params.kv_heads;
  DecodeBatch batch = {shared.extents,
                       shared.starts,
                       params.num_sequences,
                       params.kv_heads,
                       bytes,
                       params.num_ctas,
                       0};
  batch.whole_splits =
      WholeSplits(all_equal, shared.starts[params.num_sequences] - num_pairs * kItemBytes,
                  num_pairs, params.num_ctas, params.whole_splits_below_bytes);
  if (batch.whole_splits == 0) {
    for (int cta = threadIdx.x; cta <= params.num_ctas; cta += kThreads)
      shared.cuts[cta] = CutOfCta(batch, cta);
  }
  __syncthreads();
  for (int cta = threadIdx.x; cta < params.num_ctas; cta += kThreads) {
    PlanCta(batch, shared.cuts, cta, params.starts[cta], params.items);
  }
}

}  // namespace

cudaError_t LaunchPlan(const PlanKernelParams& params, cudaStream_t stream) {
  if (params.num_sequences < 1 || params.num_sequences > kMostPlannedSequences ||
      params.num_ctas < 1 || params.num_ctas > 1023) {
    return cudaErrorInvalidValue;
  }
  static_assert(PlanSharedBytes(kMostPlannedSequences, 1023) <= 48 * 1024);
  PlanKernel<<<1, kThreads, PlanSharedBytes(params.num_sequences, params.num_ctas), stream>>>(
      params);
  return cudaGetLastError();
}

}  // namespace oscar::kernels::cuda
