// Pretokenizer: cuts text into the words within which a byte-pair encoding merges. One per family
// of models, by the name that tokenizer.ggml.pre has in a GGUF file; the list is in
// pretokenizer.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/engine/text/pattern.h"

namespace oscar::engine {

class Pretokenizer {
 public:
  // kUnsupported naming `name` and what we have.
  static Result<Pretokenizer> Create(std::string_view name);

  // Appends the words of `text` in order; together they are the whole text. kResourceExhausted as
  // PatternMatcher::Find. Precondition: valid UTF-8, already normalised when normalizes_nfc().
  Status Split(std::string_view text, PatternMatcher* matcher,
               std::vector<std::string_view>* words) const;

  // The text is brought to NFC first.
  bool normalizes_nfc() const { return normalizes_nfc_; }
  // A word that is a token as a whole is that token, whatever the merges say.
  bool takes_whole_words() const { return takes_whole_words_; }
  // A BOS token is put in front unless tokenizer.ggml.add_bos_token says otherwise.
  bool adds_bos() const { return adds_bos_; }

 private:
  Pretokenizer() = default;
  // Each splits the pieces of the one before, at its matches and between them.
  std::vector<Pattern> patterns_;
  bool normalizes_nfc_ = false;
  bool takes_whole_words_ = false;
  bool adds_bos_ = false;
};

}  // namespace oscar::engine
