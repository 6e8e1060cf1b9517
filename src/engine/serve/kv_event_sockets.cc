// KvEventSockets over libzmq, in a program that was built with it.
#include "src/engine/serve/kv_event_publisher.h"

#ifdef OSCAR_ZMQ
#include <zmq.h>

#include <array>
#include <optional>
#endif

namespace oscar::engine {

#ifdef OSCAR_ZMQ
namespace {

using Number = std::array<char, 8>;

Number BigEndian(uint64_t value) {
  Number bytes;
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (56 - 8 * i) & 0xff);
  return bytes;
}

struct Context {
  Context() : handle(zmq_ctx_new()) {}
  ~Context() { zmq_ctx_term(handle); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  void* handle;
};

class Socket {
 public:
  Socket(Context& context, int type) : handle_(zmq_socket(context.handle, type)) {
    // Unsent messages do not hold up the end; a peer that does not read loses messages beyond the limit and sees so by their numbers. Peers
    // have nothing to say but eight bytes.
    Set(ZMQ_LINGER, 500);
    Set(ZMQ_SNDHWM, 2 * static_cast<int>(KvEventPublisher::kMostKeptBatches));
    const int64_t most_bytes = 256;
    zmq_setsockopt(handle_, ZMQ_MAXMSGSIZE, &most_bytes, sizeof(most_bytes));
  }
  ~Socket() { zmq_close(handle_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  Status Bind(const char* option, const std::string& endpoint) {
    if (zmq_bind(handle_, endpoint.c_str()) == 0) return {};
    return {StatusCode::kInvalidArgument, std::string(option) + " " + endpoint + ": " + zmq_strerror(zmq_errno())};
  }
  void Send(std::string_view frame, bool more) { zmq_send(handle_, frame.data(), frame.size(), (more ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT); }
  // The frames of the next message; empty when there is none.
  std::vector<std::string> Take() {
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, handle_, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&message);
        return {};
      }
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return frames;
  }

 private:
  void Set(int option, int value) { zmq_setsockopt(handle_, option, &value, sizeof(value)); }

  void* const handle_;
};

class ZmqSockets final : public KvEventSockets {
 public:
  explicit ZmqSockets(std::string topic) : topic_(std::move(topic)), events_(context_, ZMQ_PUB), replays_(context_, ZMQ_ROUTER) {}

  Status Bind(const KvEventOptions& options) {
    if (const Status status = events_.Bind("--kv-events", options.endpoint); !status.ok()) return status;
    return options.replay_endpoint.empty() ? Status() : replays_.Bind("--kv-events-replay", options.replay_endpoint);
  }
  void Publish(uint64_t number, const std::string& batch) override {
    const Number bytes = BigEndian(number);
    events_.Send(topic_, true);
    events_.Send({bytes.data(), bytes.size()}, true);
    events_.Send(batch, false);
  }
  // [client, empty, first number]; whatever else comes is no request.
  bool TakeRequest(uint64_t* first) override {
    for (;;) {
      const std::vector<std::string> frames = replays_.Take();
      if (frames.empty()) return false;
      if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) continue;
      client_ = frames[0];
      *first = 0;
      for (const char byte : frames[2]) *first = *first << 8 | static_cast<uint8_t>(byte);
      return true;
    }
  }
  void Replay(uint64_t number, const std::string& batch) override {
    const Number bytes = BigEndian(number);
    replays_.Send(client_, true);
    replays_.Send("", true);
    replays_.Send({bytes.data(), bytes.size()}, true);
    replays_.Send(batch, false);
  }
  void EndReplay() override { Replay(~uint64_t{0}, ""); }

 private:
  Context context_;
  const std::string topic_;
  Socket events_, replays_;
  std::string client_;
};

}  // namespace

Result<std::unique_ptr<KvEventSockets>> KvEventSockets::Bind(const KvEventOptions& options) {
  auto sockets = std::make_unique<ZmqSockets>(options.topic);
  if (const Status status = sockets->Bind(options); !status.ok()) return status;
  return std::unique_ptr<KvEventSockets>(std::move(sockets));
}
#else
Result<std::unique_ptr<KvEventSockets>> KvEventSockets::Bind(const KvEventOptions& options) {
  return Status(StatusCode::kUnsupported, "--kv-events " + options.endpoint + ": this program was built without libzmq (Debian: libzmq3-dev)");
}
#endif

}  // namespace oscar::engine
