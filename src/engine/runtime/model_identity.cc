#include "src/engine/runtime/model_identity.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "src/base/digest.h"
#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

constexpr uint64_t kSampleBytes = 4096;
constexpr uint32_t kGgmlF32 = 0;  // as the file says it (GGUF specification)

template <class T>
void UpdateWith(base::Sha256& sha, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    sha.Update(std::to_string(value.size()) + ":");
    sha.Update(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    sha.Update(std::to_string(value) + ";");
  } else {
    sha.Update(std::to_string(value.size()) + "[");
    for (const auto& item : value) UpdateWith(sha, static_cast<typename T::value_type>(item));
  }
}

void UpdateWithEntry(base::Sha256& sha, const std::string& key, const io::GgufMetadata::Value& value) {
  UpdateWith(sha, key);
  std::visit([&sha](const auto& held) { UpdateWith(sha, held); }, value);
}

// Keys that two quantisations of one model share and two different models do not.
bool IsIdentityKey(std::string_view key, std::string_view architecture) {
  if (key == "general.architecture" || key == "tokenizer.ggml.tokens") return true;
  return key.starts_with(architecture) && key.substr(architecture.size()).starts_with(".");
}

void UpdateWithSamples(base::Sha256& sha, std::span<const std::byte> rest, int64_t num_elements) {
  // Every ggml type takes at least a quarter byte per element, so this stays inside the tensor or close to it.
  const uint64_t extent = std::min<uint64_t>(rest.size(), static_cast<uint64_t>(num_elements) / 4);
  sha.Update(rest.first(std::min(kSampleBytes, extent)));
  const auto middle = rest.subspan(extent / 2);
  sha.Update(middle.first(std::min<uint64_t>(kSampleBytes, middle.size())));
}

}  // namespace

Result<ModelIdentity> IdentifyModel(const io::GgufFile& file, std::string_view file_stem) {
  ModelIdentity result;
  OSCAR_ASSIGN_OR_RETURN(const std::string architecture, file.metadata().String("general.architecture"));
  OSCAR_ASSIGN_OR_RETURN(result.name, file.metadata().StringOr("general.name", file_stem));
  base::Sha256 fingerprint, identity;
  for (const auto& [key, value] : file.metadata().entries()) {
    UpdateWithEntry(fingerprint, key, value);
    if (IsIdentityKey(key, architecture)) UpdateWithEntry(identity, key, value);
  }
  for (const io::GgufTensor& tensor : file.tensors()) {
    if (tensor.offset >= file.data_section().size()) {
      return {StatusCode::kCorruptData, "tensor " + tensor.name + " lies beyond the end of the file"};
    }
    for (base::Sha256* sha : {&fingerprint, &identity}) {
      UpdateWith(*sha, tensor.name);
      UpdateWith(*sha, tensor.dims);
    }
    UpdateWith(fingerprint, tensor.ggml_type);
    const auto data = file.data_section().subspan(tensor.offset);
    UpdateWithSamples(fingerprint, data, tensor.num_elements());
    if (tensor.dims.size() == 1 && tensor.ggml_type == kGgmlF32) UpdateWithSamples(identity, data, tensor.num_elements());
  }
  result.fingerprint = base::HexFromDigest(fingerprint.Finish());
  result.identity = base::HexFromDigest(identity.Finish());
  return result;
}

}  // namespace oscar::engine
