// A scripted HTTP/1.1 server on 127.0.0.1 for tests of clients: the test's handler says what each request gets, down to the
// byte at which the connection breaks. One connection at a time, closed after each answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace oscar::testing {

struct LoopbackRequest {
  std::string method;
  std::string target;                          // "/path?query"
  std::map<std::string, std::string> headers;  // lower-case names
};

struct LoopbackReply {
  enum class Framing { kContentLength, kChunked, kUntilClose };
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  Framing framing = Framing::kContentLength;
  size_t send_bytes = std::numeric_limits<size_t>::max();  // of the body; then the connection closes
  bool stall = false;  // instead of closing: keeps the connection open, silent, until the client leaves
};

class LoopbackServer {
 public:
  using Handler = std::function<LoopbackReply(const LoopbackRequest&)>;
  // Listens on a free port. `handler` runs on the server's thread.
  explicit LoopbackServer(Handler handler);
  ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  // "http://127.0.0.1:PORT" + path
  std::string Url(const std::string& path) const;
  std::vector<LoopbackRequest> requests() const;

 private:
  void Serve();
  void Answer(int connection);
  bool SendAll(int connection, const std::string& bytes) const;

  Handler handler_;
  int listener_ = -1;
  int stop_read_ = -1;  // a pipe: readable when the server is to stop
  int stop_write_ = -1;
  uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::vector<LoopbackRequest> requests_;
  std::thread thread_;
};

// The whole `content`, or the part of it that a Range header asks for when If-Range is absent or equals `etag`; 416 beyond the
// end. What a plain static file server does.
LoopbackReply ServeContent(const LoopbackRequest& request, const std::string& content, const std::string& etag);

}  // namespace oscar::testing
