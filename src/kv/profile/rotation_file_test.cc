#include "oscar/rotation_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "src/io/torch_zip.h"
#include "src/testing/temporary_folder.h"

namespace oscar {
namespace {

const std::filesystem::path kFolder = "tests/data/rotations";
const KvShape kShape{.num_layers = 3, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 16};

RotationFile LoadFile(const std::string& name) {
  auto file = RotationFile::Load(kFolder / name);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return *std::move(file);
}

std::vector<std::byte> FileBytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> text((std::istreambuf_iterator<char>(in)), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void ExpectEqual(const RotationFile& a, const RotationFile& b) {
  EXPECT_EQ(a.objective, b.objective);
  EXPECT_EQ(a.head_dim, b.head_dim);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_EQ(a.layers[i].id, b.layers[i].id);
    EXPECT_EQ(a.layers[i].num_heads, b.layers[i].num_heads);
    EXPECT_EQ(a.layers[i].rotation, b.layers[i].rotation);
    EXPECT_EQ(a.layers[i].eigenvalues, b.layers[i].eigenvalues);
  }
}

TEST(RotationFile, ReadsFilesOfBothFormatsAndProtocols) {
  const RotationFile keys = LoadFile("k_rotation.pt"), values = LoadFile("v_rotation.pt"), heads = LoadFile("k_heads.pt");
  EXPECT_EQ(keys.objective, "qqt_r_h_pbr");
  EXPECT_EQ(values.objective, "sst_r_h_pbr");
  EXPECT_EQ(keys.head_dim, 16);
  ASSERT_EQ(keys.layers.size(), 3u);
  EXPECT_EQ(keys.layers[2].id, 2);
  EXPECT_EQ(keys.layers[0].num_heads, 0);
  EXPECT_EQ(keys.layers[0].rotation.size(), 256u);
  EXPECT_EQ(keys.layers[0].eigenvalues.size(), 16u);
  EXPECT_NE(keys.layers[0].rotation, keys.layers[1].rotation);
  ASSERT_EQ(heads.layers.size(), 2u);
  EXPECT_EQ(heads.layers[0].num_heads, 2);
  EXPECT_EQ(heads.layers[0].rotation.size(), 512u);
}

// Two layers of one storage with an offset and transposed strides, decimal text keys, no eigenvalues; and half precision.
TEST(RotationFile, ReadsSharedStoragesViewsAndHalves) {
  const RotationFile odd = LoadFile("odd.pt"), half = LoadFile("half.pt");
  ASSERT_EQ(odd.layers.size(), 2u);
  EXPECT_EQ(odd.layers[1].id, 1);
  EXPECT_EQ(odd.layers[0].rotation, odd.layers[1].rotation);
  EXPECT_TRUE(odd.layers[0].eigenvalues.empty());
  const KvTransform hadamard = KvTransform::Hadamard(16).value();
  EXPECT_EQ(half.layers[0].rotation, std::vector<float>(hadamard.matrix().begin(), hadamard.matrix().end()));
}

TEST(RotationFile, WhatIsWrittenIsRead) {
  const testing::TemporaryFolder folder;
  for (const char* name : {"k_rotation.pt", "v_heads.pt", "odd.pt"}) {
    const RotationFile file = LoadFile(name);
    ASSERT_TRUE(file.Save(folder.path() / "again.pt").ok());
    const auto again = RotationFile::Load(folder.path() / "again.pt");
    ASSERT_TRUE(again.ok()) << again.status().message();
    ExpectEqual(*again, file);
    EXPECT_EQ(io::TorchZip::Parse(FileBytes(folder.path() / "again.pt"))->root(), "again");
  }
}

// The pickle of a file in the layout of 7.3 is written byte for byte as Python wrote it.
TEST(RotationFile, WritesThePickleOfThePickleModule) {
  for (const char* name : {"k_rotation.pt", "k_heads.pt"}) {
    const std::vector<std::byte> theirs = FileBytes(kFolder / name), ours = LoadFile(name).Serialize("root");
    const auto their_zip = io::TorchZip::Parse(theirs), our_zip = io::TorchZip::Parse(ours);
    const auto a = their_zip->Entry("data.pkl").value(), b = our_zip->Entry("data.pkl").value();
    EXPECT_EQ(std::vector(a.begin(), a.end()), std::vector(b.begin(), b.end())) << name;
  }
}

TEST(RotationFile, DamagedAndForeignFilesAreRefusedWithTheirPath) {
  const testing::TemporaryFolder folder;
  const std::vector<std::byte> whole = FileBytes(kFolder / "k_rotation.pt");
  const auto refused = [&](std::span<const std::byte> bytes) {
    const auto path = folder.path() / "bad.pt";
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    const auto file = RotationFile::Load(path);
    EXPECT_FALSE(file.ok());
    if (file.ok()) return StatusCode::kOk;
    EXPECT_NE(file.status().message().find("bad.pt"), std::string::npos) << file.status().message();
    return file.status().code();
  };
  for (size_t size = 0; size < whole.size(); size += 97) EXPECT_EQ(refused({whole.data(), size}), StatusCode::kCorruptData);
  const auto pickle = [](std::string_view text) {
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    return io::WriteTorchZip("r", {{"data.pkl", {first, first + text.size()}}});
  };
  using namespace std::string_view_literals;
  EXPECT_EQ(refused(pickle("\x80\x02}."sv)), StatusCode::kCorruptData);
  EXPECT_EQ(refused(pickle("\x80\x02}X\x06\x00\x00\x00layers}s."sv)), StatusCode::kCorruptData);
  EXPECT_EQ(refused(pickle("\x80\x02}X\x06\x00\x00\x00layers}K\x00}ss."sv)), StatusCode::kCorruptData);
  EXPECT_EQ(refused(pickle("\x80\x02"
                           "cposix\nsystem\n(X\x02\x00\x00\x00idtR."sv)),
            StatusCode::kUnsupported);
  EXPECT_EQ(RotationFile::Load(folder.path() / "none.pt").status().code(), StatusCode::kNotFound);
}

TEST(RotationFile, RotationsThatAreNoneAreRefusedByLayer) {
  RotationFile file = LoadFile("k_rotation.pt");
  for (const float value : {std::nanf(""), 3.0f}) {
    RotationFile bad = file;
    bad.layers[1].rotation[5] = value;
    const auto read = RotationFile::Parse(bad.Serialize("r"));
    EXPECT_EQ(read.status().code(), StatusCode::kCorruptData);
    EXPECT_NE(read.status().message().find("layer 1"), std::string::npos) << read.status().message();
  }
  RotationFile descending = file;
  std::swap(descending.layers[2].eigenvalues[0], descending.layers[2].eigenvalues[9]);
  EXPECT_NE(RotationFile::Parse(descending.Serialize("r")).status().message().find("layer 2"), std::string::npos);
}

TEST(ImportRotations, APairBecomesAProfileAndThePairAgain) {
  for (const auto& [k, v, layers, scope] : {std::tuple{"k_rotation.pt", "v_rotation.pt", 3, "layer"}, std::tuple{"k_heads.pt", "v_heads.pt", 2, "head"}}) {
    KvShape shape = kShape;
    shape.num_layers = layers;
    const RotationFile keys = LoadFile(k), values = LoadFile(v);
    std::string warning = "?";
    const auto profile = ImportRotations(keys, values, {.shape = shape, .clip_k = 0.9f}, &warning);
    ASSERT_TRUE(profile.ok()) << profile.status().message();
    EXPECT_EQ(warning, "");
    EXPECT_EQ(profile->method(), "int2:oscar");
    EXPECT_EQ(profile->provenance().scope, scope);
    EXPECT_EQ(profile->provenance().k_metric, "query");
    EXPECT_EQ(profile->provenance().v_metric, "score");
    EXPECT_EQ(profile->provenance().composition, "r_h_pbr");
    const RowProfile row = profile->row(1, 1, KvSide::kValue);
    EXPECT_EQ(row.clip_ratio, 0.92f);
    EXPECT_EQ(profile->row(1, 1, KvSide::kKey).clip_ratio, 0.9f);
    const size_t first = std::string(scope) == "head" ? 256 : 0;
    EXPECT_TRUE(std::equal(row.transform->matrix().begin(), row.transform->matrix().end(), values.layers[1].rotation.begin() + static_cast<std::ptrdiff_t>(first)));
    const auto pair = ExportRotations(*profile);
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    ExpectEqual(pair->first, keys);
    ExpectEqual(pair->second, values);
  }
}

TEST(ImportRotations, FilesThatDoNotFitTheModelAreRefused) {
  const RotationFile keys = LoadFile("k_rotation.pt"), values = LoadFile("v_rotation.pt"), heads = LoadFile("v_heads.pt");
  const auto import = [](const RotationFile& k, const RotationFile& v, const KvShape& shape) { return ImportRotations(k, v, {.shape = shape}, nullptr).status(); };
  KvShape shape = kShape;
  shape.num_layers = 4;
  EXPECT_EQ(import(keys, values, shape).code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(import(keys, values, shape).message().find("no layer 3"), std::string::npos);
  shape = kShape;
  shape.head_dim = 32;
  EXPECT_EQ(import(keys, values, shape).code(), StatusCode::kFailedPrecondition);
  shape = {.num_layers = 2, .num_query_heads = 4, .num_kv_heads = 4, .head_dim = 16};
  EXPECT_EQ(import(keys, heads, shape).code(), StatusCode::kFailedPrecondition);
  shape = {.num_layers = 2, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  std::string warning;
  EXPECT_TRUE(ImportRotations(keys, values, {.shape = shape}, &warning).ok());
  EXPECT_NE(warning.find("3 layers"), std::string::npos);
}

TEST(ExportRotations, WhatTheFormatCannotHoldIsRefused) {
  EXPECT_EQ(ExportRotations(CodecProfile::Create("int2:naive", kShape, {KvTransform::Identity(16)}, std::vector<CodecProfile::Row>(12), {}).value()).status().code(),
            StatusCode::kUnsupported);
  std::vector<CodecProfile::Row> rows(12);
  rows[3].mean.assign(16, 0.5f);
  EXPECT_EQ(ExportRotations(CodecProfile::Create("int2:oscar", kShape, {KvTransform::Identity(16)}, rows, {}).value()).status().code(),
            StatusCode::kUnsupported);
}

// method.md 2.7: the anchors of a released pair, where it is present.
TEST(RotationFile, AReleasedPairHasItsAnchorsAndIsWrittenByteForByte) {
  const char* folder = std::getenv("OSCAR_TEST_ROTATIONS");
  if (folder == nullptr) GTEST_SKIP() << "OSCAR_TEST_ROTATIONS, the folder qwen3-4b-thinking-2507 of the released pair, is not set";
  struct Anchor {
    const char* file;
    size_t layer;
    double lowest, highest, mean;
    float row[4];
  };
  for (const Anchor& anchor :
       {Anchor{"k_rotation_qqt_r_h_pbr.pt", 0, 1.9776594e-4, 31.157005, 2.3503973, {-0.16069221f, 0.16180892f, 0.16403897f, -0.16492398f}},
        Anchor{"k_rotation_qqt_r_h_pbr.pt", 35, 2.0292876e-2, 133.02495, 3.5198820, {-0.09272623f, 0.09375855f, 0.11023582f, -0.10878488f}},
        Anchor{"v_rotation_sst_r_h_pbr.pt", 0, 3.2795809e-4, 6.4228056e-3, 1.0289342e-3, {0.13413675f, 0.07490756f, 0.05214224f, -0.00259845f}},
        Anchor{"v_rotation_sst_r_h_pbr.pt", 35, 4.8270850, 63.251656, 10.492279, {-0.03681875f, -0.05480341f, 0.07295386f, 0.09412148f}}}) {
    const auto path = std::filesystem::path(folder) / anchor.file;
    const auto file = RotationFile::Load(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_EQ(file->layers.size(), 36u);
    EXPECT_EQ(file->head_dim, 128);
    const RotationFile::Layer& layer = file->layers[anchor.layer];
    EXPECT_NEAR(layer.eigenvalues.front(), anchor.lowest, 1e-7 * anchor.lowest);
    EXPECT_NEAR(layer.eigenvalues.back(), anchor.highest, 1e-7 * anchor.highest);
    double sum = 0;
    for (const float value : layer.eigenvalues) sum += double{value};
    EXPECT_NEAR(sum / 128, anchor.mean, 1e-6 * anchor.mean);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(layer.rotation[i], anchor.row[i], 1e-7);
    // All but the 40 digits of the id, and with them its CRC.
    const std::vector<std::byte> theirs = FileBytes(path);
    const auto zip = io::TorchZip::Parse(theirs);
    const std::vector<std::byte> ours = file->Serialize(zip->root());
    ASSERT_EQ(ours.size(), theirs.size());
    size_t num_different = 0;
    for (size_t i = 0; i < ours.size(); ++i) num_different += ours[i] != theirs[i] ? 1 : 0;
    EXPECT_LE(num_different, 48u);
  }
}

}  // namespace
}  // namespace oscar
