#include "src/kv/profile/profile_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "src/base/status_macros.h"
#include "src/kv/profile/profile_file.h"
#include "src/kv/profile/profile_limits.h"
#include "src/kv/transform/hadamard.h"

namespace oscar::profile {
namespace {

constexpr std::string_view kFormatName = "oscar-codec-profile";
constexpr std::array<std::string_view, 4> kTransformKinds = {"identity", "hadamard", "orthogonal", "invertible"};
constexpr std::array<std::string_view, 4> kEncoders = {"min_max", "integer_zero_point", "lloyd_affine",
                                                       "error_feedback"};
constexpr std::array<std::string_view, 2> kMeanKinds = {"constant", "rotating"};
constexpr std::array<std::string_view, 2> kSideNames = {"key", "value"};

template <class Enum, size_t N>
std::optional<Enum> EnumFromName(const std::array<std::string_view, N>& names, std::string_view text) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

std::optional<float> FloatFromText(std::string_view text) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// The shortest text that reads back as the same float.
std::string TextFromFloat(float value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::vector<std::string_view> SplitList(std::string_view text) {
  std::vector<std::string_view> items;
  for (size_t comma; (comma = text.find(',')) != std::string_view::npos; text.remove_prefix(comma + 1)) {
    items.push_back(text.substr(0, comma));
  }
  items.push_back(text);
  return items;
}

// One text when all items are equal, the list otherwise.
std::string CollapsedList(const std::vector<std::string>& items) {
  const bool equal =
      std::all_of(items.begin(), items.end(), [&](const std::string& item) { return item == items.front(); });
  return equal ? items.front() : JoinList(items);
}

// Takes fields out of the metadata and keeps count, so that a field that nobody took is seen.
class FieldReader {
 public:
  explicit FieldReader(const TextFields& text) : text_(text) {}

  Result<std::string> Text(const std::string& key) {
    const auto found = text_.find(key);
    if (found == text_.end()) return Corrupt("the field " + key + " is missing");
    taken_.emplace(key, "");
    return found->second;
  }

  bool Has(std::string_view key) const { return text_.contains(key); }

  Result<int64_t> Integer(const std::string& key, int64_t low, int64_t high) {
    OSCAR_ASSIGN_OR_RETURN(const std::string text, Text(key));
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
      return Corrupt("the field " + key + " (\"" + text.substr(0, 40) + "\") is not an integer from " +
                     std::to_string(low) + " to " + std::to_string(high));
    }
    return value;
  }

  // A list of `count` items or of one that stands for all of them; of any length when `count` is 0. `parse` maps the
  // text of an item to an optional value.
  template <class Parse>
  auto List(const std::string& key, size_t count, Parse parse)
      -> Result<std::vector<typename std::invoke_result_t<Parse, std::string_view>::value_type>> {
    std::vector<typename std::invoke_result_t<Parse, std::string_view>::value_type> values;
    OSCAR_ASSIGN_OR_RETURN(const std::string text, Text(key));
    for (const std::string_view item : SplitList(text)) {
      const auto value = parse(item);
      if (!value.has_value()) {
        return Corrupt("the field " + key + " holds \"" + std::string(item.substr(0, 40)) +
                       "\", which is none of its values");
      }
      values.push_back(*value);
    }
    if (values.size() != 1 && count != 0 && values.size() != count) {
      return Corrupt("the field " + key + " has " + std::to_string(values.size()) + " items, not 1 or " +
                     std::to_string(count));
    }
    return values;
  }

  Status CheckAllTaken() const {
    for (const auto& [key, value] : text_) {
      if (!taken_.contains(key)) return Corrupt("the field \"" + key.substr(0, 80) + "\" does not belong to a profile");
    }
    return {};
  }

 private:
  const TextFields& text_;
  TextFields taken_;
};

struct ProvenanceText {
  const char* key;
  std::string Provenance::*member;
};
constexpr ProvenanceText kProvenanceTexts[] = {{"model_name", &Provenance::model_name},
                                               {"model_digest", &Provenance::model_digest},
                                               {"model_identity", &Provenance::model_identity},
                                               {"oscar_version", &Provenance::oscar_version},
                                               {"text_name", &Provenance::text_name},
                                               {"scope", &Provenance::scope},
                                               {"k_metric", &Provenance::k_metric},
                                               {"v_metric", &Provenance::v_metric},
                                               {"composition", &Provenance::composition},
                                               {"created_utc", &Provenance::created_utc}};

struct ShapeCount {
  const char* key;
  int KvShape::*member;
  int limit;
};
constexpr ShapeCount kShapeCounts[] = {{"num_layers", &KvShape::num_layers, kMaxProfileLayers},
                                       {"num_query_heads", &KvShape::num_query_heads, kMaxProfileHeads},
                                       {"num_kv_heads", &KvShape::num_kv_heads, kMaxProfileHeads},
                                       {"head_dim", &KvShape::head_dim, kMaxProfileHeadDim}};

// "codec" or "codec:method", each of lower-case letters, digits and underscores. Which methods exist is the registry's
// business.
bool IsMethodName(std::string_view text) {
  const auto is_word = [](std::string_view word) {
    return !word.empty() && word.size() <= 64 && std::all_of(word.begin(), word.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    });
  };
  const size_t colon = text.find(':');
  return is_word(text.substr(0, colon)) && (colon == std::string_view::npos || is_word(text.substr(colon + 1)));
}

Result<SideFields> ParseSide(FieldReader& reader, std::string_view side, size_t rows) {
  const std::string prefix = std::string(side) + ".";
  SideFields fields;
  OSCAR_ASSIGN_OR_RETURN(fields.clip_ratio, reader.List(prefix + "clip_ratio", rows, FloatFromText));
  OSCAR_ASSIGN_OR_RETURN(fields.range_factor, reader.List(prefix + "range_factor", rows, FloatFromText));
  OSCAR_ASSIGN_OR_RETURN(fields.encoder, reader.List(prefix + "encoder", rows, [](std::string_view text) {
    return EnumFromName<EncoderKind>(kEncoders, text);
  }));
  OSCAR_ASSIGN_OR_RETURN(fields.mean_kind, reader.List(prefix + "mean_kind", rows, [](std::string_view text) {
    return EnumFromName<MeanKind>(kMeanKinds, text);
  }));
  return fields;
}

// Matrices that are computed, not stored, may occur once each: otherwise a small file could ask for any amount of
// memory.
Status CheckTransformKinds(std::span<const TransformKind> kinds) {
  for (const TransformKind kind : {TransformKind::kIdentity, TransformKind::kHadamard}) {
    if (std::count(kinds.begin(), kinds.end(), kind) > 1) {
      return Corrupt("transform_kinds lists " + std::string(TransformKindName(kind)) + " more than once");
    }
  }
  return {};
}

}  // namespace

Status Corrupt(std::string why) { return {StatusCode::kCorruptData, "codec profile: " + std::move(why)}; }

Status CheckFormat(const TextFields& text) {
  const auto format = text.find("format");
  if (format == text.end() || format->second != kFormatName) {
    return Corrupt("the field format is not \"" + std::string(kFormatName) +
                   "\": this is another kind of safetensors file");
  }
  const auto version = text.find("format_version");
  if (version == text.end()) return Corrupt("the field format_version is missing");
  if (version->second != std::to_string(kProfileFormatVersion)) {
    return {StatusCode::kUnsupported, "codec profile: format version \"" + version->second.substr(0, 20) +
                                          "\" is not known; this program reads version " +
                                          std::to_string(kProfileFormatVersion)};
  }
  return {};
}

Result<Fields> ParseFields(const TextFields& text) {
  FieldReader reader(text);
  Fields fields;
  for (const char* checked : {"format", "format_version", "content_sha256"}) OSCAR_TRY(reader.Text(checked).status());
  OSCAR_ASSIGN_OR_RETURN(fields.method, reader.Text("method"));
  if (!IsMethodName(fields.method))
    return Corrupt("the field method (\"" + fields.method.substr(0, 80) + "\") is not a method name");
  for (const ShapeCount& count : kShapeCounts) {
    OSCAR_ASSIGN_OR_RETURN(const int64_t value, reader.Integer(count.key, 1, count.limit));
    fields.shape.*count.member = static_cast<int>(value);
  }
  if (Status status = CheckProfileShape(fields.shape); !status.ok()) return Corrupt(status.message());
  for (const ProvenanceText& entry : kProvenanceTexts) {
    OSCAR_ASSIGN_OR_RETURN(fields.provenance.*entry.member, reader.Text(entry.key));
  }
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  OSCAR_ASSIGN_OR_RETURN(fields.provenance.num_tokens, reader.Integer("num_tokens", 0, kMost));
  OSCAR_ASSIGN_OR_RETURN(const int64_t window, reader.Integer("window_tokens", 0, std::numeric_limits<int>::max()));
  fields.provenance.window_tokens = static_cast<int>(window);
  OSCAR_ASSIGN_OR_RETURN(fields.transform_kinds,
                         reader.List(std::string(kTransformKindsKey), 0, [](std::string_view item) {
                           return EnumFromName<TransformKind>(kTransformKinds, item);
                         }));
  fields.has_rotary = reader.Has(kRotaryPairsKey);
  if (fields.has_rotary) {
    OSCAR_ASSIGN_OR_RETURN(const std::string pairs, reader.Text(std::string(kRotaryPairsKey)));
    if (pairs != "halves" && pairs != "adjacent") return Corrupt("the field rotary_pairs is neither halves nor adjacent");
    fields.rotary_halves = pairs == "halves";
  }
  OSCAR_TRY(CheckTransformKinds(fields.transform_kinds));
  const size_t rows = static_cast<size_t>(fields.shape.num_layers) * static_cast<size_t>(fields.shape.num_kv_heads);
  for (size_t side = 0; side < kSideNames.size(); ++side) {
    OSCAR_ASSIGN_OR_RETURN(fields.sides[side], ParseSide(reader, kSideNames[side], rows));
  }
  OSCAR_TRY(reader.CheckAllTaken());
  return fields;
}

TextFields FieldsOf(const CodecProfile& profile) {
  TextFields text;
  text["format"] = kFormatName;
  text["format_version"] = std::to_string(kProfileFormatVersion);
  text["method"] = profile.method();
  for (const ShapeCount& count : kShapeCounts) text[count.key] = std::to_string(profile.shape().*count.member);
  for (const ProvenanceText& entry : kProvenanceTexts) text[entry.key] = profile.provenance().*entry.member;
  text["num_tokens"] = std::to_string(profile.provenance().num_tokens);
  text["window_tokens"] = std::to_string(profile.provenance().window_tokens);
  if (profile.has_turning_mean()) text[std::string(kRotaryPairsKey)] = profile.rotary().halves ? "halves" : "adjacent";
  std::map<std::string, std::vector<std::string>> lists;
  ForEachRow(profile.shape(), [&](int layer, int head, KvSide side) {
    const RowProfile row = profile.row(layer, head, side);
    const std::string prefix = std::string(kSideNames[static_cast<size_t>(side)]) + ".";
    lists[prefix + "clip_ratio"].push_back(TextFromFloat(row.clip_ratio));
    lists[prefix + "range_factor"].push_back(TextFromFloat(row.range_factor));
    lists[prefix + "encoder"].emplace_back(kEncoders[static_cast<size_t>(row.encoder)]);
    lists[prefix + "mean_kind"].emplace_back(kMeanKinds[static_cast<size_t>(row.mean_kind)]);
  });
  for (const auto& [key, items] : lists) text[key] = CollapsedList(items);
  return text;
}

std::vector<CodecProfile::Row> MakeRows(const Fields& fields) {
  std::vector<CodecProfile::Row> rows;
  const auto item = [](const auto& list, size_t index) { return list[list.size() == 1 ? 0 : index]; };
  ForEachRow(fields.shape, [&](int, int, KvSide side) {
    const size_t index = rows.size() / 2;
    const SideFields& from = fields.sides[static_cast<size_t>(side)];
    CodecProfile::Row row;
    row.clip_ratio = item(from.clip_ratio, index);
    row.range_factor = item(from.range_factor, index);
    row.encoder = item(from.encoder, index);
    row.mean_kind = item(from.mean_kind, index);
    rows.push_back(std::move(row));
  });
  return rows;
}

Status CheckMethodRows(const Fields& fields, const std::vector<CodecProfile::Row>& rows) {
  const bool oscar = fields.method == "int2:oscar", balanced = fields.method.ends_with(":balanced");
  if (balanced && fields.provenance.composition != transform::MixingName(fields.shape.head_dim)) {
    return Corrupt("the composition \"" + fields.provenance.composition.substr(0, 40) + "\" is not the mixing matrix of head_dim " +
                   std::to_string(fields.shape.head_dim) + ", " + transform::MixingName(fields.shape.head_dim));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const TransformKind kind = fields.transform_kinds[static_cast<size_t>(rows[i].transform)];
    const EncoderKind encoder = rows[i].encoder;
    const bool fits_oscar = (kind == TransformKind::kOrthogonal || kind == TransformKind::kHadamard) &&
                            (encoder == EncoderKind::kMinMax || encoder == EncoderKind::kLloydAffine) && rows[i].mean.empty();
    const bool fits_balanced = kind == TransformKind::kInvertible && encoder == EncoderKind::kErrorFeedback &&
                               !rows[i].mean.empty() && rows[i].clip_ratio <= 0;
    if ((oscar && !fits_oscar) || (balanced && !fits_balanced)) {
      return Corrupt(RowName(fields.shape, i) + ": " + std::string(TransformKindName(kind)) + " with " +
                     std::string(kEncoders[static_cast<size_t>(encoder)]) + (rows[i].mean.empty() ? "" : " and a mean") +
                     " is not a row of " + fields.method);
    }
    const bool first_of_four = i % 2 == 0 && i / 2 % static_cast<size_t>(fields.shape.num_kv_heads) % kHeadsOfOrder == 0;
    const bool needs_order = fields.method == "rotatekv" && first_of_four;
    if (rows[i].channel_order.empty() == needs_order) {
      return Corrupt(RowName(fields.shape, i) + (needs_order ? " of rotatekv has no channel order" : ": a channel order is for the first of four heads of rotatekv"));
    }
  }
  return {};
}

std::string_view TransformKindName(TransformKind kind) { return kTransformKinds[static_cast<size_t>(kind)]; }

std::string JoinList(const std::vector<std::string>& items) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) text.append(i == 0 ? "" : ",").append(items[i]);
  return text;
}

std::string RowName(const KvShape& shape, size_t row) {
  const size_t heads = static_cast<size_t>(shape.num_kv_heads);
  return "layer " + std::to_string(row / 2 / heads) + ", KV head " + std::to_string(row / 2 % heads) +
         (row % 2 == 0 ? ", keys" : ", values");
}

std::string TypeText(io::SafetensorsDtype dtype, const std::vector<int64_t>& shape) {
  std::string text(io::SafetensorsDtypeName(dtype));
  text += " [";
  for (size_t i = 0; i < shape.size(); ++i) text.append(i == 0 ? "" : ", ").append(std::to_string(shape[i]));
  return text + "]";
}

}  // namespace oscar::profile
