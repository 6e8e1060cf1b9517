// What the device kernels need of a profile, layer by layer, in device memory.
#pragma once

#include <vector>

#include "oscar/codec_profile.h"
#include "src/kv/codec/affine/cuda_feedback.h"
#include "src/kv/kernels/cuda/cache_kernels.h"
#include "src/kv/kernels/cuda/demote_params.h"
#include "src/base/cuda_memory.h"

namespace oscar::cache {

struct LayerConstants {
  kernels::cuda::HeadMatrices query_map, value_inverse;     // A_K^-T, A_V^-1; null: identity
  kernels::cuda::HeadVectors key_mean, value_mean;          // constant ones
  kernels::cuda::DemoteSide min_max[2] = {};                // where the encoder is min-max
  affine::FeedbackSide feedback[2] = {};                    // where it is error feedback
  const kernels::cuda::RotatingPair* mean_pairs = nullptr;  // [kv_heads, d / 2], where the key mean turns
};

class ProfileConstants {
 public:
  // bits: of a code. kUnsupported for an encoder, clip or mean that the device has no kernels for, naming the layer.
  Status Load(const CodecProfile& profile, int bits, cudaStream_t stream);

  const LayerConstants& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  bool uses_feedback() const { return uses_feedback_; }

 private:
  struct Rows;
  Status LoadLayer(const CodecProfile& profile, int layer);
  Status LoadMinMax(const Rows& key, const Rows& value, LayerConstants& constants);
  Status LoadFeedback(const Rows& rows, affine::FeedbackSide& side);
  Status LoadMeanPairs(const CodecProfile& profile, const Rows& key, LayerConstants& constants);
  // A copy on the device that lives as long as this.
  template <class T>
  Result<const T*> Keep(std::span<const T> values);
  // Of all heads, [d, d] or [d] each; one copy where they share it.
  template <class Get>
  Status KeepHeads(const Rows& rows, const Get& get, const float*& data, int64_t& head_stride);

  cudaStream_t stream_ = nullptr;
  int bits_ = 2;
  std::vector<LayerConstants> layers_;
  std::vector<cuda::DeviceArray<float>> floats_;
  std::vector<cuda::DeviceArray<kernels::cuda::RotatingPair>> pairs_;
  bool uses_feedback_ = false;
};

}  // namespace oscar::cache
