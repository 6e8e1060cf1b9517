#include "src/engine/text/vocabulary.h"

#include <algorithm>
#include <array>
#include <limits>

#include "src/base/status_macros.h"
#include "src/engine/text/utf8.h"

namespace oscar::engine {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// Tokens after which nothing more is generated, by the texts that models give them, since files
// name at most two by id. The second group is only meant when the file says that it is a control
// token: in other vocabularies it is plain text, for
// "</s>" a piece of HTML.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",
                                          "<|eom_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|endoftext|>",
                                          "<|end_of_text|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<end_of_turn>",
                                          "<end_of_utterance>",
                                          "<|fim_pad|>",
                                          "<|repo_name|>",
                                          "<|file_sep|>",
                                          "<\xEF\xBD\x9C"
                                          "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"};
constexpr std::string_view kEndTextsIfControl[] = {"</s>",  "<eos>", "<EOT>",
                                                   "[EOT]", "[EOS]", "<reponame>"};

Status Corrupt(std::string_view key, const std::string& what) {
  return {StatusCode::kCorruptData, std::string(key) + ": " + what};
}

// A look-up of something that a tokenizer cannot do without: absence is a fault of the file.
template <class T>
Result<T> Required(std::string_view key, Result<T> result) {
  if (result.ok() || result.status().code() != StatusCode::kNotFound) return result;
  return Corrupt(key, "missing");
}

// An optional token id; -1 when absent.
Result<int32_t> TokenId(const io::GgufMetadata& metadata, std::string_view key, int vocab_size) {
  if (!metadata.Has(key)) return -1;
  OSCAR_ASSIGN_OR_RETURN(const int64_t id, metadata.Integer(key));
  if (id < 0 || id >= vocab_size) {
    return Corrupt(key, "token " + std::to_string(id) + " is outside the vocabulary of " +
                            std::to_string(vocab_size));
  }
  return static_cast<int32_t>(id);
}

// The GPT-2 byte alphabet (openai/gpt-2, encoder.py, bytes_to_unicode): printable Latin-1 stands
// for itself, the other bytes for U+0100 onwards in order.
struct ByteAlphabet {
  std::array<uint32_t, 256> code_points{};
  std::array<int16_t, 0x180> bytes{};  // by code point; -1 for characters outside the alphabet

  ByteAlphabet() {
    bytes.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool itself =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      code_points[byte] = itself ? byte : next++;
      bytes[code_points[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const ByteAlphabet& Alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

// The bytes that `text` spells, or nothing when a character is not of the alphabet.
std::optional<std::string> ReadByteAlphabet(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.kind != Utf8Kind::kCharacter || step.code_point >= Alphabet().bytes.size())
      return std::nullopt;
    const int byte = Alphabet().bytes[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    text.remove_prefix(step.size);
  }
  return bytes;
}

std::string ReplaceSpaceMarks(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const bool mark = text.substr(at).starts_with(kSpaceMark);
    plain.push_back(mark ? ' ' : text[at]);
    at += mark ? kSpaceMark.size() : 1;
  }
  return plain;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "<0x0A>" -> 10; -1 for any other text.
int ReadByteToken(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const int high = HexDigit(text[3]), low = HexDigit(text[4]);
  return high < 0 || low < 0 ? -1 : 16 * high + low;
}

}  // namespace

Vocabulary::Vocabulary(size_t num_tokens)
    : types_(num_tokens, TokenType::kNormal), index_(num_tokens), byte_ids_(256, -1) {}

Result<Vocabulary> Vocabulary::Create(const io::GgufMetadata& metadata, TokenSpelling spelling,
                                      bool adds_bos_by_default) {
  OSCAR_ASSIGN_OR_RETURN(const auto tokens, Required(kTokensKey, metadata.Strings(kTokensKey)));
  if (tokens.empty()) return Corrupt(kTokensKey, "no tokens");
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    return Corrupt(kTokensKey, "too many tokens");
  Vocabulary vocabulary(tokens.size());
  OSCAR_TRY(vocabulary.ReadTypes(metadata));
  OSCAR_TRY(vocabulary.ReadTexts(tokens));
  OSCAR_TRY(vocabulary.ReadSpecialIds(metadata, adds_bos_by_default));
  vocabulary.MarkControlTokens(metadata.Has(kTypesKey));
  OSCAR_TRY(vocabulary.ReadBytes(spelling));
  return vocabulary;
}

// Without the array all tokens are normal ones (GGUF specification).
Status Vocabulary::ReadTypes(const io::GgufMetadata& metadata) {
  if (!metadata.Has(kTypesKey)) return {};
  OSCAR_ASSIGN_OR_RETURN(const auto types, metadata.Integers(kTypesKey));
  if (types.size() != types_.size()) {
    return Corrupt(kTypesKey, std::to_string(types.size()) + " values for " +
                                  std::to_string(types_.size()) + " tokens");
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] < 1 || types[i] > 6) {
      return Corrupt(kTypesKey, "token " + std::to_string(i) + " has type " +
                                    std::to_string(types[i]) + "; types are 1 to 6");
    }
    types_[i] = static_cast<TokenType>(types[i]);
  }
  return {};
}

Status Vocabulary::ReadTexts(std::span<const std::string> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (tokens[i].size() > kMaxTokenBytes) {
      return Corrupt(kTokensKey, "token " + std::to_string(i) + " has " +
                                     std::to_string(tokens[i].size()) + " bytes; at most " +
                                     std::to_string(kMaxTokenBytes) + " are supported");
    }
    texts_.Add(tokens[i]);
    if (tokens[i].empty())
      continue;  // place holders of some converters: never found, stand for nothing
    const int32_t other =
        index_.Insert(tokens[i], id, [this](int32_t number) { return text(number); });
    if (other >= 0) {
      return Corrupt(kTokensKey, "tokens " + std::to_string(other) + " and " + std::to_string(i) +
                                     " have the same text");
    }
  }
  return {};
}

Status Vocabulary::ReadSpecialIds(const io::GgufMetadata& metadata, bool adds_bos_by_default) {
  OSCAR_ASSIGN_OR_RETURN(bos_id_, TokenId(metadata, "tokenizer.ggml.bos_token_id", size()));
  OSCAR_ASSIGN_OR_RETURN(eos_id_, TokenId(metadata, "tokenizer.ggml.eos_token_id", size()));
  OSCAR_ASSIGN_OR_RETURN(unknown_id_, TokenId(metadata, "tokenizer.ggml.unknown_token_id", size()));
  for (const std::string_view key :
       {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    OSCAR_ASSIGN_OR_RETURN(const int32_t id, TokenId(metadata, key, size()));
    if (id >= 0) end_of_generation_.push_back(id);
  }
  if (eos_id_ >= 0) end_of_generation_.push_back(eos_id_);
  constexpr std::string_view kAddBos = "tokenizer.ggml.add_bos_token",
                             kAddEos = "tokenizer.ggml.add_eos_token";
  OSCAR_ASSIGN_OR_RETURN(adds_bos_, metadata.BoolOr(kAddBos, adds_bos_by_default && bos_id_ >= 0));
  OSCAR_ASSIGN_OR_RETURN(adds_eos_, metadata.BoolOr(kAddEos, false));
  if (adds_bos_ && bos_id_ < 0)
    return Corrupt(kAddBos, "true, but there is no tokenizer.ggml.bos_token_id");
  if (adds_eos_ && eos_id_ < 0)
    return Corrupt(kAddEos, "true, but there is no tokenizer.ggml.eos_token_id");
  return {};
}

// Control tokens that the type array does not tell, and the tokens that end a generation.
void Vocabulary::MarkControlTokens(bool has_types) {
  if (!has_types) {
    for (const int32_t id : {bos_id_, eos_id_}) {
      if (id >= 0) types_[static_cast<size_t>(id)] = TokenType::kControl;
    }
    if (unknown_id_ >= 0) types_[static_cast<size_t>(unknown_id_)] = TokenType::kUnknown;
  }
  for (const std::string_view end_text : kEndTexts) {
    const int32_t id = Find(end_text);
    if (id < 0) continue;
    // Some files call these normal tokens; a text of a user must not be able to spell them all the
    // same.
    types_[static_cast<size_t>(id)] = TokenType::kControl;
    end_of_generation_.push_back(id);
  }
  for (const std::string_view end_text : kEndTextsIfControl) {
    const int32_t id = Find(end_text);
    if (id >= 0 && type(id) == TokenType::kControl) end_of_generation_.push_back(id);
  }
  // In the harmony format, where a message ends with <|return|> or <|call|>, <|end|> closes only
  // one of its parts.
  if (Find("<|return|>") >= 0 && Find("<|call|>") >= 0)
    std::erase(end_of_generation_, Find("<|end|>"));
  std::sort(end_of_generation_.begin(), end_of_generation_.end());
}

Status Vocabulary::ReadBytes(TokenSpelling spelling) {
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view token = text(id);
    if (type(id) == TokenType::kByte) {
      const int byte = ReadByteToken(token);
      if (byte < 0)
        return Corrupt(kTokensKey,
                       "token " + std::to_string(id) + " has the type byte, but is not \"<0xHH>\"");
      const int32_t other = byte_ids_[static_cast<size_t>(byte)];
      if (other >= 0) {
        return Corrupt(kTokensKey, "tokens " + std::to_string(other) + " and " +
                                       std::to_string(id) + " stand for one byte");
      }
      byte_ids_[static_cast<size_t>(byte)] = id;
      bytes_.Add(std::string(1, static_cast<char>(byte)));
    } else if (spelling == TokenSpelling::kSentencePiece) {
      bytes_.Add(type(id) == TokenType::kNormal ? ReplaceSpaceMarks(token) : std::string(token));
    } else {
      const std::optional<std::string> spelled = ReadByteAlphabet(token);
      // Of any type: fine-tuned models have made control tokens of single letters.
      if (spelled && spelled->size() == 1) {
        int32_t& byte_id = byte_ids_[static_cast<unsigned char>((*spelled)[0])];
        if (byte_id >= 0) {
          return Corrupt(kTokensKey, "tokens " + std::to_string(byte_id) + " and " +
                                         std::to_string(id) + " stand for one byte");
        }
        byte_id = id;
      }
      bytes_.Add(spelled && type(id) == TokenType::kNormal ? *spelled : std::string(token));
    }
  }
  return {};
}

int32_t Vocabulary::Find(std::string_view text_of_token) const {
  if (text_of_token.empty()) return -1;
  return index_.Find(text_of_token, [this](int32_t number) { return text(number); });
}

bool Vocabulary::IsEndOfGeneration(int32_t id) const {
  return std::binary_search(end_of_generation_.begin(), end_of_generation_.end(), id);
}

std::string Vocabulary::SpellBytes(std::string_view text) {
  std::string spelled;
  for (const char c : text)
    AppendUtf8(Alphabet().code_points[static_cast<unsigned char>(c)], &spelled);
  return spelled;
}

}  // namespace oscar::engine
