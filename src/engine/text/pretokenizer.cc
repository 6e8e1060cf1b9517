#include "src/engine/text/pretokenizer.h"

#include <algorithm>
#include <span>

#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

// White space as a set for [...]: what the models' own splitter, Oniguruma, calls \s. PCRE2's \s
// also has U+180E, which Unicode moved out of the separators in 6.3, so \s and \S are not used
// below.
#define OSCAR_SPACE R"(\t-\r\x{85}\p{Z})"

// GPT-2 (openai/gpt-2, encoder.py): contractions, words, numbers and the rest, each with one space
// before it.
constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" OSCAR_SPACE R"(\p{L}\p{N}]+|[)" OSCAR_SPACE
    R"(]+(?![^)" OSCAR_SPACE R"(])|[)" OSCAR_SPACE R"(]+)";

// Llama 3 and Qwen 2 (their tokenizer.json): any non-letter may lead a word, line ends stay with
// what is before them. They differ in the digits of a number word.
#define OSCAR_CL100K_WORDS(number)                                                             \
  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" number R"(| ?[^)" OSCAR_SPACE    \
  R"(\p{L}\p{N}]+[\r\n]*|[)" OSCAR_SPACE R"(]*[\r\n]+|[)" OSCAR_SPACE R"(]+(?![^)" OSCAR_SPACE \
  R"(])|[)" OSCAR_SPACE R"(]+)"
constexpr std::string_view kLlama3Words = OSCAR_CL100K_WORDS(R"(\p{N}{1,3})");
constexpr std::string_view kQwen2Words = OSCAR_CL100K_WORDS(R"(\p{N})");
constexpr std::string_view kSingleDigits = R"(\p{N})";
#undef OSCAR_CL100K_WORDS
#undef OSCAR_SPACE

struct Family {
  std::vector<std::string_view> names;     // as tokenizer.ggml.pre has them
  std::vector<std::string_view> patterns;  // applied in turn
  bool normalizes_nfc = false;
  bool takes_whole_words = false;
  bool adds_bos = false;
};

// A family is listed once its words were compared with the models' own tokenizer (tests/oracle).
// "default", which old converters wrote for models they did not know, is none: its words belong to
// no model.
const std::vector<Family>& Families() {
  static const std::vector<Family> families = {
      {{"gpt-2"}, {kGpt2Words}},
      {{"smollm", "starcoder", "refact"}, {kSingleDigits, kGpt2Words}},
      {{"llama-bpe", "llama3", "llama-v3"},
       {kLlama3Words},
       false,
       /*takes_whole_words=*/true,
       /*adds_bos=*/true},
      {{"qwen2"}, {kQwen2Words}, /*normalizes_nfc=*/true},
  };
  return families;
}

}  // namespace

Result<Pretokenizer> Pretokenizer::Create(std::string_view name) {
  std::string known;
  for (const Family& family : Families()) {
    for (const std::string_view alias : family.names)
      known += (known.empty() ? "" : ", ") + std::string(alias);
    if (std::find(family.names.begin(), family.names.end(), name) == family.names.end()) continue;
    Pretokenizer pretokenizer;
    for (const std::string_view source : family.patterns) {
      OSCAR_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Compile(source));
      pretokenizer.patterns_.push_back(std::move(pattern));
    }
    pretokenizer.normalizes_nfc_ = family.normalizes_nfc;
    pretokenizer.takes_whole_words_ = family.takes_whole_words;
    pretokenizer.adds_bos_ = family.adds_bos;
    return pretokenizer;
  }
  return {StatusCode::kUnsupported, "tokenizer.ggml.pre: no pre-tokenizer \"" +
                                        std::string(name.substr(0, 64)) + "\" here; there are " +
                                        known};
}

Status Pretokenizer::Split(std::string_view text, PatternMatcher* matcher,
                           std::vector<std::string_view>* words) const {
  std::vector<std::string_view> pieces = {text}, next;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    std::vector<std::string_view>& parts = i + 1 == patterns_.size() ? *words : next;
    for (const std::string_view piece : pieces) {
      size_t done = 0;
      while (done < piece.size()) {
        OSCAR_ASSIGN_OR_RETURN(const auto match, matcher->Find(patterns_[i], piece, done));
        const size_t begin = match ? match->begin : piece.size();
        if (begin > done) parts.push_back(piece.substr(done, begin - done));
        if (match) parts.push_back(piece.substr(begin, match->end - begin));
        done = match ? match->end : piece.size();
      }
    }
    if (&parts == &next) {
      pieces.swap(next);
      next.clear();
    }
  }
  return {};
}

}  // namespace oscar::engine
