// Vocabulary: the tokens of a GGUF file (texts, types, bytes they stand for, special ids), checked
// once so that nothing that uses it needs to doubt it. No encoding here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/engine/text/string_index.h"
#include "src/io/gguf.h"

namespace oscar::engine {

// tokenizer.ggml.token_type, with the values of the file format.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// How the text of a normal token spells its bytes.
enum class TokenSpelling {
  kByteAlphabet,  // GPT-2: one character per byte, U+0120 for a space, and so on
  kSentencePiece  // plain text with U+2581 for a space
};

class Vocabulary {
 public:
  // Reads tokenizer.ggml.{tokens, token_type, *_token_id, add_bos_token, add_eos_token}.
  // kCorruptData naming the key, and the token where one is at fault: no tokens, two of one text
  // (empty ones excepted), a type array of another length or with unknown values, an id outside the
  // vocabulary, a byte token that is not "<0xHH>", a token above kMaxTokenBytes, BOS or EOS wanted
  // but not named.
  static Result<Vocabulary> Create(const io::GgufMetadata& metadata, TokenSpelling spelling,
                                   bool adds_bos_by_default);

  // Far above the longest token known (1,024 bytes), it bounds the work per byte of text that a
  // hostile file can cause.
  static constexpr size_t kMaxTokenBytes = 4096;

  int size() const { return static_cast<int>(types_.size()); }
  // The text as the file has it. Precondition of all that take one: a valid id.
  std::string_view text(int32_t id) const { return texts_.Get(id); }
  // The bytes it stands for in text; those of its own text for control and user-defined tokens, for
  // a normal token of kByteAlphabet that uses other characters, and for unused ones.
  std::string_view bytes(int32_t id) const { return bytes_.Get(id); }
  TokenType type(int32_t id) const { return types_[static_cast<size_t>(id)]; }
  // The id of a token of any type by its text, or -1; never an empty one.
  int32_t Find(std::string_view text) const;

  int32_t bos_id() const { return bos_id_; }  // -1: none; likewise below
  int32_t eos_id() const { return eos_id_; }
  int32_t unknown_id() const { return unknown_id_; }
  bool adds_bos() const { return adds_bos_; }
  bool adds_eos() const { return adds_eos_; }
  // The token that stands for one byte: of type kByte, or spelled by one character of the byte
  // alphabet; or -1.
  int32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }

  // Control tokens and the unknown token: they stand for no text.
  bool IsControl(int32_t id) const {
    return type(id) == TokenType::kControl || type(id) == TokenType::kUnknown;
  }
  bool IsEndOfGeneration(int32_t id) const;

  // `text` spelled in the byte alphabet, as normal tokens of kByteAlphabet are.
  static std::string SpellBytes(std::string_view text);

 private:
  // Strings end to end in one allocation.
  class Texts {
   public:
    std::string_view Get(int32_t id) const {
      const auto i = static_cast<size_t>(id);
      return std::string_view(all_).substr(ends_[i], ends_[i + 1] - ends_[i]);
    }
    void Add(std::string_view text) {
      all_ += text;
      ends_.push_back(all_.size());
    }

   private:
    std::string all_;
    std::vector<size_t> ends_ = {0};
  };

  explicit Vocabulary(size_t num_tokens);
  Status ReadTypes(const io::GgufMetadata& metadata);
  Status ReadTexts(std::span<const std::string> tokens);
  Status ReadSpecialIds(const io::GgufMetadata& metadata, bool adds_bos_by_default);
  Status ReadBytes(TokenSpelling spelling);
  void MarkControlTokens(bool has_types);

  std::vector<TokenType> types_;
  Texts texts_, bytes_;
  StringIndex index_;
  std::vector<int32_t> byte_ids_;           // [256]
  std::vector<int32_t> end_of_generation_;  // ascending
  int32_t bos_id_ = -1, eos_id_ = -1, unknown_id_ = -1;
  bool adds_bos_ = false, adds_eos_ = false;
};

}  // namespace oscar::engine
