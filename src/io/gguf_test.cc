#include "src/io/gguf.h"

#include <cstdint>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "src/testing/gguf_builder.h"
#include "src/testing/seeds.h"

namespace oscar::io {
namespace {

using oscar::testing::GgufBuilder;
using oscar::testing::GgufBytes;

// A whole small file with every kind of value and two tensors.
GgufBuilder SmallFile() {
  GgufBuilder builder;
  builder.String("general.architecture", "llama").U32("llama.block_count", 2).U64("big", uint64_t{1} << 40).I8("minus", -3);
  builder.F32("epsilon", 0.5f).F64("double", 0.25).Bool("yes", 1).Strings("tokens", {"a", "", "c"});
  builder.Array<int32_t>("types", 5, {1, -2, 3}).Array<float>("scores", 6, {0.5f, 1.5f}).Array<uint8_t>("bools", 7, {0, 1});
  builder.Tensor("first", {3}, std::vector<float>{1, 2, 3}).Tensor("second", {2, 2}, std::vector<float>{4, 5, 6, 7});
  return builder;
}

// The status of parsing `bytes`, which must fail.
Status ParseError(const std::vector<std::byte>& bytes) {
  const auto parsed = GgufFile::Parse(bytes);
  EXPECT_FALSE(parsed.ok());
  return parsed.status();
}

void ExpectError(const std::vector<std::byte>& bytes, StatusCode code, const std::string& part) {
  const Status status = ParseError(bytes);
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

GgufBytes Header(uint64_t num_tensors, uint64_t num_entries, uint32_t version = 3) {
  GgufBytes bytes;
  bytes.Add<uint32_t>(0x46554747).Add(version).Add(num_tensors).Add(num_entries);
  return bytes;
}

TEST(Gguf, ReadsEveryKindOfValueInVersions2And3) {
  for (uint32_t version : {2u, 3u}) {
    const auto bytes = SmallFile().Build(version);
    const auto file = GgufFile::Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->version(), version);
    const GgufMetadata& metadata = file->metadata();
    EXPECT_EQ(*metadata.String("general.architecture"), "llama");
    EXPECT_EQ(*metadata.Integer("llama.block_count"), 2);
    EXPECT_EQ(*metadata.Integer("big"), int64_t{1} << 40);
    EXPECT_EQ(*metadata.Integer("minus"), -3);
    EXPECT_EQ(*metadata.Double("epsilon"), 0.5);
    EXPECT_EQ(*metadata.Double("double"), 0.25);
    EXPECT_EQ(*metadata.Double("minus"), -3.0);
    EXPECT_TRUE(*metadata.Bool("yes"));
    EXPECT_EQ(metadata.Strings("tokens")->size(), 3u);
    EXPECT_EQ((*metadata.Strings("tokens"))[2], "c");
    EXPECT_EQ((*metadata.Integers("types"))[1], -2);
    EXPECT_EQ((*metadata.Doubles("scores"))[1], 1.5);
    EXPECT_EQ(metadata.entries().size(), 11u);
  }
}

TEST(Gguf, TensorsAreFoundByNameWithTheirBytes) {
  const auto bytes = SmallFile().Build();
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->tensors().size(), 2u);
  const GgufTensor* second = file->FindTensor("second");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->dims, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(second->num_elements(), 4);
  const auto data = file->TensorBytes(*second, 16);
  ASSERT_TRUE(data.ok());
  float value;
  std::memcpy(&value, data->data() + 12, 4);
  EXPECT_EQ(value, 7.0f);
  EXPECT_EQ(file->FindTensor("third"), nullptr);
  EXPECT_EQ(file->TensorBytes(*second, 17).status().code(), StatusCode::kCorruptData);
  EXPECT_EQ(file->TensorBytes(*second, std::numeric_limits<uint64_t>::max()).status().code(), StatusCode::kCorruptData);
}

TEST(Gguf, AnAlignmentFromTheFileIsUsed) {
  for (uint32_t alignment : {1u, 64u, 4096u}) {
    GgufBuilder builder;
    builder.Alignment(alignment).Tensor("a", {1}, std::vector<float>{1}).Tensor("b", {1}, std::vector<float>{2});
    const auto bytes = builder.Build();
    const auto file = GgufFile::Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status().message();
    float value;
    std::memcpy(&value, file->TensorBytes(*file->FindTensor("b"), 4)->data(), 4);
    EXPECT_EQ(value, 2.0f);
  }
}

TEST(Gguf, AFileOfMetadataAloneIsWhole) {
  const auto bytes = GgufBuilder().String("general.name", "x").Build();
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->data_section().empty());
}

TEST(Gguf, LookUpsNameTheKeyAndBothTypes) {
  const auto bytes = SmallFile().Build();
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok());
  const GgufMetadata& metadata = file->metadata();
  EXPECT_EQ(metadata.String("absent").status().code(), StatusCode::kNotFound);
  const Status wrong = metadata.Integer("general.architecture").status();
  EXPECT_EQ(wrong.code(), StatusCode::kCorruptData);
  EXPECT_EQ(wrong.message(), "metadata key \"general.architecture\" is a string instead of an integer");
  EXPECT_EQ(metadata.Integer("epsilon").status().code(), StatusCode::kCorruptData);
  EXPECT_EQ(*metadata.IntegerOr("absent", 7), 7);
  EXPECT_EQ(*metadata.StringOr("absent", "x"), "x");
  EXPECT_EQ(*metadata.DoubleOr("absent", 1.5), 1.5);
  EXPECT_TRUE(*metadata.BoolOr("absent", true));
  EXPECT_EQ(metadata.IntegerOr("yes", 7).status().code(), StatusCode::kCorruptData);
}

TEST(Gguf, BadHeadersAreRefused) {
  ExpectError({}, StatusCode::kCorruptData, "magic");
  ExpectError(GgufBytes().Add<uint32_t>(0x46554748).Add<uint32_t>(3).bytes(), StatusCode::kCorruptData, "not a GGUF file");
  ExpectError(Header(0, 0, 1).bytes(), StatusCode::kUnsupported, "version 1");
  ExpectError(Header(0, 0, 4).bytes(), StatusCode::kUnsupported, "version 4");
  ExpectError(Header(0, 0, 0x03000000).bytes(), StatusCode::kUnsupported, "big-endian");
  ExpectError(Header(0, uint64_t{1} << 60).bytes(), StatusCode::kCorruptData, "metadata entries");
  ExpectError(Header(uint64_t{1} << 60, 0).bytes(), StatusCode::kCorruptData, "tensors");
  ExpectError(Header(std::numeric_limits<uint64_t>::max(), 0).bytes(), StatusCode::kCorruptData, "tensors");
}

TEST(Gguf, HostileLengthsAreRefusedBeforeAnythingIsAllocated) {
  constexpr uint64_t kHuge = uint64_t{1} << 62;
  const std::vector<std::byte> filler(64);
  ExpectError(Header(0, 1).Add(kHuge).AddRaw(filler).bytes(), StatusCode::kCorruptData, "limit");
  ExpectError(Header(0, 1).AddString("k").Add<uint32_t>(8).Add(kHuge).AddRaw(filler).bytes(), StatusCode::kCorruptData, "\"k\"");
  for (uint32_t type : {0u, 4u, 7u, 8u, 12u}) {  // arrays
    ExpectError(Header(0, 1).AddString("k").Add<uint32_t>(9).Add(type).Add(kHuge).AddRaw(filler).bytes(),
                StatusCode::kCorruptData, "\"k\"");
    ExpectError(Header(0, 1).AddString("k").Add<uint32_t>(9).Add(type).Add<uint64_t>(100).AddRaw(filler).bytes(),
                StatusCode::kCorruptData, "\"k\"");
  }
  ExpectError(Header(1, 0).Add(kHuge).AddRaw(filler).bytes(), StatusCode::kCorruptData, "name of tensor 0");
}

TEST(Gguf, BadValuesAreRefused) {
  ExpectError(GgufBuilder().Bool("flag", 2).Build(), StatusCode::kCorruptData, "\"flag\"");
  ExpectError(GgufBuilder().U64("n", uint64_t{1} << 63).Build(), StatusCode::kCorruptData, "\"n\"");
  ExpectError(GgufBuilder().U32("n", 1).U32("n", 2).Build(), StatusCode::kCorruptData, "second time");
  ExpectError(GgufBuilder().U32("", 1).Build(), StatusCode::kCorruptData, "empty");
  ExpectError(GgufBuilder().U32(std::string(65537, 'x'), 1).Build(), StatusCode::kCorruptData, "limit");
  ExpectError(Header(0, 1).AddString("k").Add<uint32_t>(13).Add<uint64_t>(0).bytes(), StatusCode::kCorruptData, "type 13");
  ExpectError(Header(0, 1).AddString("k").Add<uint32_t>(9).Add<uint32_t>(13).Add<uint64_t>(0).bytes(),
              StatusCode::kCorruptData, "type 13");
  ExpectError(Header(0, 1).AddString("k").Add<uint32_t>(9).Add<uint32_t>(9).Add<uint64_t>(1).Add<uint64_t>(0).bytes(),
              StatusCode::kUnsupported, "array of arrays");
}

TEST(Gguf, BadAlignmentsAreRefused) {
  for (uint32_t alignment : {0u, 3u, 48u, 1u << 21, 0xFFFFFFFFu}) {
    ExpectError(GgufBuilder().U32("general.alignment", alignment).Build(), StatusCode::kCorruptData, "general.alignment");
  }
  ExpectError(GgufBuilder().String("general.alignment", "32").Build(), StatusCode::kCorruptData, "general.alignment");
}

TEST(Gguf, BadTensorsAreRefused) {
  const std::vector<std::byte> data(64);
  const auto build = [&](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    return GgufBuilder().TensorAt("w", dims, type, offset, data).Build();
  };
  ASSERT_TRUE(GgufFile::Parse(build({4}, 0, 32)).ok());
  ExpectError(build({}, 0, 0), StatusCode::kCorruptData, "dimensions");
  ExpectError(build({1, 1, 1, 1, 1}, 0, 0), StatusCode::kCorruptData, "dimensions");
  ExpectError(build({4, 0}, 0, 0), StatusCode::kCorruptData, "size 0");
  ExpectError(build({uint64_t{1} << 32, uint64_t{1} << 31}, 0, 0), StatusCode::kCorruptData, "elements");
  ExpectError(build({std::numeric_limits<uint64_t>::max()}, 0, 0), StatusCode::kCorruptData, "elements");
  ExpectError(build({4}, 1024, 0), StatusCode::kCorruptData, "type 1024");
  ExpectError(build({4}, 0, 8), StatusCode::kCorruptData, "alignment");
  ExpectError(build({4}, 0, 64), StatusCode::kCorruptData, "cut off");
  ExpectError(build({4}, 0, uint64_t{0} - 32), StatusCode::kCorruptData, "cut off");
  ExpectError(GgufBuilder().Tensor("w", {1}, std::vector<float>{1}).Tensor("w", {1}, std::vector<float>{1}).Build(),
              StatusCode::kCorruptData, "second time");
  ExpectError(GgufBuilder().Tensor("", {1}, std::vector<float>{1}).Build(), StatusCode::kCorruptData, "empty name");
}

TEST(Gguf, EveryTruncationIsAnErrorThatNamesAPlace) {
  const auto bytes = SmallFile().Build();
  const auto whole = GgufFile::Parse(bytes);
  ASSERT_TRUE(whole.ok());
  const size_t data_start = static_cast<size_t>(whole->data_section().data() - bytes.data());
  for (size_t size = 0; size < bytes.size(); ++size) {
    // An exact-size copy, so that the address sanitizer sees a read past the end.
    const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<long>(size));
    const auto parsed = GgufFile::Parse(part);
    if (size <= data_start + 32) {
      EXPECT_FALSE(parsed.ok()) << size;
    } else {
      ASSERT_TRUE(parsed.ok()) << size << parsed.status().message();
      EXPECT_FALSE(parsed->TensorBytes(*parsed->FindTensor("second"), 16).ok()) << size;
    }
  }
}

TEST(Gguf, RandomDamageNeverDoesMoreThanFail) {
  const uint64_t seed = oscar::testing::TestSeed(7);
  SCOPED_TRACE("OSCAR_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  const auto bytes = SmallFile().Build();
  int num_refused = 0;
  for (int round = 0; round < 20000; ++round) {
    auto damaged = bytes;
    for (uint64_t i = 0; i <= rng() % 3; ++i) damaged[rng() % damaged.size()] = static_cast<std::byte>(rng());
    const auto parsed = GgufFile::Parse(damaged);
    if (!parsed.ok()) {
      EXPECT_FALSE(parsed.status().message().empty());
      ++num_refused;
      continue;
    }
    for (const GgufTensor& tensor : parsed->tensors()) {
      EXPECT_GE(tensor.num_elements(), 1);
      (void)parsed->TensorBytes(tensor, 16);
    }
  }
  EXPECT_GT(num_refused, 1000);
}

TEST(Gguf, OpenNamesThePathAndKeepsTheMapping) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "gguf_test_open.gguf";
  const auto bytes = SmallFile().Build();
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
  {
    auto opened = GgufFile::Open(path);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    const GgufFile moved = std::move(opened).value();
    EXPECT_TRUE(moved.TensorBytes(*moved.FindTensor("first"), 12).ok());
  }
  std::filesystem::resize_file(path, 40);
  const auto cut = GgufFile::Open(path);
  ASSERT_FALSE(cut.ok());
  EXPECT_NE(cut.status().message().find("gguf_test_open.gguf"), std::string::npos);
  EXPECT_NE(cut.status().message().find("byte offset"), std::string::npos) << cut.status().message();
  std::filesystem::remove(path);
}

TEST(Gguf, UnprintableNamesAreNotEchoed) {
  const Status status = ParseError(GgufBuilder().Bool("a\x1b[31m\n", 2).Build());
  EXPECT_EQ(status.message().find('\x1b'), std::string::npos);
  EXPECT_NE(status.message().find("\"a?[31m?\""), std::string::npos) << status.message();
}

}  // namespace
}  // namespace oscar::io
