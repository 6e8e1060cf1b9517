// SentencePiece BPE (Llama 1 and 2, Mistral, TinyLlama): characters merge into the token of the
// best score, over word borders; a space is U+2581. What is no token is spelled in byte tokens.

#include <algorithm>
#include <cmath>

#include "src/base/status_macros.h"
#include "src/engine/text/merge_symbols.h"
#include "src/engine/text/utf8.h"
#include "src/engine/text/vocabulary_tokenizer.h"

namespace oscar::engine {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

class SentencePieceTokenizer final : public VocabularyTokenizer {
 public:
  // `ranks`: one per token, the best score has the lowest.
  SentencePieceTokenizer(Vocabulary vocabulary, std::vector<uint32_t> ranks, bool adds_space,
                         bool has_all_bytes)
      : VocabularyTokenizer(std::move(vocabulary), /*strips_first_space=*/adds_space),
        ranks_(std::move(ranks)),
        adds_space_(adds_space),
        has_all_bytes_(has_all_bytes) {
    for (int32_t id = 0; id < vocabulary_.size(); ++id) {
      max_token_bytes_ = std::max(max_token_bytes_, vocabulary_.text(id).size());
    }
  }

 private:
  Status EncodePlain(std::string_view text, std::vector<int32_t>* ids) const override {
    SymbolMerger merger;
    const std::string spelled = Spell(text, &merger);
    const auto text_of = [&spelled](const Symbol& symbol) {
      return std::string_view(spelled).substr(symbol.begin, symbol.size);
    };
    merger.Run([&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
      const int32_t id =
          FindPiece(std::string_view(spelled).substr(left.begin, left.size + right.size));
      if (id < 0) return std::nullopt;
      return Merge{ranks_[static_cast<size_t>(id)], id};
    });
    bool after_unknown = false;  // several unknown characters in a row are one unknown token
    merger.ForEach([&](const Symbol& symbol) {
      const bool unknown = symbol.id < 0 && !has_all_bytes_;
      if (symbol.id >= 0) {
        ids->push_back(symbol.id);
      } else if (unknown) {
        if (!after_unknown) ids->push_back(vocabulary_.unknown_id());
      } else {
        for (const char byte : text_of(symbol))
          ids->push_back(vocabulary_.byte_id(static_cast<uint8_t>(byte)));
      }
      after_unknown = unknown;
    });
    return {};
  }

  // The text as tokens spell it, and its characters as symbols. Bytes that are no UTF-8 stay, one
  // symbol for each invalid part, where there are byte tokens; else they become U+FFFD.
  std::string Spell(std::string_view text, SymbolMerger* merger) const {
    std::string spelled;
    spelled.reserve(text.size() + text.size() / 2 + kSpaceMark.size());
    const auto add = [&](std::string_view character) {
      spelled += character;
      merger->Add(FindPiece(character), static_cast<uint32_t>(character.size()));
    };
    if (adds_space_) add(kSpaceMark);
    while (!text.empty()) {
      const Utf8Step step = NextUtf8(text);
      const bool replace = step.kind != Utf8Kind::kCharacter && !has_all_bytes_;
      add(text[0] == ' ' ? kSpaceMark
          : replace      ? kReplacementCharacter
                         : text.substr(0, step.size));
      text.remove_prefix(step.size);
    }
    return spelled;
  }

  // A token that stands for text, or -1: no text may spell a control or byte token.
  int32_t FindPiece(std::string_view text) const {
    if (text.size() > max_token_bytes_) return -1;
    const int32_t id = vocabulary_.Find(text);
    if (id < 0) return -1;
    const TokenType type = vocabulary_.type(id);
    return type == TokenType::kNormal || type == TokenType::kUserDefined ? id : -1;
  }

  const std::vector<uint32_t> ranks_;
  const bool adds_space_;
  const bool has_all_bytes_;
  size_t max_token_bytes_ = 0;
};

// The place of each token's score among all scores, best first; equal scores share it.
Result<std::vector<uint32_t>> ReadRanks(const io::GgufMetadata& metadata, size_t num_tokens) {
  constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
  std::vector<uint32_t> ranks(num_tokens, 0);
  if (!metadata.Has(kScoresKey)) return ranks;  // all equal (GGUF specification)
  OSCAR_ASSIGN_OR_RETURN(const auto scores, metadata.Doubles(kScoresKey));
  if (scores.size() != num_tokens) {
    return {StatusCode::kCorruptData, std::string(kScoresKey) + ": " +
                                          std::to_string(scores.size()) + " values for " +
                                          std::to_string(num_tokens) + " tokens"};
  }
  std::vector<uint32_t> order(num_tokens);
  for (size_t i = 0; i < num_tokens; ++i) {
    order[i] = static_cast<uint32_t>(i);
    if (!std::isfinite(scores[i])) {
      return {StatusCode::kCorruptData, std::string(kScoresKey) + ": the score of token " +
                                            std::to_string(i) + " is not finite"};
    }
  }
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  uint32_t rank = 0;
  for (size_t i = 0; i < num_tokens; ++i) {
    if (i > 0 && scores[order[i]] != scores[order[i - 1]]) ++rank;
    ranks[order[i]] = rank;
  }
  return ranks;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> CreateSentencePieceTokenizer(const io::GgufMetadata& metadata) {
  constexpr std::string_view kExtraSpacesKey = "tokenizer.ggml.remove_extra_whitespaces";
  OSCAR_ASSIGN_OR_RETURN(const bool removes_spaces, metadata.BoolOr(kExtraSpacesKey, false));
  if (removes_spaces)
    return {StatusCode::kUnsupported, std::string(kExtraSpacesKey) + ": true is not supported"};
  constexpr std::string_view kCharsMapKey = "tokenizer.ggml.precompiled_charsmap";
  if (metadata.Has(kCharsMapKey)) {
    return {StatusCode::kUnsupported,
            std::string(kCharsMapKey) + ": normalisation by a character map is not supported"};
  }
  OSCAR_ASSIGN_OR_RETURN(const bool adds_space,
                         metadata.BoolOr("tokenizer.ggml.add_space_prefix", true));
  OSCAR_ASSIGN_OR_RETURN(
      Vocabulary vocabulary,
      Vocabulary::Create(metadata, TokenSpelling::kSentencePiece, /*adds_bos_by_default=*/true));
  OSCAR_ASSIGN_OR_RETURN(auto ranks, ReadRanks(metadata, static_cast<size_t>(vocabulary.size())));
  bool has_all_bytes = true;
  for (int byte = 0; byte < 256; ++byte)
    has_all_bytes &= vocabulary.byte_id(static_cast<uint8_t>(byte)) >= 0;
  if (!has_all_bytes && vocabulary.unknown_id() < 0) {
    return {StatusCode::kCorruptData,
            "tokenizer.ggml.unknown_token_id: missing, and the vocabulary has no token for some of "
            "the 256 bytes"};
  }
  return std::unique_ptr<Tokenizer>(std::make_unique<SentencePieceTokenizer>(
      std::move(vocabulary), std::move(ranks), adds_space, has_all_bytes));
}

}  // namespace oscar::engine
