#include "src/engine/hub/pull_source.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

constexpr size_t kMaxSourceChars = 4096;
constexpr size_t kMaxNameChars = 200;  // NAME.part.json stays below the 255 bytes that file systems allow
constexpr std::array<std::string_view, 3> kExtensions = {".gguf", ".safetensors", ".json"};

bool IsAlphanumeric(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

Status Invalid(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

Status CheckFileName(std::string_view name) {
  if (name.empty()) return Invalid("the source names no file: its path ends in '/' or is empty");
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return IsAlphanumeric(c) || std::string_view("._-+=,@").find(c) != std::string_view::npos;
  });
  if (!plain) {
    return Invalid("the source's file name may hold letters, digits and ._-+=,@ only (no separators, no control characters)");
  }
  if (name.front() == '.' || name.find("..") != std::string_view::npos) {
    return Invalid(fmt::format("the file name '{}' begins with a dot or holds '..'", name));
  }
  if (name.size() > kMaxNameChars) {
    return Invalid(fmt::format("the file name has {} characters, at most {} are allowed", name.size(), kMaxNameChars));
  }
  const auto ends = [&](std::string_view extension) { return name.size() > extension.size() && name.ends_with(extension); };
  if (std::none_of(kExtensions.begin(), kExtensions.end(), ends)) {
    return Invalid(fmt::format("the file name '{}' does not end in .gguf, .safetensors or .json", name));
  }
  if (name.ends_with(".part.json")) return Invalid(fmt::format("the file name '{}' is kept for unfinished files", name));
  return Status();
}

struct UrlDeleter {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using UrlHandle = std::unique_ptr<CURLU, UrlDeleter>;

// nullopt-like: empty when the part is absent or cannot be decoded.
std::string UrlPart(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return {};
  const std::unique_ptr<char, void (*)(void*)> owner(text, curl_free);
  return text;
}

Result<UrlHandle> ParseUrl(std::string_view text) {
  if (text.size() > kMaxSourceChars) return Invalid(fmt::format("a URL of more than {} characters", kMaxSourceChars));
  if (std::any_of(text.begin(), text.end(), IsControl)) return Invalid("the URL holds control characters");
  UrlHandle url(curl_url());
  if (url == nullptr) return Status(StatusCode::kResourceExhausted, "out of memory while parsing a URL");
  if (const CURLUcode code = curl_url_set(url.get(), CURLUPART_URL, std::string(text).c_str(), 0); code != CURLUE_OK) {
    return Invalid(fmt::format("'{}' is not a URL: {}", UrlWithoutQuery(text), curl_url_strerror(code)));
  }
  const std::string scheme = UrlPart(url.get(), CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https") {
    return Invalid(fmt::format("'{}' is neither an http nor an https URL", UrlWithoutQuery(text)));
  }
  if (!UrlPart(url.get(), CURLUPART_USER).empty() || !UrlPart(url.get(), CURLUPART_PASSWORD).empty()) {
    return Invalid("the URL holds a user name or password; give a token instead");
  }
  return url;
}

std::string PercentEncode(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (IsAlphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~') {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1)) {
    parts.push_back(text.substr(0, end));
  }
  parts.push_back(text);
  return parts;
}

Result<std::string> HubUrl(std::string_view hub_source, std::string_view endpoint) {
  std::string_view path = hub_source;
  std::string_view revision = "main";
  if (const size_t at = path.rfind('@'); at != std::string_view::npos) {
    revision = path.substr(at + 1);
    path = path.substr(0, at);
    const bool plain = std::all_of(revision.begin(), revision.end(), [](char c) {
      return IsAlphanumeric(c) || c == '.' || c == '_' || c == '-' || c == '/';
    });
    if (revision.empty() || !plain || revision.find("..") != std::string_view::npos) {
      return Invalid("the revision after '@' is not a branch, tag or commit: letters, digits and ._-/ are allowed");
    }
  }
  const std::vector<std::string_view> parts = Split(path, '/');
  if (parts.size() < 3) return Invalid(fmt::format("'hf:{}' is not hf:OWNER/REPO/FILE[@REVISION]", hub_source));
  OSCAR_ASSIGN_OR_RETURN(const UrlHandle base, ParseUrl(endpoint));
  if (!UrlPart(base.get(), CURLUPART_QUERY).empty() || !UrlPart(base.get(), CURLUPART_FRAGMENT).empty()) {
    return Invalid("the hub endpoint holds a query or fragment");
  }
  std::string url(endpoint);
  while (url.ends_with('/')) url.pop_back();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty() || parts[i] == "." || parts[i] == "..") {
      return Invalid(fmt::format("'hf:{}' has an empty or relative path segment", hub_source));
    }
    if (i == 2) url += fmt::format("/resolve/{}", PercentEncode(revision));
    url += fmt::format("/{}", PercentEncode(parts[i]));
  }
  return url;
}

}  // namespace

Result<PullSource> ParsePullSource(std::string_view source, std::string_view hub_endpoint) {
  if (source.size() > kMaxSourceChars) {
    return Invalid(fmt::format("the source has more than {} characters", kMaxSourceChars));
  }
  if (std::any_of(source.begin(), source.end(), IsControl)) return Invalid("the source holds control characters");
  std::string text(source);
  if (source.starts_with("hf:")) {
    OSCAR_ASSIGN_OR_RETURN(text, HubUrl(source.substr(3), hub_endpoint));
  } else if (source.find("://") == std::string_view::npos) {
    return Invalid(fmt::format("'{}' is neither hf:OWNER/REPO/FILE[@REVISION] nor an http(s) URL", source));
  }
  OSCAR_ASSIGN_OR_RETURN(const UrlHandle url, ParseUrl(text));
  PullSource parsed;
  const std::string path = UrlPart(url.get(), CURLUPART_PATH);
  const std::string last = path.substr(path.rfind('/') + 1);
  int decoded_size = 0;
  const std::unique_ptr<char, void (*)(void*)> decoded(
      curl_easy_unescape(nullptr, last.c_str(), static_cast<int>(last.size()), &decoded_size), curl_free);
  if (decoded == nullptr) return Status(StatusCode::kResourceExhausted, "out of memory while parsing a URL");
  parsed.file_name.assign(decoded.get(), static_cast<size_t>(decoded_size));
  OSCAR_TRY(CheckFileName(parsed.file_name));
  // A fragment never reaches the server; drop it so that two spellings of one source are one source.
  curl_url_set(url.get(), CURLUPART_FRAGMENT, nullptr, 0);
  parsed.url = UrlPart(url.get(), CURLUPART_URL);
  return parsed;
}

Result<UrlOrigin> ParseOrigin(std::string_view text) {
  OSCAR_ASSIGN_OR_RETURN(const UrlHandle url, ParseUrl(text));
  UrlOrigin origin;
  origin.scheme = UrlPart(url.get(), CURLUPART_SCHEME);
  std::string host = UrlPart(url.get(), CURLUPART_HOST);
  std::transform(host.begin(), host.end(), host.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  // curl normalises numeric IPv4 hosts ("0x7f.1") to four decimal parts; a name such as "127.evil" is not numeric.
  const bool ipv4 = host.find_first_not_of("0123456789.") == std::string::npos;
  origin.is_loopback = host == "localhost" || host == "[::1]" || (ipv4 && host.starts_with("127."));
  origin.origin = origin.scheme + "://" + host + ":" + UrlPart(url.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT);
  return origin;
}

Status CheckRedirect(std::string_view from, std::string_view to) {
  OSCAR_ASSIGN_OR_RETURN(const UrlOrigin source, ParseOrigin(from));
  const Result<UrlOrigin> target = ParseOrigin(to);
  if (!target.ok()) {
    return Status(StatusCode::kIoError, "the server redirects to a place that is not followed: " + target.status().message());
  }
  if (source.scheme == "https" && target->scheme != "https") {
    return Status(StatusCode::kIoError,
                  fmt::format("the server redirects from https to the unprotected '{}'", UrlWithoutQuery(to)));
  }
  return Status();
}

std::string UrlWithoutQuery(std::string_view url) { return std::string(url.substr(0, url.find_first_of("?#"))); }

}  // namespace oscar::engine
