#include "src/engine/runtime/text_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

namespace fs = std::filesystem;

Result<std::string> ReadBytes(const fs::path& path, uint64_t max_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {StatusCode::kIoError, path.string() + ": " + std::strerror(errno)};
  // In pieces, since a pipe or a device does not tell its size.
  std::string bytes;
  while (bytes.size() < max_bytes) {
    const size_t before = bytes.size();
    bytes.resize(std::min<uint64_t>(max_bytes, before + (1 << 20)));
    file.read(bytes.data() + before, static_cast<std::streamsize>(bytes.size() - before));
    bytes.resize(before + static_cast<size_t>(file.gcount()));
    if (file.bad()) return {StatusCode::kIoError, path.string() + ": " + std::strerror(errno)};
    if (!file) break;
  }
  return bytes;
}

// Length of the UTF-8 sequence that starts at `text`, 0 when it is not valid (or NUL) or is cut.
size_t SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead == 0) return 0;
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool outside = (lead == 0xED && byte(1) > 0x9F) || (lead == 0xF4 && byte(1) > 0x8F);
  return overlong || outside ? 0 : length;
}

// Text of one file; `cut` when max_bytes ended it, so that a split last character is no fault.
Result<std::string> ReadTextFile(const fs::path& path, uint64_t max_bytes) {
  OSCAR_ASSIGN_OR_RETURN(std::string bytes, ReadBytes(path, max_bytes));
  const size_t valid = ValidUtf8Prefix(bytes);
  const bool cut = bytes.size() == max_bytes && bytes.size() - valid < 4;
  if (valid < bytes.size() && !cut) {
    return {StatusCode::kInvalidArgument, path.string() + ": " + InvalidTextReason(bytes)};
  }
  bytes.resize(valid);
  return bytes;
}

}  // namespace

size_t ValidUtf8Prefix(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    const size_t length = SequenceLength(text.substr(position));
    if (length == 0) break;
    position += length;
  }
  return position;
}

std::string InvalidTextReason(std::string_view text) {
  const size_t valid = ValidUtf8Prefix(text);
  return (text[valid] == '\0' ? "not text, a NUL byte (byte " : "not UTF-8 text (byte ") + std::to_string(valid) + ")";
}

Result<TextSource> ReadTextSource(const fs::path& path, uint64_t max_bytes) {
  std::error_code error;
  const fs::file_status file_status = fs::status(path, error);
  if (!fs::exists(file_status)) return {StatusCode::kNotFound, path.string() + ": no such file or folder"};
  TextSource source{path.string(), ""};
  if (!fs::is_directory(file_status)) {
    OSCAR_ASSIGN_OR_RETURN(source.text, ReadTextFile(path, max_bytes));
  } else {
    std::vector<fs::path> files;
    for (auto entry = fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied, error);
         !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      if (entry->is_regular_file(error)) files.push_back(entry->path());
    }
    if (error) return {StatusCode::kIoError, path.string() + ": " + error.message()};
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) {
      if (source.text.size() >= max_bytes) break;
      auto text = ReadTextFile(file, max_bytes - source.text.size());
      if (text.ok()) source.text += *text + "\n";
    }
  }
  if (source.text.empty()) return {StatusCode::kInvalidArgument, path.string() + ": no text in it"};
  return source;
}

Result<std::vector<int32_t>> TokenizeSource(const Tokenizer& tokenizer, const TextSource& source, int64_t num_tokens,
                                            int64_t min_tokens) {
  std::string_view text = source.text;
  const uint64_t limit = static_cast<uint64_t>(num_tokens) * kBytesPerToken;
  if (text.size() > limit) text = text.substr(0, ValidUtf8Prefix(text.substr(0, limit)));
  OSCAR_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer.Encode(text, {.add_special = false, .parse_special = false}));
  if (static_cast<int64_t>(tokens.size()) < min_tokens) {
    return {StatusCode::kInvalidArgument, source.name + ": too short: " + std::to_string(tokens.size()) + " tokens, at least " +
                                              std::to_string(min_tokens) + " are needed"};
  }
  if (static_cast<int64_t>(tokens.size()) > num_tokens) tokens.resize(num_tokens);
  return tokens;
}

}  // namespace oscar::engine
