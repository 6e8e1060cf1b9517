#include "src/engine/serve/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

std::chrono::milliseconds Seconds(double seconds) { return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)); }

struct Shared {
  asio::io_context* io = nullptr;
  HttpOptions options;
  HttpHandler handler;
  HttpErrorBody error_body;
  std::atomic<int> connections = 0, owed_answers = 0;

  // One more connection of the address; false when it has as many as it may, and the caller is not counted.
  bool Enter(const asio::ip::address& address) {
    const std::lock_guard lock(mutex);
    int& open = by_address[address];
    if (options.max_connections_per_ip > 0 && open >= options.max_connections_per_ip) return false;
    ++open;
    return true;
  }
  void Leave(const asio::ip::address& address) {
    const std::lock_guard lock(mutex);
    if (const auto found = by_address.find(address); found != by_address.end() && --found->second == 0) by_address.erase(found);
  }

  std::mutex mutex;
  std::map<asio::ip::address, int> by_address;  // open connections
};

// What one thread gives to sessions while an HttpBatch of it lives, by server.
struct GivenWork {
  struct Part {
    asio::any_io_executor strand;
    std::function<void()> work;
  };
  std::vector<std::pair<asio::io_context*, std::vector<Part>>> of_servers;
};
thread_local GivenWork* given_work = nullptr;

// A bound on how long operations of a socket take. tcp_stream's own would close the socket, and the client would not hear why.
class Deadline {
 public:
  explicit Deadline(beast::tcp_stream& stream) : stream_(stream), timer_(stream.get_executor()) {}
  // When it is over, `over` is true and what the socket does ends with an error. `session` is kept meanwhile.
  void Set(std::chrono::milliseconds time, std::shared_ptr<void> session) {
    over_ = false;
    timer_.expires_after(time);
    timer_.async_wait([this, session = std::move(session), serial = ++serial_](error_code error) {
      if (error || serial != serial_) return;
      over_ = true;
      error_code ignored;
      stream_.socket().cancel(ignored);
    });
  }
  void Clear() {
    ++serial_;
    timer_.cancel();
  }
  bool over() const { return over_; }

 private:
  beast::tcp_stream& stream_;
  asio::steady_timer timer_;
  uint64_t serial_ = 0;  // of the last Set or Clear
  bool over_ = false;
};

// One connection. Everything but the counters of a responder runs on its strand.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, std::shared_ptr<Shared> shared) : stream_(std::move(socket)), shared_(std::move(shared)) {
    ++shared_->connections;
    error_code ignored;
    address_ = stream_.socket().remote_endpoint(ignored).address();
    counted_ = shared_->Enter(address_);
  }
  ~Session() {
    SettleAnswer();
    --shared_->connections;
    if (counted_) shared_->Leave(address_);
  }

  void Run(bool too_many) {
    asio::dispatch(stream_.get_executor(), [self = shared_from_this(), too_many] {
      if (too_many || !self->counted_) return self->Refuse(503, too_many ? "too many connections" : "too many connections from one address");
      self->ReadHeader(/*first=*/true);
    });
  }

  // What a responder asks for: nothing once its request is over.
  void SendWhole(uint64_t serial, int status, HttpFields fields, std::string body) {
    Give(serial, [this, status, fields = std::move(fields), body = std::move(body)] {
      if (head_sent_) return;
      head_sent_ = true;
      std::string head = Head(status, fields) + (status == 204 ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n") + "\r\n";
      if (request_method_ != "HEAD") head += body;
      Queue(std::move(head));
      Finish();
    });
  }
  void BeginStream(uint64_t serial, int status, HttpFields fields) {
    Give(serial, [this, status, fields = std::move(fields)] {
      if (head_sent_) return;
      head_sent_ = streaming_ = true;
      chunked_ = version_ >= 11;
      if (!chunked_) keep_alive_ = false;
      Queue(Head(status, fields) + (chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
    });
  }
  void WriteStream(uint64_t serial, std::string part) {
    Give(serial, [this, part = std::move(part)]() mutable {
      if (!streaming_ || part.empty()) return;
      if (unsent_ > shared_->options.max_unsent_bytes) return Close();
      if (chunked_) {
        char size[20];
        std::snprintf(size, sizeof(size), "%zx\r\n", part.size());
        part = size + part + "\r\n";
      }
      Queue(std::move(part));
    });
  }
  void EndStream(uint64_t serial) {
    Give(serial, [this] {
      if (!streaming_) return;
      if (chunked_) Queue("0\r\n\r\n");
      Finish();
    });
  }
  void CallWhenClosed(uint64_t serial, std::function<void()> closed) {
    asio::post(stream_.get_executor(), [self = shared_from_this(), serial, closed = std::move(closed)]() mutable {
      if (self->gone_) return closed();
      if (self->owed_ && serial == self->serial_) self->closed_ = std::move(closed);
    });
  }

 private:
  using Parser = http::request_parser<http::string_body>;

  // Runs `work` on the strand if the request of that number is still under way then. What is given runs in the order in which it was given, also where some of
  // it waits for the end of an HttpBatch: that only puts off who wakes the strand.
  template <typename Work>
  void Give(uint64_t serial, Work work) {
    {
      const std::lock_guard lock(inbox_mutex_);
      inbox_.push_back([this, serial, work = std::move(work)]() mutable {
        if (!gone_ && serial == serial_) work();
      });
    }
    auto drain = [self = shared_from_this()] { self->DrainInbox(); };
    if (given_work == nullptr) return asio::post(stream_.get_executor(), std::move(drain));
    auto found = std::ranges::find(given_work->of_servers, shared_->io, &std::pair<asio::io_context*, std::vector<GivenWork::Part>>::first);
    if (found == given_work->of_servers.end()) found = given_work->of_servers.insert(found, {shared_->io, {}});
    found->second.push_back({stream_.get_executor(), std::move(drain)});
  }
  void DrainInbox() {
    std::vector<std::function<void()>> works;
    {
      const std::lock_guard lock(inbox_mutex_);
      works.swap(inbox_);
    }
    for (auto& work : works) work();
  }

  void ReadHeader(bool first) {
    parser_.emplace();
    parser_->header_limit(shared_->options.max_header_bytes);
    parser_->body_limit(shared_->options.max_body_bytes);
    if (first || buffer_.size() > 0) return ReadBegunHeader();
    // A connection that is kept open may be quiet for long; once a request begins, its header must come soon.
    read_deadline_.Set(Seconds(shared_->options.idle_seconds), shared_from_this());
    stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      self->read_deadline_.Clear();
      if (self->gone_) return;
      error ? self->Close() : self->ReadBegunHeader();
    });
  }

  void ReadBegunHeader() {
    read_deadline_.Set(Seconds(shared_->options.header_seconds), shared_from_this());
    http::async_read_header(stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
      self->read_deadline_.Clear();
      if (error) return self->FailRead(error, "the header");
      self->version_ = static_cast<int>(self->parser_->get().version());
      self->keep_alive_ = self->parser_->get().keep_alive();
      self->request_method_ = self->parser_->get().method_string();
      if (const auto problem = self->HeaderProblem()) return self->Refuse(problem->first, problem->second);
      if (self->parser_->is_done()) return self->Dispatch();
      if (beast::iequals(self->parser_->get()[http::field::expect], "100-continue")) self->Queue("HTTP/1.1 100 Continue\r\n\r\n");
      self->ReadBody();
    });
  }

  std::optional<std::pair<int, const char*>> HeaderProblem() const {
    const auto& message = parser_->get();
    if (message.target().size() > 8192) return std::pair(414, "the request target is longer than 8192 bytes");
    if (std::distance(message.begin(), message.end()) > 100) return std::pair(431, "more than 100 header fields");
    if (message.count(http::field::content_length) > 0 && message.count(http::field::transfer_encoding) > 0) {
      return std::pair(400, "both Content-Length and Transfer-Encoding");
    }
    const auto length = parser_->content_length();
    if (length && *length > shared_->options.max_body_bytes) return std::pair(413, "the body is too large");
    return std::nullopt;
  }

  void ReadBody() {
    read_deadline_.Set(Seconds(shared_->options.body_seconds), shared_from_this());
    http::async_read_some(stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
      self->read_deadline_.Clear();
      if (error) return self->FailRead(error, "the body");
      self->parser_->is_done() ? self->Dispatch() : self->ReadBody();
    });
  }

  void FailRead(error_code error, const std::string& what) {
    if (error == http::error::header_limit) return Refuse(431, "the header is too large");
    if (error == http::error::body_limit) return Refuse(413, "the body is too large");
    if (read_deadline_.over()) {
      // Nothing of a request has come: an idle connection, closed without a word.
      return parser_->got_some() ? Refuse(408, what + " did not come in time") : Close();
    }
    if (error.category() == http::make_error_code(http::error::bad_method).category() && error != http::error::end_of_stream &&
        error != http::error::partial_message) {
      return Refuse(400, "not an HTTP/1.1 request: " + error.message());
    }
    Close();
  }

  void Refuse(int status, const std::string& reason);
  void Dispatch();

  std::string Head(int status, const HttpFields& fields) const {
    std::string head = "HTTP/1.1 " + std::to_string(status) + " " + std::string(http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)))) + "\r\n";
    for (const auto& [name, value] : fields) head += name + ": " + value + "\r\n";
    return head + (keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n");
  }

  // While an answer is owed, the end of the connection is the only thing to be read; more bytes wait for the next request.
  void WatchForClose() {
    stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this(), serial = serial_](error_code error) {
      if (self->gone_ || !self->owed_ || serial != self->serial_) return;
      // Not asio's receive: after a wait that was over for nothing it would block this thread.
      char byte = 0;
      const ssize_t count = error ? 0 : recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (count > 0) return;
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return self->WatchForClose();
      self->Close();
    });
  }

  void Queue(std::string bytes) {
    unsent_ += bytes.size();
    out_.push_back(std::move(bytes));
    if (out_.size() == 1) WriteNext();
  }
  // What the socket's buffer takes goes at once: most parts need no timer and no completion.
  void WriteNext() {
    while (!out_.empty()) {
      const std::string& part = out_.front();
      const ssize_t count = send(stream_.socket().native_handle(), part.data() + sent_, part.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return Close();
      if (count < 0) return WriteLater();
      sent_ += static_cast<size_t>(count);
      if (sent_ == part.size()) PopWritten();
    }
  }
  void WriteLater() {
    write_deadline_.Set(std::chrono::seconds(60), shared_from_this());
    asio::async_write(stream_, asio::buffer(out_.front()) + sent_, [self = shared_from_this()](error_code error, size_t) {
      self->write_deadline_.Clear();
      if (error) return self->Close();
      self->PopWritten();
      self->WriteNext();
      if (self->out_.empty() && self->finished_) self->NextRequest();
    });
  }
  void PopWritten() {
    unsent_ -= out_.front().size();
    out_.pop_front();
    sent_ = 0;
  }

  void SettleAnswer() {
    if (std::exchange(is_owing_, false)) --shared_->owed_answers;
  }

  // The whole answer is queued.
  void Finish() {
    owed_ = false;
    closed_ = nullptr;
    finished_ = true;
    ++serial_;
    if (out_.empty()) NextRequest();
  }
  void NextRequest() {
    if (gone_) return;
    SettleAnswer();
    finished_ = head_sent_ = streaming_ = false;
    error_code ignored;
    stream_.socket().cancel(ignored);  // the watch
    if (!keep_alive_) return Close();
    ReadHeader(/*first=*/false);
  }

  void Close() {
    if (gone_) return;
    gone_ = true;
    SettleAnswer();
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
    read_deadline_.Clear();
    write_deadline_.Clear();
    if (closed_) std::exchange(closed_, nullptr)();
  }

  beast::tcp_stream stream_;
  Deadline read_deadline_{stream_}, write_deadline_{stream_};
  const std::shared_ptr<Shared> shared_;
  asio::ip::address address_;
  bool counted_ = false;      // among those of its address
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::string request_method_;
  int version_ = 11;
  bool keep_alive_ = false;
  bool is_owing_ = false;     // among shared_->owed_answers: until the last byte is sent
  bool owed_ = false, head_sent_ = false, streaming_ = false, chunked_ = false, finished_ = false, gone_ = false;
  uint64_t serial_ = 0;       // of the request
  std::function<void()> closed_;
  std::mutex inbox_mutex_;
  std::vector<std::function<void()>> inbox_;
  std::deque<std::string> out_;
  size_t sent_ = 0;           // of its first
  uint64_t unsent_ = 0;
};

class Responder final : public HttpResponder {
 public:
  Responder(std::shared_ptr<Session> session, uint64_t serial, const std::shared_ptr<Shared>& shared) : session_(std::move(session)), serial_(serial), shared_(shared) {}
  ~Responder() override {
    if (!answered_) {
      session_->SendWhole(serial_, 500, {{"Content-Type", "application/json"}}, shared_->error_body(500, "the request was not answered"));
    } else if (streaming_) {
      session_->EndStream(serial_);
    }
  }
  void Send(int status, HttpFields fields, std::string body) override {
    if (!answered_.exchange(true)) session_->SendWhole(serial_, status, std::move(fields), std::move(body));
  }
  void Begin(int status, HttpFields fields) override {
    if (answered_.exchange(true)) return;
    streaming_ = true;
    session_->BeginStream(serial_, status, std::move(fields));
  }
  void Write(std::string part) override { session_->WriteStream(serial_, std::move(part)); }
  void End() override {
    if (streaming_.exchange(false)) session_->EndStream(serial_);
  }
  void OnClosed(std::function<void()> closed) override { session_->CallWhenClosed(serial_, std::move(closed)); }

 private:
  const std::shared_ptr<Session> session_;
  const uint64_t serial_;  // of its request
  const std::shared_ptr<Shared> shared_;
  std::atomic<bool> answered_ = false, streaming_ = false;
};

void Session::Refuse(int status, const std::string& reason) {
  keep_alive_ = false;
  owed_ = head_sent_ = true;
  const std::string body = shared_->error_body(status, reason);
  Queue(Head(status, {{"Content-Type", "application/json"}}) + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  Finish();
}

void Session::Dispatch() {
  const auto& message = parser_->get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.fields[name] = std::string(field.value());
  }
  request.body = std::move(parser_->get().body());
  owed_ = is_owing_ = true;
  ++shared_->owed_answers;
  WatchForClose();
  shared_->handler(std::move(request), std::make_shared<Responder>(shared_from_this(), serial_, shared_));
}

class Server final : public HttpServer {
 public:
  Server(const HttpOptions& options, HttpHandler handler, HttpErrorBody error_body)
      : shared_(std::make_shared<Shared>()), acceptor_(io_) {
    shared_->io = &io_;
    shared_->options = options;
    shared_->handler = std::move(handler);
    shared_->error_body = std::move(error_body);
  }
  ~Server() override { Stop(); }
  void Stop() override {
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  Status Listen() {
    const HttpOptions& options = shared_->options;
    error_code error;
    const auto address = asio::ip::make_address(options.address, error);
    const auto failed = [&] {
      return Status(StatusCode::kIoError, "cannot listen on " + options.address + " port " + std::to_string(options.port) + ": " + error.message());
    };
    if (error) return failed();
    const tcp::endpoint endpoint(address, options.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return failed();
    port_ = acceptor_.local_endpoint().port();
    Accept();
    for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { io_.run(); });
    return {};
  }
  uint16_t port() const override { return port_; }
  int connections() const override { return shared_->connections; }
  int owed_answers() const override { return shared_->owed_answers; }
  void StopAccepting() override {
    asio::post(io_, [this] {
      error_code ignored;
      acceptor_.close(ignored);
    });
  }

 private:
  void Accept() {
    acceptor_.async_accept(asio::make_strand(io_), [this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
      if (!error) {
        error_code ignored;
        socket.set_option(tcp::no_delay(true), ignored);
        const bool too_many = shared_->connections >= shared_->options.max_connections;
        std::make_shared<Session>(std::move(socket), shared_)->Run(too_many);
      }
      Accept();
    });
  }

  asio::io_context io_;
  const std::shared_ptr<Shared> shared_;
  tcp::acceptor acceptor_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace

struct HttpBatch::Given : GivenWork {};

HttpBatch::HttpBatch() {
  if (given_work != nullptr) return;  // inside another, which gives it all
  given_ = std::make_unique<Given>();
  given_work = given_.get();
}

HttpBatch::~HttpBatch() {
  if (given_ == nullptr) return;
  given_work = nullptr;
  for (auto& [io, parts] : given_->of_servers) {
    asio::post(*io, [parts = std::move(parts)]() mutable {
      for (GivenWork::Part& part : parts) asio::dispatch(part.strand, std::move(part.work));
    });
  }
}

const std::string* HttpRequest::Find(const std::string& lower_case_name) const {
  const auto found = fields.find(lower_case_name);
  return found == fields.end() ? nullptr : &found->second;
}

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options, HttpHandler handler, HttpErrorBody error_body) {
  auto server = std::make_unique<Server>(options, std::move(handler), std::move(error_body));
  OSCAR_TRY(server->Listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace oscar::engine
