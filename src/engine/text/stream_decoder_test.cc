#include "src/engine/text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "src/engine/text/utf8.h"
#include "src/testing/seeds.h"
#include "src/testing/tiny_vocabulary.h"

namespace oscar::engine {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> Make(const io::GgufMetadata& metadata) {
  auto tokenizer = Tokenizer::Create(metadata);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

std::string ReplaceInvalid(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    text += step.kind == Utf8Kind::kCharacter ? bytes.substr(0, step.size) : kReplacementCharacter;
    bytes.remove_prefix(step.size);
  }
  return text;
}

TEST(StreamDecoder, HoldsACharacterBackUntilItIsWhole) {
  const auto tokenizer = Make(testing::TinyBytePairMetadata());
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.Push(257), "the");
  EXPECT_EQ(decoder.Push(0xF0), "");
  EXPECT_EQ(decoder.Push(0x9F), "");
  EXPECT_EQ(decoder.Push(263), "");  // a control token in between has no bytes
  EXPECT_EQ(decoder.Push(0x98), "");
  EXPECT_EQ(decoder.Push(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(decoder.Push(0xE2), "");
  EXPECT_EQ(decoder.Push('x'), "\xEF\xBF\xBDx");  // it can never become one
  EXPECT_EQ(decoder.Push(0x80), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.Finish(), "");
  EXPECT_EQ(decoder.Push(0xE2), "");
  EXPECT_EQ(decoder.Push(0x82), "");
  EXPECT_EQ(decoder.Finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(StreamDecoder, RendersSpecialTokensWhenAsked) {
  const auto tokenizer = Make(testing::TinyBytePairMetadata());
  StreamDecoder decoder(*tokenizer, /*render_special=*/true);
  EXPECT_EQ(decoder.Push(263), "<|im_end|>");
}

TEST(StreamDecoder, DropsTheSpaceThatSentencePiecePutInFront) {
  const auto tokenizer = Make(testing::SentencePieceMetadata(testing::TinySentencePiece()));
  StreamDecoder decoder(*tokenizer);
  for (int text = 0; text < 2; ++text) {
    EXPECT_EQ(decoder.Push(1), "");
    EXPECT_EQ(decoder.Push(264), "ab");
    EXPECT_EQ(decoder.Push(264), " ab");
    EXPECT_EQ(decoder.Finish(), "");
  }
  EXPECT_EQ(decoder.Push(259), "");
  EXPECT_EQ(decoder.Push(264), " ab");
}

TEST(StreamDecoder, WhatItGivesIsTheWholeTextInValidPieces) {
  const uint64_t seed = testing::TestSeed(29);
  std::mt19937_64 rng(seed);
  const std::unique_ptr<Tokenizer> tokenizers[] = {
      Make(testing::TinyBytePairMetadata()),
      Make(testing::SentencePieceMetadata(testing::TinySentencePiece()))};
  for (int round = 0; round < 4000; ++round) {
    const Tokenizer& tokenizer = *tokenizers[round % 2];
    const bool special = rng() % 2 == 0;
    StreamDecoder decoder(tokenizer, special);
    Ids ids;
    std::string text;
    const uint64_t size = rng() % 30;
    for (uint64_t i = 0; i < size; ++i) {
      const int32_t bytes[] = {0xE2, 0x82, 0xAC, 0xF0, 0x9F};
      const auto any = static_cast<int32_t>(rng() % static_cast<uint64_t>(tokenizer.vocab_size()));
      ids.push_back(rng() % 2 == 0 ? any : bytes[rng() % 5] + (round % 2 == 1 ? 3 : 0));
      const std::string piece = decoder.Push(ids.back());
      ASSERT_EQ(ReplaceInvalid(piece), piece);
      text += piece;
    }
    text += decoder.Finish();
    ASSERT_EQ(text, ReplaceInvalid(tokenizer.Decode(ids, special)))
        << "seed " << seed << " round " << round;
  }
}

}  // namespace
}  // namespace oscar::engine
