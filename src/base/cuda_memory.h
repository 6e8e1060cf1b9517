// Owners of device memory, and CUDA errors as Status. Host code.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "oscar/result.h"

namespace oscar::cuda {

// kInternal, or kResourceExhausted without memory; `what` names the call.
inline Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const StatusCode code = error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted : StatusCode::kInternal;
  return {code, std::string("CUDA, ") + what + ": " + cudaGetErrorString(error)};
}

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  // At least `size` elements; what was there is lost when it grows, after all work on the device has ended.
  Status Grow(std::size_t size) {
    if (size <= size_) return {};
    cudaFree(std::exchange(data_, nullptr));
    size_ = 0;
    const cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T));
    if (error != cudaSuccess) {
      cudaGetLastError();
      return {StatusCode::kResourceExhausted, std::to_string(size * sizeof(T)) + " bytes of device memory could not be allocated: " +
                                                  cudaGetErrorString(error)};
    }
    size_ = size;
    return {};
  }
  // In the order of the stream; `values` may change after the return.
  Status Upload(std::span<const T> values, cudaStream_t stream) {
    if (Status grown = Grow(values.size()); !grown.ok()) return grown;
    if (values.empty()) return {};
    return FromCuda(cudaMemcpyAsync(data_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream), "upload");
  }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// Host memory that the device copies to at full speed.
template <class T>
class PinnedArray {
 public:
  PinnedArray() = default;
  ~PinnedArray() { cudaFreeHost(data_); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  // At least `size` elements; what was there is lost when it grows.
  Status Grow(std::size_t size) {
    if (size <= size_) return {};
    cudaFreeHost(std::exchange(data_, nullptr));
    size_ = 0;
    if (Status status = FromCuda(cudaMallocHost(reinterpret_cast<void**>(&data_), size * sizeof(T)), "pinned memory"); !status.ok()) return status;
    size_ = size;
    return {};
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace oscar::cuda
