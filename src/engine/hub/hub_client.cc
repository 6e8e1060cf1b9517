#include "src/engine/hub/hub_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "src/base/digest.h"
#include "src/base/status_macros.h"
#include "src/engine/hub/http_fields.h"
#include "src/engine/hub/http_get.h"
#include "src/engine/hub/part_file.h"
#include "src/engine/hub/pull_source.h"

namespace oscar::engine {
namespace {

constexpr size_t kMaxTokenBytes = 4096;

Status CheckToken(std::string_view token) {
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (token.empty() || token.size() > kMaxTokenBytes || !printable) {
    return Status(StatusCode::kInvalidArgument, "the token is empty, too long or not printable ASCII without spaces");
  }
  return Status();
}

// Where an expected hash came from decides what a mismatch means, so errors say it.
struct ExpectedHash {
  std::string sha256;  // empty: not known
  std::string_view origin;
};

ExpectedHash HashFromResponse(const HttpResponse& response) {
  if (!response.linked_sha256.empty()) return {response.linked_sha256, "the server's X-Linked-Etag"};
  if (!response.etag_sha256.empty()) return {response.etag_sha256, "the server's ETag"};
  return {};
}

Status CheckHttpStatus(const HttpResponse& response) {
  const std::string where = UrlWithoutQuery(response.url);
  switch (response.status) {
    case 200:
    case 206: return Status();
    case 401:
    case 403:
      return Status(StatusCode::kFailedPrecondition,
                    fmt::format("{}: the server refuses ({}); the file may need a token", where, response.status));
    case 404:
    case 410: return Status(StatusCode::kNotFound, fmt::format("{}: no such file ({})", where, response.status));
    default: return Status(StatusCode::kIoError, fmt::format("{}: the server answered {}", where, response.status));
  }
}

// One call of Pull once its arguments are checked and the part file is locked.
class Download {
 public:
  Download(const PullRequest& request, const PullSource& source, PartFile& part)
      : request_(request), source_(source), part_(part), expected_{Sha256FromHex(request.sha256), "the request"} {}

  Result<std::filesystem::path> Run();

 private:
  std::filesystem::path target() const { return request_.directory / source_.file_name; }
  HttpGetRequest GetRequest() const;
  // Is the finished file there already, with the right content? An error when it may not be replaced.
  Result<bool> IsThere();
  Result<ExpectedHash> AskForHash();
  bool CanResume() const;
  // Fetches what is missing, from the start when resuming turns out to be impossible.
  Status Fetch();
  Status FetchOnce();
  Status OnResponse(const HttpResponse& response);
  Status CheckFraming(const HttpResponse& response) const;
  Status CheckRoom() const;
  bool ContinuesOurs(const HttpResponse& response, const ExpectedHash& expected) const;
  Status OnBody(std::span<const std::byte> bytes);
  Status Verify();
  void ReportProgress() const;
  Status StartOver();

  const PullRequest& request_;
  const PullSource& source_;
  PartFile& part_;
  ExpectedHash expected_;
  std::optional<uint64_t> total_bytes_;
  bool must_start_over_ = false;
};

HttpGetRequest Download::GetRequest() const {
  HttpGetRequest get;
  get.url = source_.url;
  get.bearer_token = request_.token;
  get.ca_file = request_.ca_file;
  get.connect_timeout_s = request_.connect_timeout_s;
  get.stall_timeout_s = request_.stall_timeout_s;
  get.cancelled = request_.cancelled;
  return get;
}

Result<ExpectedHash> Download::AskForHash() {
  ExpectedHash hash;
  bool is_answered = false;
  HttpGetSink sink;
  sink.on_response = [&](const HttpResponse& response) {
    OSCAR_TRY(CheckHttpStatus(response));
    hash = HashFromResponse(response);
    is_answered = true;
    return Status(StatusCode::kCancelled, "only the head is wanted");
  };
  sink.on_body = [](std::span<const std::byte>) { return Status(); };
  const Status status = HttpGet(GetRequest(), sink);
  if (is_answered) return hash;
  return status;
}

Result<bool> Download::IsThere() {
  std::error_code error;
  const auto type = std::filesystem::status(target(), error).type();
  if (type == std::filesystem::file_type::not_found) return false;
  if (type != std::filesystem::file_type::regular) {
    return Status(StatusCode::kFailedPrecondition, target().string() + ": is there and is not a regular file");
  }
  if (expected_.sha256.empty() && request_.overwrite) return false;
  ExpectedHash expected = expected_;
  if (expected.sha256.empty()) {
    OSCAR_ASSIGN_OR_RETURN(expected, AskForHash());
  }
  OSCAR_ASSIGN_OR_RETURN(const base::Sha256Digest digest, base::Sha256OfFile(target()));
  const std::string actual = base::HexFromDigest(digest);
  if (actual == expected.sha256) return true;
  if (request_.overwrite) return false;
  if (expected.sha256.empty()) {
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: is already there (SHA-256 {}), and neither the request nor the server gives a SHA-256 to "
                              "compare with; give one, or ask to overwrite it",
                              target().string(), actual));
  }
  return Status(StatusCode::kFailedPrecondition,
                fmt::format("{}: is already there with other content (SHA-256 {}, {} says {}); ask to overwrite it, or "
                            "choose another folder",
                            target().string(), actual, expected.origin, expected.sha256));
}

// Bytes are worth keeping only if something can tell later that they belong to the same file.
bool Download::CanResume() const {
  const PartRecord& record = part_.record();
  if (part_.size() == 0 || record.url != UrlWithoutQuery(source_.url)) return false;
  if (record.total_bytes && part_.size() > *record.total_bytes) return false;
  if (!expected_.sha256.empty() && !record.sha256.empty() && expected_.sha256 != record.sha256) return false;
  return !record.etag.empty() || !record.sha256.empty();
}

Status Download::StartOver() {
  total_bytes_.reset();
  return part_.Restart();
}

bool Download::ContinuesOurs(const HttpResponse& response, const ExpectedHash& expected) const {
  const PartRecord& record = part_.record();
  const auto& range = response.content_range;
  if (!range || range->first != part_.size()) return false;
  if (range->total && record.total_bytes && *range->total != *record.total_bytes) return false;
  if (record.etag.empty() || response.etag.empty()) {
    // No tag to compare: the hash is the only witness.
    return !record.sha256.empty() && expected.sha256 == record.sha256;
  }
  return record.etag == response.etag && (record.sha256.empty() || expected.sha256 == record.sha256);
}

Status Download::CheckFraming(const HttpResponse& response) const {
  if (!response.content_encoding.empty() && response.content_encoding != "identity") {
    return Status(StatusCode::kUnsupported, fmt::format("{}: the server sends compressed bytes ('{}') although none were asked for",
                                                        UrlWithoutQuery(response.url), response.content_encoding));
  }
  if (!total_bytes_ && !response.is_framed && expected_.sha256.empty()) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: the server gives neither a length nor a SHA-256, so a cut transfer would look like a whole "
                              "one; give the expected SHA-256",
                              UrlWithoutQuery(response.url)));
  }
  return Status();
}

Status Download::CheckRoom() const {
  if (!total_bytes_) return Status();
  std::error_code error;
  const auto space = std::filesystem::space(request_.directory, error);
  const uint64_t missing = *total_bytes_ - std::min(*total_bytes_, part_.size());
  if (error || space.available >= missing) return Status();  // an unknown amount of room is found out while writing
  return Status(StatusCode::kResourceExhausted,
                fmt::format("{}: the file needs {} bytes more, the disk has room for {}", request_.directory.string(), missing,
                            space.available));
}

Status Download::OnResponse(const HttpResponse& response) {
  const bool asked_for_range = part_.size() > 0;
  if (asked_for_range && response.status == 416) {
    must_start_over_ = true;
    return Status(StatusCode::kIoError, "the server has no bytes at the place to resume from");
  }
  OSCAR_TRY(CheckHttpStatus(response));
  ExpectedHash expected = expected_;
  if (expected.sha256.empty()) expected = HashFromResponse(response);
  if (response.status == 206) {
    if (!asked_for_range) {
      return Status(StatusCode::kIoError,
                    UrlWithoutQuery(response.url) + ": the server answered with a part although the whole was asked for");
    }
    if (!ContinuesOurs(response, expected)) {
      must_start_over_ = true;
      return Status(StatusCode::kIoError, "the server's file is not the one that was begun");
    }
    total_bytes_ = response.content_range->total ? response.content_range->total : part_.record().total_bytes;
  } else {
    OSCAR_TRY(StartOver());
    total_bytes_ = response.content_length;
  }
  if (response.linked_size && total_bytes_ && *response.linked_size != *total_bytes_) {
    return Status(StatusCode::kCorruptData,
                  fmt::format("{}: the server offers {} bytes, the hub says the file has {}", UrlWithoutQuery(response.url),
                              *total_bytes_, *response.linked_size));
  }
  if (!total_bytes_) total_bytes_ = response.linked_size;
  expected_ = expected;
  OSCAR_TRY(CheckFraming(response));
  OSCAR_TRY(CheckRoom());
  PartRecord record{UrlWithoutQuery(source_.url), response.etag, expected_.sha256, total_bytes_};
  if (record.etag.empty() && response.status == 206) record.etag = part_.record().etag;
  OSCAR_TRY(part_.WriteRecord(record));
  ReportProgress();
  return Status();
}

Status Download::OnBody(std::span<const std::byte> bytes) {
  if (total_bytes_ && bytes.size() > *total_bytes_ - part_.size()) {
    return Status(StatusCode::kCorruptData,
                  fmt::format("{}: the server sends more than the {} bytes of the file", source_.file_name, *total_bytes_));
  }
  OSCAR_TRY(part_.Append(bytes));
  ReportProgress();
  return Status();
}

void Download::ReportProgress() const {
  if (request_.progress) request_.progress(part_.size(), total_bytes_.value_or(0));
}

Status Download::FetchOnce() {
  HttpGetRequest get = GetRequest();
  get.offset = part_.size();
  get.if_range = part_.record().etag;
  HttpGetSink sink;
  sink.on_response = [this](const HttpResponse& response) { return OnResponse(response); };
  sink.on_body = [this](std::span<const std::byte> bytes) { return OnBody(bytes); };
  return HttpGet(get, sink);
}

Status Download::Fetch() {
  if (CanResume()) {
    OSCAR_TRY(part_.HashExisting(request_.cancelled));
    const bool is_whole = part_.record().total_bytes == part_.size();
    // Cut between the last byte and the rename: nothing is missing but the verdict.
    if (is_whole && !part_.record().sha256.empty()) {
      total_bytes_ = part_.size();
      if (expected_.sha256.empty()) expected_ = {part_.record().sha256, "the server, when the download began,"};
      return Status();
    }
    if (!is_whole) {
      const Status status = FetchOnce();
      if (!must_start_over_) return status;
    }
  }
  OSCAR_TRY(StartOver());
  return FetchOnce();
}

Status Download::Verify() {
  if (total_bytes_ && part_.size() != *total_bytes_) {
    return Status(StatusCode::kIoError, fmt::format("{}: the server ended after {} of {} bytes", source_.file_name,
                                                    part_.size(), *total_bytes_));
  }
  const std::string actual = part_.FinishHash();
  if (!expected_.sha256.empty() && actual != expected_.sha256) {
    return Status(StatusCode::kCorruptData,
                  fmt::format("{}: the bytes have SHA-256 {}, but {} says {}; they were removed", source_.file_name, actual,
                              expected_.origin, expected_.sha256));
  }
  return Status();
}

Result<std::filesystem::path> Download::Run() {
  OSCAR_ASSIGN_OR_RETURN(const bool is_there, IsThere());
  if (is_there) {
    part_.Remove();
    return target();
  }
  Status status = Fetch();
  if (status.ok()) status = Verify();
  if (status.ok()) status = part_.Publish();
  if (status.ok()) return target();
  if (status.code() == StatusCode::kCorruptData) {
    OSCAR_TRY(part_.Restart());  // closing an empty part file removes it
  } else if (part_.size() > 0) {
    return Status(status.code(), fmt::format("{} ({} bytes are kept in {}; pull again to go on)", status.message(), part_.size(),
                                             part_.path().string()));
  }
  return status;
}

}  // namespace

Result<std::filesystem::path> Pull(const PullRequest& request) {
  OSCAR_ASSIGN_OR_RETURN(const PullSource source, ParsePullSource(request.source, request.hub_endpoint));
  if (!request.sha256.empty() && Sha256FromHex(request.sha256).empty()) {
    return Status(StatusCode::kInvalidArgument, "the expected SHA-256 is not 64 hexadecimal digits");
  }
  if (!request.token.empty()) OSCAR_TRY(CheckToken(request.token));
  if (request.directory.empty()) return Status(StatusCode::kInvalidArgument, "no folder is given to put the file into");
  if (request.connect_timeout_s <= 0 || request.stall_timeout_s <= 0) {
    return Status(StatusCode::kInvalidArgument, "the connect and stall timeouts must be positive");
  }
  std::error_code error;
  std::filesystem::create_directories(request.directory, error);
  if (error) {
    return Status(StatusCode::kIoError, fmt::format("{}: {}", request.directory.string(), error.message()));
  }
  OSCAR_ASSIGN_OR_RETURN(PartFile part, PartFile::Open(request.directory / source.file_name));
  return Download(request, source, part).Run();
}

Result<std::string> ReadTokenFile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Status(StatusCode::kNotFound, path.string() + ": no such token file");
  std::ifstream file(path, std::ios::binary);
  std::string text(2 * kMaxTokenBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) return Status(StatusCode::kIoError, path.string() + ": the token file cannot be read");
  text.resize(static_cast<size_t>(file.gcount()));
  constexpr std::string_view kWhite = " \t\r\n";
  text.erase(0, std::min(text.find_first_not_of(kWhite), text.size()));
  text.erase(text.find_last_not_of(kWhite) + 1);
  const Status status = CheckToken(text);
  if (!status.ok()) return status.WithContext(path.string());
  return text;
}

}  // namespace oscar::engine
