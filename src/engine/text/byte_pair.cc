// Byte-level BPE (GPT-2 and most models since): text is cut into words, and the bytes of a word
// merge pairwise in the order of the merge list.

#include <array>
#include <bit>
#include <random>
#include <span>

#include "src/base/status_macros.h"
#include "src/engine/text/merge_symbols.h"
#include "src/engine/text/normalizer.h"
#include "src/engine/text/pretokenizer.h"
#include "src/engine/text/utf8.h"
#include "src/engine/text/vocabulary_tokenizer.h"

namespace oscar::engine {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";

// From a pair of tokens to its merge: open addressing, two thirds full at most, multiplied by a
// random odd number so that no file can be made whose pairs collide.
class MergeTable {
 public:
  explicit MergeTable(size_t num_merges)
      : entries_(std::bit_ceil(num_merges + num_merges / 2 + 2)) {
    shift_ = 64 - std::countr_zero(entries_.size());
    std::random_device device;
    multiplier_ = (uint64_t{device()} << 32 | device()) | 1;
  }

  // Keeps the first of several merges of one pair.
  void Insert(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = Key(left, right);
    size_t slot = Slot(key);
    for (; entries_[slot].merge.id >= 0; slot = (slot + 1) & (entries_.size() - 1)) {
      if (entries_[slot].key == key) return;
    }
    entries_[slot] = {key, merge};
  }

  std::optional<Merge> Find(int32_t left, int32_t right) const {
    const uint64_t key = Key(left, right);
    for (size_t slot = Slot(key); entries_[slot].merge.id >= 0;
         slot = (slot + 1) & (entries_.size() - 1)) {
      if (entries_[slot].key == key) return entries_[slot].merge;
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    uint64_t key = 0;
    Merge merge;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t Slot(uint64_t key) const { return static_cast<size_t>(key * multiplier_ >> shift_); }

  std::vector<Entry> entries_;
  int shift_ = 0;
  uint64_t multiplier_ = 1;
};

class BytePairTokenizer final : public VocabularyTokenizer {
 public:
  BytePairTokenizer(Vocabulary vocabulary, Pretokenizer pretokenizer, MergeTable merges)
      : VocabularyTokenizer(std::move(vocabulary), /*strips_first_space=*/false),
        pretokenizer_(std::move(pretokenizer)),
        merges_(std::move(merges)) {}

 private:
  Status EncodePlain(std::string_view text, std::vector<int32_t>* ids) const override {
    PatternMatcher matcher;
    SymbolMerger merger;
    std::vector<std::string_view> words;
    while (!text.empty()) {
      bool valid = false;
      const std::string_view run = NextUtf8Run(text, &valid);
      text.remove_prefix(run.size());
      // Bytes that are no UTF-8 have no character classes and no normal form: they are a word by
      // themselves.
      const bool normalize = valid && pretokenizer_.normalizes_nfc();
      const std::string normalized = normalize ? NormalizeNfc(run) : std::string();
      words.clear();
      if (valid) {
        OSCAR_TRY(pretokenizer_.Split(normalize ? normalized : run, &matcher, &words));
      } else {
        words.push_back(run);
      }
      for (const std::string_view word : words) OSCAR_TRY(EncodeWord(word, &merger, ids));
    }
    return {};
  }

  Status EncodeWord(std::string_view word, SymbolMerger* merger, std::vector<int32_t>* ids) const {
    if (pretokenizer_.takes_whole_words() && word.size() <= Vocabulary::kMaxTokenBytes) {
      const int32_t id = vocabulary_.Find(Vocabulary::SpellBytes(word));
      if (id >= 0 && vocabulary_.type(id) == TokenType::kNormal) {
        ids->push_back(id);
        return {};
      }
    }
    merger->Clear();
    while (!word.empty()) {
      const size_t size = NextUtf8(word).size;
      if (!AddBytes(word.substr(0, size), merger) && !AddBytes(kReplacementCharacter, merger)) {
        return {StatusCode::kUnsupported,
                "the vocabulary has tokens neither for all bytes of a character nor for U+FFFD"};
      }
      word.remove_prefix(size);
    }
    merger->Run([this](const Symbol& left, const Symbol& right) {
      return merges_.Find(left.id, right.id);
    });
    merger->ForEach([ids](const Symbol& symbol) { ids->push_back(symbol.id); });
    return {};
  }

  // All bytes or none: some vocabularies lack the rare ones, and half a character would be garbage.
  bool AddBytes(std::string_view bytes, SymbolMerger* merger) const {
    for (const char byte : bytes) {
      if (vocabulary_.byte_id(static_cast<uint8_t>(byte)) < 0) return false;
    }
    for (const char byte : bytes) merger->Add(vocabulary_.byte_id(static_cast<uint8_t>(byte)), 1);
    return true;
  }

  const Pretokenizer pretokenizer_;
  const MergeTable merges_;
};

// "left right", each the text of a token, together the text of a third. The rank is the place in
// the list.
Result<MergeTable> ReadMerges(std::span<const std::string> lines, const Vocabulary& vocabulary) {
  MergeTable merges(lines.size());
  std::string joined;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string_view line = lines[rank];
    const auto fault = [&](const std::string& what) {
      return Status(StatusCode::kCorruptData,
                    std::string(kMergesKey) + ": merge " + std::to_string(rank) + " " + what);
    };
    const size_t space = line.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == line.size())
      return fault("is not two texts with a space between");
    joined.assign(line.substr(0, space));
    joined += line.substr(space + 1);
    const int32_t left = vocabulary.Find(line.substr(0, space));
    const int32_t right = vocabulary.Find(line.substr(space + 1));
    const int32_t id = vocabulary.Find(joined);
    if (left < 0 || right < 0) return fault("merges a text that is no token");
    if (id < 0) return fault("makes a text that is no token");
    merges.Insert(left, right, {static_cast<uint32_t>(rank), id});
  }
  return merges;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> CreateBytePairTokenizer(const io::GgufMetadata& metadata) {
  for (const std::string_view key : {std::string_view("tokenizer.ggml.pre"), kMergesKey}) {
    if (!metadata.Has(key)) return {StatusCode::kCorruptData, std::string(key) + ": missing"};
  }
  OSCAR_ASSIGN_OR_RETURN(const std::string pre, metadata.String("tokenizer.ggml.pre"));
  OSCAR_ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::Create(pre));
  OSCAR_ASSIGN_OR_RETURN(
      Vocabulary vocabulary,
      Vocabulary::Create(metadata, TokenSpelling::kByteAlphabet, pretokenizer.adds_bos()));
  OSCAR_ASSIGN_OR_RETURN(const auto lines, metadata.Strings(kMergesKey));
  if (lines.size() > size_t{1} << 31)
    return {StatusCode::kCorruptData, std::string(kMergesKey) + ": too many merges"};
  OSCAR_ASSIGN_OR_RETURN(MergeTable merges, ReadMerges(lines, vocabulary));
  return std::unique_ptr<Tokenizer>(std::make_unique<BytePairTokenizer>(
      std::move(vocabulary), std::move(pretokenizer), std::move(merges)));
}

}  // namespace oscar::engine
