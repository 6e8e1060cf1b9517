// HttpServer: HTTP/1.1 over Boost.Beast with limits on everything (serving.md 2). It knows no route: a handler gets each whole
// request and answers through a responder, at once or as a stream, from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oscar/result.h"

namespace oscar::engine {

struct HttpOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 8080;                      // 0: any free one
  int threads = 2;
  uint64_t max_body_bytes = 33'554'432;
  uint32_t max_header_bytes = 32'768;
  int max_connections = 4096;
  int max_connections_per_ip = 256;          // of one address; 0: any number. Behind a proxy all come from one
  double header_seconds = 10, body_seconds = 30, idle_seconds = 75;
  uint64_t max_unsent_bytes = 1 << 20;       // of a stream whose client does not read
};

struct HttpRequest {
  std::string method, target;                // "POST", "/v1/models" with the query
  std::map<std::string, std::string> fields; // names in lower case
  std::string body;
  const std::string* Find(const std::string& lower_case_name) const;
};

using HttpFields = std::vector<std::pair<std::string, std::string>>;

// The answer to one request. Thread-safe. A request whose responder is dropped unanswered gets 500. It must be gone before the server is.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;
  // A whole answer.
  virtual void Send(int status, HttpFields fields, std::string body) = 0;
  // A stream: Begin once, then parts, then End. Parts given after the client went away are dropped.
  virtual void Begin(int status, HttpFields fields) = 0;
  virtual void Write(std::string part) = 0;
  virtual void End() = 0;
  // `closed` is called once if the client goes away before the answer is complete; at once if it has already.
  virtual void OnClosed(std::function<void()> closed) = 0;
};

// What this thread gives to responders while one lives reaches them when it ends, all at once: a server thread wakes once for the
// parts of many streams. Their servers must outlive it.
class HttpBatch {
 public:
  HttpBatch();
  ~HttpBatch();
  HttpBatch(const HttpBatch&) = delete;
  HttpBatch& operator=(const HttpBatch&) = delete;

 private:
  struct Given;
  std::unique_ptr<Given> given_;
};

// Called on a server thread: must not block.
using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<HttpResponder> responder)>;
// The body of an error that the server itself answers (400, 408, 413, 414, 431, 500, 503), by status and reason.
using HttpErrorBody = std::function<std::string(int status, std::string_view reason)>;

class HttpServer {
 public:
  // Binds and begins to accept. kIoError naming address and port.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpOptions& options, HttpHandler handler, HttpErrorBody error_body);
  virtual ~HttpServer() = default;
  virtual uint16_t port() const = 0;
  virtual int connections() const = 0;  // open ones
  virtual int owed_answers() const = 0;  // requests whose answer is not wholly sent
  // Accepts nobody any more; open connections go on.
  virtual void StopAccepting() = 0;
  // Ends the threads: no handler is called any more. Responders may still be used, and are not heard.
  virtual void Stop() = 0;
};

}  // namespace oscar::engine
