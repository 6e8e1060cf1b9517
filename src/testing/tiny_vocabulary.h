// Metadata of tiny tokenizers for tests: every byte is a token whose id is the byte, then a few
// merges and special tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/gguf.h"

namespace oscar::testing {

// The GPT-2 spelling of a byte, written out anew as a judge of the tokenizer's table.
inline std::string SpellByte(int byte) {
  const auto plain = [](int b) { return (b > 32 && b < 127) || (b > 160 && b < 256 && b != 173); };
  int code = byte;
  if (!plain(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += plain(b) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

struct TinyVocabulary {
  std::vector<std::string> tokens;
  std::vector<int64_t> types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<double> scores;
  std::vector<std::string> merges;

  int32_t Add(std::string text, int64_t type = 1, double score = 0) {
    tokens.push_back(std::move(text));
    types.push_back(type);
    scores.push_back(score);
    return static_cast<int32_t>(tokens.size()) - 1;
  }
  // A token made of two others, merged after all that were added before.
  int32_t AddMerge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return Add(left + right);
  }
};

// Byte-level BPE. Ids: bytes 0 to 255, then in this order he, the (after "t he"), Gthe (" the"),
// in, aa, aaaa, <|im_start|>,
// <|im_end|> (EOS), <tool>, [PAD0].
inline TinyVocabulary TinyBytePair() {
  TinyVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.Add(SpellByte(byte));
  vocabulary.AddMerge("h", "e");               // 256
  vocabulary.AddMerge("t", "he");              // 257
  vocabulary.AddMerge(SpellByte(' '), "the");  // 258
  vocabulary.AddMerge("i", "n");               // 259
  vocabulary.AddMerge("a", "a");               // 260
  vocabulary.AddMerge("aa", "aa");             // 261
  vocabulary.Add("<|im_start|>", 3);           // 262
  vocabulary.Add("<|im_end|>", 3);             // 263
  vocabulary.Add("<tool>", 4);                 // 264
  vocabulary.Add("[PAD0]", 5);                 // 265
  return vocabulary;
}

inline io::GgufMetadata BytePairMetadata(const TinyVocabulary& vocabulary,
                                         std::string pre = "gpt-2") {
  io::GgufMetadata metadata;
  metadata.Set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.Set("tokenizer.ggml.pre", std::move(pre));
  metadata.Set("tokenizer.ggml.tokens", vocabulary.tokens);
  metadata.Set("tokenizer.ggml.token_type", vocabulary.types);
  metadata.Set("tokenizer.ggml.merges", vocabulary.merges);
  return metadata;
}

inline io::GgufMetadata TinyBytePairMetadata(std::string pre = "gpt-2") {
  io::GgufMetadata metadata = BytePairMetadata(TinyBytePair(), std::move(pre));
  metadata.Set("tokenizer.ggml.bos_token_id", int64_t{262});
  metadata.Set("tokenizer.ggml.eos_token_id", int64_t{263});
  return metadata;
}

// SentencePiece BPE. Ids: <unk> 0, <s> 1 (BOS), </s> 2 (EOS), bytes 3 to 258, then _ (U+2581) 259,
// a 260, b 261, ab 262, _a 263, _ab 264, bb 265, U+00E9 266, <tool> 267 (user-defined).
inline TinyVocabulary TinySentencePiece() {
  const std::string mark = "\xE2\x96\x81";
  TinyVocabulary vocabulary;
  vocabulary.Add("<unk>", 2);
  vocabulary.Add("<s>", 3);
  vocabulary.Add("</s>", 3);
  for (int byte = 0; byte < 256; ++byte) {
    const char* digits = "0123456789ABCDEF";
    vocabulary.Add(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">", 6);
  }
  vocabulary.Add(mark, 1, -10);
  vocabulary.Add("a", 1, -11);
  vocabulary.Add("b", 1, -12);
  vocabulary.Add("ab", 1, -2);
  vocabulary.Add(mark + "a", 1, -3);
  vocabulary.Add(mark + "ab", 1, -4);
  vocabulary.Add("bb", 1, -1);
  vocabulary.Add("\xC3\xA9", 1, -13);
  vocabulary.Add("<tool>", 4);
  return vocabulary;
}

inline io::GgufMetadata SentencePieceMetadata(const TinyVocabulary& vocabulary) {
  io::GgufMetadata metadata;
  metadata.Set("tokenizer.ggml.model", std::string("llama"));
  metadata.Set("tokenizer.ggml.tokens", vocabulary.tokens);
  metadata.Set("tokenizer.ggml.token_type", vocabulary.types);
  metadata.Set("tokenizer.ggml.scores", vocabulary.scores);
  metadata.Set("tokenizer.ggml.bos_token_id", int64_t{1});
  metadata.Set("tokenizer.ggml.eos_token_id", int64_t{2});
  metadata.Set("tokenizer.ggml.unknown_token_id", int64_t{0});
  return metadata;
}

}  // namespace oscar::testing
