#include <gtest/gtest.h>

#include <random>

#include "src/engine/text/tokenizer.h"
#include "src/testing/seeds.h"
#include "src/testing/tiny_vocabulary.h"

namespace oscar::engine {
namespace {

using Ids = std::vector<int32_t>;
using testing::BytePairMetadata;
using testing::TinyBytePair;
using testing::TinyBytePairMetadata;

std::unique_ptr<Tokenizer> Make(const io::GgufMetadata& metadata) {
  auto tokenizer = Tokenizer::Create(metadata);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids();
}

TEST(BytePair, MergesInTheOrderOfTheList) {
  const auto tokenizer = Make(TinyBytePairMetadata());
  EXPECT_EQ(Encode(*tokenizer, ""), Ids());
  EXPECT_EQ(Encode(*tokenizer, "the then"), (Ids{257, 258, 'n'}));
  EXPECT_EQ(Encode(*tokenizer, "aaa aaaaaa"),
            (Ids{260, 'a', ' ', 261, 260}));  // leftmost first: (aa)a, (aaaa)(aa)
  EXPECT_EQ(Encode(*tokenizer, "\xC3\xA9\n"), (Ids{0xC3, 0xA9, '\n'}));
}

TEST(BytePair, ControlTokensAreParsedOnlyWhenAskedForAndUserDefinedOnesAlways) {
  const auto tokenizer = Make(TinyBytePairMetadata());
  const Ids spelled = Encode(*tokenizer, "<|im_end|>");
  EXPECT_EQ(spelled, (Ids{'<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'}));
  EXPECT_EQ(Encode(*tokenizer, "in<|im_end|><tool>in", {true, true}), (Ids{259, 263, 264, 259}));
  EXPECT_EQ(Encode(*tokenizer, "<tool> the"), (Ids{264, 258}));
  EXPECT_EQ(Encode(*tokenizer, "[PAD0]", {true, true}).size(), 6u);
}

TEST(BytePair, BosAndEosFollowTheMetadata) {
  auto metadata = TinyBytePairMetadata();
  EXPECT_EQ(Encode(*Make(metadata), "in"), (Ids{259}));
  metadata.Set("tokenizer.ggml.add_bos_token", true);
  metadata.Set("tokenizer.ggml.add_eos_token", true);
  const auto tokenizer = Make(metadata);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(Encode(*tokenizer, "in"), (Ids{262, 259, 263}));
  EXPECT_EQ(Encode(*tokenizer, ""), (Ids{262, 263}));
  EXPECT_EQ(Encode(*tokenizer, "in", {.add_special = false}), (Ids{259}));
  // Llama 3's files do not always say so.
  EXPECT_EQ(Encode(*Make(TinyBytePairMetadata("llama-bpe")), "in"), (Ids{262, 259}));
  metadata = TinyBytePairMetadata("llama-bpe");
  metadata.Set("tokenizer.ggml.add_bos_token", false);
  EXPECT_EQ(Encode(*Make(metadata), "in"), (Ids{259}));
}

TEST(BytePair, Qwen2BringsTextToNfcAndLeavesSpecialTokensAlone) {
  const std::string decomposed =
      "<tool>\xCC\xB8 e\xCC\x81";  // U+0338 would compose with the > before it
  EXPECT_EQ(Make(TinyBytePairMetadata())->Decode(Encode(*Make(TinyBytePairMetadata()), decomposed)),
            decomposed);
  const auto qwen = Make(TinyBytePairMetadata("qwen2"));
  EXPECT_EQ(Encode(*qwen, decomposed), (Ids{264, 0xCC, 0xB8, ' ', 0xC3, 0xA9}));
}

TEST(BytePair, Llama3TakesWholeWordsBeforeMerges) {
  testing::TinyVocabulary tiny = TinyBytePair();
  const int32_t whole = tiny.Add("within");  // no merge makes it
  const int32_t control = tiny.Add("without", 3);
  EXPECT_EQ(Encode(*Make(BytePairMetadata(tiny)), "within"), (Ids{'w', 'i', 't', 'h', 259}));
  const auto llama = Make(BytePairMetadata(tiny, "llama3"));
  EXPECT_EQ(Encode(*llama, "within"), (Ids{whole}));
  EXPECT_EQ(Encode(*llama, "without").size(), 7u);  // a text never spells a control token
  EXPECT_EQ(Encode(*llama, "without", {true, true}), (Ids{control}));
}

TEST(BytePair, AnyBytesComeBack) {
  const auto tokenizer = Make(TinyBytePairMetadata("smollm"));
  const uint64_t seed = testing::TestSeed(17);
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    const uint64_t size = rng() % 40;
    for (uint64_t i = 0; i < size; ++i)
      text.push_back(
          static_cast<char>(rng() % 4 == 0 ? rng() % 256 : "the in<\xE2\x82\xAC"[rng() % 10]));
    ASSERT_EQ(tokenizer->Decode(Encode(*tokenizer, text)), text)
        << "seed " << seed << " round " << round;
  }
}

TEST(BytePair, CharactersThatTheVocabularyCannotSpellBecomeTheReplacementCharacter) {
  testing::TinyVocabulary tiny;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte != 0xFF && byte != 0xF1 && byte != 4) tiny.Add(testing::SpellByte(byte));
  }
  const auto tokenizer = Make(BytePairMetadata(tiny));
  const std::string mark = "\xEF\xBF\xBD";
  const auto round_trip = [&](std::string_view text) {
    return tokenizer->Decode(Encode(*tokenizer, text));
  };
  EXPECT_EQ(round_trip("a\x04"
                       "b"),
            "a" + mark + "b");
  EXPECT_EQ(round_trip("a\xF1\x80\x80\x80"
                       "b"),
            "a" + mark + "b");
  EXPECT_EQ(round_trip("a\xFF\xFE"
                       "b"),
            "a" + mark +
                "\xFE"
                "b");
  testing::TinyVocabulary no_mark;
  no_mark.Add("a");
  const auto ids = Make(BytePairMetadata(no_mark))->Encode("ab", {});
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kUnsupported);
}

TEST(BytePair, AWordOfAMillionLettersEncodes) {
  const auto tokenizer = Make(TinyBytePairMetadata());
  const Ids ids = Encode(*tokenizer, std::string(1 << 20, 'a'));
  EXPECT_EQ(ids.size(), size_t{1} << 18);
  EXPECT_EQ(Encode(*tokenizer, std::string(1 << 20, ' ') + "x").size(), (size_t{1} << 20) + 1);
}

TEST(BytePair, TokensThatStandForNoTextAreSilentUnlessRendered) {
  const auto tokenizer = Make(TinyBytePairMetadata());
  EXPECT_EQ(tokenizer->TokenBytes(263), "");
  EXPECT_EQ(tokenizer->TokenBytes(263, true), "<|im_end|>");
  EXPECT_EQ(tokenizer->TokenBytes(264), "<tool>");
  EXPECT_EQ(tokenizer->TokenBytes(265), "");
  EXPECT_EQ(tokenizer->TokenBytes(265, true), "[PAD0]");
  EXPECT_EQ(tokenizer->Decode(Ids{262, 257, 263}), "the");
  EXPECT_EQ(tokenizer->Decode(Ids{262, 257, 263}, true), "<|im_start|>the<|im_end|>");
  EXPECT_EQ(tokenizer->FindControl("<|im_end|>"), 263);
  EXPECT_EQ(tokenizer->FindControl("<tool>"), -1);
  EXPECT_EQ(tokenizer->FindControl("none"), -1);
  EXPECT_EQ(tokenizer->vocab_size(), 266);
  EXPECT_EQ(tokenizer->eos_id(), 263);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(263));
}

TEST(BytePair, FaultyMergesAreNamed) {
  const struct {
    const char* merge;
    const char* named;
  } cases[] = {{"in", "merge 6 is not"},         {"in ", "merge 6 is not"},
               {"", "merge 6 is not"},           {"x nowhere", "is no token"},
               {"x y", "makes a text"},          {"x y z", "is no token"},
               {"\xFF\xFE \xFF", "is no token"}, {" x", "merge 6 is not"}};
  for (const auto& [merge, named] : cases) {
    testing::TinyVocabulary tiny = TinyBytePair();
    tiny.merges.push_back(merge);
    const auto tokenizer = Tokenizer::Create(BytePairMetadata(tiny));
    ASSERT_FALSE(tokenizer.ok()) << merge;
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kCorruptData);
    EXPECT_NE(tokenizer.status().message().find(named), std::string::npos)
        << tokenizer.status().message();
    EXPECT_NE(tokenizer.status().message().find("tokenizer.ggml.merges"), std::string::npos);
  }
}

TEST(BytePair, AMergeListedTwiceHasItsFirstRank) {
  testing::TinyVocabulary tiny = TinyBytePair();
  tiny.AddMerge("n", "t");
  tiny.merges.push_back("i n");
  EXPECT_EQ(Encode(*Make(BytePairMetadata(tiny)), "int"), (Ids{259, 't'}));
}

TEST(BytePair, MissingAndUnknownPartsAreNamed) {
  const auto status_of = [](const io::GgufMetadata& metadata) {
    return Tokenizer::Create(metadata).status();
  };
  io::GgufMetadata metadata;
  EXPECT_EQ(status_of(metadata).code(), StatusCode::kCorruptData);
  EXPECT_NE(status_of(metadata).message().find("tokenizer.ggml.model"), std::string::npos);
  metadata.Set("tokenizer.ggml.model", std::string("t5"));
  EXPECT_EQ(status_of(metadata).code(), StatusCode::kUnsupported);
  EXPECT_NE(status_of(metadata).message().find("\"t5\""), std::string::npos);
  metadata.Set("tokenizer.ggml.model", std::string("gpt2"));
  EXPECT_EQ(status_of(metadata).message(), "tokenizer.ggml.pre: missing");
  metadata.Set("tokenizer.ggml.pre", std::string("qwen9"));
  EXPECT_EQ(status_of(metadata).message(), "tokenizer.ggml.merges: missing");
  metadata.Set("tokenizer.ggml.merges", std::vector<std::string>());
  EXPECT_EQ(status_of(metadata).code(), StatusCode::kUnsupported);
  EXPECT_NE(status_of(metadata).message().find("\"qwen9\""), std::string::npos);
  metadata.Set("tokenizer.ggml.pre", std::string("qwen2"));
  EXPECT_EQ(status_of(metadata).message(), "tokenizer.ggml.tokens: missing");
  metadata.Set("tokenizer.ggml.model", int64_t{1});
  EXPECT_EQ(status_of(metadata).code(), StatusCode::kCorruptData);
}

}  // namespace
}  // namespace oscar::engine
