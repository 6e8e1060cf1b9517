// What CudaOps launches for a recording.
#include <algorithm>
#include <string>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/ops/cuda/cuda_ops.h"
#include "src/engine/ops/cuda/dense_kernels.h"

namespace oscar::engine {

using cuda::FromCuda;

namespace {
constexpr size_t kScratchChunk = size_t{16} << 20;  // floats
constexpr size_t kScratchAlignment = 64;            // floats
}  // namespace

Result<float*> CudaOps::TakeScratch(std::size_t num_floats) {
  num_floats = (num_floats + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  while (scratch_chunk_ < scratch_.size() && scratch_used_ + num_floats > scratch_[scratch_chunk_].size()) {
    ++scratch_chunk_;
    scratch_used_ = 0;
  }
  if (scratch_chunk_ == scratch_.size()) {
    cuda::DeviceArray<float> chunk;
    OSCAR_TRY(chunk.Grow(std::max(num_floats, kScratchChunk)));
    scratch_.push_back(std::move(chunk));
  }
  float* const data = scratch_[scratch_chunk_].data() + scratch_used_;
  scratch_used_ += num_floats;
  return data;
}

// A product takes over the bias, the residual or the gating of its only reader, and its place in the order; RoPE the norm that it
// alone reads.
void CudaOps::JoinNodes() {
  const auto is_single_product = [](const Node* node) {
    return node->kind == Kind::kMatMul && node->num_uses == 1 && node->data == nullptr && node->b == nullptr;
  };
  const auto take_over = [](Node& node, Node& product) {
    node.kind = Kind::kMatMul;
    node.a = product.a;
    node.matrix = product.matrix;
    product.kind = Kind::kNone;
  };
  for (Node& node : nodes_) {
    if (node.kind == Kind::kAddBias && is_single_product(node.a) && node.a->vector == nullptr) {
      take_over(node, *node.a);
    } else if (node.kind == Kind::kAdd && is_single_product(node.a)) {
      node.vector = node.a->vector;
      take_over(node, *node.a);
    } else if (node.kind == Kind::kSwiGlu && is_single_product(node.a) && is_single_product(node.b) &&
               node.a->vector == nullptr && node.b->vector == nullptr && node.a->a == node.b->a) {
      node.second_matrix = node.b->matrix;
      node.b->kind = Kind::kNone;
      node.b = nullptr;
      take_over(node, *node.a);
      node.kind = Kind::kGatedMatMul;
    } else if (node.kind == Kind::kRope && node.a->kind == Kind::kRmsNorm && node.a->num_uses == 1 && node.a->data == nullptr &&
               node.a->group == node.group) {
      node.gain = node.a->vector;
      node.epsilon = node.a->number;
      node.a->kind = Kind::kNone;
      node.a = node.a->a;
    }
  }
  JoinNorms();
}

// Products of few rows take over the norm that they alone read.
void CudaOps::JoinNorms() {
  const auto takes_norm = [this](const Node& node) {
    return (node.kind == Kind::kMatMul || node.kind == Kind::kGatedMatMul) && !TakesLibrary(node.rows);
  };
  for (Node& norm : nodes_) {
    if (norm.kind != Kind::kRmsNorm || norm.group != norm.width || norm.data != nullptr) continue;
    int uses = 0;
    for (const Node& node : nodes_) uses += takes_norm(node) && node.a == &norm ? (node.kind == Kind::kGatedMatMul ? 2 : 1) : 0;
    if (uses != norm.num_uses) continue;
    norm.kind = Kind::kNone;
    for (Node& node : nodes_) {
      if (!takes_norm(node) || node.a != &norm) continue;
      node.a = norm.a;
      node.gain = norm.vector;
      node.epsilon = norm.number;
    }
  }
}

// The turn of queries and keys, where a product alone is behind each: the slots get what the products make, and the cache turns it on its
// way (KvCache::AttendRecorded).
void CudaOps::LeaveTurn() {
  turn_ = {};
  Node *query = nullptr, *key = nullptr;
  for (Node& node : nodes_) {
    if (node.kind != Kind::kRope) continue;
    const bool follows_product = node.a->kind == Kind::kMatMul && node.a->num_uses == 1 && node.a->data == nullptr;
    Node*& place = node.data != nullptr && node.data == slots_[static_cast<size_t>(Slot::kQuery)] ? query : key;
    if (!follows_product || place != nullptr) return;
    place = &node;
  }
  if (query == nullptr || key == nullptr || key->data != slots_[static_cast<size_t>(Slot::kKey)]) return;
  const bool is_same = query->turns == key->turns && query->pairs == key->pairs && query->halves == key->halves &&
                       query->group == key->group && (query->gain == nullptr || key->gain == nullptr || query->epsilon == key->epsilon);
  if (!is_same) return;
  turn_ = {query->gain,  key->gain, query->gain != nullptr ? query->epsilon : key->epsilon, reinterpret_cast<const float*>(query->turns),
           query->pairs, query->halves};
  for (Node* node : {query, key}) {
    node->a->data = node->data;
    node->kind = Kind::kNone;
  }
}

Status CudaOps::PlaceNodes() {
  for (Node& node : nodes_) {
    if (node.kind == Kind::kNone || node.data != nullptr) continue;
    OSCAR_ASSIGN_OR_RETURN(node.data, TakeScratch(static_cast<size_t>(node.rows) * static_cast<size_t>(node.width)));
  }
  for (const Node& node : nodes_) {
    if (node.kind == Kind::kExperts) OSCAR_TRY(PlaceExperts(node));
  }
  // What products of many rows need beside: their rows in bf16, and a place before residual, bias or gating.
  for (Node& node : nodes_) {
    const bool is_product = node.kind == Kind::kMatMul || node.kind == Kind::kGatedMatMul;
    if (!is_product || !TakesLibrary(node.rows)) continue;
    if (is_fp8_) {
      OSCAR_TRY(PlaceFp8Node(node));
      continue;
    }
    if (node.b != nullptr || node.kind == Kind::kGatedMatMul) {
      OSCAR_ASSIGN_OR_RETURN(node.beside, TakeScratch(static_cast<size_t>(node.rows) * static_cast<size_t>(node.width)));
    }
    Node& x = *node.a;
    if (x.rounded != nullptr) continue;
    OSCAR_ASSIGN_OR_RETURN(float* const place, TakeScratch((static_cast<size_t>(x.rows) * static_cast<size_t>(x.width) + 1) / 2));
    x.rounded = reinterpret_cast<uint16_t*>(place);
  }
  return {};
}

Status CudaOps::EmitAll() {
  for (size_t i = 0; i < nodes_.size();) {
    Node& node = nodes_[i];
    size_t count = 1;
    const bool is_product = node.kind == Kind::kMatMul || node.kind == Kind::kGatedMatMul;
    if (is_product && TakesLibrary(node.rows)) {
      OSCAR_TRY(EmitLargeProduct(node));
    } else if (node.kind == Kind::kMatMul) {
      OSCAR_TRY(EmitProducts(i, count));
    } else if (node.kind == Kind::kGatedMatMul) {
      OSCAR_TRY(EmitGatedProduct(node));
    } else if (node.kind == Kind::kRope) {
      OSCAR_TRY(EmitRopes(i, count));
    } else {
      OSCAR_TRY(Emit(node));
    }
    i += count;
  }
  return {};
}

// In products of few rows the columns of the matrix unit that belong to a row are the same number of them in the same order whatever
// stands in the others, so taking all rows in groups makes them independent of their batch.
bool CudaOps::TakesLibrary(int rows) const { return rows > kMostVectorRows && rounding_ == BatchRounding::kFree; }

// nodes_[first] and the products of the same rows that follow it directly, in one launch for each group of rows.
Status CudaOps::EmitProducts(std::size_t first, std::size_t& count) {
  const Node& node = nodes_[first];
  VectorProductParams params = {};
  params.in_width = node.a->width;
  params.gain = node.gain;
  params.epsilon = node.epsilon;
  params.is_fp8 = is_fp8_;
  count = 0;
  while (first + count < nodes_.size() && params.num_jobs < kMostMatrixJobs) {
    const Node& next = nodes_[first + count];
    if (next.kind != Kind::kNone) {
      if (next.kind != Kind::kMatMul || next.a != node.a || next.gain != node.gain) break;
      params.jobs[params.num_jobs++] = {next.matrix, next.vector, next.b != nullptr ? next.b->data : nullptr, next.data, next.width};
    }
    ++count;
  }
  for (int row = 0; row < node.rows; row += kMostVectorRows) {
    params.x = node.a->data + int64_t{row} * params.in_width;
    params.num_rows = std::min(kMostVectorRows, node.rows - row);
    OSCAR_TRY(FromCuda(LaunchVectorProducts(params, stream_), "product"));
    for (int job = 0; job < params.num_jobs; ++job) {
      const int64_t group = int64_t{kMostVectorRows} * params.jobs[job].out_width;
      params.jobs[job].out += group;
      if (params.jobs[job].residual != nullptr) params.jobs[job].residual += group;
    }
  }
  return {};
}

Status CudaOps::EmitGatedProduct(const Node& node) {
  for (int row = 0; row < node.rows; row += kMostVectorRows) {
    VectorProductParams params = {node.a->data + int64_t{row} * node.a->width, std::min(kMostVectorRows, node.rows - row), node.a->width, 2, {},
                                  node.gain, node.epsilon, is_fp8_};
    params.jobs[0] = {node.matrix, nullptr, nullptr, node.data + int64_t{row} * node.width, node.width};
    params.jobs[1] = {node.second_matrix, nullptr, nullptr, nullptr, node.width};
    OSCAR_TRY(FromCuda(LaunchGatedVectorProduct(params, stream_), "gated product"));
  }
  return {};
}

// nodes_[first] and the same turn of other rows that follows it directly, in one launch.
Status CudaOps::EmitRopes(std::size_t first, std::size_t& count) {
  const Node& node = nodes_[first];
  RopeLaunchParams params = {};
  params.turns = node.turns;
  params.num_rows = node.rows;
  params.head_dim = node.group;
  params.pairs = node.pairs;
  params.halves = node.halves;
  count = 0;
  while (first + count < nodes_.size() && params.num_jobs < kMostRopeJobs) {
    const Node& next = nodes_[first + count];
    if (next.kind != Kind::kNone) {
      const bool is_same = next.kind == Kind::kRope && next.turns == node.turns && next.rows == node.rows &&
                           next.group == node.group && next.halves == node.halves;
      if (!is_same || next.a == &node) break;
      params.jobs[params.num_jobs++] = {next.a->data, next.data, next.gain, next.epsilon, next.width / next.group};
    }
    ++count;
  }
  return FromCuda(LaunchRope(params, stream_), "RoPE");
}

Status CudaOps::EmitLibraryProduct(Node& x, const uint16_t* matrix, int out_width, float* out) {
  if (!x.is_rounded) {
    OSCAR_TRY(FromCuda(LaunchRoundToBf16(x.data, x.rounded, int64_t{x.rows} * x.width, stream_), "rounding"));
    x.is_rounded = true;
  }
  const float one = 1, zero = 0;
  // Column-major: out^T [out_width, rows] = W x^T.
  const cublasStatus_t status =
      cublasGemmEx(library_, CUBLAS_OP_T, CUBLAS_OP_N, out_width, x.rows, x.width, &one, matrix, CUDA_R_16BF, x.width, x.rounded,
                   CUDA_R_16BF, x.width, &zero, out, CUDA_R_32F, out_width, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {StatusCode::kInternal, std::string("cuBLAS, product: ") + cublasGetStatusString(status)};
}

Status CudaOps::EmitLargeProduct(Node& node) {
  if (is_fp8_) return EmitFp8Product(node);
  const int64_t count = int64_t{node.rows} * node.width;
  if (node.kind == Kind::kGatedMatMul) {
    OSCAR_TRY(EmitLibraryProduct(*node.a, node.matrix, node.width, node.data));
    OSCAR_TRY(EmitLibraryProduct(*node.a, node.second_matrix, node.width, node.beside));
    return FromCuda(LaunchSwiGlu(node.data, node.beside, node.data, count, stream_), "SwiGLU");
  }
  float* const product = node.b != nullptr ? node.beside : node.data;  // a residual may stand where the result goes
  OSCAR_TRY(EmitLibraryProduct(*node.a, node.matrix, node.width, product));
  if (node.vector != nullptr) OSCAR_TRY(FromCuda(LaunchAddBias(product, node.vector, product, count, node.width, stream_), "bias"));
  if (node.b == nullptr) return {};
  return FromCuda(LaunchAdd(product, node.b->data, node.data, count, stream_), "residual");
}

Status CudaOps::Emit(const Node& node) {
  const int64_t count = int64_t{node.rows} * node.width;
  switch (node.kind) {
    case Kind::kNone:
    case Kind::kLoad:
      return {};
    case Kind::kEmbed:
      if (is_fp8_) return EmitFp8Embedding(node);
      return FromCuda(LaunchEmbed({node.matrix, tokens_.data(), node.data, node.rows, node.width}, stream_), "embedding");
    case Kind::kAddBias:
      return FromCuda(LaunchAddBias(node.a->data, node.vector, node.data, count, node.width, stream_), "bias");
    case Kind::kAdd:
      return FromCuda(LaunchAdd(node.a->data, node.b->data, node.data, count, stream_), "sum");
    case Kind::kRmsNorm:
      return FromCuda(LaunchRmsNorm({node.a->data, node.vector, node.data, static_cast<int32_t>(count / node.group), node.group, node.number},
                                    stream_), "norm");
    case Kind::kSwiGlu:
      return FromCuda(LaunchSwiGlu(node.a->data, node.b->data, node.data, count, stream_), "SwiGLU");
    case Kind::kExperts:
      return EmitExperts(node);
    case Kind::kGather:
      return FromCuda(LaunchGather({node.a->data, output_rows_.data(), node.data, node.rows, node.width}, stream_), "rows");
    case Kind::kMatMul:
    case Kind::kGatedMatMul:
    case Kind::kRope:
      break;
  }
  OSCAR_CHECK_MSG(false, "products and RoPE are launched elsewhere");
  return {};
}

}  // namespace oscar::engine
