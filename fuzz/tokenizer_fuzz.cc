// Tokenizers: the first byte chooses. 0 to 5: the rest is text for one of six tiny vocabularies.
// Others: the rest is a list of changes to the metadata of one of two vocabularies, then text.
// Whatever is accepted must encode, decode and stream any text.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/engine/text/stream_decoder.h"
#include "src/engine/text/tokenizer.h"
#include "src/engine/text/utf8.h"
#include "src/testing/tiny_vocabulary.h"

namespace oscar::engine {
namespace {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const { return rest_.empty(); }
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return byte;
  }
  std::string Text(size_t size) {
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(text.size());
    return text;
  }
  std::string Rest() { return Text(rest_.size()); }
  // Small numbers, their negatives and the edges of the integer types.
  int64_t Number() {
    const uint8_t kind = Byte();
    const int64_t value = Byte() | Byte() << 8;
    if (kind < 200) return value;
    return kind < 230 ? -value : kind < 240 ? INT64_MAX : kind < 250 ? INT64_MIN : int64_t{1} << 32;
  }

 private:
  std::string_view rest_;
};

bool IsValid(std::string_view text) {
  bool valid = true;
  return text.empty() || (NextUtf8Run(text, &valid).size() == text.size() && valid);
}

std::string StreamAll(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                      bool render_special) {
  StreamDecoder decoder(tokenizer, render_special);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = decoder.Push(id);
    OSCAR_CHECK(IsValid(piece));
    text += piece;
  }
  return text + decoder.Finish();
}

// `exact`: the vocabulary has all bytes and changes nothing, so text comes back as it was.
void TryText(const Tokenizer& tokenizer, const std::string& text, bool exact) {
  for (const EncodeOptions options :
       {EncodeOptions{true, false}, EncodeOptions{false, true}, EncodeOptions{false, false}}) {
    const auto ids = tokenizer.Encode(text, options);
    OSCAR_CHECK(ids.ok() || !exact);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) OSCAR_CHECK(id >= 0 && id < tokenizer.vocab_size());
    const std::string decoded = tokenizer.Decode(*ids, options.parse_special);
    OSCAR_CHECK(!exact || decoded == text);
    const std::string streamed = StreamAll(tokenizer, *ids, options.parse_special);
    OSCAR_CHECK(!IsValid(decoded) || streamed == decoded);
    for (const int32_t id : *ids)
      OSCAR_CHECK(options.parse_special || options.add_special || !tokenizer.IsControl(id) ||
                  !exact);
  }
}

io::GgufMetadata Changed(Bytes* bytes) {
  const bool byte_pair = bytes->Byte() % 2 == 0;
  testing::TinyVocabulary tiny = byte_pair ? testing::TinyBytePair() : testing::TinySentencePiece();
  const uint8_t num_changes = bytes->Byte() % 16;
  std::vector<std::pair<std::string, io::GgufMetadata::Value>> extra;
  for (int i = 0; i < num_changes && !bytes->empty(); ++i) {
    const uint8_t kind = bytes->Byte();
    const size_t place = static_cast<size_t>(bytes->Byte() | bytes->Byte() << 8);
    const auto in = [place](const auto& list) { return place % (list.size() + 1); };
    const char* ids[] = {"bos_token_id", "eos_token_id", "unknown_token_id", "eot_token_id",
                         "eom_token_id"};
    const char* flags[] = {"add_bos_token", "add_eos_token", "add_space_prefix",
                           "remove_extra_whitespaces"};
    const char* all[] = {"model",  "pre",    "tokens",       "token_type",
                         "scores", "merges", "bos_token_id", "add_bos_token"};
    const auto key = [](const char* name) { return std::string("tokenizer.ggml.") + name; };
    switch (kind % 10) {
      case 0:
        if (in(tiny.tokens) < tiny.tokens.size())
          tiny.tokens[in(tiny.tokens)] = bytes->Text(bytes->Byte());
        break;
      case 1:
        if (in(tiny.types) < tiny.types.size()) tiny.types[in(tiny.types)] = bytes->Number();
        break;
      case 2:
        if (in(tiny.scores) < tiny.scores.size())
          tiny.scores[in(tiny.scores)] = static_cast<double>(bytes->Number());
        break;
      case 3:
        tiny.merges.insert(tiny.merges.begin() + static_cast<long>(in(tiny.merges)),
                           bytes->Text(bytes->Byte() % 32));
        break;
      case 4:
        tiny.Add(bytes->Text(bytes->Byte() % 64), bytes->Byte() % 8, bytes->Byte());
        break;
      case 5:
        tiny.types.resize(in(tiny.types));
        break;
      case 6:
        tiny.tokens.resize(in(tiny.tokens));
        break;
      case 7:
        extra.emplace_back(key(ids[place % 5]), bytes->Number());
        break;
      case 8:
        extra.emplace_back(key(flags[place % 4]), bytes->Byte() % 2 == 0);
        break;
      case 9:
        extra.emplace_back(key(all[place % 8]), bytes->Text(bytes->Byte() % 16));
        break;
    }
  }
  io::GgufMetadata metadata =
      byte_pair ? testing::BytePairMetadata(tiny) : testing::SentencePieceMetadata(tiny);
  for (auto& [key, value] : extra) metadata.Set(key, std::move(value));
  return metadata;
}

std::unique_ptr<Tokenizer> Make(const io::GgufMetadata& metadata) {
  auto tokenizer = Tokenizer::Create(metadata);
  OSCAR_CHECK_MSG(tokenizer.ok(), tokenizer.status().message());
  return std::move(tokenizer).value();
}

std::unique_ptr<Tokenizer> MakeWithoutBytes() {
  testing::TinyVocabulary tiny = testing::TinySentencePiece();
  tiny.types[3] = 1;
  return Make(testing::SentencePieceMetadata(tiny));
}

}  // namespace
}  // namespace oscar::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oscar;
  using namespace oscar::engine;
  static const std::unique_ptr<Tokenizer> tokenizers[] = {
      Make(testing::TinyBytePairMetadata("gpt-2")),
      Make(testing::TinyBytePairMetadata("smollm")),
      Make(testing::TinyBytePairMetadata("llama3")),
      Make(testing::TinyBytePairMetadata("qwen2")),
      Make(testing::SentencePieceMetadata(testing::TinySentencePiece())),
      MakeWithoutBytes()};
  Bytes bytes(data, size);
  const uint8_t choice = bytes.Byte();
  if (choice < 6) {
    TryText(*tokenizers[choice], bytes.Rest(), /*exact=*/choice < 3);
    return 0;
  }
  const auto tokenizer = Tokenizer::Create(Changed(&bytes));
  if (!tokenizer.ok()) {
    OSCAR_CHECK(!tokenizer.status().message().empty());
    return 0;
  }
  TryText(**tokenizer, bytes.Rest(), /*exact=*/false);
  for (int32_t id = 0; id < (*tokenizer)->vocab_size(); ++id) {
    OSCAR_CHECK((*tokenizer)->TokenBytes(id, true).size() <= 4096);
    OSCAR_CHECK(!(*tokenizer)->IsControl(id) || (*tokenizer)->TokenBytes(id).empty());
  }
  return 0;
}
