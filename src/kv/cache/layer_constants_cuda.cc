#include "src/kv/cache/layer_constants_cuda.h"

#include <algorithm>
#include <string>

#include "src/base/status_macros.h"
#include "src/kv/codec/affine/clip.h"
#include "src/kv/transform/turning_mean.h"

namespace oscar::cache {

using cuda::DeviceArray;
using kernels::cuda::RotatingPair;

// The rows of all KV heads of one (layer, side).
struct ProfileConstants::Rows {
  Rows(const CodecProfile& profile, int layer, KvSide side) {
    for (int head = 0; head < profile.shape().num_kv_heads; ++head) heads.push_back(profile.row(layer, head, side));
  }
  bool is_identity() const {
    return std::all_of(heads.begin(), heads.end(),
                       [](const RowProfile& row) { return row.transform->kind() == TransformKind::kIdentity; });
  }
  bool has_mean() const {
    return std::any_of(heads.begin(), heads.end(), [](const RowProfile& row) { return !row.mean.empty() && row.page_mean.empty(); });
  }
  bool has_turning_mean() const { return !heads[0].page_mean.empty(); }
  std::vector<RowProfile> heads;
};

namespace {

Status CheckRows(const std::vector<RowProfile>& heads) {
  const RowProfile& first = heads[0];
  if (first.encoder != EncoderKind::kMinMax && first.encoder != EncoderKind::kErrorFeedback) {
    return {StatusCode::kUnsupported, "the CUDA device has no kernels for this encoder, only for min-max and error feedback"};
  }
  if (first.range_factor != 1.0f) return {StatusCode::kUnsupported, "the CUDA device has no kernels for a range factor"};
  for (const RowProfile& row : heads) {
    if (row.encoder != first.encoder || row.clip_ratio != first.clip_ratio || row.encode_effort != first.encode_effort ||
        row.range_factor != first.range_factor || row.page_mean.empty() != first.page_mean.empty()) {
      return {StatusCode::kUnsupported, "the CUDA device needs one encoder, clip and kind of mean for all KV heads of a layer"};
    }
  }
  if (first.encoder == EncoderKind::kMinMax && !first.page_mean.empty()) {
    return {StatusCode::kUnsupported, "the CUDA device has no min-max encoder with a turning mean"};
  }
  return {};
}

}  // namespace

template <class T>
Result<const T*> ProfileConstants::Keep(std::span<const T> values) {
  DeviceArray<T> array;
  OSCAR_TRY(array.Upload(values, stream_));
  const T* data = array.data();
  if constexpr (std::is_same_v<T, float>) {
    floats_.push_back(std::move(array));
  } else {
    pairs_.push_back(std::move(array));
  }
  return data;
}

template <class Get>
Status ProfileConstants::KeepHeads(const Rows& rows, const Get& get, const float*& data, int64_t& head_stride) {
  const std::span<const float> first = get(rows.heads[0]);
  const bool is_shared = std::all_of(rows.heads.begin(), rows.heads.end(), [&](const RowProfile& row) {
    const std::span<const float> own = get(row);
    return std::ranges::equal(own, first);
  });
  std::vector<float> values(first.begin(), first.end());
  if (!is_shared) {
    values.clear();
    for (const RowProfile& row : rows.heads) {
      const std::span<const float> own = get(row);
      values.insert(values.end(), own.begin(), own.end());
    }
  }
  OSCAR_ASSIGN_OR_RETURN(data, Keep<float>(values));
  head_stride = is_shared ? 0 : static_cast<int64_t>(first.size());
  return {};
}

Status ProfileConstants::Load(const CodecProfile& profile, int bits, cudaStream_t stream) {
  stream_ = stream;
  bits_ = bits;
  layers_.resize(static_cast<std::size_t>(profile.shape().num_layers));
  for (int layer = 0; layer < profile.shape().num_layers; ++layer) {
    OSCAR_TRY(LoadLayer(profile, layer).WithContext(profile.method() + ", layer " + std::to_string(layer)));
  }
  return {};
}

Status ProfileConstants::LoadLayer(const CodecProfile& profile, int layer) {
  const Rows key(profile, layer, KvSide::kKey), value(profile, layer, KvSide::kValue);
  OSCAR_TRY(CheckRows(key.heads));
  OSCAR_TRY(CheckRows(value.heads));
  if (key.heads[0].encoder != value.heads[0].encoder) {
    return {StatusCode::kUnsupported, "the CUDA device needs one encoder for keys and values"};
  }
  const bool is_min_max = key.heads[0].encoder == EncoderKind::kMinMax, has_clip = key.heads[0].clip_ratio > 0 || value.heads[0].clip_ratio > 0;
  if (is_min_max ? bits_ == 1 || (bits_ == 4 && has_clip) : bits_ == 4) {
    return {StatusCode::kUnsupported, "the CUDA device encodes 1 bit by error feedback only, 4 bits by min-max without a clip only"};
  }
  LayerConstants& constants = layers_[static_cast<std::size_t>(layer)];
  // A zero mean for the heads that have none.
  const std::vector<float> zeros(static_cast<std::size_t>(profile.shape().head_dim));
  const auto mean_of = [&](const RowProfile& row) { return row.mean.empty() ? std::span<const float>(zeros) : row.mean; };
  if (!key.is_identity()) {
    OSCAR_TRY(KeepHeads(key, [](const RowProfile& row) { return row.transform->inverse_transposed(); }, constants.query_map.data,
                        constants.query_map.head_stride));
  }
  if (!value.is_identity()) {
    OSCAR_TRY(KeepHeads(value, [](const RowProfile& row) { return row.transform->inverse(); }, constants.value_inverse.data,
                        constants.value_inverse.head_stride));
  }
  if (key.has_mean()) OSCAR_TRY(KeepHeads(key, mean_of, constants.key_mean.data, constants.key_mean.head_stride));
  if (value.has_mean()) OSCAR_TRY(KeepHeads(value, mean_of, constants.value_mean.data, constants.value_mean.head_stride));
  if (key.has_turning_mean()) OSCAR_TRY(LoadMeanPairs(profile, key, constants));
  if (key.heads[0].encoder == EncoderKind::kMinMax) return LoadMinMax(key, value, constants);
  uses_feedback_ = true;
  for (const Rows* rows : {&key, &value}) {
    affine::FeedbackSide& side = constants.feedback[rows == &key ? 0 : 1];
    const kernels::cuda::HeadVectors& mean = rows == &key ? constants.key_mean : constants.value_mean;
    side.mean = mean;
    OSCAR_TRY(LoadFeedback(*rows, side));
  }
  return {};
}

Status ProfileConstants::LoadMinMax(const Rows& key, const Rows& value, LayerConstants& constants) {
  // The kernel transforms both sides or none.
  const bool transforms = !key.is_identity() || !value.is_identity() || key.has_mean() || value.has_mean();
  for (const Rows* rows : {&key, &value}) {
    kernels::cuda::DemoteSide& side = constants.min_max[rows == &key ? 0 : 1];
    const RowProfile& first = rows->heads[0];
    side.clip_index = first.clip_ratio > 0.0f ? affine::ClipIndex(first.clip_ratio, first.transform->head_dim()) : -1;
    if (!transforms) continue;
    OSCAR_TRY(KeepHeads(*rows, [](const RowProfile& row) { return row.transform->matrix(); }, side.matrix, side.head_stride));
    const kernels::cuda::HeadVectors& mean = rows == &key ? constants.key_mean : constants.value_mean;
    side.mean = mean.data;
    side.mean_head_stride = mean.head_stride;
  }
  return {};
}

Status ProfileConstants::LoadFeedback(const Rows& rows, affine::FeedbackSide& side) {
  side.effort = rows.heads[0].encode_effort;
  OSCAR_TRY(KeepHeads(rows, [](const RowProfile& row) { return row.transform->matrix(); }, side.matrices.data,
                      side.matrices.head_stride));
  OSCAR_TRY(KeepHeads(rows, [](const RowProfile& row) { return std::span<const float>(row.feedback->metric); }, side.metric.data,
                      side.metric.head_stride));
  OSCAR_TRY(KeepHeads(rows, [](const RowProfile& row) { return std::span<const float>(row.feedback->feedback); },
                      side.feedback.data, side.feedback.head_stride));
  OSCAR_TRY(KeepHeads(rows, [](const RowProfile& row) { return std::span<const float>(row.feedback->inverse_diagonal); },
                      side.inverse_diagonal.data, side.inverse_diagonal.head_stride));
  if (!rows.has_turning_mean()) return {};
  return KeepHeads(rows, [](const RowProfile& row) { return row.page_mean; }, side.page_mean.data, side.page_mean.head_stride);
}

Status ProfileConstants::LoadMeanPairs(const CodecProfile& profile, const Rows& key, LayerConstants& constants) {
  std::vector<RotatingPair> pairs;
  for (const RowProfile& row : key.heads) {
    for (int pair = 0; pair < profile.shape().head_dim / 2; ++pair) {
      const auto [a, b] = transform::PairChannels(profile.rotary(), pair);
      pairs.push_back({a, b, row.page_mean[static_cast<std::size_t>(a)], row.page_mean[static_cast<std::size_t>(b)]});
    }
  }
  OSCAR_ASSIGN_OR_RETURN(constants.mean_pairs, Keep<RotatingPair>(pairs));
  return {};
}

}  // namespace oscar::cache
