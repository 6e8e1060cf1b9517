#include "src/kv/profile/profile_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "src/io/safetensors.h"
#include "src/testing/seeds.h"

namespace oscar {
namespace {

constexpr KvShape kShape = {2, 4, 2, 8};

// A rotation of two channels by `angle` after a Hadamard: orthogonal, and different for each angle.
KvTransform Rotation(double angle) {
  const KvTransform hadamard = KvTransform::Hadamard(8).value();
  std::vector<float> matrix(hadamard.matrix().begin(), hadamard.matrix().end());
  for (size_t i = 0; i < 8; ++i) {
    const double a = matrix[i * 8 + 2], b = matrix[i * 8 + 5];
    matrix[i * 8 + 2] = static_cast<float>(std::cos(angle) * a - std::sin(angle) * b);
    matrix[i * 8 + 5] = static_cast<float>(std::sin(angle) * a + std::cos(angle) * b);
  }
  return KvTransform::Orthogonal(8, std::move(matrix)).value();
}

// int2:oscar of scope layer: transform 2 * layer for keys, 2 * layer + 1 for values.
CodecProfile OscarProfile() {
  std::vector<KvTransform> transforms;
  for (int i = 0; i < 4; ++i) transforms.push_back(Rotation(0.1 + i));
  std::vector<CodecProfile::Row> rows;
  for (int i = 0; i < 8; ++i) {
    CodecProfile::Row row;
    row.transform = i / 4 * 2 + i % 2;
    row.clip_ratio = i % 2 == 0 ? 0.96f : 0.92f;
    rows.push_back(row);
  }
  Provenance provenance;
  provenance.model_name = "tiny \"model\" \u00e9";
  provenance.model_digest = "00ff";
  provenance.model_identity = "llama/tiny";
  provenance.oscar_version = "0.1.0";
  provenance.text_name = "own text";
  provenance.num_tokens = 30000;
  provenance.window_tokens = 2048;
  provenance.created_utc = "2026-01-01T00:00:00Z";
  CodecProfile profile = CodecProfile::Create("int2:oscar", kShape, std::move(transforms), rows, provenance).value();
  profile.set_eigenvalues(0, KvSide::kKey, {0, 1, 2, 3, 4, 5, 6, 7.5f});
  profile.set_eigenvalues(1, KvSide::kValue, {1, 1, 1, 1, 1, 1, 1, 1});
  return profile;
}

// Everything a profile can hold: every kind of transform, means, metrics, per-row fields, eigenvalues per head.
CodecProfile RichProfile() {
  std::vector<KvTransform> transforms;
  transforms.push_back(KvTransform::Identity(8));
  transforms.push_back(Rotation(0.5));
  std::vector<float> matrix(64, 0.0f), inverse(64, 0.0f);
  for (size_t i = 0; i < 8; ++i) {
    matrix[i * 9] = static_cast<float>(i + 1);
    inverse[i * 9] = 1.0f / static_cast<float>(i + 1);
  }
  transforms.push_back(KvTransform::Invertible(8, matrix, inverse).value());
  transforms.push_back(KvTransform::Hadamard(8).value());
  transforms.push_back(Rotation(0.5));  // equal to transform 1: stored once
  std::vector<CodecProfile::Row> rows(8);
  for (size_t i = 0; i < 8; ++i) {
    rows[i].transform = static_cast<int>(i % 5);
    rows[i].clip_ratio = static_cast<float>(i) / 9.0f;
    rows[i].range_factor = 1.0f + static_cast<float>(i);
  }
  rows[2].mean = {1, 2, 3, 4, 5, 6, 7, 1e-30f};
  rows[2].mean_kind = MeanKind::kRotating;
  rows[2].encoder = EncoderKind::kErrorFeedback;
  rows[2].metric = {1, 2, 3, 4, 5, 6, 7, 8};
  rows[7].mean.assign(8, -0.5f);
  rows[5].encoder = EncoderKind::kIntegerZeroPoint;
  CodecProfile profile =
      CodecProfile::Create("int2:rich", kShape, std::move(transforms), rows, {}, {{1.0f, 0.5f, 0.25f}, true}).value();
  profile.set_eigenvalues(1, KvSide::kKey, std::vector<float>(16, 2.0f));
  return profile;
}

void ExpectEqual(const CodecProfile& a, const CodecProfile& b) {
  EXPECT_EQ(a.method(), b.method());
  ASSERT_EQ(a.shape(), b.shape());
  EXPECT_EQ(a.digest(), b.digest());
  EXPECT_EQ(a.provenance().model_name, b.provenance().model_name);
  EXPECT_EQ(a.provenance().model_digest, b.provenance().model_digest);
  EXPECT_EQ(a.provenance().model_identity, b.provenance().model_identity);
  EXPECT_EQ(a.provenance().oscar_version, b.provenance().oscar_version);
  EXPECT_EQ(a.provenance().text_name, b.provenance().text_name);
  EXPECT_EQ(a.provenance().num_tokens, b.provenance().num_tokens);
  EXPECT_EQ(a.provenance().window_tokens, b.provenance().window_tokens);
  EXPECT_EQ(a.provenance().created_utc, b.provenance().created_utc);
  const auto equal = [](std::span<const float> x, std::span<const float> y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
  };
  for (int layer = 0; layer < a.shape().num_layers; ++layer) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      EXPECT_TRUE(equal(a.eigenvalues(layer, side), b.eigenvalues(layer, side)));
      for (int head = 0; head < a.shape().num_kv_heads; ++head) {
        const RowProfile x = a.row(layer, head, side), y = b.row(layer, head, side);
        EXPECT_TRUE(equal(x.page_mean, y.page_mean));
        EXPECT_EQ(x.transform->kind(), y.transform->kind());
        EXPECT_TRUE(equal(x.transform->matrix(), y.transform->matrix()));
        EXPECT_TRUE(equal(x.transform->inverse(), y.transform->inverse()));
        EXPECT_TRUE(equal(x.mean, y.mean));
        EXPECT_TRUE(equal(x.metric, y.metric));
        EXPECT_EQ(x.mean_kind, y.mean_kind);
        EXPECT_EQ(x.clip_ratio, y.clip_ratio);
        EXPECT_EQ(x.range_factor, y.range_factor);
        EXPECT_EQ(x.encoder, y.encoder);
      }
    }
  }
}

// A profile file taken apart, to be changed and put together again with a content digest that fits.
struct OpenFile {
  explicit OpenFile(const CodecProfile& profile) {
    const std::vector<std::byte> bytes = SerializeProfile(profile);
    const io::SafetensorsFile file = io::SafetensorsFile::Parse(bytes).value();
    metadata = file.metadata();
    for (const io::SafetensorsTensor& tensor : file.tensors()) {
      tensors[tensor.name] = {tensor.dtype, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()}};
    }
  }
  std::vector<std::byte> Close() {
    io::SafetensorsWriter writer;
    for (const auto& [key, value] : metadata) writer.SetMetadata(key, value);
    for (const auto& [name, tensor] : tensors)
      EXPECT_TRUE(writer.Add(name, tensor.dtype, tensor.shape, tensor.bytes).ok());
    const std::vector<std::byte> undigested = writer.Finish();
    if (metadata.contains("content_sha256")) {
      writer.SetMetadata("content_sha256", ContentDigest(io::SafetensorsFile::Parse(undigested).value()));
    }
    return writer.Finish();
  }
  void SetFloat(const std::string& name, size_t index, float value) {
    std::memcpy(tensors.at(name).bytes.data() + index * 4, &value, 4);
  }
  struct Tensor {
    io::SafetensorsDtype dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, std::string, std::less<>> metadata;
  std::map<std::string, Tensor> tensors;
};

std::filesystem::path TestPath(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "oscar_profile_file_test";
  std::filesystem::create_directories(folder);
  return folder / name;
}

TEST(ProfileFile, WhatIsSavedIsLoadedAgain) {
  for (const CodecProfile& profile : {OscarProfile(), RichProfile()}) {
    const std::filesystem::path path = TestPath("round_trip.safetensors");
    ASSERT_TRUE(profile.Save(path).ok());
    const Result<CodecProfile> loaded = CodecProfile::Load(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    ExpectEqual(profile, *loaded);
    EXPECT_EQ(SerializeProfile(profile), SerializeProfile(*loaded));
  }
  std::filesystem::remove_all(TestPath("").parent_path());
}

TEST(ProfileFile, EqualMatricesAreStoredOnceAndComputedOnesNotAtAll) {
  const OpenFile file(RichProfile());
  EXPECT_EQ(file.metadata.at("transform_kinds"), "identity,orthogonal,invertible,hadamard");
  size_t matrices = 0;
  for (const auto& [name, tensor] : file.tensors) matrices += name.starts_with("transform.");
  EXPECT_EQ(matrices, 3u);  // orthogonal, and the invertible with its inverse
}

TEST(ProfileFile, FieldsReadWell) {
  const OpenFile file(OscarProfile());
  EXPECT_EQ(file.metadata.at("key.clip_ratio"), "0.96");
  EXPECT_EQ(file.metadata.at("value.clip_ratio"), "0.92");
  EXPECT_EQ(file.metadata.at("key.encoder"), "min_max");
  EXPECT_EQ(file.metadata.at("value.mean_kind"), "constant");
  EXPECT_EQ(file.metadata.at("num_query_heads"), "4");
}

TEST(ProfileFile, TextThatIsNotUtf8IsRepairedAndNotAnError) {
  Provenance provenance;
  provenance.model_name = "bad \xff name";
  std::vector<KvTransform> transforms = {};
  transforms.push_back(KvTransform::Identity(8));
  const CodecProfile profile =
      CodecProfile::Create("int2:naive", kShape, std::move(transforms), std::vector<CodecProfile::Row>(8), provenance)
          .value();
  const Result<CodecProfile> loaded = ParseProfile(SerializeProfile(profile));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->provenance().model_name, "bad \ufffd name");
}

TEST(ProfileFile, EveryTruncationIsRefused) {
  const std::vector<std::byte> bytes = SerializeProfile(OscarProfile());
  for (size_t part = 0; part < 64; ++part) {
    const size_t size = bytes.size() * part / 64;
    const std::filesystem::path path = TestPath("truncated.safetensors");
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(size));
    const Status status = CodecProfile::Load(path).status();
    EXPECT_EQ(status.code(), StatusCode::kCorruptData) << size;
    EXPECT_NE(status.message().find("truncated.safetensors"), std::string::npos) << status.message();
  }
  std::filesystem::remove_all(TestPath("").parent_path());
}

TEST(ProfileFile, EveryFlippedBitIsSeen) {
  const std::vector<std::byte> bytes = SerializeProfile(OscarProfile());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::vector<std::byte> flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    ASSERT_FALSE(ParseProfile(flipped).ok()) << "bit " << bit % 8 << " of byte " << bit / 8;
  }
}

TEST(ProfileFile, RandomBytesAreRefused) {
  std::mt19937_64 rng(testing::TestSeed(5));
  const std::vector<std::byte> bytes = SerializeProfile(OscarProfile());
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> changed = bytes;
    for (uint64_t i = 0; i <= rng() % 8; ++i) changed[rng() % changed.size()] = static_cast<std::byte>(rng());
    EXPECT_EQ(ParseProfile(changed).ok(), changed == bytes);
  }
}

TEST(ProfileFile, FilesThatSayTheWrongThingAreRefusedWithTheReason) {
  struct Case {
    std::string expected;
    std::function<void(OpenFile&)> change;
  };
  const auto field = [](std::string key, std::string value) {
    return [=](OpenFile& file) { file.metadata[key] = value; };
  };
  const std::vector<Case> cases = {
      {"another kind of safetensors file", [](OpenFile& file) { file.metadata.erase("format"); }},
      {"another kind of safetensors file", field("format", "pt")},
      {"content_sha256 is missing", [](OpenFile& file) { file.metadata.erase("content_sha256"); }},
      {"method is missing", [](OpenFile& file) { file.metadata.erase("method"); }},
      {"not a method name", field("method", "INT2 oscar")},
      {"not a method name", field("method", "int2:")},
      {"num_layers", field("num_layers", "-2")},
      {"num_layers", field("num_layers", "2x")},
      {"num_layers", field("num_layers", "99999999999999999999")},
      {"row_transform", field("num_layers", "3")},
      {"impossible attention shape", field("num_query_heads", "5")},
      {"head_dim", field("head_dim", "0")},
      {"\"transform.0.matrix\" is F32 [8, 8], not F32 [16, 16]", field("head_dim", "16")},
      {"model_name is missing", [](OpenFile& file) { file.metadata.erase("model_name"); }},
      {"\"surprise\" does not belong", field("surprise", "")},
      {"key.clip_ratio", field("key.clip_ratio", "nan")},
      {"key.clip_ratio", field("key.clip_ratio", "0.9,0.9")},
      {"key.clip_ratio", field("key.clip_ratio", "")},
      {"clip ratio is not a number up to 1", field("key.clip_ratio", "1.5")},
      {"value.encoder", field("value.encoder", "maximum")},
      {"metric has 0",
       [](OpenFile& file) { file.metadata["method"] = "int2:x", file.metadata["key.encoder"] = "error_feedback"; }},
      {"not a row of int2:oscar", field("key.encoder", "error_feedback")},
      {"not a row of int2:oscar", field("transform_kinds", "identity,orthogonal,orthogonal,orthogonal")},
      {"identity more than once", field("transform_kinds", "identity,identity,orthogonal,orthogonal")},
      {"uses transform 3 of 3", field("transform_kinds", "orthogonal,orthogonal,orthogonal")},
      {"transform 4 is used by no row",
       field("transform_kinds", "orthogonal,orthogonal,orthogonal,orthogonal,hadamard")},
      {"\"transform.3.matrix\" is missing", [](OpenFile& file) { file.tensors.erase("transform.3.matrix"); }},
      {"\"transform.9.matrix\" does not belong",
       [](OpenFile& file) { file.tensors["transform.9.matrix"] = file.tensors["transform.0.matrix"]; }},
      {"layer 1, KV head 0, values: transform 3: the matrix is not orthogonal",
       [](OpenFile& file) { file.SetFloat("transform.3.matrix", 9, 0.7f); }},
      {"layer 1, KV head 0, keys: transform 2: the matrix holds a value that is not finite",
       [](OpenFile& file) { file.SetFloat("transform.2.matrix", 0, std::numeric_limits<float>::quiet_NaN()); }},
      {"eigenvalues.0.key", [](OpenFile& file) { file.SetFloat("eigenvalues.0.key", 3, 9.0f); }},
      {"eigenvalues.0.key",
       [](OpenFile& file) { file.SetFloat("eigenvalues.0.key", 7, std::numeric_limits<float>::infinity()); }},
  };
  for (const Case& wrong : cases) {
    OpenFile file(OscarProfile());
    wrong.change(file);
    const Status status = ParseProfile(file.Close()).status();
    EXPECT_EQ(status.code(), StatusCode::kCorruptData) << wrong.expected;
    EXPECT_NE(status.message().find(wrong.expected), std::string::npos) << wrong.expected << " <- " << status.message();
  }
}

TEST(ProfileFile, MeansAndMetricsThatDoNotFitAreRefused) {
  const auto reject = [](const std::function<void(OpenFile&)>& change, const std::string& expected) {
    OpenFile file(RichProfile());
    change(file);
    const Status status = ParseProfile(file.Close()).status();
    EXPECT_NE(status.message().find(expected), std::string::npos) << expected << " <- " << status.message();
  };
  reject([](OpenFile& file) { file.tensors["row_has_mean"].bytes[0] = std::byte{2}; }, "other than 0 and 1");
  reject([](OpenFile& file) { file.tensors["row_has_mean"].bytes[0] = std::byte{1}; },
         "\"row_mean\" is F32 [2, 8], not F32 [3, 8]");
  reject([](OpenFile& file) { file.tensors.erase("row_has_mean"); }, "\"row_mean\" does not belong");
  reject([](OpenFile& file) { file.SetFloat("row_metric", 1, -1.0f); }, "not a positive number");
  reject([](OpenFile& file) { file.SetFloat("row_mean", 1, std::nanf("")); }, "not finite");
  reject([](OpenFile& file) { file.SetFloat("row_metric", 1, 1e20f); }, "span more than");
  reject([](OpenFile& file) { file.SetFloat("rotary_angles", 2, std::nanf("")); }, "rotary angle is not finite");
  reject([](OpenFile& file) { file.metadata["rotary_pairs"] = "thirds"; }, "rotary_pairs");
  reject([](OpenFile& file) { file.metadata.erase("rotary_pairs"); }, "\"rotary_angles\" does not belong");
  reject([](OpenFile& file) { file.tensors.erase("rotary_angles"); }, "\"rotary_angles\" is missing");
  reject([](OpenFile& file) { file.metadata["key.mean_kind"] = "constant"; }, "rotary angles without a mean that turns");
  reject([](OpenFile& file) { file.metadata["method"] = "int2:balanced"; }, "mixing matrix of head_dim 8, hadamard8");
  reject([](OpenFile& file) { file.metadata["method"] = "int2:balanced", file.metadata["composition"] = "hadamard8"; },
         "layer 0, KV head 0, keys: identity with min_max is not a row of int2:balanced");
  reject([](OpenFile& file) { file.SetFloat("transform.2.inverse", 0, 2.0f); }, "layer 0, KV head 1, keys");
}

// rotatekv for four KV heads of 8 channels, which its codec would refuse, but a file may hold.
CodecProfile OrderedProfile() {
  std::vector<KvTransform> transforms;
  transforms.push_back(KvTransform::Identity(8));
  transforms.push_back(KvTransform::Hadamard(8).value());
  std::vector<CodecProfile::Row> rows(16);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].transform = static_cast<int>(i % 2);
  for (const size_t first : {size_t{0}, size_t{8}}) {
    for (uint16_t c = 0; c < 32; ++c) rows[first].channel_order.push_back(static_cast<uint16_t>((5 * c + first) % 32));
  }
  return CodecProfile::Create("rotatekv", {2, 4, 4, 8}, std::move(transforms), rows, {}).value();
}

TEST(ProfileFile, ChannelOrdersAreKeptAndThoseThatDoNotFitAreRefused) {
  const CodecProfile profile = OrderedProfile();
  const CodecProfile loaded = ParseProfile(SerializeProfile(profile)).value();
  EXPECT_EQ(loaded.digest(), profile.digest());
  EXPECT_EQ(loaded.row(1, 0, KvSide::kKey).channel_order[3], 23);
  EXPECT_TRUE(loaded.row(1, 1, KvSide::kKey).channel_order.empty());
  const auto reject = [](const std::function<void(OpenFile&)>& change, const std::string& expected) {
    OpenFile file(OrderedProfile());
    change(file);
    const Status status = ParseProfile(file.Close()).status();
    EXPECT_NE(status.message().find(expected), std::string::npos) << expected << " <- " << status.message();
  };
  const auto set = [](OpenFile& file, size_t index, int32_t value) { std::memcpy(file.tensors["row_order"].bytes.data() + 4 * index, &value, 4); };
  reject([&](OpenFile& file) { set(file, 3, 32); }, "row_order: channel 32 of 32");
  reject([&](OpenFile& file) { set(file, 3, -1); }, "row_order: channel -1 of 32");
  reject([&](OpenFile& file) { set(file, 3, 0); }, "not a permutation: channel 0 comes twice");
  reject([](OpenFile& file) { file.metadata["method"] = "rotatekv_unordered"; }, "a channel order is for the first of four heads of rotatekv");
  reject([](OpenFile& file) { file.tensors["row_has_order"].bytes[0] = std::byte{0}, file.tensors["row_has_order"].bytes[2] = std::byte{1}; },
         "layer 0, KV head 0, keys of rotatekv has no channel order");
  reject([](OpenFile& file) { file.tensors["row_has_order"].bytes[0] = std::byte{0}, file.tensors["row_has_order"].bytes[1] = std::byte{1}; }, "layer 0, KV head 0");
  reject([](OpenFile& file) { file.tensors["row_order"].shape = {4, 16}; }, "\"row_order\" is I32 [4, 16], not I32 [2, 32]");
}

// Written by PyPI safetensors, digest by the Python function of docs/profile-format.md.
TEST(ProfileFile, FilesWrittenByOtherSoftwareLoad) {
  const std::filesystem::path corpus = "fuzz/corpus/profile";
  const Result<CodecProfile> layer = CodecProfile::Load(corpus / "layer_scope");
  ASSERT_TRUE(layer.ok()) << layer.status().message();
  EXPECT_EQ(layer->row(0, 0, KvSide::kValue).transform->kind(), TransformKind::kOrthogonal);
  EXPECT_EQ(layer->eigenvalues(0, KvSide::kKey)[3], 3.0f);
  const Result<CodecProfile> head = CodecProfile::Load(corpus / "head_scope");
  ASSERT_TRUE(head.ok()) << head.status().message();
  EXPECT_NE(head->row(0, 0, KvSide::kKey).transform, head->row(0, 1, KvSide::kKey).transform);
  EXPECT_EQ(head->row(0, 0, KvSide::kValue).transform, head->row(0, 1, KvSide::kValue).transform);
  const Result<CodecProfile> balanced = CodecProfile::Load(corpus / "balanced");
  ASSERT_TRUE(balanced.ok()) << balanced.status().message();
  EXPECT_EQ(balanced->row(0, 0, KvSide::kKey).mean_kind, MeanKind::kRotating);
  EXPECT_EQ(balanced->row(0, 0, KvSide::kKey).metric.size(), 4u);
  EXPECT_EQ(balanced->rotary().angles, (std::vector<float>{1.0f, 0.01f}));
  EXPECT_TRUE(balanced->rotary().halves);
}

TEST(ProfileFile, AnotherFormatVersionIsUnsupported) {
  OpenFile file(OscarProfile());
  file.metadata["format_version"] = "2";
  const Status status = ParseProfile(file.Close()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("this program reads version 1"), std::string::npos) << status.message();
}

TEST(ProfileFile, LoadAndSaveNameThePath) {
  EXPECT_EQ(CodecProfile::Load(TestPath("absent.safetensors")).status().code(), StatusCode::kNotFound);
  const Status status = OscarProfile().Save(TestPath("no") / "such" / "profile.safetensors");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("profile.safetensors"), std::string::npos);
  std::filesystem::remove_all(TestPath("").parent_path());
}

}  // namespace
}  // namespace oscar
