#include "src/engine/text/vocabulary_tokenizer.h"

#include <new>

#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

// Symbols are indexed by int32 and SentencePiece spells a space with three bytes.
constexpr size_t kMaxTextBytes = size_t{1} << 28;

// `text` without `guard`, in `storage` if that is not `text` itself.
std::string_view WithoutGuard(std::string_view text, std::string_view guard, std::string* storage) {
  if (guard.empty() || text.find(guard) == std::string_view::npos) return text;
  storage->assign(text);
  for (size_t at = storage->find(guard); at != std::string::npos; at = storage->find(guard, at)) storage->erase(at, guard.size());
  return *storage;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Create(const io::GgufMetadata& metadata) {
  constexpr std::string_view kModelKey = "tokenizer.ggml.model";
  if (!metadata.Has(kModelKey))
    return {StatusCode::kCorruptData, std::string(kModelKey) + ": missing"};
  OSCAR_ASSIGN_OR_RETURN(const std::string model, metadata.String(kModelKey));
  try {
    if (model == "gpt2") return CreateBytePairTokenizer(metadata);
    if (model == "llama") return CreateSentencePieceTokenizer(metadata);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "no memory for the tokenizer"};
  }
  return {StatusCode::kUnsupported,
          std::string(kModelKey) + ": no tokenizer \"" + model.substr(0, 64) +
              "\" here; there are gpt2 (byte-level BPE) and llama (SentencePiece BPE)"};
}

Result<std::vector<int32_t>> VocabularyTokenizer::Encode(std::string_view text,
                                                         const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return {StatusCode::kInvalidArgument, "a text of " + std::to_string(text.size()) +
                                              " bytes; at most " + std::to_string(kMaxTextBytes) +
                                              " are encoded at once"};
  }
  try {
    std::vector<int32_t> ids;
    std::string unguarded;
    if (options.add_special && vocabulary_.adds_bos()) ids.push_back(vocabulary_.bos_id());
    for (size_t done = 0; done < text.size();) {
      const SpecialTokens::Match match = special_tokens_.Find(text, done, options.parse_special);
      const size_t plain_end = match.size > 0 ? match.begin : text.size();
      const std::string_view plain = WithoutGuard(text.substr(done, plain_end - done), options.guard, &unguarded);
      if (!plain.empty()) OSCAR_TRY(EncodePlain(plain, &ids));
      if (match.size > 0) ids.push_back(match.id);
      done = plain_end + match.size;
    }
    if (options.add_special && vocabulary_.adds_eos()) ids.push_back(vocabulary_.eos_id());
    return ids;
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted,
            "no memory to encode a text of " + std::to_string(text.size()) + " bytes"};
  }
}

std::string VocabularyTokenizer::TokenBytes(int32_t id, bool render_special) const {
  OSCAR_CHECK(id >= 0 && id < vocabulary_.size());
  const bool silent = vocabulary_.IsControl(id) || vocabulary_.type(id) == TokenType::kUnused;
  return std::string(silent && !render_special ? std::string_view() : vocabulary_.bytes(id));
}

std::string VocabularyTokenizer::Decode(std::span<const int32_t> ids, bool render_special) const {
  std::string text;
  for (const int32_t id : ids) text += TokenBytes(id, render_special);
  if (strips_first_space_ && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

bool VocabularyTokenizer::IsControl(int32_t id) const {
  OSCAR_CHECK(id >= 0 && id < vocabulary_.size());
  return vocabulary_.IsControl(id);
}

size_t VocabularyTokenizer::NextControl(std::string_view text, size_t from) const {
  for (;;) {
    const SpecialTokens::Match match = special_tokens_.Find(text, from, /*with_control=*/true);
    if (match.size == 0) return std::string_view::npos;
    if (vocabulary_.IsControl(match.id)) return match.begin;
    from = match.begin + match.size;
  }
}

int32_t VocabularyTokenizer::FindControl(std::string_view text) const {
  const int32_t id = vocabulary_.Find(text);
  return id >= 0 && vocabulary_.IsControl(id) ? id : -1;
}

}  // namespace oscar::engine
