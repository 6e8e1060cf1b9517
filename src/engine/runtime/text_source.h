// Text for calibration and evaluation: a file, or all text files below a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/text/tokenizer.h"

namespace oscar::engine {

struct TextSource {
  std::string name;     // what was read, for reports
  std::string text;     // valid UTF-8
};

// Reads at most max_bytes (cut at a character). A folder is walked in path order; files that are not UTF-8 text are left out
// there, while a single such file is refused. Errors: kNotFound, kIoError, kInvalidArgument (not text, empty), naming the path.
Result<TextSource> ReadTextSource(const std::filesystem::path& path, uint64_t max_bytes);

// The length of the longest prefix of `text` that is valid UTF-8 without NUL bytes: text.size() when all of it is.
size_t ValidUtf8Prefix(std::string_view text);
// What is wrong with the text behind that prefix: "not UTF-8 text (byte 7)", "not text, a NUL byte (byte 7)". Precondition: not all of it is valid.
std::string InvalidTextReason(std::string_view text);

// Bytes to read for that many tokens: no tokenizer of the supported families averages more than this on real text.
inline constexpr uint64_t kBytesPerToken = 12;

// The first num_tokens tokens of a text, without special tokens. kInvalidArgument when there are fewer than min_tokens.
Result<std::vector<int32_t>> TokenizeSource(const Tokenizer& tokenizer, const TextSource& source, int64_t num_tokens,
                                            int64_t min_tokens);

}  // namespace oscar::engine
