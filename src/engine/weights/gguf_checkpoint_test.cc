#include <string>
#include <algorithm>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "src/engine/weights/checkpoint.h"
#include "src/testing/gguf_builder.h"

namespace oscar::engine {
namespace {

using oscar::testing::GgufBuilder;

// Types by ggml's numbers.
constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kRemoved = 4, kQ8_1 = 9, kQ4_K = 12, kQ8_K = 15, kI32 = 26, kRemovedRepacked = 31;

// The file's bytes as a mapping has them: at the start of a page. What malloc gives is aligned to 16 only, now and then to more.
struct Opened {
  std::vector<std::byte> storage;
  std::span<const std::byte> bytes;
  std::unique_ptr<Checkpoint> checkpoint;
};

Opened Open(const GgufBuilder& builder) {
  constexpr size_t kAlignment = 4096;
  const std::vector<std::byte> built = builder.Build();
  Opened opened{std::vector<std::byte>(built.size() + kAlignment), {}, nullptr};
  const size_t padding = (kAlignment - reinterpret_cast<uintptr_t>(opened.storage.data()) % kAlignment) % kAlignment;
  std::copy(built.begin(), built.end(), opened.storage.begin() + static_cast<std::ptrdiff_t>(padding));
  opened.bytes = std::span(opened.storage).subspan(padding, built.size());
  auto file = io::GgufFile::Parse(opened.bytes);
  EXPECT_TRUE(file.ok()) << file.status().message();
  opened.checkpoint = MakeGgufCheckpoint(std::move(file).value());
  return opened;
}

// The status of asking for tensor "w" of this type with `data_bytes` of data.
Status StatusOf(const std::vector<uint64_t>& file_dims, uint32_t type, size_t data_bytes, const std::vector<int64_t>& dims) {
  const Opened opened = Open(GgufBuilder().Tensor("w", file_dims, type, std::vector<std::byte>(data_bytes)));
  const auto weight = opened.checkpoint->Require("w", dims);
  EXPECT_EQ(opened.checkpoint->weight_bytes(), weight.ok() ? data_bytes : 0);
  return weight.status();
}

TEST(GgufCheckpoint, HandsOutTensorsOverTheFilesBytes) {
  const Opened opened = Open(GgufBuilder().Tensor("a", {4}, {1, 2, 3, 4}).Tensor("b", {32, 2}, kQ4_0, std::vector<std::byte>(36)));
  const auto a = opened.checkpoint->Require("a", std::vector<int64_t>{4});
  ASSERT_TRUE(a.ok()) << a.status().message();
  EXPECT_EQ((*a)->bytes.size(), 16u);
  EXPECT_GE((*a)->bytes.data(), opened.bytes.data());
  EXPECT_LE((*a)->bytes.data(), opened.bytes.data() + opened.bytes.size());
  EXPECT_NE((*a)->tensor, nullptr);
  EXPECT_EQ(opened.checkpoint->CheckAllUsed().code(), StatusCode::kUnsupported);
  const auto b = opened.checkpoint->Find("b", std::vector<int64_t>{32, 2});
  ASSERT_TRUE(b.ok()) << b.status().message();
  EXPECT_TRUE(opened.checkpoint->CheckAllUsed().ok());
  EXPECT_EQ(opened.checkpoint->weight_bytes(), 16u + 36u);
  EXPECT_EQ(*opened.checkpoint->Require("b", std::vector<int64_t>{32, 2}), *b) << "asked twice: the same weight";
  EXPECT_EQ(opened.checkpoint->weight_bytes(), 16u + 36u);
}

TEST(GgufCheckpoint, WidenedWeightsAreTheStoredOnesInF32) {
  std::vector<std::byte> blocks(36);  // two blocks of q4_0: an f16 scale, then 16 bytes of codes around 8
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(i % 18 == 0 ? 0x00 : i % 18 == 1 ? 0x3C : 0x4A + i);  // scale 1
  const auto built = GgufBuilder().Tensor("a", {4}, {1, 2, 3, 4}).Tensor("b", {32, 2}, kQ4_0, blocks).Tensor("c", {32, 1, 2}, kQ4_0, blocks);
  Opened opened = Open(built);
  auto file = io::GgufFile::Parse(opened.bytes);
  const auto wide = MakeGgufCheckpoint(std::move(file).value(), WeightPrecision::kF32);
  const auto b = wide->Require("b", std::vector<int64_t>{32, 2});
  ASSERT_TRUE(b.ok()) << b.status().message();
  EXPECT_EQ((*b)->type, kF32);
  ASSERT_EQ((*b)->bytes.size(), 64 * sizeof(float));
  const auto* values = reinterpret_cast<const float*>((*b)->bytes.data());
  for (size_t i = 0; i < 64; ++i) {
    const auto code = static_cast<unsigned>(blocks[i / 32 * 18 + 2 + i % 16]) >> (i % 32 < 16 ? 0 : 4) & 15;
    EXPECT_EQ(values[i], static_cast<float>(code) - 8) << i;
  }
  const auto c = wide->Require("c", std::vector<int64_t>{32, 1, 2});  // two matrices
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_TRUE(std::ranges::equal((*c)->bytes, (*b)->bytes));
  const auto a = wide->Require("a", std::vector<int64_t>{4});
  ASSERT_TRUE(a.ok());
  EXPECT_GE((*a)->bytes.data(), opened.bytes.data()) << "f32 stays in the file";
  EXPECT_EQ(wide->weight_bytes(), 16u + 2 * 256u);
}

TEST(GgufCheckpoint, AMissingTensorIsNamedOrNull) {
  const Opened opened = Open(GgufBuilder().Tensor("a", {1}, {1}));
  const Status status = opened.checkpoint->Require("blk.3.w", std::vector<int64_t>{4, 2}).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "tensor \"blk.3.w\" [4, 2] is missing");
  const auto found = opened.checkpoint->Find("blk.3.w", std::vector<int64_t>{4, 2});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, nullptr);
}

TEST(GgufCheckpoint, DimsMustBeTheOnesAskedFor) {
  EXPECT_TRUE(StatusOf({8, 2}, kF32, 64, {8, 2}).ok());
  EXPECT_TRUE(StatusOf({8, 1}, kF32, 32, {8}).ok());
  EXPECT_TRUE(StatusOf({8, 2, 1, 1}, kF32, 64, {8, 2}).ok());
  for (const std::vector<int64_t>& dims : std::vector<std::vector<int64_t>>{{2, 8}, {16}, {8, 3}, {8}, {8, 2, 2}}) {
    const Status status = StatusOf({8, 2}, kF32, 64, dims);
    EXPECT_EQ(status.code(), StatusCode::kCorruptData);
    EXPECT_NE(status.message().find("[8, 2]"), std::string::npos) << status.message();
  }
}

TEST(GgufCheckpoint, TypesThatCannotBeComputedWithAreRefused) {
  EXPECT_TRUE(StatusOf({256, 2}, kF16, 1024, {256, 2}).ok());
  EXPECT_TRUE(StatusOf({256, 2}, kQ4_K, 288, {256, 2}).ok());
  for (uint32_t type : {kRemoved, kQ8_1, kQ8_K, kI32, kRemovedRepacked, 43u, 200u, 1023u}) {
    const Status status = StatusOf({256, 2}, type, 4096, {256, 2});
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << type;
    EXPECT_NE(status.message().find("\"w\""), std::string::npos) << status.message();
  }
  const Status vector = StatusOf({32}, kF16, 64, {32});
  EXPECT_EQ(vector.code(), StatusCode::kUnsupported);
  EXPECT_NE(vector.message().find("f16 instead of f32"), std::string::npos) << vector.message();
}

TEST(GgufCheckpoint, SizesThatDoNotFitAreRefused) {
  EXPECT_EQ(StatusOf({128, 2}, kQ4_K, 288, {128, 2}).code(), StatusCode::kCorruptData);  // half a block per row
  EXPECT_EQ(StatusOf({256, 2}, kQ4_K, 287, {256, 2}).code(), StatusCode::kCorruptData);  // one byte short
  constexpr uint64_t kHuge = uint64_t{1} << 30;
  EXPECT_EQ(StatusOf({kHuge, kHuge, 4}, kF32, 64, {kHuge, kHuge, 4}).code(), StatusCode::kCorruptData);
}

TEST(GgufCheckpoint, ATensorOffTheAlignmentOfGgmlIsRefused) {
  GgufBuilder builder;
  builder.Alignment(4).Tensor("a", {1}, {1}).Tensor("b", {1}, {2});
  const Opened opened = Open(builder);
  int num_refused = 0;
  for (const char* name : {"a", "b"}) {
    const auto weight = opened.checkpoint->Require(name, std::vector<int64_t>{1});
    num_refused += weight.status().code() == StatusCode::kUnsupported;
  }
  EXPECT_GE(num_refused, 1) << "two tensors four bytes apart cannot both be aligned";
}

}  // namespace
}  // namespace oscar::engine
