// Random decode attention problems on the device, their float64 judge, and the buffers of a launch:
// for tests and benches.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "src/base/float_bits.h"
#include "src/kv/codec/affine/cuda_decode.h"
#include "src/kv/codec/affine/device_convert.h"
#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/kernels/cuda/decode_plan.h"

namespace oscar::kernels::cuda::fixture {

#define OSCAR_FIXTURE_CHECK(call)                                        \
  do {                                                                   \
    const cudaError_t status = (call);                                   \
    if (status != cudaSuccess) {                                         \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(status));                          \
      std::exit(3);                                                      \
    }                                                                    \
  } while (false)

template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t size) : size_(size) {
    OSCAR_FIXTURE_CHECK(cudaMalloc(&data_, std::max<size_t>(size, 1) * sizeof(T)));
  }
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size()) { Upload(host); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }
  void Upload(const std::vector<T>& host) {
    OSCAR_FIXTURE_CHECK(
        cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> Download() const {
    std::vector<T> host(size_);
    OSCAR_FIXTURE_CHECK(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
  void Fill(int byte) { OSCAR_FIXTURE_CHECK(cudaMemset(data_, byte, size_ * sizeof(T))); }
  T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// What stands in keys, values and queries.
enum class Data {
  kNormal,
  kAllEqualLogits,  // q = 0
  kRising,          // every page has larger logits than the one before
  kDominatingCode,  // one INT2 token holds nearly all mass
  kDominatingRow,   // one BF16 row does
  kHugeQuery,       // |q| about 3e4
  kZeroScales,      // constant rows
  kSubnormalScales,
  kLargeOffsets,  // 700 and -300: sums do not cancel
  kOutlier,       // one huge scale
};

struct Problem {
  int head_dim = 128, kv_heads = 8, group = 4;
  int bits = 2;  // of a code
  std::vector<SequenceExtent> sequences;
  float logit_deviation = 0.65f;  // nats
  Data data = Data::kNormal;
  bool has_mean = false;
  bool has_page_beta = false;  // a score of its own for every page and query head
  uint64_t seed = 1;
  float softmax_scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
  int query_heads() const { return kv_heads * group; }
};

__host__ __device__ inline uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
__host__ __device__ inline float Uniform(uint64_t x) {
  return (Mix(x) >> 40) * 0x1p-24f;
}  // [0, 1)
__host__ __device__ inline float Normal(uint64_t x) {  // sum of 12 uniforms
  float sum = -6.0f;
  for (int i = 0; i < 12; ++i) sum += Uniform(x * 12 + i);
  return sum;
}

// Pages to fill: the pool, page ids [sequence][stride], and how many pages or rows each sequence
// has.
struct PagesToFill {
  uint8_t* pool;
  const int32_t* table;
  int stride;
  const int32_t* counts;
  int kv_heads, head_dim;
  int bits = 2;  // of a code

  __device__ size_t Block(int sequence, int page, int head) const {
    return static_cast<size_t>(table[static_cast<size_t>(sequence) * stride + page]) * kv_heads +
           head;
  }
};

// One CTA per (page position of a sequence, head): writes the block of its page id.
static __global__ void FillCodePages(PagesToFill pages, Data data, uint64_t seed) {
  namespace layout = affine::device;
  const int page = blockIdx.x, head = blockIdx.y, sequence = blockIdx.z;
  const int d = pages.head_dim, num_pages = pages.counts[sequence], bits = pages.bits;
  if (page >= num_pages) return;
  uint8_t* block = pages.pool + pages.Block(sequence, page, head) * layout::BlockBytes(bits, d);
  const uint64_t key =
      Mix(seed) + ((static_cast<uint64_t>(sequence) * 4096 + page) * 64 + head) * 16384;
  for (int i = threadIdx.x; i < 2 * layout::SideBytes(bits, d) / 4; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(block)[i] = static_cast<uint32_t>(Mix(key + i));
  }
  for (int i = threadIdx.x; i < 2 * layout::kTokens; i += blockDim.x) {
    const int token = i % layout::kTokens;
    const bool is_key = i < layout::kTokens;
    const float middle = 0.5f * ((1 << bits) - 1);
    float scale = (0.55f + 0.7f * Uniform(key + 9000 + i)) * 1.5f / middle;  // standard deviation of a row about 1
    float offset = -middle * scale + 0.1f * (Uniform(key + 9500 + i) - 0.5f);
    if (data == Data::kRising && is_key) offset += 0.6f * page;
    if (data == Data::kDominatingCode && is_key && page == num_pages / 2 && token == 37)
      offset += 6.0f;
    if (data == Data::kZeroScales) scale = 0.0f;
    if (data == Data::kSubnormalScales) scale = 3e-6f;
    if (data == Data::kLargeOffsets) offset = (token & 1) ? 700.0f : -300.0f;
    if (data == Data::kLargeOffsets && is_key) offset = 1.0f;
    if (data == Data::kOutlier && page == 1 && token == 5) {
      scale = (is_key ? 8.0f : 20000.0f) * 1.5f / middle;
      offset = -middle * scale;
    }
    const int place = is_key ? layout::KeyPairOffset(bits, d, token) : layout::ValuePairOffset(bits, d, token);
    *reinterpret_cast<__half2*>(block + place) =
        __halves2half2(__float2half_rn(scale), __float2half_rn(offset));
  }
}

static __global__ void FillRowPages(PagesToFill pages, Data data, uint64_t seed) {
  namespace layout = affine::device;
  const int page = blockIdx.x, head = blockIdx.y, sequence = blockIdx.z;
  const int d = pages.head_dim, num_rows = pages.counts[sequence],
            rows = num_rows - page * layout::kTokens;
  if (rows <= 0) return;
  uint8_t* block = pages.pool + pages.Block(sequence, page, head) * layout::Bf16BlockBytes(d);
  const uint64_t key =
      Mix(seed + 77) + ((static_cast<uint64_t>(sequence) * 4096 + page) * 64 + head) * 65536;
  for (int i = threadIdx.x; i < 2 * layout::kTokens * d; i += blockDim.x) {
    const int token = i / d % layout::kTokens, dim = i % d;
    if (token >= rows) continue;  // stays poisoned
    const bool is_key = i < layout::kTokens * d;
    float value = Normal(key + i);
    if (data == Data::kDominatingRow && is_key && page == 0 && token == min(21, num_rows - 1))
      value += 6.0f;
    const int place =
        is_key ? layout::Bf16KeyOffset(d, token, dim) : layout::Bf16ValueOffset(d, token, dim);
    *reinterpret_cast<uint16_t*>(block + place) =
        static_cast<uint16_t>((__float_as_uint(value) + 0x8000u) >> 16);
  }
}

// What the means add to the score of encoded token `index`.
static __device__ double MeanScore(const DecodeParams& params, int sequence, int query_head,
                                   int index) {
  double sum = 0.0;
  const size_t first_head = static_cast<size_t>(sequence) * params.kv_heads * params.group;
  if (params.beta != nullptr) sum += params.beta[first_head + query_head];
  if (params.page_beta != nullptr) {
    const int head_tile = params.group <= 4 ? 4 : (params.group <= 8 ? 8 : 16);
    const size_t pair = static_cast<size_t>(sequence) * params.kv_heads + query_head / params.group;
    const size_t page = pair * params.code_table_stride + index / affine::device::kTokens;
    sum += params.page_beta[page * head_tile + query_head % params.group];
  }
  return sum;
}

struct JudgeOutputs {
  bool magnitude;    // of |values|, the size against which cancellation is judged
  double* out;       // [B, Hq, d]
  double* log_mass;  // [B, Hq]: log2 of the sum of 2^score; or null
  int bits = 2;      // of a code
};
// The judge: float64 softmax attention of one query head on the decoded elements. One CTA per
// (query head, sequence).
static __global__ void JudgeAttention(DecodeParams params, const int32_t* num_pages,
                                      const int32_t* num_rows, int d, JudgeOutputs outputs) {
  namespace layout = affine::device;
  const int query_head = blockIdx.x, sequence = blockIdx.y, head = query_head / params.group;
  const int code_tokens = num_pages[sequence] * layout::kTokens, rows = num_rows[sequence], bits = outputs.bits;
  const size_t query_row =
      static_cast<size_t>(sequence) * params.kv_heads * params.group + query_head;
  __shared__ double partial[256], weights[256], q[256];
  for (int i = threadIdx.x; i < d; i += blockDim.x)
    q[i] = __uint_as_float(static_cast<uint32_t>(params.queries[query_row * d + i]) << 16);
  __syncthreads();
  auto element = [&](int index, int dim, bool is_key) -> double {
    if (index < code_tokens) {
      const int token = index % layout::kTokens;
      const size_t entry = static_cast<size_t>(sequence) * params.code_table_stride + index / layout::kTokens;
      const uint8_t* block =
          params.code_pool + (static_cast<size_t>(params.code_table[entry]) * params.kv_heads + head) * layout::BlockBytes(bits, d);
      const int pair = is_key ? layout::KeyPairOffset(bits, d, token) : layout::ValuePairOffset(bits, d, token);
      const double scale = __half2float(*reinterpret_cast<const __half*>(block + pair));
      const double offset = __half2float(*reinterpret_cast<const __half*>(block + pair + 2));
      const uint8_t* codes = block + (is_key ? 0 : layout::SideBytes(bits, d));
      double code = 0;
      for (int plane = 0; plane < layout::NumPlanes(bits); ++plane) {
        const layout::CodePlace place = layout::PlanePlace(bits, is_key, d, token, dim, plane);
        code += ((codes[place.byte] >> place.shift) & ((1 << layout::PlaneBits(bits)) - 1)) << (2 * plane);
      }
      return offset + scale * code;
    }
    const int row = index - code_tokens, token = row % layout::kTokens;
    const uint8_t* block =
        params.row_pool +
        (static_cast<size_t>(
             params.row_table[static_cast<size_t>(sequence) * params.row_table_stride +
                              row / layout::kTokens]) *
             params.kv_heads +
         head) *
            layout::Bf16BlockBytes(d);
    const int place =
        is_key ? layout::Bf16KeyOffset(d, token, dim) : layout::Bf16ValueOffset(d, token, dim);
    return __uint_as_float(static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(block + place))
                           << 16);
  };
  auto logit = [&](int index) {  // log2 units
    double sum = 0.0;
    for (int dim = 0; dim < d; ++dim) sum += q[dim] * element(index, dim, true);
    sum *= static_cast<double>(params.kappa);
    return index < code_tokens ? sum + MeanScore(params, sequence, query_head, index) : sum;
  };
  const int total = code_tokens + rows;
  double top = -1e300;
  for (int index = threadIdx.x; index < total; index += blockDim.x) top = fmax(top, logit(index));
  partial[threadIdx.x] = top;
  __syncthreads();
  for (int i = 0; i < static_cast<int>(blockDim.x); ++i) top = fmax(top, partial[i]);
  __syncthreads();
  double sum = 0.0, code_sum = 0.0, result = 0.0;
  for (int base = 0; base < total; base += blockDim.x) {
    const int index = base + threadIdx.x;
    weights[threadIdx.x] = index < total ? exp2(logit(index) - top) : 0.0;
    __syncthreads();
    const int count = min(static_cast<int>(blockDim.x), total - base);
    for (int i = 0; i < count; ++i) {
      sum += weights[i];
      if (base + i < code_tokens) code_sum += weights[i];
      if (static_cast<int>(threadIdx.x) < d) {
        const double value = element(base + i, threadIdx.x, false);
        result += weights[i] * (outputs.magnitude ? fabs(value) : value);
      }
    }
    __syncthreads();
  }
  if (outputs.log_mass != nullptr && threadIdx.x == 0)
    outputs.log_mass[query_row] = total > 0 ? top + log2(sum) : -INFINITY;
  if (static_cast<int>(threadIdx.x) < d) {
    if (params.value_mean != nullptr && total > 0)
      result += code_sum * params.value_mean[head * d + threadIdx.x];
    outputs.out[query_row * d + threadIdx.x] = total > 0 ? result / sum : 0.0;
  }
}

// A problem on the device with everything that a launch needs. Page ids are shuffled over a pool
// with foreign pages between, which are poisoned, as is every byte that the problem does not own.
// Several sets of pages for cold-cache rotation.
class Launch {
 public:
  Launch(const Problem& problem, const DecodePlanOptions& plan_options, int num_sets = 1,
         bool poison = true)
      : problem_(problem), plan_(PlanDecode(problem.sequences, plan_options)) {
    namespace layout = affine::device;
    const int batch = static_cast<int>(problem.sequences.size()), d = problem.head_dim;
    int most_pages = 1, most_row_pages = 1, pages = 0, row_pages = 0;
    std::vector<int32_t> num_pages, num_rows;
    for (const SequenceExtent& s : problem.sequences) {
      num_pages.push_back(s.num_code_pages);
      num_rows.push_back(s.num_rows);
      most_pages = std::max(most_pages, s.num_code_pages);
      most_row_pages = std::max(most_row_pages, (s.num_rows + 63) / 64);
      pages += s.num_code_pages;
      row_pages += (s.num_rows + 63) / 64;
    }
    std::mt19937_64 rng(problem.seed);
    code_pool_ = DeviceBuffer<uint8_t>((static_cast<size_t>(pages) * num_sets + kForeignPages) *
                                       problem.kv_heads * layout::BlockBytes(problem.bits, d));
    row_pool_ = DeviceBuffer<uint8_t>((static_cast<size_t>(row_pages) * num_sets + kForeignPages) *
                                      problem.kv_heads * layout::Bf16BlockBytes(d));
    if (poison) {
      code_pool_.Fill(0xFF);
      row_pool_.Fill(0xFF);
    }
    code_tables_ = Tables(num_pages, most_pages, num_sets, rng);
    std::vector<int32_t> pages_of_rows;
    for (const int rows : num_rows) pages_of_rows.push_back((rows + 63) / 64);
    row_tables_ = Tables(pages_of_rows, most_row_pages, num_sets, rng);
    num_pages_ = DeviceBuffer<int32_t>(num_pages);
    num_rows_ = DeviceBuffer<int32_t>(num_rows);
    for (int set = 0; set < num_sets; ++set) {
      const uint64_t seed = problem.seed + set;
      FillCodePages<<<dim3(most_pages, problem.kv_heads, batch), 128>>>(
          {code_pool_.data(), code_tables_[set].data(), most_pages, num_pages_.data(),
           problem.kv_heads, d, problem.bits},
          problem.data, seed);
      FillRowPages<<<dim3(most_row_pages, problem.kv_heads, batch), 256>>>(
          {row_pool_.data(), row_tables_[set].data(), most_row_pages, num_rows_.data(),
           problem.kv_heads, d},
          problem.data, seed);
    }
    OSCAR_FIXTURE_CHECK(cudaGetLastError());
    std::vector<uint16_t> query(static_cast<size_t>(batch) * problem.query_heads() * d);
    std::normal_distribution<float> normal(0.0f, problem.logit_deviation);
    for (uint16_t& q : query) {
      float value = normal(rng);
      if (problem.data == Data::kAllEqualLogits) value = 0.0f;
      if (problem.data == Data::kRising || problem.data == Data::kDominatingCode ||
          problem.data == Data::kDominatingRow)
        value = std::fabs(value);
      if (problem.data == Data::kHugeQuery) value = value > 0 ? 3e4f : -3e4f;
      q = base::Bf16FromF32(value);
    }
    query_ = DeviceBuffer<uint16_t>(query);
    out_ = DeviceBuffer<uint16_t>(query.size());
    out_f32_ = DeviceBuffer<float>(query.size());
    starts_ = DeviceBuffer<DecodeStart>(plan_.starts);
    items_ = DeviceBuffer<DecodeItem>(plan_.items);
    kernel_ = affine::FindDecodeKernel(d, problem.group, affine::DecodeKernelKind::kNormal, problem.bits);
    if (kernel_ == nullptr) {
      std::fprintf(stderr, "no kernel for d %d, g %d\n", d, problem.group);
      std::exit(3);
    }
    partials_ = DeviceBuffer<float>(static_cast<size_t>(plan_.num_slots) * kernel_->head_tile * d);
    stats_ = DeviceBuffer<float>(static_cast<size_t>(plan_.num_slots) * kernel_->head_tile * 4);
    counters_ = DeviceBuffer<int32_t>(static_cast<size_t>(batch) * problem.kv_heads);
    partials_.Fill(0xFF);
    stats_.Fill(0xFF);
    out_.Fill(0xFF);
    out_f32_.Fill(0xFF);
    counters_.Fill(0);
    code_stride_ = most_pages;
    row_stride_ = most_row_pages;
    MakeMeans(batch, normal, rng);
  }

  DecodeParams Params(int set = 0, bool with_f32 = true) const {
    DecodeParams p{};
    p.queries = query_.data();
    p.beta = problem_.has_mean ? beta_.data() : nullptr;
    p.page_beta = problem_.has_page_beta ? page_beta_.data() : nullptr;
    p.value_mean = problem_.has_mean ? mean_.data() : nullptr;
    p.code_pool = code_pool_.data();
    p.row_pool = row_pool_.data();
    p.code_table = code_tables_[set].data();
    p.row_table = row_tables_[set].data();
    p.code_table_stride = code_stride_;
    p.row_table_stride = row_stride_;
    p.starts = starts_.data();
    p.items = items_.data();
    p.partials = partials_.data();
    p.partial_stats = stats_.data();
    p.pair_counters = counters_.data();
    p.out = out_.data();
    p.out_f32 = with_f32 ? out_f32_.data() : nullptr;
    p.kv_heads = problem_.kv_heads;
    p.group = problem_.group;
    p.kappa = problem_.softmax_scale() * 1.4426950408889634f;
    return p;
  }
  cudaError_t Run(cudaStream_t stream = nullptr, int set = 0,
                  affine::DecodeKernelKind kind = affine::DecodeKernelKind::kNormal,
                  bool overlap = false, bool with_f32 = true) const {
    const auto* kernel = affine::FindDecodeKernel(problem_.head_dim, problem_.group, kind, problem_.bits);
    return affine::LaunchDecode(*kernel, Params(set, with_f32),
                                static_cast<int>(plan_.starts.size()), overlap, stream);
  }
  std::vector<double> Judge(bool magnitude = false, int set = 0) const {
    DeviceBuffer<double> expected(query_.size());
    JudgeAttention<<<dim3(problem_.query_heads(), static_cast<int>(problem_.sequences.size())),
                     256>>>(Params(set), num_pages_.data(), num_rows_.data(), problem_.head_dim,
                            {magnitude, expected.data(), nullptr, problem_.bits});
    OSCAR_FIXTURE_CHECK(cudaGetLastError());
    return expected.Download();
  }
  // Without the mean of the values, and log2 of the sums of 2^score: [B, Hq].
  struct Parts {
    std::vector<double> out, log_mass;
  };
  Parts JudgeParts() const {
    DeviceBuffer<double> expected(query_.size()), log_mass(query_.size() / problem_.head_dim);
    DecodeParams params = Params();
    params.value_mean = nullptr;
    JudgeAttention<<<dim3(problem_.query_heads(), static_cast<int>(problem_.sequences.size())),
                     256>>>(params, num_pages_.data(), num_rows_.data(), problem_.head_dim,
                            {false, expected.data(), log_mass.data(), problem_.bits});
    OSCAR_FIXTURE_CHECK(cudaGetLastError());
    return {expected.Download(), log_mass.Download()};
  }
  void PoisonOutputs() {
    out_.Fill(0xFF);
    out_f32_.Fill(0xFF);
    partials_.Fill(0xFF);
    stats_.Fill(0xFF);
  }
  std::vector<float> OutF32() const { return out_f32_.Download(); }
  std::vector<uint16_t> Out() const { return out_.Download(); }
  std::vector<int32_t> Counters() const { return counters_.Download(); }
  const DecodePlan& plan() const { return plan_; }
  const Problem& problem() const { return problem_; }
  int num_sets() const { return static_cast<int>(code_tables_.size()); }

  // Host copies, for a judge that shares nothing with the device.
  std::vector<uint8_t> CodePool() const { return code_pool_.Download(); }
  std::vector<uint8_t> RowPool() const { return row_pool_.Download(); }
  std::vector<int32_t> CodeTable() const { return code_tables_[0].Download(); }
  std::vector<int32_t> RowTable() const { return row_tables_[0].Download(); }
  std::vector<uint16_t> Query() const { return query_.Download(); }
  std::vector<float> Beta() const { return beta_.Download(); }
  std::vector<float> Mean() const { return mean_.Download(); }
  int code_stride() const { return code_stride_; }
  int row_stride() const { return row_stride_; }

 private:
  static constexpr int kForeignPages = 3;
  // Scores and values that means add.
  void MakeMeans(int batch, std::normal_distribution<float>& normal, std::mt19937_64& rng) {
    const int d = problem_.head_dim;
    std::vector<float> beta(static_cast<size_t>(batch) * problem_.query_heads()),
        mean(static_cast<size_t>(problem_.kv_heads) * d);
    for (float& b : beta) b = 2.0f * normal(rng);
    for (float& m : mean) m = normal(rng);
    beta_ = DeviceBuffer<float>(beta);
    mean_ = DeviceBuffer<float>(mean);
    std::vector<float> page_beta(static_cast<size_t>(batch) * problem_.kv_heads * code_stride_ *
                                 kernel_->head_tile);
    for (float& b : page_beta) b = 2.0f * normal(rng);
    page_beta_ = DeviceBuffer<float>(problem_.has_page_beta ? page_beta : std::vector<float>());
  }
  static std::vector<DeviceBuffer<int32_t>> Tables(const std::vector<int32_t>& counts, int stride,
                                                   int num_sets, std::mt19937_64& rng) {
    const int total = std::accumulate(counts.begin(), counts.end(), 0);
    std::vector<int32_t> ids(static_cast<size_t>(total) * num_sets + kForeignPages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng);
    std::vector<DeviceBuffer<int32_t>> tables;
    size_t used = 0;
    for (int set = 0; set < num_sets; ++set) {
      std::vector<int32_t> table(counts.size() * stride, 0x7FFFFFFF);
      for (size_t s = 0; s < counts.size(); ++s) {
        for (int i = 0; i < counts[s]; ++i) table[s * stride + i] = ids[used++];
      }
      tables.emplace_back(table);
    }
    return tables;
  }

  Problem problem_;
  DecodePlan plan_;
  const affine::DecodeKernel* kernel_ = nullptr;
  DeviceBuffer<uint8_t> code_pool_, row_pool_;
  std::vector<DeviceBuffer<int32_t>> code_tables_, row_tables_;
  DeviceBuffer<int32_t> num_pages_, num_rows_, counters_;
  DeviceBuffer<uint16_t> query_, out_;
  DeviceBuffer<float> beta_, page_beta_, mean_, out_f32_, partials_, stats_;
  DeviceBuffer<DecodeStart> starts_;
  DeviceBuffer<DecodeItem> items_;
  int code_stride_ = 0, row_stride_ = 0;
};

// Softmax attention of one query; kappa times the products are log2 units, and the first
// num_shifted tokens have `shift` more.
inline std::vector<double> AttendPlainly(std::span<const uint16_t> query,
                                         const std::vector<std::vector<double>>& keys,
                                         const std::vector<std::vector<double>>& values,
                                         float kappa, size_t num_shifted, float shift) {
  std::vector<double> logits, out(query.size(), 0.0);
  double top = -1e300, sum = 0;
  for (size_t token = 0; token < keys.size(); ++token) {
    double dot = 0;
    for (size_t i = 0; i < query.size(); ++i)
      dot += static_cast<double>(base::F32FromBf16(query[i])) * keys[token][i];
    logits.push_back(kappa * dot + (token < num_shifted ? shift : 0.0f));
    top = std::max(top, logits.back());
  }
  for (size_t token = 0; token < keys.size(); ++token) {
    const double weight = std::exp2(logits[token] - top);
    sum += weight;
    for (size_t i = 0; i < out.size(); ++i) out[i] += weight * values[token][i];
  }
  for (size_t i = 0; i < out.size() && sum > 0; ++i) out[i] /= sum;
  return out;
}

// The same attention on the host, from whole decoded pages: checks the judge itself. Set 0.
inline std::vector<double> PlainAttention(const Launch& launch) {
  namespace layout = affine::device;
  const Problem& problem = launch.problem();
  const int d = problem.head_dim, tokens = layout::kTokens;
  const std::vector<uint8_t> codes = launch.CodePool(), rows = launch.RowPool();
  const std::vector<int32_t> code_table = launch.CodeTable(), row_table = launch.RowTable();
  const std::vector<uint16_t> query = launch.Query();
  const std::vector<float> beta = launch.Beta(), mean = launch.Mean();
  std::vector<double> out(query.size(), 0.0);
  for (size_t sequence = 0; sequence < problem.sequences.size(); ++sequence) {
    for (int head = 0; head < problem.kv_heads; ++head) {
      std::vector<std::vector<double>> keys, values;
      const int pages = problem.sequences[sequence].num_code_pages;
      for (int page = 0; page < pages; ++page) {
        const size_t block =
            (static_cast<size_t>(code_table[sequence * launch.code_stride() + page]) *
                 problem.kv_heads +
             head) *
            layout::BlockBytes(d);
        std::vector<uint8_t> side_codes[2];
        std::vector<uint16_t> scales[2], offsets[2];
        for (int side = 0; side < 2; ++side) {
          side_codes[side].resize(static_cast<size_t>(tokens) * d);
          scales[side].resize(tokens);
          offsets[side].resize(tokens);
        }
        affine::RowsFromDeviceBlock(d, std::span(codes).subspan(block, layout::BlockBytes(d)),
                                    {side_codes[0], scales[0], offsets[0]},
                                    {side_codes[1], scales[1], offsets[1]});
        for (int token = 0; token < tokens; ++token) {
          for (int side = 0; side < 2; ++side) {
            std::vector<double> row(d);
            for (int i = 0; i < d; ++i) {
              row[i] = base::F32FromF16(offsets[side][token]) +
                       static_cast<double>(base::F32FromF16(scales[side][token])) *
                           side_codes[side][static_cast<size_t>(token) * d + i];
              if (side == 1 && problem.has_mean) row[i] += mean[static_cast<size_t>(head) * d + i];
            }
            (side == 0 ? keys : values).push_back(row);
          }
        }
      }
      for (int r = 0; r < problem.sequences[sequence].num_rows; ++r) {
        const size_t block =
            (static_cast<size_t>(row_table[sequence * launch.row_stride() + r / tokens]) *
                 problem.kv_heads +
             head) *
            layout::Bf16BlockBytes(d);
        std::vector<double> key(d), value(d);
        for (int i = 0; i < d; ++i) {
          uint16_t bits;
          std::memcpy(&bits, &rows[block + layout::Bf16KeyOffset(d, r % tokens, i)], 2);
          key[i] = base::F32FromBf16(bits);
          std::memcpy(&bits, &rows[block + layout::Bf16ValueOffset(d, r % tokens, i)], 2);
          value[i] = base::F32FromBf16(bits);
        }
        keys.push_back(key);
        values.push_back(value);
      }
      for (int g = 0; g < problem.group; ++g) {
        const size_t row = (sequence * problem.kv_heads + head) * problem.group + g;
        const std::vector<double> result =
            AttendPlainly(std::span(query).subspan(row * d, d), keys, values, launch.Params().kappa,
                          problem.has_mean ? static_cast<size_t>(pages) * tokens : 0, beta[row]);
        std::copy(result.begin(), result.end(), out.begin() + static_cast<int64_t>(row * d));
      }
    }
  }
  return out;
}

}  // namespace oscar::kernels::cuda::fixture
