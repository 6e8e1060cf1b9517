#include "src/io/pickle_tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "src/testing/seeds.h"

namespace oscar::io {
namespace {

std::vector<std::byte> Bytes(std::string_view text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}
Result<PickledValue> Parse(std::string_view text) { return ParsePickle(Bytes(text)); }

using namespace std::string_view_literals;

// A 2 x 3 tensor of storage "0" with 6 floats, under the key "t".
constexpr std::string_view kTensorFile =
    "\x80\x02}q\x00(X\x01\x00\x00\x00tctorch._utils\n_rebuild_tensor_v2\n(("
    "X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"
    "0X\x03\x00\x00\x00"
    "cpuK\x06tQK\x00K\x02K\x03\x86K\x03K\x01\x86\x89"
    "ccollections\nOrderedDict\n)RtRu."sv;

TEST(ParsePickle, ReadsADictionaryWithATensor) {
  const auto value = Parse(kTensorFile);
  ASSERT_TRUE(value.ok()) << value.status().message();
  ASSERT_NE(value->dict(), nullptr);
  const PickledValue* found = value->dict()->Find("t");
  ASSERT_NE(found, nullptr);
  const auto& tensor = std::get<PickledTensor>(found->content);
  EXPECT_EQ(tensor.storage, "0");
  EXPECT_EQ(tensor.storage_elements, 6);
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensor.strides, (std::vector<int64_t>{3, 1}));
}

TEST(ParsePickle, ReadsNumbersTextsAndKeysOfBothKinds) {
  const auto value = Parse("\x80\x03}(K\x07J\xFE\xFF\xFF\xFFX\x02\x00\x00\x00"
                           "42\x88\x8A\x02\x00\xFF\x8C\x01xu."sv);
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(std::get<int64_t>(value->dict()->Find("7")->content), -2);
  EXPECT_EQ(std::get<bool>(value->dict()->Find("42")->content), true);
  EXPECT_EQ(std::get<std::string>(value->dict()->Find("-256")->content), "x");
  EXPECT_EQ(value->dict()->Find("nothing"), nullptr);
}

TEST(ParsePickle, CodeIsRefusedAndNeverRun) {
  for (std::string_view text : {"\x80\x02" "cos\nsystem\n(X\x02\x00\x00\x00lstR."sv, "\x80\x02(X\x02\x00\x00\x00lsios\nsystem\n."sv,
                                "\x80\x02" "cbuiltins\neval\nX\x01\x00\x00\x00"
                                "1\x85R."sv,
                                "\x80\x02" "ctorch\nload\n."sv, "\x80\x02}b."sv, "\x80\x02}\x81."sv, "\x80\x04\x8C\x02os\x8C\x06system\x93."sv,
                                "\x80\x02\x82\x01."sv, "\x80\x02Pid\n."sv, "\x80\x05}."sv, "(dp0\n."sv}) {
    const auto value = Parse(text);
    ASSERT_FALSE(value.ok()) << text;
    EXPECT_EQ(value.status().code(), StatusCode::kUnsupported) << text << ": " << value.status().message();
  }
}

TEST(ParsePickle, BrokenStacksAreRefused) {
  for (std::string_view text :
       {"\x80\x02."sv, "\x80\x02"sv, "\x80\x02}"sv, "\x80\x02}K\x01s."sv, "\x80\x02}(K\x01u."sv, "\x80\x02}u."sv, "\x80\x02t."sv, "\x80\x02h\x05."sv,
        "\x80\x02}}."sv, "\x80\x02}.x"sv, "\x80\x02q\x00."sv, "\x80\x02\x86."sv, "\x80\x02K\x01Q."sv, "\x80\x02K\x01K\x02R."sv, "\x80\x02(."sv,
        "\x80\x02K\x01)\x89s."sv, "\x80\x02X\x09\x00\x00\x00"
                                  "ab."sv,
        "\x80\x04\x95\xFF\x00\x00\x00\x00\x00\x00\x00}."sv}) {
    const auto value = Parse(text);
    ASSERT_FALSE(value.ok());
    EXPECT_EQ(value.status().code(), StatusCode::kCorruptData) << value.status().message();
    EXPECT_NE(value.status().message().find("byte"), std::string::npos) << value.status().message();
  }
}

// What would make a reader run out of stack or memory.
TEST(ParsePickle, DepthAndSelfReferenceAreRefused) {
  std::string tuples = "\x80\x02)";
  for (int i = 0; i < 100000; ++i) tuples += '\x85';
  EXPECT_EQ(Parse(tuples + ".").status().code(), StatusCode::kUnsupported);
  std::string dicts = "\x80\x02";
  for (int i = 0; i < 1000; ++i) dicts += "}K\x01"sv;
  dicts += "K\x02";
  for (int i = 0; i < 1000; ++i) dicts += "s";
  EXPECT_EQ(Parse(dicts + ".").status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(Parse("\x80\x02}q\x00K\x01h\x00s."sv).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(Parse(std::string((1 << 20) + 1, '(')).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(Parse(std::string("\x80\x02X\xC9\x00\x00\x00", 7) + std::string(201, 'a') + ".").status().code(), StatusCode::kUnsupported);
}

TEST(ParsePickle, EveryTruncationAndMutationIsRefusedOrRead) {
  const std::string whole(kTensorFile);
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(Parse(whole.substr(0, size)).ok()) << size;
  std::mt19937_64 rng(testing::TestSeed(111));
  for (int i = 0; i < 20000; ++i) {
    std::string text = whole;
    for (uint64_t changes = 1 + rng() % 3; changes > 0; --changes) text[rng() % text.size()] = static_cast<char>(rng() % 256);
    const auto value = Parse(text);
    if (!value.ok()) {
      EXPECT_FALSE(value.status().message().empty());
    }
  }
}

std::vector<std::byte> Floats(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

TEST(ReadTensor, HonoursOffsetsAndStrides) {
  const std::vector<std::byte> storage = Floats({0, 1, 2, 3, 4, 5, 6});
  EXPECT_EQ(*ReadTensor({TorchDtype::kF32, "0", 7, 1, {2, 3}, {3, 1}}, storage), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(*ReadTensor({TorchDtype::kF32, "0", 7, 1, {2, 3}, {1, 2}}, storage), (std::vector<float>{1, 3, 5, 2, 4, 6}));
  EXPECT_EQ(*ReadTensor({TorchDtype::kF32, "0", 7, 6, {3}, {0}}, storage), (std::vector<float>{6, 6, 6}));
  EXPECT_EQ(*ReadTensor({TorchDtype::kF32, "0", 7, 3, {}, {}}, storage), (std::vector<float>{3}));
  EXPECT_TRUE(ReadTensor({TorchDtype::kF32, "0", 7, 9, {0, 5}, {1, 1}}, storage)->empty());
}

TEST(ReadTensor, ConvertsHalvesAndDoubles) {
  const double doubles[] = {1.5, -2};
  const auto bytes = std::as_bytes(std::span(doubles));
  EXPECT_EQ(*ReadTensor({TorchDtype::kF64, "0", 2, 0, {2}, {1}}, bytes), (std::vector<float>{1.5f, -2}));
  const uint16_t halves[] = {0x3C00, 0xC000}, brains[] = {0x3F80, 0xC000};
  EXPECT_EQ(*ReadTensor({TorchDtype::kF16, "0", 2, 0, {2}, {1}}, std::as_bytes(std::span(halves))), (std::vector<float>{1, -2}));
  EXPECT_EQ(*ReadTensor({TorchDtype::kBF16, "0", 2, 0, {2}, {1}}, std::as_bytes(std::span(brains))), (std::vector<float>{1, -2}));
}

TEST(ReadTensor, WhatReachesBeyondTheStorageIsRefused) {
  const std::vector<std::byte> storage = Floats({0, 1, 2, 3, 4, 5});
  constexpr int64_t kHuge = INT64_MAX / 2;
  for (const PickledTensor& tensor :
       {PickledTensor{TorchDtype::kF32, "0", 6, 1, {2, 3}, {3, 1}}, PickledTensor{TorchDtype::kF32, "0", 6, 6, {}, {}},
        PickledTensor{TorchDtype::kF32, "0", 6, 0, {2, 2}, {kHuge, kHuge}}, PickledTensor{TorchDtype::kF32, "0", 6, kHuge, {2, 2}, {kHuge, kHuge}},
        PickledTensor{TorchDtype::kF32, "0", 6, 0, {kHuge, kHuge}, {0, 0}}, PickledTensor{TorchDtype::kF32, "0", 6, 0, {1 << 27}, {0}},
        PickledTensor{TorchDtype::kF32, "0", 5, 0, {2}, {1}}, PickledTensor{TorchDtype::kF64, "0", 6, 0, {2}, {1}}}) {
    EXPECT_EQ(ReadTensor(tensor, storage).status().code(), StatusCode::kCorruptData);
  }
}

}  // namespace
}  // namespace oscar::io
