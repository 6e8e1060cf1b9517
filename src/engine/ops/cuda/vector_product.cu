// Products of few rows with bf16 or FP8 matrices: bound by the reading of the matrices. One CTA per multiprocessor makes tiles of 16 outputs; its
// warps share the inner dimension, each with a ring of copies of its own that runs on from tile to tile and starts before the kernel ahead
// has ended. Activations are held in registers as two bf16 terms, which keep 16 bits of them, in columns 2 m and 2 m + 1 of the matrix
// unit's right operand: four rows cost what one does. Inner dimensions of more than a warp holds are taken in phases, several tiles each.
//
// E4M3 codes become bf16 by moving their bits, four places down from the top of a half: that is the code's value times 2^-120, subnormal
// where the code is, which the matrix unit takes exactly. Activations bring half of it back, Finish the rest and the row's scale.
#include <algorithm>

#include "src/engine/ops/cuda/dense_kernels.h"
#include "src/engine/ops/cuda/fp8_kernels.h"
#include "src/engine/ops/cuda/matrix_ptx.cuh"
#include "src/engine/ops/cuda/overlapped_launch.cuh"

namespace oscar::engine {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kTileRows = 16;                      // matrix rows of a tile; half gates, half ups in a gated product
constexpr int kUnitRowBytes = 128;
constexpr int kUnitBytes = kTileRows * kUnitRowBytes;  // of a stage of the ring
constexpr int kStages = 8;
constexpr int kLoadsPerUnit = kUnitBytes / (32 * 16);
constexpr int kHeldElements = 512;  // of a warp: a phase
constexpr int kPhase = kHeldElements * kWarps;
constexpr int kGroupTiles = 8;      // that go through all phases together, when there are several

// By the bytes of a matrix element.
template <int kBytes>
struct Format {
  static constexpr int kUnit = kUnitRowBytes / kBytes;  // inner elements of a unit, the turn of one warp
  static constexpr int kPiece = 16 / kBytes;            // of a copy
  static constexpr int kUnitRegisters = kUnit / 8;      // right operands of a lane for a unit
  static constexpr int kHeldUnits = kHeldElements / kUnit;
};
constexpr float kFp8Lift = 0x1p60f;  // twice: 2^120

struct Shared {
  uint8_t ring[kWarps][kStages][kUnitBytes];
  float2 parts[2][kWarps][32];             // of the tile at hand and of the one before
  float2 sums[kGroupTiles][kWarps][32];    // of the phases so far
  float gain[kWarps][kHeldElements];       // of the elements of a warp in a phase
  float squares[kWarps][kMostVectorRows];
};

// What a launch is given.
struct KernelParams {
  VectorProductParams product;
  int32_t num_tiles, num_phases;
};

// The order in which a CTA takes its tiles: group by group, all tiles of a group in every phase.
class Walk {
 public:
  __device__ __forceinline__ explicit Walk(const KernelParams& params)
      : params_(params), group_(static_cast<int>(blockIdx.x)), index_(group_) {}

  __device__ __forceinline__ bool IsValid() const { return index_ < params_.num_tiles; }
  __device__ __forceinline__ int index() const { return index_; }
  __device__ __forceinline__ int phase() const { return phase_; }
  __device__ __forceinline__ bool IsLastPhase() const { return phase_ == params_.num_phases - 1; }
  __device__ __forceinline__ bool IsFirstGroup() const { return group_ == static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int place() const { return place_; }  // in the group
  __device__ __forceinline__ void Next() {
    index_ += static_cast<int>(gridDim.x);
    ++place_;
    if (index_ < params_.num_tiles && (params_.num_phases == 1 || place_ < kGroupTiles)) return;
    place_ = 0;
    if (++phase_ < params_.num_phases) {
      index_ = group_;
    } else {
      phase_ = 0;
      group_ = index_;
    }
  }

 private:
  const KernelParams& params_;
  int group_, index_, place_ = 0, phase_ = 0;
};

// Where tile `index` of a launch lies; the jobs' tiles follow each other.
template <bool kIsGated>
struct Tile {
  static constexpr int kWidth = kIsGated ? kTileRows / 2 : kTileRows;  // outputs
  int job = 0, first = 0;  // outputs from `first` on

  __device__ __forceinline__ Tile(const VectorProductParams& params, int index) {
    while (!kIsGated && index >= NumTiles(params.jobs[job].out_width)) index -= NumTiles(params.jobs[job++].out_width);
    first = index * kWidth;
  }
  static __host__ __device__ int NumTiles(int out_width) { return (out_width + kWidth - 1) / kWidth; }
  static int NumTiles(const VectorProductParams& params) {
    int tiles = 0;
    for (int j = 0; j < (kIsGated ? 1 : params.num_jobs); ++j) tiles += NumTiles(params.jobs[j].out_width);
    return tiles;
  }
};

// A warp's copies: unit n of a phase is inner elements kUnit (kWarps n + warp) of it on. Rows have 8 pieces of 16 bytes, those of odd rows
// with their halves exchanged: then eight lanes that read four pieces of two rows meet no bank twice.
template <bool kIsGated, int kBytes>
class WeightRing {
  using F = Format<kBytes>;

 public:
  __device__ __forceinline__ WeightRing(const KernelParams& params, uint32_t ring, int warp, int lane)
      : params_(params.product), ring_(ring), row_(lane / 8), k_(F::kUnit * warp + F::kPiece * (lane % 8)),
        store_(ring + (lane / 8) * kUnitRowBytes + (((lane % 8) ^ (4 * ((lane / 8) & 1))) * 16)), walk_(params) {
    EnterTile();
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) Fetch(stage);
  }

  // Waits for the unit that was asked for kStages - 1 calls ago and asks for another one in the place of the one before it.
  __device__ __forceinline__ uint32_t Next(int stage) {
    ptx::CopyAsyncWait<kStages - 2>();
    __syncwarp();
    Fetch((stage + kStages - 1) % kStages);
    return ring_ + stage * kUnitBytes;
  }

 private:
  __device__ __forceinline__ void EnterTile() {
    unit_ = 0;
    if (!walk_.IsValid()) return;
    const Tile<kIsGated> tile(params_, walk_.index());
    const MatrixJob& job = params_.jobs[tile.job];
    const int64_t start = static_cast<int64_t>(tile.first + row_) * params_.in_width;
    rows_left_ = job.out_width - tile.first - row_;
    row_start_[0] = reinterpret_cast<const uint8_t*>(job.matrix) + kBytes * start;
    if (kIsGated) row_start_[kParts - 1] = reinterpret_cast<const uint8_t*>(params_.jobs[1].matrix) + kBytes * start;
  }
  __device__ __forceinline__ void Fetch(int stage) {
    if (walk_.IsValid()) {
      const int k = k_ + (walk_.phase() * F::kHeldUnits + unit_) * (F::kUnit * kWarps);
#pragma unroll
      for (int i = 0; i < kLoadsPerUnit; ++i) {
        constexpr int kPartLoads = kLoadsPerUnit / kParts;
        const int row = 4 * (i % kPartLoads);  // behind row_
        const bool is_inside = k < params_.in_width && row < rows_left_;
        const uint8_t* const from = row_start_[i / kPartLoads] + (is_inside ? kBytes * (row * params_.in_width + k) : 0);
        ptx::CopyAsync16(store_ + stage * kUnitBytes + i * (4 * kUnitRowBytes), from, is_inside);
      }
      if (++unit_ == F::kHeldUnits) {
        walk_.Next();
        EnterTile();
      }
    }
    ptx::CopyAsyncCommit();
  }

  static constexpr int kParts = kIsGated ? 2 : 1;  // matrices of a tile

  const VectorProductParams& params_;
  const uint32_t ring_;
  const int row_, k_;
  const uint32_t store_;  // where the lane's first piece of a stage goes
  Walk walk_;
  int unit_ = 0, rows_left_ = 0;
  const uint8_t* row_start_[kParts];
};

// The norm's gain for the warp's elements of a phase, in shared memory: registers are for the activations.
template <int kBytes>
__device__ __forceinline__ void LoadGain(const VectorProductParams& params, int phase, int warp, int lane, float* gain) {
  using F = Format<kBytes>;
  __syncwarp();
#pragma unroll
  for (int i = 4 * lane; i < kHeldElements; i += 4 * 32) {
    const int k = F::kUnit * ((phase * F::kHeldUnits + i / F::kUnit) * kWarps + warp) + i % F::kUnit;
    if (k < params.in_width) *reinterpret_cast<float4*>(gain + i) = *reinterpret_cast<const float4*>(params.gain + k);
  }
  __syncwarp();
}

// Right operands of one unit: lane (G, t) has, of row G / 2, the first (G even) or the second bf16 term of the elements of pieces 4 i + t,
// i = 0, 1. Elements past the end and rows past the last are zeros. `first`: the first element of the unit; `gain`: of the unit's. Adds the
// squares of the elements.
template <bool kHasNorm, int kBytes>
__device__ __forceinline__ void LoadActivations(const VectorProductParams& params, int first, int lane, const float* gain,
                                                uint32_t (&operands)[Format<kBytes>::kUnitRegisters], float& squares) {
  constexpr int kPiece = Format<kBytes>::kPiece, kQuarters = kPiece / 4;
  const int m = lane / 8;
  const bool is_second = (lane / 4) & 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int place = kPiece * (4 * i + lane % 4);
    const bool is_inside = first + place < params.in_width && m < params.num_rows;
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      float4 x = make_float4(0, 0, 0, 0);
      if (is_inside) {
        x = *reinterpret_cast<const float4*>(params.x + static_cast<int64_t>(m) * params.in_width + first + place + 4 * quarter);
        if (kHasNorm) {
          squares = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, squares))));
          const float4 factor = *reinterpret_cast<const float4*>(gain + place + 4 * quarter);
          x.x *= factor.x, x.y *= factor.y, x.z *= factor.z, x.w *= factor.w;
        }
        if (kBytes == 1) x.x *= kFp8Lift, x.y *= kFp8Lift, x.z *= kFp8Lift, x.w *= kFp8Lift;
      }
      uint32_t low = ptx::PackBf16(x.x, x.y), high = ptx::PackBf16(x.z, x.w);
      if (is_second) {
        low = ptx::PackBf16(x.x - __uint_as_float(low << 16), x.y - __uint_as_float(low & 0xFFFF0000u));
        high = ptx::PackBf16(x.z - __uint_as_float(high << 16), x.w - __uint_as_float(high & 0xFFFF0000u));
      }
      operands[2 * kQuarters * i + 2 * quarter] = low;
      operands[2 * kQuarters * i + 2 * quarter + 1] = high;
    }
  }
}

// Codes 0, 1 (low) or 2, 3 of a word as two bf16 numbers, 2^-120 times their values.
template <bool kIsHigh>
__device__ __forceinline__ uint32_t Bf16OfCodes(uint32_t codes) {
  const uint32_t halves = __byte_perm(codes, 0, kIsHigh ? 0x3424 : 0x1404);
  return (halves & 0x80008000u) | ((halves >> 4) & 0x07F007F0u);
}

// sums += the unit at `stage` times its operands. Inner elements are taken in an order that gives a lane whole pieces of its two rows.
template <int kBytes>
__device__ __forceinline__ void AddUnit(uint32_t stage, int lane, const uint32_t (&operands)[Format<kBytes>::kUnitRegisters], float (&sums)[4]) {
  const int row = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t address = stage + row * kUnitRowBytes + (((4 * i + t) ^ (4 * (row & 1))) * 16);
    const uint4 a = ptx::LoadShared16(address), b = ptx::LoadShared16(address + 8 * kUnitRowBytes);
    if constexpr (kBytes == 2) {
      ptx::MmaBf16(sums, {a.x, b.x, a.y, b.y}, operands[4 * i], operands[4 * i + 1]);
      ptx::MmaBf16(sums, {a.z, b.z, a.w, b.w}, operands[4 * i + 2], operands[4 * i + 3]);
    } else {
      const uint32_t of_a[4] = {a.x, a.y, a.z, a.w}, of_b[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        ptx::MmaBf16(sums, {Bf16OfCodes<false>(of_a[word]), Bf16OfCodes<false>(of_b[word]), Bf16OfCodes<true>(of_a[word]), Bf16OfCodes<true>(of_b[word])},
                     operands[8 * i + 2 * word], operands[8 * i + 2 * word + 1]);
      }
    }
  }
}

// Outputs G and G + 8 of row t from the parts of all warps; in a gated product gate and up of output G.
template <bool kIsGated, bool kHasNorm, int kBytes>
__device__ __forceinline__ void Finish(const VectorProductParams& params, const Shared& shared, int parity, int index, int lane) {
  const Tile<kIsGated> tile(params, index);
  const int m = lane % 4, output = tile.first + lane / 4;
  if (m >= params.num_rows) return;
  float2 sum = shared.parts[parity][0][lane];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) {
    const float2 part = shared.parts[parity][warp][lane];
    sum.x += part.x;
    sum.y += part.y;
  }
  if (kHasNorm) {
    float squares = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) squares += shared.squares[warp][m];
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(params.in_width) + params.epsilon);
    sum.x *= factor;
    sum.y *= factor;
  }
  const MatrixJob& job = params.jobs[tile.job];
  if constexpr (kBytes == 1) {
    const auto scale_of = [&](const MatrixJob& of, int row) {
      const uint8_t* const scales = reinterpret_cast<const uint8_t*>(of.matrix) + Fp8ScalesStart(of.out_width, params.in_width);
      return row < of.out_width ? kFp8Lift * reinterpret_cast<const float*>(scales)[row] : 0.0f;
    };
    sum.x *= scale_of(job, output);
    sum.y *= kIsGated ? scale_of(params.jobs[1], output) : scale_of(job, output + 8);
  }
  const int64_t at = static_cast<int64_t>(m) * job.out_width + output;
  if constexpr (kIsGated) {
    if (output < job.out_width) job.out[at] = sum.x / (1.0f + expf(-sum.x)) * sum.y;
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (output + 8 * half >= job.out_width) return;
      float value = half == 0 ? sum.x : sum.y;
      if (job.bias != nullptr) value += job.bias[output + 8 * half];
      if (job.residual != nullptr) value += job.residual[at + 8 * half];
      job.out[at + 8 * half] = value;
    }
  }
}

template <bool kIsGated, bool kHasNorm, int kBytes>
__global__ void __launch_bounds__(kThreads, 1) VectorProductKernel(const __grid_constant__ KernelParams all) {
  using F = Format<kBytes>;
  const VectorProductParams& params = all.product;
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Walk walk(all);
  WeightRing<kIsGated, kBytes> ring(all, ptx::SharedAddress(shared.ring[warp]), warp, lane);
  if (kHasNorm) LoadGain<kBytes>(params, 0, warp, lane, shared.gain[warp]);
  LaunchDependents();
  WaitForPredecessors();
  uint32_t held[F::kHeldUnits][F::kUnitRegisters];
  float squares = 0.0f;
  int stage = 0;
  for (int turn = 0; walk.IsValid(); walk.Next()) {
    if (walk.place() == 0) {
      if (kHasNorm && (walk.phase() > 0 || !walk.IsFirstGroup())) LoadGain<kBytes>(params, walk.phase(), warp, lane, shared.gain[warp]);
#pragma unroll
      for (int unit = 0; unit < F::kHeldUnits; ++unit) {
        const int first = F::kUnit * ((walk.phase() * F::kHeldUnits + unit) * kWarps + warp);
        LoadActivations<kHasNorm, kBytes>(params, first, lane, &shared.gain[warp][unit * F::kUnit], held[unit], squares);
      }
      if (kHasNorm && walk.IsLastPhase() && walk.IsFirstGroup()) {
        squares += __shfl_xor_sync(~0u, squares, 1);
        squares += __shfl_xor_sync(~0u, squares, 2);
        if (lane % 8 == 0) shared.squares[warp][lane / 8] = squares;
      }
    }
    float sums[4] = {};
#pragma unroll
    for (int unit = 0; unit < F::kHeldUnits; ++unit) {
      AddUnit<kBytes>(ring.Next(F::kHeldUnits < kStages ? stage : unit % kStages), lane, held[unit], sums);
      if (F::kHeldUnits < kStages) stage = (stage + 1) % kStages;
    }
    float2 part = make_float2(sums[0] + sums[1], sums[2] + sums[3]);
    if (walk.phase() > 0) {
      const float2 before = shared.sums[walk.place()][warp][lane];
      part.x += before.x;
      part.y += before.y;
    }
    if (!walk.IsLastPhase()) {
      shared.sums[walk.place()][warp][lane] = part;
      continue;
    }
    shared.parts[turn & 1][warp][lane] = part;
    __syncthreads();
    // The next writer of these parts has passed the barrier of the next tile, which this warp reaches after it has read them.
    if (warp == turn % kWarps) Finish<kIsGated, kHasNorm, kBytes>(params, shared, turn & 1, walk.index(), lane);
    ++turn;
  }
}

bool IsValid(const VectorProductParams& params) {
  return params.num_rows >= 1 && params.num_rows <= kMostVectorRows && params.in_width % (params.is_fp8 ? 16 : 8) == 0 &&
         params.num_jobs >= 1 && params.num_jobs <= kMostMatrixJobs;
}

unsigned NumMultiprocessors() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return static_cast<unsigned>(std::max(count, 1));
}

template <bool kIsGated, bool kHasNorm, int kBytes>
cudaError_t LaunchFormat(const VectorProductParams& params, cudaStream_t stream) {
  const auto kernel = VectorProductKernel<kIsGated, kHasNorm, kBytes>;
  static const cudaError_t prepared = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (prepared != cudaSuccess) return prepared;
  const KernelParams all = {params, Tile<kIsGated>::NumTiles(params), (params.in_width + kPhase - 1) / kPhase};
  const unsigned ctas = std::clamp(static_cast<unsigned>(all.num_tiles), 1u, NumMultiprocessors());
  return LaunchOverlapped(kernel, {dim3(ctas), kThreads, stream, sizeof(Shared)}, all);
}

template <bool kIsGated, bool kHasNorm>
cudaError_t Launch(const VectorProductParams& params, cudaStream_t stream) {
  return params.is_fp8 ? LaunchFormat<kIsGated, kHasNorm, 1>(params, stream) : LaunchFormat<kIsGated, kHasNorm, 2>(params, stream);
}

}  // namespace

cudaError_t LaunchVectorProducts(const VectorProductParams& params, cudaStream_t stream) {
  if (!IsValid(params)) return cudaErrorInvalidValue;
  return params.gain != nullptr ? Launch<false, true>(params, stream) : Launch<false, false>(params, stream);
}

cudaError_t LaunchGatedVectorProduct(const VectorProductParams& params, cudaStream_t stream) {
  if (!IsValid(params) || params.num_jobs != 2 || params.jobs[0].out_width != params.jobs[1].out_width) return cudaErrorInvalidValue;
  return params.gain != nullptr ? Launch<true, true>(params, stream) : Launch<true, false>(params, stream);
}

}  // namespace oscar::engine
