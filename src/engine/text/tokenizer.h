// Tokenizer: text to token ids and back, built from GGUF metadata. Byte-level BPE ("gpt2") and
// SentencePiece-style ("llama").
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/io/gguf.h"

namespace oscar::engine {

struct EncodeOptions {
  // BOS (and EOS) where the model's metadata asks for it.
  bool add_special = true;
  // "<|im_start|>" in the text becomes the control token; off for untrusted text.
  bool parse_special = false;
  // Not empty: this text is taken away. It stands where somebody's words would otherwise read as a control token (guard_special.h).
  std::string_view guard = {};
};

class Tokenizer {
 public:
  // kUnsupported naming the tokenizer model or pre-tokenizer that we do not have; kCorruptData
  // naming the metadata key.
  static Result<std::unique_ptr<Tokenizer>> Create(const io::GgufMetadata& metadata);
  virtual ~Tokenizer() = default;

  // Any bytes are accepted; invalid UTF-8 becomes byte tokens where the vocabulary has them, else
  // U+FFFD, and so does a valid character that no tokens can spell. kInvalidArgument above 256 MiB,
  // kResourceExhausted out of memory or of regular-expression steps, kUnsupported when not even
  // U+FFFD can be spelled. Time n log n in the length of a word. Thread-safe, as all below.
  virtual Result<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options) const = 0;
  // The bytes a token stands for; empty for control and unused tokens unless `render_special`, then
  // their text. Precondition: 0 <= id < vocab_size(), also of the ids below.
  virtual std::string TokenBytes(int32_t id, bool render_special = false) const = 0;
  // The whole text of some tokens (bytes; a cut UTF-8 sequence is kept as it is). Where encoding
  // puts a space in front (SentencePiece), the first one is taken away.
  virtual std::string Decode(std::span<const int32_t> ids, bool render_special = false) const = 0;

  virtual int vocab_size() const = 0;
  virtual int32_t bos_id() const = 0;  // -1 when there is none
  virtual int32_t eos_id() const = 0;
  virtual bool adds_bos() const = 0;
  // Control tokens and the unknown token.
  virtual bool IsControl(int32_t id) const = 0;
  // Tokens that end a generation: EOS, EOT, <|im_end|>, <|endoftext|>, ...
  virtual bool IsEndOfGeneration(int32_t id) const = 0;
  // The id of a control token by its text ("<|im_end|>"), or -1.
  virtual int32_t FindControl(std::string_view text) const = 0;
  // Where the next text of a control token begins, from byte `from` on; npos when there is none.
  virtual size_t NextControl(std::string_view text, size_t from) const = 0;
};

}  // namespace oscar::engine
