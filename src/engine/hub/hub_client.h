// `oscar pull`: brings a file over HTTP(S) into the model cache, with resume, hash check and progress. libcurl does the
// transfer.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "oscar/result.h"

namespace oscar::engine {

struct PullRequest {
  std::string source;             // "hf:owner/repo/path/file.gguf[@revision]", or an http(s) URL
  std::string sha256;             // expected, 64 hex digits; empty: the server's X-Linked-Etag or ETag if it is a SHA-256
  std::string hub_endpoint;       // base URL for hf: sources; given by option or config, default "https://huggingface.co"
  std::filesystem::path directory;
  std::function<void(uint64_t done, uint64_t total)> progress;  // total 0: unknown
  const std::atomic<bool>* cancelled = nullptr;
};

// The path of the finished file. While it runs the bytes are in NAME.part (and NAME.part.json: URL, ETag), from which a later
// call resumes. Errors: kInvalidArgument (source), kNotFound (404), kIoError (network, disk; resumable), kCorruptData (hash or
// size differs: the part file is removed), kCancelled. A file that is already there with the right hash is not fetched again.
Result<std::filesystem::path> Pull(const PullRequest& request);

}  // namespace oscar::engine
