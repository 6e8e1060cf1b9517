#include "src/kv/codec/registry.h"

#include <gtest/gtest.h>

#include "oscar/codec_profile.h"

namespace oscar {
namespace {

const KvShape kShape{.num_layers = 2, .num_query_heads = 6, .num_kv_heads = 2, .head_dim = 64};

TEST(ParseKvMethod, EveryListedMethodParsesAndPrintsItself) {
  int num_methods = 0;
  for (const CodecInfo& codec : ListCodecs()) {
    EXPECT_EQ(FindCodec(codec.name), &codec);
    if (codec.methods.empty()) {
      const auto method = ParseKvMethod(codec.name);
      ASSERT_TRUE(method.ok());
      EXPECT_EQ(method->name(), codec.name);
    }
    for (std::string_view name : codec.methods) {
      const std::string text = std::string(codec.name) + ":" + std::string(name);
      const auto method = ParseKvMethod(text);
      ASSERT_TRUE(method.ok()) << text;
      EXPECT_EQ(method->name(), text);
      EXPECT_EQ(method->codec, &codec);
      ++num_methods;
    }
  }
  EXPECT_EQ(num_methods, 12);
}

TEST(ParseKvMethod, WrongNamesAreRefusedWithWhatExists) {
  for (const char* text : {"", "int2", "int2:", "int2:oscar2", "int3:oscar", "bf16:naive", ":oscar", "INT2:oscar", "int2:oscar "}) {
    const auto method = ParseKvMethod(text);
    ASSERT_FALSE(method.ok()) << text;
    EXPECT_EQ(method.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(method.status().message().find('"' + std::string(text) + '"'), std::string::npos) << method.status().message();
  }
  EXPECT_NE(ParseKvMethod("int2").status().message().find("int2:quarot"), std::string::npos);
  EXPECT_NE(ParseKvMethod("int7").status().message().find("bf16"), std::string::npos);
}

TEST(CodecInfo, AffinePagesHaveTheBytesOfTheLedger) {
  for (const auto& [name, bits] : {std::pair{"int1", 1}, std::pair{"int2", 2}, std::pair{"int4", 4}}) {
    const CodecInfo* codec = FindCodec(name);
    ASSERT_NE(codec, nullptr);
    for (int d : {64, 96, 128, 192, 256}) EXPECT_EQ(codec->page_bytes(d), static_cast<size_t>(2 * 64 * (d * bits / 8 + 4)));
  }
  EXPECT_EQ(FindCodec("bf16")->page_bytes, nullptr);
}

TEST(DataFreeProfile, MethodsHaveTheRowsOfTheirTable) {
  struct Case { const char* name; TransformKind transform; EncoderKind encoder; float clip_k, clip_v; };
  for (const Case& expected : {Case{"bf16", TransformKind::kIdentity, EncoderKind::kMinMax, 0, 0},
                               Case{"int2:naive", TransformKind::kIdentity, EncoderKind::kMinMax, 0, 0},
                               Case{"int2:clip", TransformKind::kIdentity, EncoderKind::kMinMax, 0.96f, 0.92f},
                               Case{"int2:hadamard", TransformKind::kHadamard, EncoderKind::kMinMax, 0, 0},
                               Case{"int4:hadamard", TransformKind::kHadamard, EncoderKind::kMinMax, 0, 0},
                               Case{"int2:quarot", TransformKind::kHadamard, EncoderKind::kIntegerZeroPoint, 0, 0}}) {
    const auto profile = DataFreeProfile(expected.name, kShape);
    ASSERT_TRUE(profile.ok()) << profile.status().message();
    EXPECT_EQ(profile->method(), expected.name);
    for (KvSide side : {KvSide::kKey, KvSide::kValue}) {
      const RowProfile row = profile->row(1, 1, side);
      EXPECT_EQ(row.transform->kind(), expected.transform);
      EXPECT_EQ(row.encoder, expected.encoder);
      EXPECT_EQ(row.clip_ratio, side == KvSide::kKey ? expected.clip_k : expected.clip_v);
      EXPECT_EQ(row.range_factor, 1.0f);
      EXPECT_TRUE(row.mean.empty());
    }
  }
}

TEST(DataFreeProfile, MethodsThatCannotBeMadeFromAShapeAreRefused) {
  for (const char* calibrated : {"int2:oscar", "int2:balanced", "int1:balanced"}) {
    EXPECT_EQ(DataFreeProfile(calibrated, kShape).status().code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(DataFreeProfile("int2:nothing", kShape).status().code(), StatusCode::kInvalidArgument);
  KvShape odd = kShape;
  odd.head_dim = 96;
  EXPECT_EQ(DataFreeProfile("int2:hadamard", odd).status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(DataFreeProfile("int2:naive", odd).ok());
  EXPECT_EQ(DataFreeProfile("bf16", KvShape{}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace oscar
