// RowSums on a CUDA device: rows in device memory, in one stream. What all moments share; the sums themselves are in
// moment_sums_cuda.cc and balanced_sums_cuda.cc.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "src/base/cuda_memory.h"
#include "src/kv/calibrate/captured_rows.h"
#include "src/kv/calibrate/cuda/moment_kernels.h"
#include "src/kv/calibrate/row_sums.h"

namespace oscar::calibrate {

inline DeviceRows RowsOf(const RowsView<const float>& rows) { return {rows.data, rows.token_stride, rows.head_stride}; }

// kUnsupported for a head dimension that the kernels do not have.
Status CheckDeviceMoments(const KvShape& shape);

class DeviceSums {
 public:
  DeviceSums(const KvShape& shape, cudaStream_t stream) : shape_(shape), stream_(stream) {}
  ~DeviceSums() { cudaStreamSynchronize(stream_); }

 protected:
  // As CheckFinite of captured_rows.h; waits for the device.
  Status CheckView(int layer, const char* name, const char* head_name, const RowsView<const float>& rows, int64_t first_token);
  Status CheckLayerRows(int layer, const LayerRows& rows, int64_t first_token);

  // sums += x^T x over rows of `heads_per_kv` heads each, rounded to BF16 or as they are.
  Status AddRows(const RowsView<const float>& rows, int heads_per_kv, bool rounds, double* sums);
  // The score-weighted moment of method.md 2.3: sums += w v^T v, weight += w.
  Status AddScored(const LayerRows& rows, const double* metrics, double* sums, double* weight);
  Status AddOuterProducts(const double* rows, int num_rows, double* sums);
  // Scratch for rows in double.
  Status GrowWidened(std::size_t num_rows) { return widened_.Grow(num_rows * static_cast<std::size_t>(shape_.head_dim)); }

  std::size_t matrices() const { return vectors() * static_cast<std::size_t>(shape_.head_dim); }  // values of one [d, d] per KV head
  std::size_t vectors() const { return heads() * static_cast<std::size_t>(shape_.head_dim); }
  std::size_t heads() const { return static_cast<std::size_t>(shape_.num_kv_heads); }

  // Zeros.
  Status Clear(cuda::DeviceArray<double>& values, std::size_t size);
  // Waits for the device.
  Status Read(const double* values, std::span<double> out);
  // Head h of a device array into get(h), a Matrix.
  template <class Get>
  Status ReadMatrices(const cuda::DeviceArray<double>& from, const Get& get) {
    std::vector<double> values(matrices());
    if (Status read = Read(from.data(), values); !read.ok()) return read;
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      const std::size_t d = static_cast<std::size_t>(shape_.head_dim);
      get(static_cast<std::size_t>(h)) = Eigen::Map<const Matrix>(values.data() + static_cast<std::size_t>(h) * d * d, shape_.head_dim, shape_.head_dim);
    }
    return {};
  }
  // get(h), symmetric Matrices of all heads, to a device array.
  template <class Get>
  Status UploadMatrices(const Get& get, cuda::DeviceArray<double>& to) {
    std::vector<double> values;
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      const Matrix& matrix = get(static_cast<std::size_t>(h));
      values.insert(values.end(), matrix.data(), matrix.data() + matrix.size());
    }
    return to.Upload(values, stream_);
  }

  const KvShape shape_;
  cudaStream_t stream_;
  cuda::DeviceArray<double> widened_, weights_;
  cuda::DeviceArray<unsigned long long> first_bad_;
};

// The sums of a MomentAccumulator and of BalancedMoments.
std::unique_ptr<MomentSums> MakeDeviceMomentSums(const KvShape& shape, cudaStream_t stream);
std::unique_ptr<BalancedSums> MakeDeviceBalancedSums(const KvShape& shape, cudaStream_t stream);

}  // namespace oscar::calibrate
