// One HTTP(S) GET through libcurl, with redirects judged here and nothing kept in memory: the body goes to a callback.
// What the bytes mean, where they go and what a status is worth is hub_client.cc's business.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "oscar/result.h"
#include "src/engine/hub/http_fields.h"

namespace oscar::engine {

struct HttpGetRequest {
  std::string url;                // http or https
  uint64_t offset = 0;            // > 0: asks for the bytes from there on (Range)
  std::string if_range;           // a strong ETag: the range only if the file is still that one; empty: unconditional
  std::string bearer_token;       // sent to the first origin only, never to where it redirects
  std::filesystem::path ca_file;  // PEM certificates to trust; empty: the system's
  int connect_timeout_s = 30;
  int stall_timeout_s = 30;       // below 1 KiB/s for so long: given up
  const std::atomic<bool>* cancelled = nullptr;
};

// The head of the last answer, that is, after redirects.
struct HttpResponse {
  long status = 0;
  std::string url;  // where the answer came from
  std::optional<uint64_t> content_length;
  std::optional<ContentRange> content_range;
  bool is_framed = false;       // chunked or HTTP/2: the end is marked even without a length
  std::string content_encoding;
  std::string etag;             // strong only
  std::string etag_sha256;      // when the ETag is a SHA-256
  // The hub's own headers about the stored file, from the first answer that has them, redirects included.
  std::string linked_sha256;
  std::optional<uint64_t> linked_size;
};

struct HttpGetSink {
  // Called once, before the first byte and for an empty body too. An error ends the transfer and is the result.
  std::function<Status(const HttpResponse&)> on_response;
  // The same for every piece of the body.
  std::function<Status(std::span<const std::byte>)> on_body;
};

// Blocks until the body ended. Certificates are verified; at most 10 redirects, none from https to http; no proxy for loopback.
// Errors: those of the sink; kCancelled; kInvalidArgument (URL); kIoError (everything the network can do).
Status HttpGet(const HttpGetRequest& request, const HttpGetSink& sink);

}  // namespace oscar::engine
