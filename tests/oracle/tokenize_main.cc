// oscar_tokenize MODEL.gguf: the tokenizer of a model behind a pipe, for tests in other languages.
//
// Request on standard input: one byte for the kind, a little-endian uint32 n, n bytes. Answer on
// standard output: uint32 n, n bytes. Kinds: 'e' text -> ids as int32; 's' the same with special
// tokens parsed; 'b' with BOS and EOS as the model has them; 'd' ids -> text; 'r' the same with
// special tokens rendered; 't' one id -> its bytes, both without and with special tokens rendered,
// each after its uint32 length; 'p' ids -> text by StreamDecoder. The first failure ends it with a
// message.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/status_macros.h"
#include "src/engine/text/stream_decoder.h"
#include "src/engine/text/tokenizer.h"
#include "src/io/gguf.h"

namespace oscar::engine {
namespace {

std::string IdBytes(const std::vector<int32_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)};
}

std::string Sized(const std::string& bytes) {
  const auto size = static_cast<uint32_t>(bytes.size());
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + bytes;
}

Result<std::string> Answer(const Tokenizer& tokenizer, char kind, const std::string& payload) {
  if (kind == 'e' || kind == 's' || kind == 'b') {
    OSCAR_ASSIGN_OR_RETURN(const auto ids, tokenizer.Encode(payload, {kind == 'b', kind == 's'}));
    return IdBytes(ids);
  }
  std::vector<int32_t> ids(payload.size() / sizeof(int32_t));
  std::memcpy(ids.data(), payload.data(), ids.size() * sizeof(int32_t));
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size())
      return {StatusCode::kInvalidArgument, "no token " + std::to_string(id)};
  }
  if (kind == 'd' || kind == 'r') return tokenizer.Decode(ids, kind == 'r');
  if (kind == 't' && ids.size() == 1) {
    return Sized(tokenizer.TokenBytes(ids[0])) + Sized(tokenizer.TokenBytes(ids[0], true));
  }
  if (kind == 'p') {
    StreamDecoder decoder(tokenizer);
    std::string text;
    for (const int32_t id : ids) text += decoder.Push(id);
    return text + decoder.Finish();
  }
  return {StatusCode::kInvalidArgument, "bad request"};
}

Status Serve(const char* path) {
  OSCAR_ASSIGN_OR_RETURN(const io::GgufFile file, io::GgufFile::Open(path));
  OSCAR_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Create(file.metadata()));
  for (int kind = std::getchar(); kind != EOF; kind = std::getchar()) {
    uint32_t size = 0;
    if (std::fread(&size, sizeof(size), 1, stdin) != 1)
      return {StatusCode::kInvalidArgument, "request cut short"};
    std::string payload(size, '\0');
    if (std::fread(payload.data(), 1, size, stdin) != size)
      return {StatusCode::kInvalidArgument, "request cut short"};
    OSCAR_ASSIGN_OR_RETURN(const std::string answer,
                           Answer(*tokenizer, static_cast<char>(kind), payload));
    const std::string sized = Sized(answer);
    std::fwrite(sized.data(), 1, sized.size(), stdout);
    std::fflush(stdout);
  }
  return {};
}

}  // namespace
}  // namespace oscar::engine

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: oscar_tokenize MODEL.gguf\n");
    return 2;
  }
  const oscar::Status status = oscar::engine::Serve(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "oscar_tokenize: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
