// `oscar pull`: brings a file over HTTP(S) into the model cache, with resume, hash check and progress. libcurl does the
// transfer (http_get.h), part_file.h keeps the unfinished bytes, pull_source.h reads what the user named.
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
  std::string source;  // "hf:owner/repo/path/file.gguf[@revision]", or an http(s) URL (pull_source.h has the rules)
  std::string sha256;  // expected, 64 hex digits; empty: the server's X-Linked-Etag or ETag if it is a SHA-256
  std::string hub_endpoint = "https://huggingface.co";  // base URL for hf: sources
  std::filesystem::path directory;                      // created when missing
  std::string token;                // bearer token, sent over https (or to loopback) to the source's own host only
  std::filesystem::path ca_file;    // PEM certificates to trust instead of the system's
  bool overwrite = false;           // replace a finished file of this name with other content
  int connect_timeout_s = 30;
  int stall_timeout_s = 30;         // give up when less than 1 KiB/s arrives for so long
  // Bytes of the file that are here, and all of them; total 0: unknown. On the calling thread, at least once per 16 KiB or so.
  std::function<void(uint64_t done, uint64_t total)> progress;
  const std::atomic<bool>* cancelled = nullptr;  // looked at at least once a second
};

// The path of the finished file, DIRECTORY/NAME. While it runs the bytes are in NAME.part (and NAME.part.json: URL, ETag,
// expected hash and size), from which a later call resumes if the server's file is still the same; else it starts over.
// A file that is already there with the right hash is not fetched again. A transfer whose end cannot be told from a cut (no
// length, no framing, no hash) is refused. Errors:
//   kInvalidArgument     source, hash, token or endpoint
//   kNotFound            the server has no such file (404, 410)
//   kFailedPrecondition  the server refuses (401, 403); another process is writing the file; a file of this name is there with
//                        other content, or cannot be compared because no hash is known, and `overwrite` is false
//   kUnsupported         a compressed answer, or one whose end is not marked
//   kResourceExhausted   the disk has less room than the file needs
//   kIoError             network or disk; what came is kept and the next call resumes
//   kCorruptData         hash or size differ: the part file is removed
//   kCancelled           the part file is kept
Result<std::filesystem::path> Pull(const PullRequest& request);

// The token in a file, without the white space around it. kNotFound, kIoError; kInvalidArgument when it is empty, longer than
// 4096 bytes or not printable ASCII without spaces.
Result<std::string> ReadTokenFile(const std::filesystem::path& path);

}  // namespace oscar::engine
