#include "src/engine/runtime/model_identity.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

// The tiny model with one byte in the middle of a tensor changed; an empty name changes none.
ModelIdentity IdentityWithChanged(const std::string& tensor_name) {
  std::ifstream file("tests/data/tiny_models/qwen2_yarn.gguf", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto path = std::filesystem::path(::testing::TempDir()) / "identity.gguf";
  const auto write = [&] { std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size())); };
  write();
  {
    const auto opened = io::GgufFile::Open(path);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    const size_t data_start = bytes.size() - opened->data_section().size();
    for (const io::GgufTensor& tensor : opened->tensors()) {
      if (tensor.name == tensor_name) bytes[data_start + tensor.offset + 1] ^= 1;
    }
  }
  write();
  const auto changed = io::GgufFile::Open(path);
  EXPECT_TRUE(changed.ok()) << changed.status().message();
  const auto identity = IdentifyModel(*changed, "tiny");
  EXPECT_TRUE(identity.ok()) << identity.status().message();
  std::filesystem::remove(path);
  return *identity;
}

TEST(ModelIdentity, SurvivesOtherMatricesButNotOtherNormsOrBiases) {
  const ModelIdentity whole = IdentityWithChanged("");
  const ModelIdentity matrix = IdentityWithChanged("blk.0.ffn_up.weight");
  EXPECT_EQ(matrix.identity, whole.identity);
  EXPECT_NE(matrix.fingerprint, whole.fingerprint);
  for (const char* vector : {"output_norm.weight", "blk.1.attn_k.bias"}) {
    const ModelIdentity other = IdentityWithChanged(vector);
    EXPECT_NE(other.identity, whole.identity) << vector;
    EXPECT_NE(other.fingerprint, whole.fingerprint) << vector;
  }
}

}  // namespace
}  // namespace oscar::engine
