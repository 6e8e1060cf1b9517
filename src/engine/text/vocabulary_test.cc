#include "src/engine/text/vocabulary.h"

#include <gtest/gtest.h>

#include "src/testing/tiny_vocabulary.h"

namespace oscar::engine {
namespace {

using testing::BytePairMetadata;
using testing::TinyBytePair;
using testing::TinySentencePiece;

Result<Vocabulary> Create(const io::GgufMetadata& metadata,
                          TokenSpelling spelling = TokenSpelling::kByteAlphabet) {
  return Vocabulary::Create(metadata, spelling, /*adds_bos_by_default=*/false);
}

void ExpectCorrupt(const io::GgufMetadata& metadata, std::string_view named) {
  const auto vocabulary = Create(metadata);
  ASSERT_FALSE(vocabulary.ok()) << named;
  EXPECT_EQ(vocabulary.status().code(), StatusCode::kCorruptData) << vocabulary.status().message();
  EXPECT_NE(vocabulary.status().message().find(named), std::string::npos)
      << vocabulary.status().message();
}

TEST(Vocabulary, BytesAreSpelledInTheByteAlphabet) {
  const auto vocabulary = Create(testing::TinyBytePairMetadata());
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  for (int byte = 0; byte < 256; ++byte) {
    const std::string plain(1, static_cast<char>(byte));
    EXPECT_EQ(vocabulary->bytes(byte), plain);
    EXPECT_EQ(vocabulary->byte_id(static_cast<uint8_t>(byte)), byte);
    EXPECT_EQ(Vocabulary::SpellBytes(plain), testing::SpellByte(byte));
    EXPECT_EQ(vocabulary->Find(testing::SpellByte(byte)), byte);
  }
  EXPECT_EQ(vocabulary->bytes(258), " the");
  EXPECT_EQ(vocabulary->bytes(262), "<|im_start|>");
  EXPECT_EQ(vocabulary->Find("nothing"), -1);
  EXPECT_EQ(vocabulary->Find(""), -1);
  EXPECT_EQ(vocabulary->bos_id(), 262);
  EXPECT_FALSE(vocabulary->adds_bos());
}

TEST(Vocabulary, SentencePieceTokensSpellSpacesWithAMark) {
  const auto vocabulary =
      Create(testing::SentencePieceMetadata(TinySentencePiece()), TokenSpelling::kSentencePiece);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  EXPECT_EQ(vocabulary->bytes(264), " ab");
  EXPECT_EQ(vocabulary->bytes(3 + 0xFE), "\xFE");
  EXPECT_EQ(vocabulary->byte_id(0xFE), 3 + 0xFE);
}

TEST(Vocabulary, TokensWithInvalidOrForeignCharactersStandForThemselves) {
  testing::TinyVocabulary tiny = TinyBytePair();
  const int32_t invalid = tiny.Add("\xFF\xC3");
  const int32_t foreign = tiny.Add("\xE2\x96\x81x");  // no letter of the byte alphabet
  const auto vocabulary = Create(BytePairMetadata(tiny));
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  EXPECT_EQ(vocabulary->bytes(invalid), "\xFF\xC3");
  EXPECT_EQ(vocabulary->bytes(foreign), "\xE2\x96\x81x");
}

TEST(Vocabulary, FindsTheTokensThatEndAGeneration) {
  testing::TinyVocabulary tiny = TinyBytePair();
  const int32_t endoftext = tiny.Add("<|endoftext|>", 1);  // a normal token, says the file
  const int32_t closing = tiny.Add("</s>", 1);
  const int32_t eos_by_type = tiny.Add("[EOS]", 3);
  const int32_t eot = tiny.Add("<over>", 3);
  auto metadata = BytePairMetadata(tiny);
  metadata.Set("tokenizer.ggml.eos_token_id", int64_t{263});
  metadata.Set("tokenizer.ggml.eot_token_id", int64_t{eot});
  const auto vocabulary = Create(metadata);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  for (const int32_t id : {263, endoftext, eos_by_type, eot})
    EXPECT_TRUE(vocabulary->IsEndOfGeneration(id)) << id;
  for (const int32_t id : {0, 262, 264, closing})
    EXPECT_FALSE(vocabulary->IsEndOfGeneration(id)) << id;
  EXPECT_TRUE(vocabulary->IsControl(endoftext));
  EXPECT_FALSE(vocabulary->IsControl(closing));
  EXPECT_FALSE(vocabulary->IsControl(264));
}

TEST(Vocabulary, EndClosesOnlyAPartWhereMessagesHaveOtherEnds) {
  testing::TinyVocabulary tiny = TinyBytePair();
  const int32_t end = tiny.Add("<|end|>", 3);
  EXPECT_TRUE(Create(BytePairMetadata(tiny))->IsEndOfGeneration(end));
  const int32_t returns = tiny.Add("<|return|>", 3);
  tiny.Add("<|call|>", 3);
  const auto harmony = Create(BytePairMetadata(tiny));
  EXPECT_FALSE(harmony->IsEndOfGeneration(end));
  EXPECT_TRUE(harmony->IsEndOfGeneration(returns));
}

TEST(Vocabulary, WithoutTypesTheNamedTokensAreControlTokens) {
  testing::TinyVocabulary tiny = TinyBytePair();
  io::GgufMetadata metadata;
  metadata.Set("tokenizer.ggml.tokens", tiny.tokens);
  metadata.Set("tokenizer.ggml.bos_token_id", int64_t{262});
  metadata.Set("tokenizer.ggml.unknown_token_id", int64_t{264});
  const auto vocabulary = Create(metadata);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  for (const int32_t id : {262, 263, 264}) EXPECT_TRUE(vocabulary->IsControl(id)) << id;
  EXPECT_FALSE(vocabulary->IsControl(265));
}

TEST(Vocabulary, FaultsOfTheFileAreNamed) {
  io::GgufMetadata metadata;
  ExpectCorrupt(metadata, "tokenizer.ggml.tokens: missing");
  metadata.Set("tokenizer.ggml.tokens", std::vector<std::string>());
  ExpectCorrupt(metadata, "no tokens");
  metadata.Set("tokenizer.ggml.tokens", int64_t{3});
  ExpectCorrupt(metadata, "tokenizer.ggml.tokens");

  testing::TinyVocabulary tiny = TinyBytePair();
  tiny.Add("in");
  ExpectCorrupt(BytePairMetadata(tiny), "tokens 259 and 266 have the same text");
  tiny.tokens.back() = std::string(Vocabulary::kMaxTokenBytes + 1, 'x');
  ExpectCorrupt(BytePairMetadata(tiny), "token 266 has 4097 bytes");
  tiny.tokens.back() = "<0x4>";
  tiny.types.back() = 6;
  ExpectCorrupt(BytePairMetadata(tiny), "token 266 has the type byte");
  tiny.tokens.back() = "<0x41>";
  ExpectCorrupt(BytePairMetadata(tiny), "tokens 65 and 266 stand for one byte");
  for (const int64_t type : {int64_t{0}, int64_t{7}, int64_t{-1}, int64_t{1} << 40}) {
    tiny.types.back() = type;
    ExpectCorrupt(BytePairMetadata(tiny), "has type " + std::to_string(type));
  }
  tiny.types.pop_back();
  ExpectCorrupt(BytePairMetadata(tiny), "266 values for 267 tokens");
}

TEST(Vocabulary, EmptyTokensMayRepeatAndStandForNothing) {
  testing::TinyVocabulary tiny = TinyBytePair();
  tiny.Add("");
  const int32_t last = tiny.Add("", 3);
  const auto vocabulary = Create(BytePairMetadata(tiny));
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  EXPECT_EQ(vocabulary->bytes(last), "");
}

TEST(Vocabulary, SpecialIdsMustBeTokens) {
  for (const char* name :
       {"bos_token_id", "eos_token_id", "unknown_token_id", "eot_token_id", "eom_token_id"}) {
    for (const int64_t id : {int64_t{-1}, int64_t{266}, int64_t{1} << 32}) {
      auto metadata = BytePairMetadata(TinyBytePair());
      metadata.Set(std::string("tokenizer.ggml.") + name, id);
      ExpectCorrupt(metadata, name);
    }
  }
  for (const char* name : {"add_bos_token", "add_eos_token"}) {
    auto metadata = BytePairMetadata(TinyBytePair());
    metadata.Set(std::string("tokenizer.ggml.") + name, true);
    ExpectCorrupt(metadata, name);
  }
}

}  // namespace
}  // namespace oscar::engine
