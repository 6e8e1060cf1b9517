// The text fields of a profile file (safetensors "__metadata__"): names, spelling and parsing. docs/profile-format.md,
// "Fields". The tensors are in profile_file.cc.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/codec_profile.h"
#include "oscar/result.h"
#include "oscar/types.h"
#include "src/io/safetensors.h"

namespace oscar::profile {

inline constexpr std::string_view kContentDigestKey = "content_sha256";
inline constexpr std::string_view kTransformKindsKey = "transform_kinds";
// Present with the tensor kRotaryAngles, exactly when some mean turns: "halves" or "adjacent".
inline constexpr std::string_view kRotaryPairsKey = "rotary_pairs";
inline constexpr std::string_view kRotaryAngles = "rotary_angles";
// rotatekv: KV heads whose channels one order permutes.
inline constexpr int kHeadsOfOrder = 4;

using TextFields = std::map<std::string, std::string, std::less<>>;

// What is said of the rows of one side: one value for all of them, or one per row in the order layer, KV head.
struct SideFields {
  std::vector<float> clip_ratio, range_factor;
  std::vector<EncoderKind> encoder;
  std::vector<MeanKind> mean_kind;
};

struct Fields {
  std::string method;
  KvShape shape;
  Provenance provenance;
  std::vector<TransformKind> transform_kinds;
  bool has_rotary = false, rotary_halves = false;
  std::array<SideFields, 2> sides;  // keys, values
};

Status Corrupt(std::string why);

// kCorruptData when the fields are not those of a profile, kUnsupported for another version of the format.
Status CheckFormat(const TextFields& text);
// Parses every field. kCorruptData naming the field that is missing, unknown or out of range.
Result<Fields> ParseFields(const TextFields& text);
// All fields of a profile but kTransformKindsKey and kContentDigestKey.
TextFields FieldsOf(const CodecProfile& profile);

// Rows in profile order with their text fields; transform, mean and metric are not yet set.
std::vector<CodecProfile::Row> MakeRows(const Fields& fields);
// kCorruptData when the rows are not such as the method makes: int2:oscar has orthogonal or Hadamard transforms and
// min-max or Lloyd-affine codes without a mean; a balanced method has invertible transforms, error feedback, a mean and the
// mixing matrix of its head_dim; rotatekv has an order for the keys of every fourth head, and no other method has one.
Status CheckMethodRows(const Fields& fields, const std::vector<CodecProfile::Row>& rows);

std::string_view TransformKindName(TransformKind kind);
inline bool CarriesMatrix(TransformKind kind) {
  return kind == TransformKind::kOrthogonal || kind == TransformKind::kInvertible;
}
std::string JoinList(const std::vector<std::string>& items);                          // "a,b,c"
std::string RowName(const KvShape& shape, size_t row);                                // "layer 3, KV head 0, keys"
std::string TypeText(io::SafetensorsDtype dtype, const std::vector<int64_t>& shape);  // "F32 [2, 64]"

// Shape of a tensor with one element per row.
inline std::vector<int64_t> RowTensorShape(const KvShape& shape) { return {shape.num_layers, shape.num_kv_heads, 2}; }

// Calls visit(layer, kv_head, side) in the order in which rows are stored.
template <class Visit>
void ForEachRow(const KvShape& shape, Visit visit) {
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      visit(layer, head, KvSide::kKey);
      visit(layer, head, KvSide::kValue);
    }
  }
}

}  // namespace oscar::profile
