// CodecProfile: everything a KV method needs beyond its layout, per layer, KV head and side: transform, mean, clip, encoder.
// Data-free methods (naive, clip, hadamard, quarot, bf16) have a profile made from the shape alone; int2:oscar and
// int2:balanced are calibrated and come from a file (docs/profile-format.md). Sources: method.md 2 and 8, quality.md 2 to 5.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/kv_transform.h"
#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar {

enum class EncoderKind : uint8_t { kMinMax, kIntegerZeroPoint, kLloydAffine, kErrorFeedback };
enum class MeanKind : uint8_t { kConstant, kRotating };

// How the keys of a model turn with their position: pair j turns by position * angles[j] radians. Channels beyond the pairs
// do not turn.
struct RotaryEmbedding {
  std::vector<float> angles;  // radians per position, after any scaling (linear, NTK, llama3 factors, YaRN); empty: no RoPE
  bool halves = false;        // pair j is channels (j, j + angles.size()); otherwise (2j, 2j + 1)
};

// What error feedback needs of the metric G = Q^T diag(metric) Q, made once per profile (quality.md 5). Q is the mixing matrix
// of docs/profile-format.md: the Hadamard matrix where head_dim is a power of two. G = C C^T, N = C diag(C)^-1.
struct ErrorFeedback {
  std::vector<float> metric;            // G [d, d], its mean diagonal 1
  std::vector<float> feedback;          // [d, d]: row i holds N[j][i] for j > i, and 0 for the others
  std::vector<float> inverse_diagonal;  // 1 / G_ii [d]
};

// Work of the error-feedback encoder: 0 rounds plainly, 1 feeds errors back, 2 adds two sweeps of coordinate descent.
inline constexpr int kMaxEncodeEffort = 2;

// How the rows of one (layer, KV head, side) are encoded.
struct RowProfile {
  const KvTransform* transform = nullptr;  // owned by the profile; heads may share one
  std::span<const float> mean;             // mu [d] f32, subtracted before the transform; empty = 0
  MeanKind mean_kind = MeanKind::kConstant;
  std::span<const float> metric;   // [d] f32: G = Q^T diag(metric) Q for error feedback; empty otherwise
  float clip_ratio = 0.0f;         // rank: order statistic of |y| (method.md 3.2); <= 0: no clip
  float range_factor = 1.0f;       // factor on min and max of the row (QuaRot), on the Lloyd-Max levels (Lloyd-affine)
  EncoderKind encoder = EncoderKind::kMinMax;
  int encode_effort = kMaxEncodeEffort;      // error feedback only
  std::span<const float> page_mean;          // mu of page 0 [d] where the mean turns (quality.md 3), m_j s_j by pair; else empty
  // rotatekv, keys of the first of four heads encoded together: the transformed channels [4 d] in the order in which they are stored;
  // else empty.
  std::span<const uint16_t> channel_order;
  const ErrorFeedback* feedback = nullptr;   // with `metric`; owned by the profile
};

// Where a profile comes from. Checked against the model when it is used, printed by `oscar inspect`.
struct Provenance {
  std::string model_name;
  std::string model_digest;      // fingerprint of the model file; empty for data-free profiles
  std::string model_identity;    // architecture, shape and a digest of the tokenizer: equal for requantisations of one model
  std::string oscar_version;
  std::string text_name;         // calibration text
  int64_t num_tokens = 0;        // calibration tokens per layer
  int window_tokens = 0;         // length of the calibration windows
  std::string scope = "layer";   // "layer": one pair for all heads; "head"
  std::string k_metric = "query";
  std::string v_metric = "score";
  std::string composition = "r_h_pbr";
  std::string created_utc;       // ISO 8601
};

using Digest = std::array<uint8_t, 32>;

// Immutable after construction; cheap to move; safe to read from many threads.
class CodecProfile {
 public:
  // One stored row description; `transform` indexes `transforms`. An empty mean means zero.
  struct Row {
    int transform = 0;
    std::vector<float> mean;
    MeanKind mean_kind = MeanKind::kConstant;
    std::vector<float> metric;
    float clip_ratio = 0.0f;
    float range_factor = 1.0f;
    EncoderKind encoder = EncoderKind::kMinMax;
    std::vector<uint16_t> channel_order;  // keys only: some permutation of 0 .. m d - 1
  };
  // rows: [num_layers * num_kv_heads * 2], key before value, head before layer. `rotary` is needed when a mean turns.
  // kInvalidArgument when a count, dimension or index does not fit the shape or a number is not finite.
  static Result<CodecProfile> Create(std::string method, const KvShape& shape, std::vector<KvTransform> transforms,
                                     std::vector<Row> rows, Provenance provenance, RotaryEmbedding rotary = {});
  // Reads a profile file. Errors name the file, the tensor or field, and the reason.
  static Result<CodecProfile> Load(const std::filesystem::path& path);
  // Writes to a temporary file beside `path` and renames it, so that an interrupted save leaves no broken file.
  Status Save(const std::filesystem::path& path) const;

  const std::string& method() const { return method_; }  // "int2:oscar", ...
  const KvShape& shape() const { return shape_; }
  RowProfile row(int layer, int kv_head, KvSide side) const;
  const Provenance& provenance() const { return provenance_; }
  const RotaryEmbedding& rotary() const { return rotary_; }  // no angles unless some mean turns
  bool has_turning_mean() const;
  // Effort of all rows with error feedback: kMaxEncodeEffort unless set. A choice of the run, not stored in a file, but part
  // of the digest. kInvalidArgument outside 0 .. kMaxEncodeEffort, kUnsupported when no row has error feedback.
  Status SetEncodeEffort(int effort);
  // SHA-256 over all that changes encoded bytes (method, shape, matrices, rows): part of every prefix key and KV file.
  const Digest& digest() const { return digest_; }
  // Eigenvalues of the fit per (layer, side), when the file carries them. Scope layer: [d], ascending; scope head:
  // [num_kv_heads * d], ascending within each head; else empty. For `oscar inspect`; not part of the digest.
  // Precondition of the setter: such a size, finite, not negative, ascending.
  std::span<const float> eigenvalues(int layer, KvSide side) const;
  void set_eigenvalues(int layer, KvSide side, std::vector<float> values);

 private:
  CodecProfile() = default;
  void UpdateDigest();
  std::string method_;
  KvShape shape_;
  std::shared_ptr<const std::vector<KvTransform>> transforms_;
  std::vector<Row> rows_;
  std::vector<std::vector<float>> page_means_;                       // by row
  std::shared_ptr<const std::vector<ErrorFeedback>> feedbacks_;      // by row; empty when no row has error feedback
  RotaryEmbedding rotary_;
  int encode_effort_ = kMaxEncodeEffort;
  std::vector<std::vector<float>> eigenvalues_;
  Provenance provenance_;
  Digest digest_{};
};

// What a profile is compared with. Hashes are lower-case hexadecimal.
struct ProfiledModel {
  KvShape shape;
  std::string digest;    // of the file
  std::string identity;  // of the model, whatever its quantisation
  RotaryEmbedding rotary;
};

// Whether a profile may be used with a model. kFailedPrecondition with both sides named when the shape, the identity or the angles
// by which means turn differ. `warning` (may be null) gets one sentence when the profile fits but was made from another file of the same model
// (another quantisation), or when identities are missing; it is empty otherwise.
Status CheckProfileFits(const CodecProfile& profile, const ProfiledModel& model, std::string* warning);

// The profile of a method that needs no calibration ("bf16", "int2:naive", "int2:clip", "int2:hadamard", "int2:quarot").
// kFailedPrecondition for a calibrated method (it needs a file), kInvalidArgument for an unknown name, kUnsupported when the
// head dimension does not suit the method (Hadamard needs a power of two).
// Only rotatekv_unordered looks at `rotary`, that of the model; it is kUnsupported without.
Result<CodecProfile> DataFreeProfile(std::string_view method, const KvShape& shape, const RotaryEmbedding& rotary = {});

}  // namespace oscar
