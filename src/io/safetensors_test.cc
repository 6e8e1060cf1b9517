#include "src/io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "src/testing/seeds.h"

namespace oscar::io {
namespace {

// A file from a header text and a data section of `data_size` bytes.
std::vector<std::byte> FileOf(const std::string& header, size_t data_size) {
  std::vector<std::byte> bytes(8 + header.size() + data_size);
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(header.size() >> (8 * i));
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_size; ++i) bytes[8 + header.size() + i] = static_cast<std::byte>(i);
  return bytes;
}

std::vector<std::byte> Bytes(size_t size, int seed = 0) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(seed));
  return bytes;
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::vector<std::byte> bytes = FileOf(
      R"({"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"__metadata__":{"k":"v"},)"
      R"("s":{"dtype":"I64","shape":[],"data_offsets":[8,16]},"none":{"dtype":"U8","shape":[0,5],"data_offsets":[16,16]}}  )",
      16);
  const Result<SafetensorsFile> file = SafetensorsFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata().at("k"), "v");
  ASSERT_EQ(file->tensors().size(), 3u);
  const SafetensorsTensor* w = file->Find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->dtype, SafetensorsDtype::kF32);
  EXPECT_EQ(w->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(w->bytes.size(), 8u);
  EXPECT_EQ(w->bytes[3], std::byte{3});
  EXPECT_TRUE(file->Find("s")->shape.empty());
  EXPECT_EQ(file->Find("s")->bytes[0], std::byte{8});
  EXPECT_TRUE(file->Find("none")->bytes.empty());
  EXPECT_EQ(file->Find("absent"), nullptr);
  EXPECT_EQ(file->Find(""), nullptr);
}

TEST(Safetensors, HostileFilesAreRefusedWithTheReason) {
  struct Case {
    std::string header;
    size_t data_size;
    std::string expected;
  };
  const auto tensor = [](const std::string& fields) { return "{\"w\":{" + fields + "}}"; };
  const std::vector<Case> cases = {
      {"", 0, "does not begin"},
      {"[]", 0, "does not begin"},
      {" {}", 0, "does not begin"},
      {"{", 0, "not valid JSON"},
      {"{}x", 0, "not valid JSON"},
      {"{}", 1, "1 bytes follow"},
      {tensor("\"shape\":[1],\"data_offsets\":[0,4]"), 4, "\"dtype\" is missing"},
      {tensor("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), 4, "\"shape\" is missing"},
      {tensor("\"dtype\":\"F32\",\"shape\":[1]"), 4, "\"data_offsets\" is missing"},
      {tensor("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1"), 4, "other than"},
      {"{\"w\":7}", 0, "not an object"},
      {tensor("\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, "\"F4\" is not known"},
      {tensor("\"dtype\":5,\"shape\":[1],\"data_offsets\":[0,4]"), 4, "\"dtype\" is not a text"},
      {tensor("\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]"), 4, "not a list"},
      {tensor("\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]"), 4, "non-negative"},
      {tensor("\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]"), 4, "non-negative"},
      {tensor("\"dtype\":\"F32\",\"shape\":[18446744073709551615],\"data_offsets\":[0,4]"), 4, "non-negative"},
      {tensor("\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,4]"), 4, "passes 2^63"},
      {tensor("\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,4]"), 4, "passes 2^63"},
      {tensor("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,4]"), 4, "span 4 bytes"},
      {tensor("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]"), 4, "not a pair"},
      {tensor("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]"), 4, "leave the data section"},
      {tensor("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]"), 4, "leave the data section"},
      {tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"), 4, "span 4 bytes"},
      {tensor("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]"), 8, "overlap or leave a gap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "overlap or leave a gap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       8, "occurs twice"},
      {"{\"__metadata__\":[]}", 0, "__metadata__"},
      {"{\"__metadata__\":{\"k\":1}}", 0, "not a text"},
  };
  for (const Case& hostile : cases) {
    const std::vector<std::byte> bytes = FileOf(hostile.header, hostile.data_size);
    const Result<SafetensorsFile> file = SafetensorsFile::Parse(bytes);
    ASSERT_FALSE(file.ok()) << hostile.header;
    EXPECT_NE(file.status().message().find(hostile.expected), std::string::npos)
        << hostile.header << " -> " << file.status().message();
  }
}

TEST(Safetensors, AHeaderLengthBeyondFileOrLimitIsRefused) {
  std::vector<std::byte> bytes = FileOf("{}", 0);
  for (size_t size = 0; size < 8; ++size) EXPECT_FALSE(SafetensorsFile::Parse(std::span(bytes).first(size)).ok());
  bytes[0] = std::byte{3};
  EXPECT_NE(SafetensorsFile::Parse(bytes).status().message().find("truncated"), std::string::npos);
  bytes.assign(bytes.size(), std::byte{0xFF});
  EXPECT_NE(SafetensorsFile::Parse(bytes).status().message().find("above the limit"), std::string::npos);
}

TEST(SafetensorsWriter, WhatItWritesIsReadBackAlignedAndDeterministic) {
  std::mt19937_64 rng(testing::TestSeed(11));
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<std::byte>> storage;
    std::vector<SafetensorsTensor> wanted;
    const int count = static_cast<int>(rng() % 8);
    for (int i = 0; i < count; ++i) {
      SafetensorsTensor tensor;
      tensor.name = std::to_string(rng() % 1000) + "." + std::to_string(i);
      tensor.dtype = static_cast<SafetensorsDtype>(rng() % 15);
      size_t size = SafetensorsElementBytes(tensor.dtype);
      for (uint64_t rank = rng() % 4; rank > 0; --rank) {
        tensor.shape.push_back(static_cast<int64_t>(rng() % 5));
        size *= static_cast<size_t>(tensor.shape.back());
      }
      storage.push_back(Bytes(size, i));
      tensor.bytes = storage.back();
      wanted.push_back(tensor);
    }
    SafetensorsWriter forward, backward;
    for (const auto& tensor : wanted)
      ASSERT_TRUE(forward.Add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes).ok());
    for (size_t i = wanted.size(); i-- > 0;) {
      ASSERT_TRUE(backward.Add(wanted[i].name, wanted[i].dtype, wanted[i].shape, wanted[i].bytes).ok());
    }
    for (SafetensorsWriter* writer : {&forward, &backward}) writer->SetMetadata("key", "caf\xc3\xa9 \xff");
    const std::vector<std::byte> bytes = forward.Finish();
    EXPECT_EQ(bytes, backward.Finish());
    const Result<SafetensorsFile> file = SafetensorsFile::Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ((file->data_section().data() - bytes.data()) % 64, 0);
    EXPECT_EQ(file->metadata().at("key"), "caf\xc3\xa9 \xef\xbf\xbd");
    ASSERT_EQ(file->tensors().size(), wanted.size());
    for (const SafetensorsTensor& tensor : wanted) {
      const SafetensorsTensor* read = file->Find(tensor.name);
      ASSERT_NE(read, nullptr);
      EXPECT_EQ(read->dtype, tensor.dtype);
      EXPECT_EQ(read->shape, tensor.shape);
      EXPECT_TRUE(std::equal(read->bytes.begin(), read->bytes.end(), tensor.bytes.begin(), tensor.bytes.end()));
      EXPECT_EQ(static_cast<size_t>(read->bytes.data() - bytes.data()) % SafetensorsElementBytes(tensor.dtype), 0u);
    }
  }
}

TEST(SafetensorsWriter, RefusesTensorsThatCannotBeStored) {
  const std::vector<std::byte> bytes = Bytes(8);
  SafetensorsWriter writer;
  EXPECT_FALSE(writer.Add("", SafetensorsDtype::kF32, {2}, bytes).ok());
  EXPECT_FALSE(writer.Add("__metadata__", SafetensorsDtype::kF32, {2}, bytes).ok());
  EXPECT_FALSE(writer.Add("\xff", SafetensorsDtype::kF32, {2}, bytes).ok());
  EXPECT_FALSE(writer.Add("w", SafetensorsDtype::kF32, {3}, bytes).ok());
  EXPECT_FALSE(writer.Add("w", SafetensorsDtype::kF32, {-2}, bytes).ok());
  EXPECT_TRUE(writer.Add("w", SafetensorsDtype::kF32, {2}, bytes).ok());
  EXPECT_FALSE(writer.Add("w", SafetensorsDtype::kF32, {2}, bytes).ok());
}

TEST(Safetensors, EveryTruncationAndEveryFlippedBitIsAnErrorOrAWellFormedFile) {
  SafetensorsWriter writer;
  const std::vector<std::byte> a = Bytes(24), b = Bytes(5);
  ASSERT_TRUE(writer.Add("a", SafetensorsDtype::kF32, {2, 3}, a).ok());
  ASSERT_TRUE(writer.Add("b", SafetensorsDtype::kU8, {5}, b).ok());
  const std::vector<std::byte> bytes = writer.Finish();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(SafetensorsFile::Parse(part).ok()) << size;
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::vector<std::byte> flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const Result<SafetensorsFile> file = SafetensorsFile::Parse(flipped);
    if (!file.ok()) continue;
    size_t covered = 0;
    for (const SafetensorsTensor& tensor : file->tensors()) covered += tensor.bytes.size();
    EXPECT_EQ(covered, a.size() + b.size()) << "bit " << bit;
  }
}

TEST(Safetensors, OpenNamesThePath) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "oscar_broken.safetensors";
  std::ofstream(path) << "not a safetensors file";
  const Status status = SafetensorsFile::Open(path).status();
  EXPECT_EQ(status.code(), StatusCode::kCorruptData);
  EXPECT_NE(status.message().find("oscar_broken.safetensors"), std::string::npos);
  std::filesystem::remove(path);
  EXPECT_EQ(SafetensorsFile::Open(path).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace oscar::io
