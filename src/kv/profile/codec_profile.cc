// CodecProfile: checks of its parts at construction, row access, digest, and the check against a model. The file format
// is in profile_file.cc; the data-free profiles are made by src/kv/codec/affine/methods.cc.

#include "oscar/codec_profile.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "src/base/check.h"
#include "src/base/digest.h"
#include "src/kv/profile/error_feedback.h"
#include "src/kv/profile/profile_fields.h"
#include "src/kv/profile/profile_limits.h"
#include "src/kv/transform/turning_mean.h"

namespace oscar {
namespace {

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

std::string ShapeText(const KvShape& shape) {
  return std::to_string(shape.num_layers) + " layers, " + std::to_string(shape.num_query_heads) + " query heads, " +
         std::to_string(shape.num_kv_heads) + " KV heads, head_dim " + std::to_string(shape.head_dim);
}

// Angles come from the same formula on both sides, so that only the last bits may differ.
bool SameRotary(const RotaryEmbedding& a, const RotaryEmbedding& b) {
  return a.halves == b.halves && std::ranges::equal(a.angles, b.angles, [](float x, float y) { return std::abs(x - y) <= 1e-5f * std::abs(y); });
}

// What is wrong with the rotary embedding of a profile, or an empty text.
std::string RotaryFault(const RotaryEmbedding& rotary, int head_dim) {
  if (rotary.angles.size() * 2 > static_cast<size_t>(head_dim)) {
    return std::to_string(rotary.angles.size()) + " rotary pairs in head_dim " + std::to_string(head_dim);
  }
  if (!AllFinite(rotary.angles)) return "a rotary angle is not finite";
  return {};
}

// What is wrong with a row, or an empty text.
std::string RowFault(const CodecProfile::Row& row, KvSide side, int head_dim, std::span<const KvTransform> transforms) {
  const size_t d = static_cast<size_t>(head_dim);
  if (row.transform < 0 || static_cast<size_t>(row.transform) >= transforms.size()) {
    return "transform " + std::to_string(row.transform) + " of " + std::to_string(transforms.size()) +
           " does not exist";
  }
  if (!row.mean.empty() && row.mean.size() != d) return "the mean has " + std::to_string(row.mean.size()) + " values";
  if (!AllFinite(row.mean)) return "the mean holds a value that is not finite";
  if (row.mean_kind != MeanKind::kConstant && row.mean_kind != MeanKind::kRotating) return "unknown kind of mean";
  if (row.mean_kind == MeanKind::kRotating && (row.mean.empty() || side == KvSide::kValue)) {
    return "a rotating mean needs a mean and belongs to keys only";
  }
  if (row.encoder > EncoderKind::kErrorFeedback) return "unknown encoder";
  if (row.metric.size() != (row.encoder == EncoderKind::kErrorFeedback ? d : 0)) {
    return "the metric has " + std::to_string(row.metric.size()) +
           " values, where an error-feedback row has head_dim and any other 0";
  }
  if (!std::all_of(row.metric.begin(), row.metric.end(), [](float w) { return std::isfinite(w) && w > 0; })) {
    return "the metric holds a value that is not a positive number";
  }
  if (!row.metric.empty()) {
    const auto [least, most] = std::minmax_element(row.metric.begin(), row.metric.end());
    if (!(*most / *least <= profile::kMaxMetricSpread)) return "the values of the metric span more than 1e10";
  }
  if (!row.channel_order.empty() && side == KvSide::kValue) return "a channel order belongs to keys only";
  if (row.channel_order.size() % d != 0) return "the channel order has " + std::to_string(row.channel_order.size()) + " entries, no multiple of head_dim";
  std::vector<bool> seen(row.channel_order.size());
  for (const uint16_t channel : row.channel_order) {
    if (channel >= seen.size() || seen[channel]) return "the channel order is not a permutation: channel " + std::to_string(channel) + (channel >= seen.size() ? " does not exist" : " comes twice");
    seen[channel] = true;
  }
  if (!std::isfinite(row.clip_ratio) || row.clip_ratio > 1.0f) return "the clip ratio is not a number up to 1";
  if (!std::isfinite(row.range_factor) || row.range_factor <= 0.0f) return "the range factor is not a positive number";
  return {};
}

void HashInteger(base::Sha256& hash, uint32_t value) {
  std::array<std::byte, 4> bytes;
  for (int i = 0; i < 4; ++i) bytes[static_cast<size_t>(i)] = static_cast<std::byte>(value >> (8 * i));
  hash.Update(std::span<const std::byte>(bytes));
}

void HashFloats(base::Sha256& hash, std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  HashInteger(hash, static_cast<uint32_t>(values.size()));
  hash.Update(std::as_bytes(values));
}

Digest TransformDigest(const KvTransform& transform) {
  base::Sha256 hash;
  HashInteger(hash, static_cast<uint32_t>(transform.kind()));
  HashInteger(hash, static_cast<uint32_t>(transform.head_dim()));
  HashFloats(hash, transform.matrix());
  HashFloats(hash, transform.inverse());
  return hash.Finish();
}

bool IsCalibrated(const CodecProfile& profile) {
  const RowProfile row = profile.row(0, 0, KvSide::kKey);
  return row.transform->kind() == TransformKind::kOrthogonal || row.transform->kind() == TransformKind::kInvertible;
}

}  // namespace

bool AreEigenvalues(std::span<const float> values, int head_dim) {
  for (size_t i = 0; i < values.size(); ++i) {
    const bool first_of_head = i % static_cast<size_t>(head_dim) == 0;
    if (!std::isfinite(values[i]) || values[i] < (first_of_head ? 0.0f : values[i - 1])) return false;
  }
  return true;
}

Status CheckProfileShape(const KvShape& shape) {
  const auto within = [](int value, int limit) { return value >= 1 && value <= limit; };
  if (!within(shape.num_layers, kMaxProfileLayers) || !within(shape.num_query_heads, kMaxProfileHeads) ||
      !within(shape.num_kv_heads, kMaxProfileHeads) || !within(shape.head_dim, kMaxProfileHeadDim) ||
      shape.num_query_heads % shape.num_kv_heads != 0) {
    return {StatusCode::kInvalidArgument, "impossible attention shape: " + ShapeText(shape)};
  }
  return {};
}

// Each row hashes the content of its transform, not its index: how heads share matrices changes no encoded byte.
void CodecProfile::UpdateDigest() {
  std::vector<Digest> digests;
  for (const KvTransform& transform : *transforms_) digests.push_back(TransformDigest(transform));
  base::Sha256 hash;
  HashInteger(hash, static_cast<uint32_t>(method_.size()));
  hash.Update(std::string_view(method_));
  for (const int count : {shape_.num_layers, shape_.num_query_heads, shape_.num_kv_heads, shape_.head_dim}) {
    HashInteger(hash, static_cast<uint32_t>(count));
  }
  for (const CodecProfile::Row& row : rows_) {
    hash.Update(std::as_bytes(std::span(digests[static_cast<size_t>(row.transform)])));
    HashFloats(hash, row.mean);
    HashInteger(hash, static_cast<uint32_t>(row.mean_kind));
    HashFloats(hash, row.metric);
    HashInteger(hash, std::bit_cast<uint32_t>(row.clip_ratio));
    HashInteger(hash, std::bit_cast<uint32_t>(row.range_factor));
    HashInteger(hash, static_cast<uint32_t>(row.encoder));
    if (!row.channel_order.empty()) hash.Update(std::as_bytes(std::span(row.channel_order)));
  }
  if (has_turning_mean()) {
    HashInteger(hash, rotary_.halves ? 1 : 0);
    HashFloats(hash, rotary_.angles);
  }
  if (!feedbacks_->empty()) HashInteger(hash, static_cast<uint32_t>(encode_effort_));
  digest_ = hash.Finish();
}

Result<CodecProfile> CodecProfile::Create(std::string method, const KvShape& shape, std::vector<KvTransform> transforms,
                                          std::vector<Row> rows, Provenance provenance, RotaryEmbedding rotary) {
  const auto invalid = [](std::string why) {
    return Status(StatusCode::kInvalidArgument, "codec profile: " + std::move(why));
  };
  if (method.empty()) return invalid("the method has no name");
  if (Status status = CheckProfileShape(shape); !status.ok()) return status.WithContext("codec profile");
  const size_t num_rows = static_cast<size_t>(shape.num_layers) * static_cast<size_t>(shape.num_kv_heads) * 2;
  if (rows.size() != num_rows) {
    return invalid(std::to_string(rows.size()) + " rows, where " + ShapeText(shape) + " need " +
                   std::to_string(num_rows));
  }
  for (size_t i = 0; i < transforms.size(); ++i) {
    if (transforms[i].head_dim() != shape.head_dim) {
      return invalid("transform " + std::to_string(i) + " is for head_dim " + std::to_string(transforms[i].head_dim()) +
                     ", not " + std::to_string(shape.head_dim));
    }
  }
  const bool turns = std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.mean_kind == MeanKind::kRotating; });
  if (turns == rotary.angles.empty()) {
    return invalid(turns ? "a mean that turns needs rotary angles" : "rotary angles without a mean that turns");
  }
  if (const std::string fault = RotaryFault(rotary, shape.head_dim); !fault.empty()) return invalid(fault);
  for (size_t i = 0; i < rows.size(); ++i) {
    const KvSide side = i % 2 == 0 ? KvSide::kKey : KvSide::kValue;
    if (const std::string fault = RowFault(rows[i], side, shape.head_dim, transforms); !fault.empty()) {
      return invalid(profile::RowName(shape, i) + ": " + fault);
    }
  }
  CodecProfile profile;
  profile.method_ = std::move(method);
  profile.shape_ = shape;
  profile.transforms_ = std::make_shared<const std::vector<KvTransform>>(std::move(transforms));
  profile.rows_ = std::move(rows);
  profile.rotary_ = std::move(rotary);
  profile.page_means_.resize(num_rows);
  std::vector<ErrorFeedback> feedbacks;
  for (size_t i = 0; i < num_rows; ++i) {
    const Row& row = profile.rows_[i];
    if (row.mean_kind == MeanKind::kRotating) {
      profile.page_means_[i] = transform::MeanOfPageZero(profile.rotary_, row.mean);
    }
    if (row.metric.empty()) continue;
    feedbacks.resize(num_rows);
    feedbacks[i] = profile::DeriveErrorFeedback(shape.head_dim, row.metric);
  }
  profile.feedbacks_ = std::make_shared<const std::vector<ErrorFeedback>>(std::move(feedbacks));
  profile.eigenvalues_.resize(static_cast<size_t>(shape.num_layers) * 2);
  profile.provenance_ = std::move(provenance);
  profile.UpdateDigest();
  return profile;
}

RowProfile CodecProfile::row(int layer, int kv_head, KvSide side) const {
  OSCAR_CHECK(layer >= 0 && layer < shape_.num_layers && kv_head >= 0 && kv_head < shape_.num_kv_heads);
  const size_t index =
      (static_cast<size_t>(layer) * static_cast<size_t>(shape_.num_kv_heads) + static_cast<size_t>(kv_head)) * 2 +
      (side == KvSide::kValue ? 1 : 0);
  const Row& stored = rows_[index];
  RowProfile row;
  row.transform = &(*transforms_)[static_cast<size_t>(stored.transform)];
  row.mean = stored.mean;
  row.mean_kind = stored.mean_kind;
  row.metric = stored.metric;
  row.clip_ratio = stored.clip_ratio;
  row.range_factor = stored.range_factor;
  row.encoder = stored.encoder;
  row.encode_effort = encode_effort_;
  row.page_mean = page_means_[index];
  row.channel_order = stored.channel_order;
  if (!stored.metric.empty()) row.feedback = &(*feedbacks_)[index];
  return row;
}

bool CodecProfile::has_turning_mean() const { return !rotary_.angles.empty(); }

Status CodecProfile::SetEncodeEffort(int effort) {
  if (effort < 0 || effort > kMaxEncodeEffort) {
    return {StatusCode::kInvalidArgument, "encode effort " + std::to_string(effort) + " is not from 0 to " + std::to_string(kMaxEncodeEffort)};
  }
  if (feedbacks_->empty()) return {StatusCode::kUnsupported, method_ + " has no error feedback, so it takes no encode effort"};
  encode_effort_ = effort;
  UpdateDigest();
  return {};
}

std::span<const float> CodecProfile::eigenvalues(int layer, KvSide side) const {
  OSCAR_CHECK(layer >= 0 && layer < shape_.num_layers);
  return eigenvalues_[static_cast<size_t>(layer) * 2 + (side == KvSide::kValue ? 1 : 0)];
}

void CodecProfile::set_eigenvalues(int layer, KvSide side, std::vector<float> values) {
  const size_t d = static_cast<size_t>(shape_.head_dim);
  OSCAR_CHECK(layer >= 0 && layer < shape_.num_layers);
  OSCAR_CHECK(values.empty() || values.size() == d || values.size() == d * static_cast<size_t>(shape_.num_kv_heads));
  OSCAR_CHECK(AreEigenvalues(values, shape_.head_dim));
  eigenvalues_[static_cast<size_t>(layer) * 2 + (side == KvSide::kValue ? 1 : 0)] = std::move(values);
}

Status CheckProfileFits(const CodecProfile& profile, const ProfiledModel& model, std::string* warning) {
  if (warning != nullptr) warning->clear();
  const Provenance& origin = profile.provenance();
  const std::string made_for = origin.model_name.empty() ? "another model" : "\"" + origin.model_name + "\"";
  if (profile.shape() != model.shape) {
    return {StatusCode::kFailedPrecondition, "the " + profile.method() + " profile was made for " + made_for +
                                                 " with " + ShapeText(profile.shape()) + ", but this model has " +
                                                 ShapeText(model.shape)};
  }
  if (profile.has_turning_mean() && !SameRotary(profile.rotary(), model.rotary)) {
    return {StatusCode::kFailedPrecondition, "the " + profile.method() + " profile was made for " + made_for +
                                                 ", whose rotary angles, by which means turn, are not those of this model; calibrate this model"};
  }
  if (!origin.model_digest.empty() && origin.model_digest == model.digest) return {};
  if (!origin.model_identity.empty() && !model.identity.empty() && origin.model_identity != model.identity) {
    return {StatusCode::kFailedPrecondition,
            "the " + profile.method() + " profile was made for " + made_for + ", whose identity (" +
                origin.model_identity + ") is not that of this model (" + model.identity + "); calibrate this model"};
  }
  if (warning == nullptr || !IsCalibrated(profile)) return {};
  if (origin.model_identity.empty() || model.identity.empty()) {
    *warning = "the " + profile.method() +
               " profile cannot be matched to this model beyond its shape, since one of them has no identity";
  } else {
    *warning = "the " + profile.method() + " profile was made from another file of this model (SHA-256 " +
               origin.model_digest.substr(0, 16) + "..., this file " + model.digest.substr(0, 16) +
               "...), such as another quantisation; calibrating this file may give better answers";
  }
  return {};
}

}  // namespace oscar
