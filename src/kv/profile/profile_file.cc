#include "src/kv/profile/profile_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/digest.h"
#include "src/base/status_macros.h"
#include "src/io/atomic_file.h"
#include "src/io/mapped_file.h"
#include "src/io/safetensors.h"
#include "src/kv/profile/profile_fields.h"
#include "src/kv/profile/profile_limits.h"

namespace oscar {
namespace {

using io::SafetensorsDtype;
using io::SafetensorsFile;
using io::SafetensorsTensor;
using io::SafetensorsWriter;
using profile::Corrupt;

constexpr KvSide kSides[] = {KvSide::kKey, KvSide::kValue};

std::string MatrixName(size_t transform) { return "transform." + std::to_string(transform) + ".matrix"; }
std::string InverseName(size_t transform) { return "transform." + std::to_string(transform) + ".inverse"; }
std::string EigenvaluesName(int layer, KvSide side) {
  return "eigenvalues." + std::to_string(layer) + (side == KvSide::kKey ? ".key" : ".value");
}

// ---- writing ----

// Transforms of a profile without repetition, in the order of their first row, and the index of each row's.
struct DistinctTransforms {
  std::vector<const KvTransform*> transforms;
  std::vector<int32_t> row_index;
};

DistinctTransforms FindDistinctTransforms(const CodecProfile& profile) {
  DistinctTransforms distinct;
  std::map<const KvTransform*, int32_t> by_address;
  std::map<Digest, int32_t> by_content;
  profile::ForEachRow(profile.shape(), [&](int layer, int head, KvSide side) {
    const KvTransform* transform = profile.row(layer, head, side).transform;
    auto [entry, is_new] = by_address.try_emplace(transform, 0);
    if (is_new) {
      base::Sha256 hash;
      hash.Update(std::string_view(profile::TransformKindName(transform->kind())));
      hash.Update(std::as_bytes(transform->matrix()));
      hash.Update(std::as_bytes(transform->inverse()));
      const auto next = static_cast<int32_t>(distinct.transforms.size());
      const auto [content, is_new_content] = by_content.try_emplace(hash.Finish(), next);
      if (is_new_content) distinct.transforms.push_back(transform);
      entry->second = content->second;
    }
    distinct.row_index.push_back(entry->second);
  });
  return distinct;
}

// Row vectors (means, metrics, channel orders) of the rows that have one, all of one length, with a flag per row.
template <class T>
struct RowVectors {
  std::vector<uint8_t> flags;
  std::vector<T> values;
};

class ProfileWriter {
 public:
  explicit ProfileWriter(const CodecProfile& profile) : profile_(profile), distinct_(FindDistinctTransforms(profile)) {}

  std::vector<std::byte> Write() {
    for (const auto& [key, value] : profile::FieldsOf(profile_)) writer_.SetMetadata(key, value);
    std::vector<std::string> kinds;
    for (const KvTransform* transform : distinct_.transforms) {
      kinds.emplace_back(profile::TransformKindName(transform->kind()));
    }
    writer_.SetMetadata(profile::kTransformKindsKey, profile::JoinList(kinds));
    AddRows();
    AddTransforms();
    AddEigenvalues();
    const std::vector<std::byte> undigested = writer_.Finish();
    const Result<SafetensorsFile> file = SafetensorsFile::Parse(undigested);
    OSCAR_CHECK_MSG(file.ok(), file.status().message());
    writer_.SetMetadata(profile::kContentDigestKey, ContentDigest(*file));
    return writer_.Finish();
  }

 private:
  template <class T>
  void Add(std::string name, SafetensorsDtype dtype, std::vector<int64_t> shape, std::span<const T> values) {
    const Status status = writer_.Add(std::move(name), dtype, std::move(shape), std::as_bytes(values));
    OSCAR_CHECK_MSG(status.ok(), status.message());
  }

  template <class T>
  void AddRowVectors(const std::string& name, SafetensorsDtype dtype, const RowVectors<T>& vectors) {
    const int64_t rows = std::count(vectors.flags.begin(), vectors.flags.end(), 1);
    if (rows == 0) return;
    Add<uint8_t>("row_has_" + name, SafetensorsDtype::kU8, profile::RowTensorShape(profile_.shape()), vectors.flags);
    Add<T>("row_" + name, dtype, {rows, static_cast<int64_t>(vectors.values.size()) / rows}, vectors.values);
  }

  void AddRows() {
    Add<int32_t>("row_transform", SafetensorsDtype::kI32, profile::RowTensorShape(profile_.shape()),
                 distinct_.row_index);
    profile::ForEachRow(profile_.shape(), [&](int layer, int head, KvSide side) {
      const RowProfile row = profile_.row(layer, head, side);
      means_.flags.push_back(row.mean.empty() ? 0 : 1);
      means_.values.insert(means_.values.end(), row.mean.begin(), row.mean.end());
      metrics_.flags.push_back(row.metric.empty() ? 0 : 1);
      metrics_.values.insert(metrics_.values.end(), row.metric.begin(), row.metric.end());
      orders_.flags.push_back(row.channel_order.empty() ? 0 : 1);
      orders_.values.insert(orders_.values.end(), row.channel_order.begin(), row.channel_order.end());
    });
    AddRowVectors("mean", SafetensorsDtype::kF32, means_);
    AddRowVectors("metric", SafetensorsDtype::kF32, metrics_);
    AddRowVectors("order", SafetensorsDtype::kI32, orders_);
    const std::vector<float>& angles = profile_.rotary().angles;
    if (!angles.empty()) {
      Add<float>(std::string(profile::kRotaryAngles), SafetensorsDtype::kF32, {static_cast<int64_t>(angles.size())}, angles);
    }
  }

  void AddTransforms() {
    const int64_t d = profile_.shape().head_dim;
    for (size_t i = 0; i < distinct_.transforms.size(); ++i) {
      const KvTransform& transform = *distinct_.transforms[i];
      if (!profile::CarriesMatrix(transform.kind())) continue;
      Add<float>(MatrixName(i), SafetensorsDtype::kF32, {d, d}, transform.matrix());
      if (transform.kind() != TransformKind::kInvertible) continue;
      Add<float>(InverseName(i), SafetensorsDtype::kF32, {d, d}, transform.inverse());
    }
  }

  void AddEigenvalues() {
    const KvShape& shape = profile_.shape();
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      for (const KvSide side : kSides) {
        const std::span<const float> values = profile_.eigenvalues(layer, side);
        if (values.empty()) continue;
        std::vector<int64_t> dimensions = {shape.head_dim};
        if (values.size() != static_cast<size_t>(shape.head_dim))
          dimensions.insert(dimensions.begin(), shape.num_kv_heads);
        Add<float>(EigenvaluesName(layer, side), SafetensorsDtype::kF32, std::move(dimensions), values);
      }
    }
  }

  const CodecProfile& profile_;
  const DistinctTransforms distinct_;
  RowVectors<float> means_, metrics_;
  RowVectors<int32_t> orders_;
  SafetensorsWriter writer_;
};

// ---- reading ----

class ProfileReader {
 public:
  explicit ProfileReader(const SafetensorsFile& file) : file_(file) {}

  Result<CodecProfile> Read() {
    OSCAR_TRY(profile::CheckFormat(file_.metadata()));
    const auto digest = file_.metadata().find(profile::kContentDigestKey);
    if (digest == file_.metadata().end()) return Corrupt("the field content_sha256 is missing");
    if (digest->second != ContentDigest(file_)) {
      return Corrupt("content_sha256 does not match the content: the file is damaged or was edited");
    }
    OSCAR_ASSIGN_OR_RETURN(fields_, profile::ParseFields(file_.metadata()));
    OSCAR_TRY(ReadRows());
    OSCAR_TRY(ReadTransforms());
    OSCAR_ASSIGN_OR_RETURN(RotaryEmbedding rotary, ReadRotary());
    OSCAR_TRY(profile::CheckMethodRows(fields_, rows_));
    std::vector<std::pair<std::pair<int, KvSide>, std::vector<float>>> eigenvalues;
    for (int layer = 0; layer < fields_.shape.num_layers; ++layer) {
      for (const KvSide side : kSides) {
        OSCAR_ASSIGN_OR_RETURN(std::vector<float> values, ReadEigenvalues(layer, side));
        if (!values.empty()) eigenvalues.push_back({{layer, side}, std::move(values)});
      }
    }
    for (const SafetensorsTensor& tensor : file_.tensors()) {
      if (!read_.contains(tensor.name))
        return Corrupt("the tensor \"" + tensor.name + "\" does not belong to a profile");
    }
    Result<CodecProfile> profile =
        CodecProfile::Create(std::move(fields_.method), fields_.shape, std::move(transforms_), std::move(rows_),
                             std::move(fields_.provenance), std::move(rotary));
    if (!profile.ok()) return Corrupt(profile.status().message());
    for (auto& [place, values] : eigenvalues) profile->set_eigenvalues(place.first, place.second, std::move(values));
    return profile;
  }

 private:
  // The values of a tensor, which must have this dtype and shape.
  template <class T>
  Result<std::vector<T>> Values(const std::string& name, SafetensorsDtype dtype, const std::vector<int64_t>& shape) {
    const SafetensorsTensor* tensor = file_.Find(name);
    if (tensor == nullptr) return Corrupt("the tensor \"" + name + "\" is missing");
    if (tensor->dtype != dtype || tensor->shape != shape) {
      return Corrupt("the tensor \"" + name + "\" is " + profile::TypeText(tensor->dtype, tensor->shape) + ", not " +
                     profile::TypeText(dtype, shape));
    }
    read_.insert(name);
    std::vector<T> values(tensor->bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
    return values;
  }

  Status ReadRows() {
    const std::vector<int64_t> row_shape = profile::RowTensorShape(fields_.shape);
    OSCAR_ASSIGN_OR_RETURN(const std::vector<int32_t> index,
                           Values<int32_t>("row_transform", SafetensorsDtype::kI32, row_shape));
    rows_ = profile::MakeRows(fields_);
    first_user_.assign(fields_.transform_kinds.size(), -1);
    for (size_t i = 0; i < index.size(); ++i) {
      if (index[i] < 0 || static_cast<size_t>(index[i]) >= first_user_.size()) {
        return Corrupt("row_transform: " + profile::RowName(fields_.shape, i) + " uses transform " +
                       std::to_string(index[i]) + " of " + std::to_string(first_user_.size()));
      }
      rows_[i].transform = index[i];
      if (first_user_[static_cast<size_t>(index[i])] < 0)
        first_user_[static_cast<size_t>(index[i])] = static_cast<int64_t>(i);
    }
    const int64_t d = fields_.shape.head_dim;
    const auto set = [](auto member) { return [member](CodecProfile::Row& row, std::span<const float> values) { (row.*member).assign(values.begin(), values.end()); return Status(); }; };
    OSCAR_TRY(ReadRowVectors<float>("mean", SafetensorsDtype::kF32, d, set(&CodecProfile::Row::mean)));
    OSCAR_TRY(ReadRowVectors<float>("metric", SafetensorsDtype::kF32, d, set(&CodecProfile::Row::metric)));
    return ReadRowVectors<int32_t>("order", SafetensorsDtype::kI32, profile::kHeadsOfOrder * d, [](CodecProfile::Row& row, std::span<const int32_t> values) {
      for (const int32_t value : values) {
        if (value < 0 || static_cast<size_t>(value) >= values.size()) return Corrupt("row_order: channel " + std::to_string(value) + " of " + std::to_string(values.size()));
        row.channel_order.push_back(static_cast<uint16_t>(value));
      }
      return Status();
    });
  }

  // set(row, values [length]) for each row that has some.
  template <class T, class Set>
  Status ReadRowVectors(const std::string& name, SafetensorsDtype dtype, int64_t length, Set set) {
    const std::string flag_name = "row_has_" + name, value_name = "row_" + name;
    if (file_.Find(flag_name) == nullptr) return {};  // no row has one; a lone row_<name> is an unknown tensor
    OSCAR_ASSIGN_OR_RETURN(const std::vector<uint8_t> flags,
                           Values<uint8_t>(flag_name, SafetensorsDtype::kU8, profile::RowTensorShape(fields_.shape)));
    int64_t count = 0;
    for (const uint8_t flag : flags) {
      if (flag > 1) return Corrupt(flag_name + " holds a value other than 0 and 1");
      count += flag;
    }
    OSCAR_ASSIGN_OR_RETURN(const std::vector<T> values, Values<T>(value_name, dtype, {count, length}));
    std::span<const T> rest(values);
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i] == 0) continue;
      OSCAR_TRY(set(rows_[i], rest.first(static_cast<size_t>(length))));
      rest = rest.subspan(static_cast<size_t>(length));
    }
    return {};
  }

  Status ReadTransforms() {
    for (size_t i = 0; i < fields_.transform_kinds.size(); ++i) {
      if (first_user_[i] < 0) return Corrupt("transform " + std::to_string(i) + " is used by no row");
      Result<KvTransform> transform = ReadTransform(i);
      if (!transform.ok()) {
        return Corrupt(profile::RowName(fields_.shape, static_cast<size_t>(first_user_[i])) + ": transform " +
                       std::to_string(i) + ": " + transform.status().message());
      }
      transforms_.push_back(std::move(*transform));
    }
    return {};
  }

  Result<KvTransform> ReadTransform(size_t i) {
    const int64_t d = fields_.shape.head_dim;
    const TransformKind kind = fields_.transform_kinds[i];
    if (kind == TransformKind::kIdentity) return KvTransform::Identity(fields_.shape.head_dim);
    if (kind == TransformKind::kHadamard) return KvTransform::Hadamard(fields_.shape.head_dim);
    OSCAR_ASSIGN_OR_RETURN(std::vector<float> matrix, Values<float>(MatrixName(i), SafetensorsDtype::kF32, {d, d}));
    if (kind == TransformKind::kOrthogonal) return KvTransform::Orthogonal(fields_.shape.head_dim, std::move(matrix));
    OSCAR_ASSIGN_OR_RETURN(std::vector<float> inverse, Values<float>(InverseName(i), SafetensorsDtype::kF32, {d, d}));
    return KvTransform::Invertible(fields_.shape.head_dim, std::move(matrix), std::move(inverse));
  }

  Result<RotaryEmbedding> ReadRotary() {
    if (!fields_.has_rotary) return RotaryEmbedding{};  // a lone tensor is an unknown one
    const std::string name(profile::kRotaryAngles);
    const SafetensorsTensor* tensor = file_.Find(name);
    const int64_t pairs = tensor != nullptr && tensor->shape.size() == 1 ? tensor->shape[0] : 1;
    OSCAR_ASSIGN_OR_RETURN(std::vector<float> angles, Values<float>(name, SafetensorsDtype::kF32, {pairs}));
    return RotaryEmbedding{std::move(angles), fields_.rotary_halves};
  }

  // Empty when the file carries none for this layer and side.
  Result<std::vector<float>> ReadEigenvalues(int layer, KvSide side) {
    const std::string name = EigenvaluesName(layer, side);
    const SafetensorsTensor* tensor = file_.Find(name);
    if (tensor == nullptr) return std::vector<float>();
    const int64_t d = fields_.shape.head_dim;
    const bool per_head = tensor->shape.size() == 2;
    const std::vector<int64_t> shape =
        per_head ? std::vector<int64_t>{fields_.shape.num_kv_heads, d} : std::vector<int64_t>{d};
    OSCAR_ASSIGN_OR_RETURN(std::vector<float> values, Values<float>(name, SafetensorsDtype::kF32, shape));
    if (!AreEigenvalues(values, fields_.shape.head_dim)) {
      return Corrupt("the tensor \"" + name + "\" is not a list of ascending, non-negative, finite numbers");
    }
    return values;
  }

  const SafetensorsFile& file_;
  profile::Fields fields_;
  std::vector<CodecProfile::Row> rows_;
  std::vector<KvTransform> transforms_;
  std::vector<int64_t> first_user_;  // by transform: the first row that uses it
  std::set<std::string> read_;
};

}  // namespace

std::string ContentDigest(const SafetensorsFile& file) {
  base::Sha256 hash;
  const auto add_count = [&](uint64_t count) {
    std::byte bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(count >> (8 * i));
    hash.Update(std::span<const std::byte>(bytes));
  };
  const auto add_text = [&](std::string_view text) {
    add_count(text.size());
    hash.Update(text);
  };
  for (const auto& [key, value] : file.metadata()) {
    if (key == profile::kContentDigestKey) continue;
    add_text(key);
    add_text(value);
  }
  for (const SafetensorsTensor& tensor : file.tensors()) {
    add_text(tensor.name);
    add_text(io::SafetensorsDtypeName(tensor.dtype));
    add_count(tensor.shape.size());
    for (const int64_t dimension : tensor.shape) add_count(static_cast<uint64_t>(dimension));
    add_count(tensor.bytes.size());
    hash.Update(tensor.bytes);
  }
  return base::HexFromDigest(hash.Finish());
}

Result<CodecProfile> ParseProfile(std::span<const std::byte> bytes) {
  OSCAR_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Parse(bytes));
  return ProfileReader(file).Read();
}

std::vector<std::byte> SerializeProfile(const CodecProfile& profile) { return ProfileWriter(profile).Write(); }

Result<CodecProfile> CodecProfile::Load(const std::filesystem::path& path) {
  OSCAR_ASSIGN_OR_RETURN(const io::MappedFile file, io::MappedFile::Open(path));
  Result<CodecProfile> profile = ParseProfile(file.bytes());
  if (!profile.ok()) return profile.status().WithContext(path.string());
  return profile;
}

Status CodecProfile::Save(const std::filesystem::path& path) const {
  return io::WriteFileAtomically(path, SerializeProfile(*this));
}

}  // namespace oscar
