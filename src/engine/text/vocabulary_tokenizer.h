// VocabularyTokenizer: what every tokenizer over a Vocabulary shares: special tokens, BOS and EOS,
// and decoding. What lies between special tokens is encoded by byte_pair.cc or sentence_piece.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/text/special_tokens.h"
#include "src/engine/text/tokenizer.h"
#include "src/engine/text/vocabulary.h"

namespace oscar::engine {

class VocabularyTokenizer : public Tokenizer {
 public:
  VocabularyTokenizer(const VocabularyTokenizer&) = delete;
  VocabularyTokenizer& operator=(const VocabularyTokenizer&) = delete;

  Result<std::vector<int32_t>> Encode(std::string_view text,
                                      const EncodeOptions& options) const final;
  std::string TokenBytes(int32_t id, bool render_special) const final;
  std::string Decode(std::span<const int32_t> ids, bool render_special) const final;
  int vocab_size() const final { return vocabulary_.size(); }
  int32_t bos_id() const final { return vocabulary_.bos_id(); }
  int32_t eos_id() const final { return vocabulary_.eos_id(); }
  bool adds_bos() const final { return vocabulary_.adds_bos(); }
  bool IsControl(int32_t id) const final;
  bool IsEndOfGeneration(int32_t id) const final { return vocabulary_.IsEndOfGeneration(id); }
  int32_t FindControl(std::string_view text) const final;
  size_t NextControl(std::string_view text, size_t from) const final;

 protected:
  // `strips_first_space`: encoding puts a space in front of the text, so decoding takes one away.
  VocabularyTokenizer(Vocabulary vocabulary, bool strips_first_space)
      : vocabulary_(std::move(vocabulary)),
        special_tokens_(vocabulary_),
        strips_first_space_(strips_first_space) {}

  // Appends the tokens of a text without special tokens. May throw std::bad_alloc. Precondition:
  // not empty.
  virtual Status EncodePlain(std::string_view text, std::vector<int32_t>* ids) const = 0;

  const Vocabulary vocabulary_;

 private:
  const SpecialTokens special_tokens_;
  const bool strips_first_space_;
};

// Byte-level BPE, tokenizer.ggml.model "gpt2": byte_pair.cc. Reads tokenizer.ggml.{pre, merges}
// too. kUnsupported naming the pre-tokenizer; kCorruptData naming the key, and the merge when it is
// not two tokens that make a third.
Result<std::unique_ptr<Tokenizer>> CreateBytePairTokenizer(const io::GgufMetadata& metadata);

// SentencePiece BPE, tokenizer.ggml.model "llama": sentence_piece.cc. Reads tokenizer.ggml.{scores,
// add_space_prefix} too. kUnsupported for text normalisation that we do not have; kCorruptData for
// scores of another number or not finite, and for a vocabulary that cannot express every text
// (neither 256 byte tokens nor an unknown token).
Result<std::unique_ptr<Tokenizer>> CreateSentencePieceTokenizer(const io::GgufMetadata& metadata);

}  // namespace oscar::engine
