#include "src/testing/loopback_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "src/base/check.h"

namespace oscar::testing {
namespace {

constexpr size_t kMaxRequestBytes = 64 << 10;
constexpr size_t kChunkBytes = 8 << 10;

std::string LowerCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  return text;
}

LoopbackRequest ParseRequest(const std::string& text) {
  LoopbackRequest request;
  std::istringstream lines(text);
  lines >> request.method >> request.target;
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line != "\r") {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t value = line.find_first_not_of(' ', colon + 1);
    request.headers[LowerCase(line.substr(0, colon))] =
        value == std::string::npos ? "" : line.substr(value, line.find_last_not_of("\r") - value + 1);
  }
  return request;
}

std::string FramedBody(const LoopbackReply& reply) {
  if (reply.framing != LoopbackReply::Framing::kChunked) return reply.body.substr(0, reply.send_bytes);
  std::ostringstream framed;
  const size_t end = std::min(reply.body.size(), reply.send_bytes);
  for (size_t i = 0; i < end; i += kChunkBytes) {
    const std::string chunk = reply.body.substr(i, std::min(kChunkBytes, end - i));
    framed << std::hex << chunk.size() << "\r\n" << chunk << "\r\n";
  }
  if (end == reply.body.size()) framed << "0\r\n\r\n";
  return framed.str();
}

}  // namespace

LoopbackServer::LoopbackServer(Handler handler) : handler_(std::move(handler)) {
  std::array<int, 2> ends{};
  OSCAR_CHECK(pipe(ends.data()) == 0);
  stop_read_ = ends[0];
  stop_write_ = ends[1];
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  OSCAR_CHECK(listener_ >= 0 && bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listener_, 8) == 0);
  OSCAR_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Serve(); });
}

LoopbackServer::~LoopbackServer() {
  OSCAR_CHECK(write(stop_write_, "", 1) == 1);
  thread_.join();
  for (const int descriptor : {listener_, stop_read_, stop_write_}) close(descriptor);
}

std::string LoopbackServer::Url(const std::string& path) const {
  return "http://127.0.0.1:" + std::to_string(port_) + path;
}

std::vector<LoopbackRequest> LoopbackServer::requests() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return requests_;
}

void LoopbackServer::Serve() {
  while (true) {
    std::array<pollfd, 2> waits = {pollfd{listener_, POLLIN, 0}, pollfd{stop_read_, POLLIN, 0}};
    if (poll(waits.data(), waits.size(), -1) < 0) continue;
    if (waits[1].revents != 0) return;
    const int connection = accept(listener_, nullptr, nullptr);
    if (connection < 0) continue;
    Answer(connection);
    close(connection);
  }
}

void LoopbackServer::Answer(int connection) {
  std::string text;
  std::array<char, 4096> bytes{};
  while (text.find("\r\n\r\n") == std::string::npos) {
    const ssize_t num_read = recv(connection, bytes.data(), bytes.size(), 0);
    if (num_read <= 0 || text.size() > kMaxRequestBytes) return;
    text.append(bytes.data(), static_cast<size_t>(num_read));
  }
  const LoopbackRequest request = ParseRequest(text);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(request);
  }
  const LoopbackReply reply = handler_(request);
  std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " Scripted\r\nConnection: close\r\n";
  for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
  if (reply.framing == LoopbackReply::Framing::kContentLength) {
    head += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
  } else if (reply.framing == LoopbackReply::Framing::kChunked) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  if (!SendAll(connection, head + "\r\n") || !SendAll(connection, FramedBody(reply)) || !reply.stall) return;
  std::array<pollfd, 2> waits = {pollfd{connection, POLLIN, 0}, pollfd{stop_read_, POLLIN, 0}};
  poll(waits.data(), waits.size(), -1);
}

bool LoopbackServer::SendAll(int connection, const std::string& bytes) const {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = send(connection, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;  // the client left
    sent += static_cast<size_t>(n);
  }
  return true;
}

LoopbackReply ServeContent(const LoopbackRequest& request, const std::string& content, const std::string& etag) {
  LoopbackReply reply;
  reply.headers.emplace_back("ETag", etag);
  const auto range = request.headers.find("range");
  const auto if_range = request.headers.find("if-range");
  const bool partial = range != request.headers.end() && (if_range == request.headers.end() || if_range->second == etag);
  if (!partial) {
    reply.body = content;
    return reply;
  }
  const size_t first = std::strtoull(range->second.c_str() + std::string("bytes=").size(), nullptr, 10);
  const std::string total = std::to_string(content.size());
  if (first >= content.size()) {
    reply.status = 416;
    reply.headers.emplace_back("Content-Range", "bytes */" + total);
    return reply;
  }
  reply.status = 206;
  reply.headers.emplace_back("Content-Range",
                             "bytes " + std::to_string(first) + "-" + std::to_string(content.size() - 1) + "/" + total);
  reply.body = content.substr(first);
  return reply;
}

}  // namespace oscar::testing
