#include "src/io/torch_zip.h"

#include <gtest/gtest.h>

#include <cstring>

namespace oscar::io {
namespace {

std::vector<std::byte> Bytes(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}
std::string Text(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::vector<std::byte> Sample() {
  return WriteTorchZip("model", {{"data.pkl", Bytes("pickle")}, {"byteorder", Bytes("little")}, {"data/0", Bytes(std::string(100, 'x'))}, {"empty", {}}});
}

TEST(TorchZip, WhatIsWrittenIsRead) {
  const std::vector<std::byte> bytes = Sample();
  const auto zip = TorchZip::Parse(bytes);
  ASSERT_TRUE(zip.ok()) << zip.status().message();
  EXPECT_EQ(zip->root(), "model");
  EXPECT_EQ(Text(zip->Entry("data.pkl").value()), "pickle");
  EXPECT_EQ(Text(zip->Entry("data/0").value()), std::string(100, 'x'));
  EXPECT_TRUE(zip->Entry("empty")->empty());
  EXPECT_EQ(zip->Entry("data/1").status().code(), StatusCode::kNotFound);
}

TEST(TorchZip, PayloadsLieAtMultiplesOf64Bytes) {
  const std::vector<std::byte> bytes = Sample();
  const auto zip = TorchZip::Parse(bytes);
  for (const char* name : {"data.pkl", "byteorder", "data/0"}) EXPECT_EQ((zip->Entry(name)->data() - bytes.data()) % 64, 0) << name;
}

TEST(TorchZip, EveryTruncationAndTrailingBytesAreRefused) {
  std::vector<std::byte> bytes = Sample();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(TorchZip::Parse({bytes.data(), size}).status().code(), StatusCode::kCorruptData) << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(TorchZip::Parse(bytes).ok());
}

// Every byte changed in turn: refused, or in a place that the reader has no use for. Never content that differs.
TEST(TorchZip, AChangedByteNeverChangesContent) {
  const std::vector<std::byte> whole = Sample();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {1, 0x80, 0xFF}) {
      std::vector<std::byte> bytes = whole;
      bytes[at] ^= static_cast<std::byte>(change);
      const auto zip = TorchZip::Parse(bytes);
      if (!zip.ok()) continue;
      if (const auto entry = zip->Entry("data.pkl"); entry.ok()) {
        EXPECT_EQ(Text(*entry), "pickle") << at;
      }
      if (const auto entry = zip->Entry("data/0"); entry.ok()) {
        EXPECT_EQ(Text(*entry), std::string(100, 'x')) << at;
      }
    }
  }
}

TEST(TorchZip, OtherLayoutsAreRefusedByName) {
  EXPECT_EQ(TorchZip::Parse(WriteTorchZip("m", {{"byteorder", Bytes("big")}})).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(TorchZip::Parse(WriteTorchZip("m", {{"a", Bytes("1")}, {"a", Bytes("2")}})).status().code(), StatusCode::kCorruptData);
  std::vector<std::byte> compressed = WriteTorchZip("m", {{"a", Bytes("1")}});
  // The method of the one entry of the central directory, which begins with PK 01 02.
  const std::string text = Text(compressed);
  compressed[text.rfind("PK\x01\x02") + 10] = std::byte{8};
  EXPECT_EQ(TorchZip::Parse(compressed).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace oscar::io
