#include "src/engine/serve/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace oscar::engine {
namespace {

std::string ErrorBody(int status, std::string_view) { return std::to_string(status); }

std::unique_ptr<HttpServer> Serving(HttpHandler handler, HttpOptions options = {}) {
  options.port = 0;
  auto server = HttpServer::Start(options, std::move(handler), ErrorBody);
  EXPECT_TRUE(server.ok()) << server.status().message();
  return *std::move(server);
}

class Client {
 public:
  explicit Client(uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    const int small = 4096;  // so that a server that writes much has to wait
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  void Send(std::string_view text) { EXPECT_EQ(send(socket_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size())); }
  // Until the text is there, or, when it is empty, until the server ends the connection.
  std::string Read(std::string_view until = "") {
    std::string text;
    char part[65536];
    while (until.empty() || text.find(until) == std::string::npos) {
      const ssize_t count = recv(socket_, part, sizeof(part), 0);
      if (count <= 0) break;
      text.append(part, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  const int socket_;
};

TEST(HttpServer, AnswersRequestsOfOneConnectionInTurn) {
  const auto server = Serving([](HttpRequest request, std::shared_ptr<HttpResponder> responder) { responder->Send(200, {}, "<" + request.target + ">"); });
  Client client(server->port());
  client.Send("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string text = client.Read();
  EXPECT_LT(text.find("</a>"), text.find("</b>")) << text;
  EXPECT_NE(text.find("</b>"), std::string::npos) << text;
}

TEST(HttpServer, AStreamThatTheSocketCannotTakeAtOnceArrivesWhole) {
  HttpOptions options;
  options.max_unsent_bytes = 64 << 20;
  std::string wanted;
  for (int i = 0; i < 200'000; ++i) wanted += std::to_string(i) + "\n";
  const auto server = Serving([&wanted](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
    responder->Begin(200, {});
    for (size_t at = 0; at < wanted.size(); at += 10'000) responder->Write(wanted.substr(at, 10'000));
    responder->End();
  }, options);
  Client client(server->port());
  client.Send("GET / HTTP/1.0\r\n\r\n");  // without chunks: the text as it is
  const std::string text = client.Read();
  EXPECT_EQ(text.substr(text.find("\r\n\r\n") + 4), wanted);
}

TEST(HttpServer, PartsOfABatchArriveTogetherInOrderAndNothingOfARequestThatIsOver) {
  std::mutex mutex;
  std::vector<std::shared_ptr<HttpResponder>> held;
  const auto server = Serving([&](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
    const std::lock_guard lock(mutex);
    held.push_back(std::move(responder));
  });
  const auto take = [&](size_t count) {
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      const std::lock_guard lock(mutex);
      if (held.size() == count) return std::exchange(held, {});
    }
  };
  Client first(server->port()), second(server->port());
  first.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  second.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  auto responders = take(2);
  {
    const HttpBatch batch;
    for (const auto& responder : responders) {
      const HttpBatch inner;
      responder->Begin(200, {});
      for (const char* part : {"one", "two", "three"}) responder->Write(part);
      responder->End();
    }
    EXPECT_EQ(server->owed_answers(), 2);
  }
  for (Client* client : {&first, &second}) {
    const std::string text = client->Read("0\r\n\r\n");
    EXPECT_NE(text.find("3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"), std::string::npos) << text;
  }
  // A part that comes late is not one of the next answer of the connection.
  first.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  auto next = take(1);
  next[0]->Begin(200, {});
  for (const auto& responder : responders) responder->Write("late");
  next[0]->Write("new");
  next[0]->End();
  const std::string text = first.Read("0\r\n\r\n");
  EXPECT_NE(text.find("3\r\nnew\r\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("late"), std::string::npos) << text;
}

TEST(HttpServer, WhatIsGivenAfterABatchComesAfterIt) {
  HttpOptions options;
  options.threads = 1;
  std::promise<std::shared_ptr<HttpResponder>> asked;
  std::promise<void> is_held, release;
  const auto server = Serving([&](const HttpRequest& request, std::shared_ptr<HttpResponder> responder) {
    if (request.target != "/hold") return asked.set_value(std::move(responder));
    is_held.set_value();
    release.get_future().wait();  // the only thread
    responder->Send(200, {}, "held");
  }, options);
  Client client(server->port()), holder(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto responder = asked.get_future().get();
  holder.Send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  is_held.get_future().wait();
  responder->Begin(200, {});
  {
    const HttpBatch batch;
    responder->Write("one");
  }
  responder->Write("two");
  {
    const HttpBatch batch;
    responder->Write("three");
  }
  responder->End();
  release.set_value();
  const std::string text = client.Read("0\r\n\r\n");
  EXPECT_NE(text.find("3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"), std::string::npos) << text;
}

TEST(HttpServer, AClientThatDoesNotReadIsCut) {
  HttpOptions options;
  options.max_unsent_bytes = 100'000;
  std::shared_ptr<HttpResponder> held;
  std::promise<void> gone;
  const auto server = Serving([&](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
    responder->OnClosed([&gone] { gone.set_value(); });
    responder->Begin(200, {});
    for (int i = 0; i < 2000; ++i) responder->Write(std::string(10'000, 'x'));
    responder->End();
    held = std::move(responder);
  }, options);
  Client client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  // It is cut while it reads nothing, and then finds what the sockets held, without an end.
  ASSERT_EQ(gone.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  const std::string text = client.Read();
  EXPECT_LT(text.size(), 20'000'000u);
  EXPECT_FALSE(text.ends_with("0\r\n\r\n"));
  server->Stop();
  held.reset();  // no responder outlives its server
}

TEST(HttpServer, AKeptConnectionMayBeQuietButABegunHeaderMustCome) {
  HttpOptions options;
  options.header_seconds = 0.2;
  options.idle_seconds = 60;
  const auto server = Serving([](const HttpRequest&, std::shared_ptr<HttpResponder> responder) { responder->Send(200, {}, "well"); }, options);
  Client client(server->port());
  const std::string get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  client.Send(get);
  EXPECT_TRUE(client.Read("well").ends_with("\r\n\r\nwell"));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  client.Send(get);
  EXPECT_TRUE(client.Read("well").ends_with("\r\n\r\nwell"));
  const auto begin = std::chrono::steady_clock::now();
  client.Send("GET / HT");
  EXPECT_TRUE(client.Read().starts_with("HTTP/1.1 408"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(HttpServer, WhatDoesNotComeInTimeEndsIn408AndAnIdleConnectionWithoutAWord) {
  HttpOptions options;
  options.header_seconds = options.body_seconds = options.idle_seconds = 0.1;
  const auto server = Serving([](const HttpRequest&, std::shared_ptr<HttpResponder> responder) { responder->Send(200, {}, "well"); }, options);
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n";
  for (const std::string& sent : {std::string("GET / HT"), post, post + "\r\nfour", post + "Expect: 100-continue\r\n\r\n"}) {
    Client client(server->port());
    client.Send(sent);
    const std::string text = client.Read();
    EXPECT_NE(text.find("HTTP/1.1 408"), std::string::npos) << sent << text;
    EXPECT_EQ(text.starts_with("HTTP/1.1 100"), sent.find("Expect") != std::string::npos) << text;
  }
  Client silent(server->port());
  EXPECT_EQ(silent.Read(), "");
  Client kept(server->port());
  kept.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(kept.Read().ends_with("\r\n\r\nwell"));
}

}  // namespace
}  // namespace oscar::engine
