#include "oscar/rotation_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "src/base/digest.h"
#include "src/base/status_macros.h"
#include "src/io/atomic_file.h"
#include "src/io/mapped_file.h"
#include "src/io/pickle_tensors.h"
#include "src/io/torch_zip.h"
#include "src/kv/profile/profile_limits.h"
#include "src/kv/profile/rotation_pickle.h"

namespace oscar {
namespace {

// Floats of all rotations together: bounds what layers that share one storage can make of a small file.
constexpr std::size_t kMaxFloats = std::size_t{1} << 26;

Status Corrupt(std::string why) { return {StatusCode::kCorruptData, std::move(why)}; }

Result<std::vector<float>> TensorOf(const io::TorchZip& zip, const io::PickledTensor& tensor) {
  OSCAR_ASSIGN_OR_RETURN(const std::span<const std::byte> storage, zip.Entry("data/" + tensor.storage));
  return io::ReadTensor(tensor, storage);
}

Result<int> LayerId(const io::PickledValue& key) {
  const auto* number = std::get_if<int64_t>(&key.content);
  if (number != nullptr && *number >= 0 && *number < kMaxProfileLayers) return static_cast<int>(*number);
  const auto* text = std::get_if<std::string>(&key.content);
  if (text == nullptr || text->empty() || text->size() > 4 || text->find_first_not_of("0123456789") != std::string::npos) {
    return Corrupt("a layer whose key is no number from 0 to " + std::to_string(kMaxProfileLayers - 1));
  }
  return std::stoi(*text);
}

Status CheckRotations(const RotationFile::Layer& layer, int head_dim) {
  const auto values = static_cast<std::size_t>(head_dim) * static_cast<std::size_t>(head_dim);
  for (std::size_t first = 0; first < layer.rotation.size(); first += values) {
    const auto begin = layer.rotation.begin() + static_cast<std::ptrdiff_t>(first);
    auto transform = KvTransform::Orthogonal(head_dim, {begin, begin + static_cast<std::ptrdiff_t>(values)});
    if (!transform.ok()) {
      const std::string head = layer.num_heads > 0 ? ", KV head " + std::to_string(first / values) : "";
      return Corrupt("layer " + std::to_string(layer.id) + head + ": " + transform.status().message());
    }
  }
  return {};
}

Result<RotationFile::Layer> ReadLayer(const io::TorchZip& zip, int id, const io::PickledValue& value, int* head_dim) {
  const auto wrong = [&](const std::string& why) { return Corrupt("layer " + std::to_string(id) + ": " + why); };
  const io::PickledDict* dict = value.dict();
  const io::PickledValue* rotation = dict == nullptr ? nullptr : dict->Find("rotation");
  const auto* tensor = rotation == nullptr ? nullptr : std::get_if<io::PickledTensor>(&rotation->content);
  if (tensor == nullptr) return wrong("it has no tensor \"rotation\"");
  const std::vector<int64_t>& shape = tensor->shape;
  const std::size_t rank = shape.size();
  if ((rank != 2 && rank != 3) || shape[rank - 1] != shape[rank - 2] || shape[rank - 1] < 1 || shape[rank - 1] > kMaxProfileHeadDim ||
      (rank == 3 && (shape[0] < 1 || shape[0] > kMaxProfileHeads))) {
    return wrong("the rotation is neither [d, d] nor [KV heads, d, d]");
  }
  const int d = static_cast<int>(shape[rank - 1]);
  if (*head_dim == 0) *head_dim = d;
  if (*head_dim != d) return wrong("head dimension " + std::to_string(d) + " after " + std::to_string(*head_dim));
  RotationFile::Layer layer;
  layer.id = id;
  layer.num_heads = rank == 3 ? static_cast<int>(shape[0]) : 0;
  auto values = TensorOf(zip, *tensor);
  if (!values.ok()) return values.status().WithContext("layer " + std::to_string(id));
  layer.rotation = *std::move(values);
  OSCAR_TRY(CheckRotations(layer, d));
  const io::PickledValue* eigenvalues = dict->Find("eigenvalues");
  if (eigenvalues == nullptr) return layer;
  const auto* eigen_tensor = std::get_if<io::PickledTensor>(&eigenvalues->content);
  if (eigen_tensor == nullptr) return wrong("\"eigenvalues\" is no tensor");
  auto read = TensorOf(zip, *eigen_tensor);
  if (!read.ok()) return read.status().WithContext("layer " + std::to_string(id));
  if (read->size() != static_cast<std::size_t>(d) * static_cast<std::size_t>(std::max(1, layer.num_heads)) || !AreEigenvalues(*read, d)) {
    return wrong("the eigenvalues are not head_dim ascending numbers from 0 on per rotation");
  }
  layer.eigenvalues = *std::move(read);
  return layer;
}

}  // namespace

Result<RotationFile> RotationFile::Parse(std::span<const std::byte> bytes) {
  OSCAR_ASSIGN_OR_RETURN(const io::TorchZip zip, io::TorchZip::Parse(bytes));
  OSCAR_ASSIGN_OR_RETURN(const std::span<const std::byte> pickle, zip.Entry("data.pkl"));
  OSCAR_ASSIGN_OR_RETURN(const io::PickledValue value, io::ParsePickle(pickle));
  const io::PickledDict* top = value.dict();
  const io::PickledValue* layers_value = top == nullptr ? nullptr : top->Find("layers");
  const io::PickledDict* layers = layers_value == nullptr ? nullptr : layers_value->dict();
  if (layers == nullptr || layers->items.empty()) return Corrupt("it has no dictionary \"layers\": not a rotation file");
  RotationFile file;
  const io::PickledValue* objective = top->Find("objective");
  if (objective != nullptr && std::holds_alternative<std::string>(objective->content)) file.objective = std::get<std::string>(objective->content);
  std::set<int> seen;
  std::size_t num_floats = 0;
  for (const auto& [key, entry] : layers->items) {
    OSCAR_ASSIGN_OR_RETURN(const int id, LayerId(key));
    if (!seen.insert(id).second) return Corrupt("layer " + std::to_string(id) + " occurs twice");
    OSCAR_ASSIGN_OR_RETURN(Layer layer, ReadLayer(zip, id, entry, &file.head_dim));
    if (layer.num_heads != (file.layers.empty() ? layer.num_heads : file.layers[0].num_heads)) {
      return Corrupt("layer " + std::to_string(id) + ": another number of KV heads than the layer before");
    }
    num_floats += layer.rotation.size();
    if (num_floats > kMaxFloats) return Status(StatusCode::kUnsupported, "more than 2^26 rotation values");
    file.layers.push_back(std::move(layer));
  }
  return file;
}

Result<RotationFile> RotationFile::Load(const std::filesystem::path& path) {
  OSCAR_ASSIGN_OR_RETURN(const io::MappedFile mapped, io::MappedFile::Open(path));
  auto file = Parse(mapped.bytes());
  if (!file.ok()) return file.status().WithContext(path.string());
  return file;
}

std::vector<std::byte> RotationFile::Serialize(const std::string& root) const {
  const auto bytes_of = [](std::string_view text) {
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    return std::vector<std::byte>(first, first + text.size());
  };
  std::vector<std::pair<std::string, std::vector<std::byte>>> entries;
  entries.emplace_back("data.pkl", profile::RotationPickle(*this));
  entries.emplace_back(".format_version", bytes_of("1"));
  entries.emplace_back(".storage_alignment", bytes_of("64"));
  entries.emplace_back("byteorder", bytes_of("little"));
  int key = 0;
  base::Sha256 hash;
  for (const Layer& layer : layers) {
    for (const std::vector<float>* values : {&layer.rotation, &layer.eigenvalues}) {
      if (values->empty()) continue;
      const auto bytes = std::as_bytes(std::span(*values));
      hash.Update(bytes);
      entries.emplace_back("data/" + std::to_string(key++), std::vector<std::byte>(bytes.begin(), bytes.end()));
    }
  }
  entries.emplace_back("version", bytes_of("3\n"));
  // 40 decimal digits that depend on the content.
  std::string id;
  for (const uint8_t byte : hash.Finish()) id += std::to_string(100 + byte % 100).substr(1);
  entries.emplace_back(".data/serialization_id", bytes_of(id.substr(0, 40)));
  return io::WriteTorchZip(root, entries);
}

Status RotationFile::Save(const std::filesystem::path& path) const { return io::WriteFileAtomically(path, Serialize(path.stem().string())); }

namespace {

// One side of a pair laid out for a model.
class SideImport {
 public:
  SideImport(const RotationFile& file, KvSide side, const KvShape& shape) : file_(file), side_(side), shape_(shape) {}

  Status Check() const {
    const auto differs = [&](const std::string& why) {
      return Status(StatusCode::kFailedPrecondition, std::string(side_ == KvSide::kKey ? "K" : "V") + " rotations: " + why);
    };
    if (file_.head_dim != shape_.head_dim) {
      return differs("head dimension " + std::to_string(file_.head_dim) + ", the model has " + std::to_string(shape_.head_dim));
    }
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      const RotationFile::Layer* found = Find(layer);
      if (found == nullptr) return differs("no layer " + std::to_string(layer) + ", of which the model has " + std::to_string(shape_.num_layers));
      if (found->num_heads != 0 && found->num_heads != shape_.num_kv_heads) {
        return differs("layer " + std::to_string(layer) + " has " + std::to_string(found->num_heads) + " KV heads, the model " +
                       std::to_string(shape_.num_kv_heads));
      }
    }
    return {};
  }

  // Of a layer: transforms are appended; the index of the first, and how many there are (1 or one per head).
  Result<std::pair<int, int>> AddTransforms(int layer, std::vector<KvTransform>& transforms) const {
    const RotationFile::Layer& found = *Find(layer);
    const auto values = static_cast<std::ptrdiff_t>(shape_.head_dim) * shape_.head_dim;
    const int first = static_cast<int>(transforms.size()), count = std::max(1, found.num_heads);
    for (int i = 0; i < count; ++i) {
      const auto begin = found.rotation.begin() + i * values;
      OSCAR_ASSIGN_OR_RETURN(KvTransform transform, KvTransform::Orthogonal(shape_.head_dim, {begin, begin + values}));
      transforms.push_back(std::move(transform));
    }
    return std::pair(first, count);
  }
  const RotationFile::Layer* Find(int id) const {
    for (const RotationFile::Layer& layer : file_.layers) {
      if (layer.id == id) return &layer;
    }
    return nullptr;
  }

 private:
  const RotationFile& file_;
  KvSide side_;
  const KvShape& shape_;
};

// "qqt_r_h_pbr" to its two parts; "hadamard" stands for itself.
std::pair<std::string, std::string> SplitObjective(const std::string& objective) {
  const std::size_t underscore = objective.find('_');
  if (underscore == std::string::npos) return {objective, objective};
  const std::string metric = objective.substr(0, underscore);
  return {metric == "qqt" ? "query" : metric == "sst" ? "score" : metric, objective.substr(underscore + 1)};
}

}  // namespace

Result<CodecProfile> ImportRotations(const RotationFile& keys, const RotationFile& values, const RotationImportOptions& options,
                                     std::string* warning) {
  const KvShape& shape = options.shape;
  OSCAR_TRY(CheckProfileShape(shape));
  const SideImport sides[] = {{keys, KvSide::kKey, shape}, {values, KvSide::kValue, shape}};
  for (const SideImport& side : sides) OSCAR_TRY(side.Check());
  if (warning != nullptr) {
    warning->clear();
    for (const RotationFile* file : {&keys, &values}) {
      if (file->layers.size() > static_cast<std::size_t>(shape.num_layers)) {
        *warning = "the rotation files hold " + std::to_string(file->layers.size()) + " layers, the model has " + std::to_string(shape.num_layers) +
                   "; the others are left out";
      }
    }
  }
  std::vector<KvTransform> transforms;
  std::vector<CodecProfile::Row> rows(static_cast<std::size_t>(shape.num_layers) * static_cast<std::size_t>(shape.num_kv_heads) * 2);
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (std::size_t side = 0; side < 2; ++side) {
      OSCAR_ASSIGN_OR_RETURN(const auto added, sides[side].AddTransforms(layer, transforms));
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        CodecProfile::Row& row = rows[(static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape.num_kv_heads) + static_cast<std::size_t>(head)) * 2 + side];
        row.transform = added.first + (added.second > 1 ? head : 0);
        row.clip_ratio = side == 0 ? options.clip_k : options.clip_v;
      }
    }
  }
  Provenance provenance = options.provenance;
  provenance.scope = keys.layers[0].num_heads > 0 ? "head" : "layer";
  std::tie(provenance.k_metric, provenance.composition) = SplitObjective(keys.objective);
  provenance.v_metric = SplitObjective(values.objective).first;
  OSCAR_ASSIGN_OR_RETURN(CodecProfile profile, CodecProfile::Create("int2:oscar", shape, std::move(transforms), std::move(rows), std::move(provenance)));
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (std::size_t side = 0; side < 2; ++side) {
      profile.set_eigenvalues(layer, side == 0 ? KvSide::kKey : KvSide::kValue, sides[side].Find(layer)->eigenvalues);
    }
  }
  return profile;
}

Result<std::pair<RotationFile, RotationFile>> ExportRotations(const CodecProfile& profile) {
  if (profile.method() != "int2:oscar") {
    return Status(StatusCode::kUnsupported, "rotation files hold int2:oscar only, not " + profile.method());
  }
  const KvShape& shape = profile.shape();
  const Provenance& from = profile.provenance();
  const bool hadamard = from.composition == "hadamard";
  std::pair<RotationFile, RotationFile> pair;
  for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
    RotationFile& file = side == KvSide::kKey ? pair.first : pair.second;
    const std::string& metric = side == KvSide::kKey ? from.k_metric : from.v_metric;
    file.objective = hadamard ? from.composition : (metric == "query" ? "qqt" : metric == "score" ? "sst" : metric) + "_" + from.composition;
    file.head_dim = shape.head_dim;
    for (int id = 0; id < shape.num_layers; ++id) {
      RotationFile::Layer layer;
      layer.id = id;
      layer.num_heads = from.scope == "head" ? shape.num_kv_heads : 0;
      const std::span<const float> first = profile.row(id, 0, side).transform->matrix();
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        const RowProfile row = profile.row(id, head, side);
        if (!row.mean.empty()) return Status(StatusCode::kUnsupported, "rotation files cannot hold the means of layer " + std::to_string(id));
        const std::span<const float> matrix = row.transform->matrix();
        const bool shared = matrix.data() == first.data() || std::equal(matrix.begin(), matrix.end(), first.begin());
        if (layer.num_heads == 0 && !shared) {
          return Status(StatusCode::kUnsupported, "layer " + std::to_string(id) + ": heads of scope \"layer\" have different rotations");
        }
        if (layer.num_heads > 0 || head == 0) layer.rotation.insert(layer.rotation.end(), matrix.begin(), matrix.end());
      }
      const std::span<const float> eigenvalues = profile.eigenvalues(id, side);
      layer.eigenvalues.assign(eigenvalues.begin(), eigenvalues.end());
      file.layers.push_back(std::move(layer));
    }
  }
  return pair;
}

}  // namespace oscar
