#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "src/engine/text/tokenizer.h"
#include "src/testing/seeds.h"
#include "src/testing/tiny_vocabulary.h"

namespace oscar::engine {
namespace {

using Ids = std::vector<int32_t>;
using testing::SentencePieceMetadata;
using testing::TinySentencePiece;

std::unique_ptr<Tokenizer> Make(const io::GgufMetadata& metadata) {
  auto tokenizer = Tokenizer::Create(metadata);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text,
           EncodeOptions options = {.add_special = false}) {
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids();
}

io::GgufMetadata Without(const io::GgufMetadata& metadata, std::string_view key) {
  io::GgufMetadata rest;
  for (const auto& [name, value] : metadata.entries()) {
    if (name != key) rest.Set(name, value);
  }
  return rest;
}

TEST(SentencePiece, TheBestScoreMergesFirst) {
  const auto tokenizer = Make(SentencePieceMetadata(TinySentencePiece()));
  EXPECT_EQ(Encode(*tokenizer, ""), Ids());
  EXPECT_EQ(Encode(*tokenizer, "ab"), (Ids{264}));        // ab, then _ab
  EXPECT_EQ(Encode(*tokenizer, "abb"), (Ids{263, 265}));  // bb before ab
  EXPECT_EQ(Encode(*tokenizer, "a ab  b"), (Ids{263, 264, 259, 259, 261}));
  EXPECT_EQ(Encode(*tokenizer, "\xC3\xA9"), (Ids{259, 266}));
}

TEST(SentencePiece, UnknownCharactersAndInvalidBytesAreByteTokens) {
  const auto tokenizer = Make(SentencePieceMetadata(TinySentencePiece()));
  EXPECT_EQ(Encode(*tokenizer,
                   "\xE4\xB8\xAD\xFF"
                   "a"),
            (Ids{259, 3 + 0xE4, 3 + 0xB8, 3 + 0xAD, 3 + 0xFF, 260}));
}

TEST(SentencePiece, WithoutByteTokensTheyAreTheUnknownToken) {
  testing::TinyVocabulary tiny = TinySentencePiece();
  for (int byte = 0; byte < 256; ++byte) tiny.types[static_cast<size_t>(3 + byte)] = 5;
  const auto metadata = SentencePieceMetadata(tiny);
  EXPECT_EQ(Encode(*Make(metadata),
                   "a\xE4\xB8\xAD\xE6\x96\x87\xFF"
                   "b"),
            (Ids{263, 0, 261}));
  // U+FFFD for invalid bytes, where it is a token.
  testing::TinyVocabulary with_mark = tiny;
  const int32_t mark = with_mark.Add("\xEF\xBF\xBD");
  EXPECT_EQ(Encode(*Make(SentencePieceMetadata(with_mark)), "a\xFF\xFE"), (Ids{263, mark, mark}));
  const auto tokenizer = Tokenizer::Create(Without(metadata, "tokenizer.ggml.unknown_token_id"));
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kCorruptData);
  EXPECT_NE(tokenizer.status().message().find("unknown_token_id"), std::string::npos);
}

TEST(SentencePiece, SpecialTokensAndTheSpaceInFrontOfEachStretch) {
  const auto tokenizer = Make(SentencePieceMetadata(TinySentencePiece()));
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(Encode(*tokenizer, "ab", {}), (Ids{1, 264}));
  EXPECT_EQ(Encode(*tokenizer, "ab</s>ab<tool>b", {false, true}),
            (Ids{264, 2, 264, 267, 259, 261}));
  // Neither a control nor a byte token is spelled by text.
  EXPECT_EQ(Encode(*tokenizer, "</s>").size(), 5u);
  EXPECT_EQ(Encode(*tokenizer, "<0x41>").size(), 7u);
  auto metadata = SentencePieceMetadata(TinySentencePiece());
  metadata.Set("tokenizer.ggml.add_space_prefix", false);
  EXPECT_EQ(Encode(*Make(metadata), "ab"), (Ids{262}));
  EXPECT_EQ(Make(metadata)->Decode(Ids{264}), " ab");
}

TEST(SentencePiece, DecodingTakesBackTheFirstSpaceAlone) {
  const auto tokenizer = Make(SentencePieceMetadata(TinySentencePiece()));
  EXPECT_EQ(tokenizer->Decode(Ids{1, 264, 264}), "ab ab");
  EXPECT_EQ(tokenizer->Decode(Ids{259, 264}), " ab");
  EXPECT_EQ(tokenizer->Decode(Ids{1, 264}, true), "<s> ab");
  EXPECT_EQ(tokenizer->TokenBytes(264), " ab");
  const uint64_t seed = testing::TestSeed(23);
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    const uint64_t size = rng() % 20;
    for (uint64_t i = 0; i < size; ++i)
      text.push_back(static_cast<char>(rng() % 4 == 0 ? rng() % 256 : "ab  b"[rng() % 5]));
    ASSERT_EQ(tokenizer->Decode(Encode(*tokenizer, text)), text)
        << "seed " << seed << " round " << round;
  }
}

TEST(SentencePiece, FaultsOfTheFileAreNamed) {
  const auto expect = [](std::string key, io::GgufMetadata::Value value, StatusCode code) {
    auto metadata = SentencePieceMetadata(TinySentencePiece());
    metadata.Set(key, std::move(value));
    const auto tokenizer = Tokenizer::Create(metadata);
    ASSERT_FALSE(tokenizer.ok()) << key;
    EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status().message();
    EXPECT_NE(tokenizer.status().message().find(key), std::string::npos)
        << tokenizer.status().message();
  };
  expect("tokenizer.ggml.scores", std::vector<double>(3), StatusCode::kCorruptData);
  expect("tokenizer.ggml.scores",
         std::vector<double>(268, std::numeric_limits<double>::quiet_NaN()),
         StatusCode::kCorruptData);
  expect("tokenizer.ggml.scores", std::string("none"), StatusCode::kCorruptData);
  expect("tokenizer.ggml.remove_extra_whitespaces", true, StatusCode::kUnsupported);
  expect("tokenizer.ggml.precompiled_charsmap", std::vector<int64_t>{1}, StatusCode::kUnsupported);
  expect("tokenizer.ggml.add_space_prefix", int64_t{1}, StatusCode::kCorruptData);
}

TEST(SentencePiece, WithoutScoresTheLeftmostPairMergesFirst) {
  const auto metadata =
      Without(SentencePieceMetadata(TinySentencePiece()), "tokenizer.ggml.scores");
  EXPECT_EQ(Encode(*Make(metadata), "abb"), (Ids{264, 261}));  // _a, then _ab
}

TEST(SentencePiece, AMillionLettersEncode) {
  const auto tokenizer = Make(SentencePieceMetadata(TinySentencePiece()));
  EXPECT_EQ(Encode(*tokenizer, std::string(1 << 20, 'b')).size(), (size_t{1} << 19) + 1);
}

}  // namespace
}  // namespace oscar::engine
