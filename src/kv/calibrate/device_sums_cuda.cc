#include "src/kv/calibrate/device_sums_cuda.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "oscar/cuda.h"
#include "src/base/status_macros.h"
#include "src/kv/calibrate/balanced_moments.h"
#include "src/kv/calibrate/moments.h"

namespace oscar {

namespace calibrate {

using cuda::FromCuda;

Status CheckDeviceMoments(const KvShape& shape) {
  if (shape.head_dim >= 32 && shape.head_dim <= 256 && shape.head_dim % 32 == 0) return {};
  return {StatusCode::kUnsupported, "calibration on the CUDA device needs a head dimension that is a multiple of 32 up to 256, not " +
                                        std::to_string(shape.head_dim)};
}

Status DeviceSums::CheckView(int layer, const char* name, const char* head_name, const RowsView<const float>& rows, int64_t first_token) {
  if (rows.num_tokens == 0) return {};
  OSCAR_TRY(first_bad_.Grow(1));
  OSCAR_TRY(FromCuda(cudaMemsetAsync(first_bad_.data(), 0xFF, sizeof(unsigned long long), stream_), "calibration"));
  OSCAR_TRY(FromCuda(LaunchFindNonFinite({RowsOf(rows), rows.num_tokens, rows.num_heads, rows.head_dim, first_bad_.data()}, stream_), "calibration"));
  unsigned long long first = 0;
  OSCAR_TRY(FromCuda(cudaMemcpyAsync(&first, first_bad_.data(), sizeof(first), cudaMemcpyDeviceToHost, stream_), "calibration"));
  OSCAR_TRY(FromCuda(cudaStreamSynchronize(stream_), "calibration"));
  if (first == std::numeric_limits<unsigned long long>::max()) return {};
  const auto row = static_cast<int64_t>(first) / rows.head_dim;
  return NonFiniteRow(layer, name, head_name, static_cast<int>(row % rows.num_heads), first_token + row / rows.num_heads);
}

Status DeviceSums::CheckLayerRows(int layer, const LayerRows& rows, int64_t first_token) {
  OSCAR_TRY(CheckView(layer, "queries", "query head", rows.queries, first_token));
  OSCAR_TRY(CheckView(layer, "keys", "KV head", rows.keys, first_token));
  return CheckView(layer, "values", "KV head", rows.values, first_token);
}

Status DeviceSums::AddOuterProducts(const double* rows, int num_rows, double* sums) {
  return FromCuda(LaunchOuterProducts({rows, sums, num_rows, shape_.num_kv_heads, shape_.head_dim}, stream_), "moments");
}

Status DeviceSums::AddRows(const RowsView<const float>& rows, int heads_per_kv, bool rounds, double* sums) {
  if (rows.num_tokens == 0) return {};
  OSCAR_TRY(GrowWidened(static_cast<std::size_t>(rows.num_tokens) * static_cast<std::size_t>(rows.num_heads)));
  OSCAR_TRY(FromCuda(LaunchWidenRows({RowsOf(rows), rows.num_tokens, shape_.num_kv_heads, heads_per_kv, shape_.head_dim, rounds, nullptr,
                                      widened_.data()}, stream_), "moments"));
  return AddOuterProducts(widened_.data(), rows.num_tokens * heads_per_kv, sums);
}

Status DeviceSums::AddScored(const LayerRows& rows, const double* metrics, double* sums, double* weight) {
  const int num_tokens = rows.keys.num_tokens;
  if (num_tokens == 0) return {};
  const std::size_t num_rows = static_cast<std::size_t>(num_tokens) * heads();
  OSCAR_TRY(GrowWidened(num_rows));
  OSCAR_TRY(weights_.Grow(num_rows));
  WidenRowsParams widen = {RowsOf(rows.keys), num_tokens, shape_.num_kv_heads, 1, shape_.head_dim, true, nullptr, widened_.data()};
  OSCAR_TRY(FromCuda(LaunchWidenRows(widen, stream_), "moments"));
  OSCAR_TRY(FromCuda(LaunchScoreWeights({widened_.data(), metrics, weights_.data(), num_tokens, shape_.num_kv_heads, shape_.head_dim}, stream_),
                     "moments"));
  OSCAR_TRY(FromCuda(LaunchSumWeights(weights_.data(), num_tokens, shape_.num_kv_heads, weight, stream_), "moments"));
  widen.rows = RowsOf(rows.values);
  widen.weights = weights_.data();
  OSCAR_TRY(FromCuda(LaunchWidenRows(widen, stream_), "moments"));
  return AddOuterProducts(widened_.data(), num_tokens, sums);
}

Status DeviceSums::Clear(cuda::DeviceArray<double>& values, std::size_t size) {
  OSCAR_TRY(values.Grow(size));
  return FromCuda(cudaMemsetAsync(values.data(), 0, size * sizeof(double), stream_), "moments");
}

Status DeviceSums::Read(const double* values, std::span<double> out) {
  OSCAR_TRY(FromCuda(cudaMemcpyAsync(out.data(), values, out.size_bytes(), cudaMemcpyDeviceToHost, stream_), "moments"));
  return FromCuda(cudaStreamSynchronize(stream_), "moments");
}

}  // namespace calibrate

Result<MomentAccumulator> CreateCudaMoments(const KvShape& shape, const OscarFitOptions& options, StreamHandle stream) {
  OSCAR_TRY(CheckOscarFit(shape, options));
  OSCAR_TRY(calibrate::CheckDeviceMoments(shape));
  MomentAccumulator moments(shape, options);
  moments.impl().sums = calibrate::MakeDeviceMomentSums(shape, static_cast<cudaStream_t>(stream));
  return moments;
}

Result<BalancedMoments> CreateCudaBalancedMoments(const KvShape& shape, RotaryEmbedding rotary, int64_t expected_tokens, StreamHandle stream) {
  OSCAR_TRY(CheckBalancedFit(shape, {}));
  OSCAR_TRY(calibrate::CheckDeviceMoments(shape));
  BalancedMoments moments(shape, std::move(rotary), expected_tokens);
  moments.impl().sums = calibrate::MakeDeviceBalancedSums(shape, static_cast<cudaStream_t>(stream));
  return moments;
}

}  // namespace oscar
