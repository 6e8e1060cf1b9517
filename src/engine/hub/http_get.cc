#include "src/engine/hub/http_get.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <array>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/hub/pull_source.h"

namespace oscar::engine {
namespace {

constexpr int kMaxRedirects = 10;
constexpr long kStallBytesPerSecond = 1024;
constexpr size_t kMaxRedirectBytes = 1 << 20;  // of the page that may come with a redirect

struct CurlDeleter {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// One request and its answer; a redirect makes another hop.
struct Hop {
  const HttpGetRequest& request;
  const HttpGetSink& sink;
  CURL* curl = nullptr;
  HttpResponse response;
  bool is_answered = false;  // on_response was called
  size_t redirect_bytes = 0;
  Status failure;  // of the sink, or ours while in a callback
};

bool IsRedirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

void ReadHeader(HttpResponse& response, std::string_view line) {
  if (line.starts_with("HTTP/")) {  // an interim (1xx) answer came before: forget what it said, except about the stored file
    HttpResponse fresh;
    fresh.url = std::move(response.url);
    fresh.linked_sha256 = std::move(response.linked_sha256);
    fresh.linked_size = response.linked_size;
    fresh.is_framed = !line.starts_with("HTTP/1");
    response = std::move(fresh);
    return;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string name = LowerCase(line.substr(0, colon));
  const std::string_view value = Trim(line.substr(colon + 1));
  if (name == "content-length") response.content_length = ParseByteCount(value);
  if (name == "content-range") response.content_range = ParseContentRange(value);
  if (name == "content-encoding") response.content_encoding = LowerCase(value);
  if (name == "transfer-encoding" && LowerCase(value).ends_with("chunked")) response.is_framed = true;
  if (name == "etag") {
    response.etag = StrongEtag(value);
    response.etag_sha256 = Sha256FromEtag(value);
  }
  if (name == "x-linked-etag" && response.linked_sha256.empty()) response.linked_sha256 = Sha256FromEtag(value);
  if (name == "x-linked-size" && !response.linked_size) response.linked_size = ParseByteCount(value);
}

// True: go on. Calls on_response before the first byte of an answer that is no redirect.
bool AnswerOnce(Hop& hop) {
  if (hop.is_answered) return hop.failure.ok();
  curl_easy_getinfo(hop.curl, CURLINFO_RESPONSE_CODE, &hop.response.status);
  if (IsRedirect(hop.response.status)) return true;
  hop.is_answered = true;
  hop.failure = hop.sink.on_response(hop.response);
  return hop.failure.ok();
}

size_t OnHeader(char* data, size_t size, size_t count, void* user) {
  ReadHeader(static_cast<Hop*>(user)->response, std::string_view(data, size * count));
  return size * count;
}

// libcurl takes any other number than the one it gave as "stop".
size_t OnBody(char* data, size_t size, size_t count, void* user) {
  Hop& hop = *static_cast<Hop*>(user);
  const size_t num_bytes = size * count;
  const size_t stop = num_bytes == 0 ? 1 : 0;
  if (!AnswerOnce(hop)) return stop;
  if (!hop.is_answered) {  // the page that comes with a redirect
    hop.redirect_bytes += num_bytes;
    if (hop.redirect_bytes <= kMaxRedirectBytes) return num_bytes;
    hop.failure = Status(StatusCode::kIoError, UrlWithoutQuery(hop.response.url) + ": an endless page with a redirect");
    return stop;
  }
  hop.failure = hop.sink.on_body(std::as_bytes(std::span(data, num_bytes)));
  return hop.failure.ok() ? num_bytes : stop;
}

int OnTransferInfo(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const std::atomic<bool>* cancelled = static_cast<Hop*>(user)->request.cancelled;
  return cancelled != nullptr && cancelled->load() ? 1 : 0;
}

Status StatusFromCurl(const Hop& hop, CURLcode code, std::string_view detail) {
  if (!hop.failure.ok()) return hop.failure;
  const std::string where = UrlWithoutQuery(hop.response.url);
  if (code == CURLE_ABORTED_BY_CALLBACK) return Status(StatusCode::kCancelled, where + ": cancelled");
  if (code == CURLE_OPERATION_TIMEDOUT) {
    return Status(StatusCode::kIoError,
                  fmt::format("{}: no connection within {} s, or less than 1 KiB/s for {} s", where,
                              hop.request.connect_timeout_s, hop.request.stall_timeout_s));
  }
  const std::string_view reason = curl_easy_strerror(code);
  return Status(StatusCode::kIoError, detail.empty() || detail == reason
                                          ? fmt::format("{}: {}", where, reason)
                                          : fmt::format("{}: {} ({})", where, reason, detail));
}

using HeaderList = std::unique_ptr<curl_slist, CurlDeleter>;

Status AddHeader(HeaderList& list, const std::string& line) {
  curl_slist* longer = curl_slist_append(list.get(), line.c_str());
  if (longer == nullptr) return Status(StatusCode::kResourceExhausted, "out of memory while building an HTTP request");
  list.release();
  list.reset(longer);
  return Status();
}

template <class T>
void SetOption(CURL* curl, CURLoption option, T value) {
  const CURLcode code = curl_easy_setopt(curl, option, value);
  OSCAR_CHECK_MSG(code == CURLE_OK, curl_easy_strerror(code));
}

void SetOptions(Hop& hop, const UrlOrigin& origin, const curl_slist* headers, char* error_buffer) {
  CURL* const curl = hop.curl;
  SetOption(curl, CURLOPT_URL, hop.response.url.c_str());
  SetOption(curl, CURLOPT_HTTPHEADER, headers);
  SetOption(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  SetOption(curl, CURLOPT_FOLLOWLOCATION, 0L);
  SetOption(curl, CURLOPT_SSL_VERIFYPEER, 1L);
  SetOption(curl, CURLOPT_SSL_VERIFYHOST, 2L);
  if (!hop.request.ca_file.empty()) SetOption(curl, CURLOPT_CAINFO, hop.request.ca_file.c_str());
  if (origin.is_loopback) SetOption(curl, CURLOPT_PROXY, "");
  SetOption(curl, CURLOPT_NOSIGNAL, 1L);
  SetOption(curl, CURLOPT_USERAGENT, "oscar");
  SetOption(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(hop.request.connect_timeout_s));
  SetOption(curl, CURLOPT_LOW_SPEED_LIMIT, kStallBytesPerSecond);
  SetOption(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(hop.request.stall_timeout_s));
  SetOption(curl, CURLOPT_ERRORBUFFER, error_buffer);
  SetOption(curl, CURLOPT_HEADERFUNCTION, OnHeader);
  SetOption(curl, CURLOPT_HEADERDATA, static_cast<void*>(&hop));
  SetOption(curl, CURLOPT_WRITEFUNCTION, OnBody);
  SetOption(curl, CURLOPT_WRITEDATA, static_cast<void*>(&hop));
  SetOption(curl, CURLOPT_NOPROGRESS, 0L);
  SetOption(curl, CURLOPT_XFERINFOFUNCTION, OnTransferInfo);
  SetOption(curl, CURLOPT_XFERINFODATA, static_cast<void*>(&hop));
}

// Performs one hop. The result is the URL to go to next, or empty when this answer was the last.
Result<std::string> RunHop(Hop& hop, const UrlOrigin& origin, bool send_token) {
  const std::unique_ptr<CURL, CurlDeleter> curl(curl_easy_init());
  if (curl == nullptr) return Status(StatusCode::kResourceExhausted, "out of memory while starting a transfer");
  hop.curl = curl.get();
  HeaderList headers;
  if (hop.request.offset > 0) {
    OSCAR_TRY(AddHeader(headers, fmt::format("Range: bytes={}-", hop.request.offset)));
    if (!hop.request.if_range.empty()) OSCAR_TRY(AddHeader(headers, "If-Range: " + hop.request.if_range));
  }
  if (send_token) OSCAR_TRY(AddHeader(headers, "Authorization: Bearer " + hop.request.bearer_token));
  std::array<char, CURL_ERROR_SIZE> error{};
  SetOptions(hop, origin, headers.get(), error.data());
  const CURLcode code = curl_easy_perform(hop.curl);
  if (code != CURLE_OK) return StatusFromCurl(hop, code, error.data());
  if (!AnswerOnce(hop)) return hop.failure;  // an empty body
  if (hop.is_answered) return std::string();
  const char* next = nullptr;
  curl_easy_getinfo(hop.curl, CURLINFO_REDIRECT_URL, &next);
  if (next == nullptr) {
    return Status(StatusCode::kIoError,
                  fmt::format("{}: a redirect ({}) without a usable Location", UrlWithoutQuery(hop.response.url),
                              hop.response.status));
  }
  return std::string(next);
}

}  // namespace

Status HttpGet(const HttpGetRequest& request, const HttpGetSink& sink) {
  static std::once_flag curl_started;
  std::call_once(curl_started, [] { OSCAR_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
  OSCAR_ASSIGN_OR_RETURN(const UrlOrigin first, ParseOrigin(request.url));
  if (!request.bearer_token.empty() && first.scheme != "https" && !first.is_loopback) {
    return Status(StatusCode::kInvalidArgument,
                  UrlWithoutQuery(request.url) + ": a token is sent over https only, this URL is http");
  }
  HttpResponse response;
  response.url = request.url;
  for (int num_redirects = 0; num_redirects <= kMaxRedirects; ++num_redirects) {
    OSCAR_ASSIGN_OR_RETURN(const UrlOrigin origin, ParseOrigin(response.url));
    const bool send_token = !request.bearer_token.empty() && origin.origin == first.origin;
    Hop hop{request, sink, nullptr, std::move(response)};
    OSCAR_ASSIGN_OR_RETURN(const std::string next, RunHop(hop, origin, send_token));
    if (next.empty()) return Status();
    OSCAR_TRY(CheckRedirect(hop.response.url, next));
    response = std::move(hop.response);
    response.url = next;
  }
  return Status(StatusCode::kIoError,
                fmt::format("{}: more than {} redirects", UrlWithoutQuery(request.url), kMaxRedirects));
}

}  // namespace oscar::engine
