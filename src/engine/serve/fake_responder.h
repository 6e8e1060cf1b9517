// FakeResponder: an HttpResponder that keeps what an answer sends, for tests.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/engine/serve/http_server.h"

namespace oscar::engine {

struct SentAnswer {
  int status = 0;
  HttpFields fields;
  std::string body;
  bool ended = false;

  // The events of a stream, each a JSON text.
  std::vector<std::string> Events() const {
    std::vector<std::string> events;
    for (size_t at = 0; at < body.size();) {
      const size_t end = body.find("\n\n", at);
      const std::string line = body.substr(at, end - at);
      if (line.starts_with("data: {")) events.push_back(line.substr(6));
      at = end + 2;
    }
    return events;
  }
};

class FakeResponder final : public HttpResponder {
 public:
  explicit FakeResponder(SentAnswer* sent) : sent_(sent) {}
  void Send(int status, HttpFields fields, std::string body) override { *sent_ = {status, std::move(fields), std::move(body), true}; }
  void Begin(int status, HttpFields fields) override { *sent_ = {status, std::move(fields), "", false}; }
  void Write(std::string part) override { sent_->body += part; }
  void End() override { sent_->ended = true; }
  void OnClosed(std::function<void()>) override {}

 private:
  SentAnswer* sent_;
};

}  // namespace oscar::engine
