#include "src/io/jsonl_file.h"

#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "src/base/status_macros.h"
#include "src/io/json_file.h"

namespace oscar::io {
namespace {

constexpr size_t kMostBytes = size_t{2} << 30;

// gzread gives the bytes of a file without the gzip magic as they are.
Result<std::string> ReadInflated(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Status(StatusCode::kNotFound, path.string() + ": no such file");
  if (std::filesystem::is_directory(path, error)) return Status(StatusCode::kIoError, path.string() + ": is a folder");
  const std::unique_ptr<gzFile_s, int (*)(gzFile_s*)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) return Status(StatusCode::kIoError, path.string() + ": " + std::strerror(errno));
  std::string text;
  for (;;) {
    const size_t before = text.size();
    text.resize(before + (1 << 20));
    const int count = gzread(file.get(), text.data() + before, 1 << 20);
    text.resize(before + static_cast<size_t>(count > 0 ? count : 0));
    if (count == 0) break;
    if (text.size() > kMostBytes) return Status(StatusCode::kResourceExhausted, path.string() + ": more than 2 GiB of text");
    if (count < 0) break;
  }
  int code = Z_OK;
  const char* message = gzerror(file.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END) {
    std::string what = code == Z_ERRNO ? std::strerror(errno) : message;
    if (const std::string place = path.string() + ": "; !what.starts_with(place)) what.insert(0, place);  // zlib names the file, too
    return Status(StatusCode::kIoError, std::move(what));
  }
  return text;
}

}  // namespace

Result<std::vector<nlohmann::json>> ReadJsonLines(const std::filesystem::path& path) {
  OSCAR_ASSIGN_OR_RETURN(const std::string text, ReadInflated(path));
  std::vector<nlohmann::json> lines;
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = path.string() + ": line " + std::to_string(number);
    auto value = ParseJson(line);
    if (!value.ok()) return value.status().WithContext(place);
    if (!value->is_object()) return Status(StatusCode::kCorruptData, place + ": not a JSON object");
    lines.push_back(std::move(*value));
  }
  return lines;
}

Result<JsonLinesWriter> JsonLinesWriter::Open(const std::filesystem::path& path, Mode mode) {
  std::ofstream file(path, mode == Mode::kAppend ? std::ios::app : std::ios::trunc);
  if (!file) return Status(StatusCode::kIoError, path.string() + ": " + std::strerror(errno));
  return JsonLinesWriter(path, std::move(file));
}

Status JsonLinesWriter::Write(const nlohmann::ordered_json& object) {
  file_ << object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
  if (!file_) return {StatusCode::kIoError, path_.string() + ": " + std::strerror(errno)};
  return {};
}

}  // namespace oscar::io
