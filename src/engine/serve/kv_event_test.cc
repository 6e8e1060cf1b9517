#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "src/engine/serve/kv_event_encoder.h"
#include "src/engine/serve/kv_event_publisher.h"
#include "src/engine/serve/msgpack_text.h"

namespace oscar::engine {
namespace {

using nlohmann::json;

json Parsed(const std::string& text) { return json::from_msgpack(text); }

std::vector<int32_t> Tokens(int count, int32_t first = 0) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i * 700);
  return tokens;
}

TEST(MsgpackText, IsReadBackByAnotherReader) {
  MsgpackText text;
  const std::vector<uint64_t> numbers = {0, 127, 128, 255, 256, 65535, 65536, 0xffffffff, 0x100000000, 0x7fffffffffffffff};
  text.Array(numbers.size() + 5);
  for (const uint64_t number : numbers) text.Unsigned(number);
  text.Nil();
  text.Double(1234.5);
  for (const size_t size : {size_t{3}, size_t{40}, size_t{70000}}) text.Text(std::string(size, 'x'));
  const json parsed = Parsed(text.text());
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(parsed[i].get<uint64_t>(), numbers[i]);
  EXPECT_TRUE(parsed[numbers.size()].is_null());
  EXPECT_EQ(parsed[numbers.size() + 1], 1234.5);
  EXPECT_EQ(parsed[numbers.size() + 4].get<std::string>().size(), 70000u);
  for (const uint64_t size : {uint64_t{15}, uint64_t{16}, uint64_t{70000}}) {
    MsgpackText list;
    list.Array(size);
    for (uint64_t i = 0; i < size; ++i) list.Nil();
    EXPECT_EQ(Parsed(list.text()).size(), size);
  }
}

TEST(KvEventEncoder, EventsHaveTheLayoutThatRoutersRead) {
  const KvEventEncoder encoder("model", /*spaces_have_tenants=*/false);
  const std::vector<int32_t> tokens = Tokens(3 * 64);
  const std::vector<uint64_t> hashes = encoder.Hashes("", tokens);
  ASSERT_EQ(hashes.size(), 3u);
  const json first = Parsed(encoder.Stored("", tokens, 0));
  ASSERT_EQ(first.size(), 7u);
  EXPECT_EQ(first[0], "BlockStored");
  EXPECT_EQ(first[1], json(hashes));
  EXPECT_TRUE(first[2].is_null());
  EXPECT_EQ(first[3], json(tokens));
  EXPECT_EQ(first[4], 64);
  EXPECT_TRUE(first[5].is_null());
  EXPECT_EQ(first[6], "GPU");
  const json later = Parsed(encoder.Stored("", tokens, 2));
  EXPECT_EQ(later[1], json{hashes[2]});
  EXPECT_EQ(later[2], hashes[1]);
  EXPECT_EQ(later[3].size(), 64u);
  EXPECT_EQ(Parsed(encoder.Removed("", tokens, 1)), (json{"BlockRemoved", {hashes[1], hashes[2]}, "GPU"}));
  EXPECT_EQ(Parsed(KvEventEncoder::Cleared()), json::array({"AllBlocksCleared"}));
  const std::vector<std::string> events = {KvEventEncoder::Cleared(), encoder.Removed("", tokens, 0)};
  const json batch = Parsed(KvEventEncoder::Batch(12.5, events));
  EXPECT_EQ(batch[0], 12.5);
  EXPECT_EQ(batch[1].size(), 2u);
  EXPECT_EQ(batch[2], 0);
}

TEST(KvEventEncoder, SaltsAreExtraKeysOfTheFirstPage) {
  const KvEventEncoder alone("model", /*spaces_have_tenants=*/false), tenants("model", /*spaces_have_tenants=*/true);
  const std::vector<int32_t> tokens = Tokens(128);
  EXPECT_EQ(Parsed(alone.Stored("salt", tokens, 0))[8], json::array({json::array({"salt"}), nullptr}));
  EXPECT_EQ(Parsed(alone.Stored("salt", tokens, 1))[8], json::array({nullptr}));
  EXPECT_EQ(Parsed(tenants.Stored("shop\nsalt", tokens, 0))[8][0], json::array({"salt"}));
  EXPECT_EQ(Parsed(tenants.Stored("shop\n", tokens, 0)).size(), 7u);
}

TEST(KvEventEncoder, HashesDependOnAllTokensBeforeAndOnWhoseTheyAre) {
  const KvEventEncoder encoder("model", false), other("other", false);
  const std::vector<int32_t> tokens = Tokens(192);
  const std::vector<uint64_t> hashes = encoder.Hashes("", tokens);
  std::vector<int32_t> changed = tokens;
  changed[0] ^= 1;
  std::set<uint64_t> all(hashes.begin(), hashes.end());
  for (const auto& one : {encoder.Hashes("", changed), encoder.Hashes("salt", tokens), other.Hashes("", tokens)}) all.insert(one.begin(), one.end());
  EXPECT_EQ(all.size(), 12u);
  for (const uint64_t hash : all) EXPECT_EQ(hash >> 63, 0u);
  EXPECT_EQ(encoder.Hashes("", std::span(tokens).first(100)), std::vector<uint64_t>{hashes[0]});
}

// Sockets of a test: what was published, and requests for replays.
class FakeSockets final : public KvEventSockets {
 public:
  struct Sent {
    std::mutex mutex;
    std::vector<std::pair<uint64_t, std::string>> published, replayed;
    std::vector<uint64_t> requests;
    int replays_ended = 0;
  };
  explicit FakeSockets(Sent* sent) : sent_(sent) {}
  void Publish(uint64_t number, const std::string& batch) override {
    const std::lock_guard lock(sent_->mutex);
    sent_->published.emplace_back(number, batch);
  }
  bool TakeRequest(uint64_t* first) override {
    const std::lock_guard lock(sent_->mutex);
    if (sent_->requests.empty()) return false;
    *first = sent_->requests.back();
    sent_->requests.pop_back();
    return true;
  }
  void Replay(uint64_t number, const std::string& batch) override {
    const std::lock_guard lock(sent_->mutex);
    sent_->replayed.emplace_back(number, batch);
  }
  void EndReplay() override {
    const std::lock_guard lock(sent_->mutex);
    ++sent_->replays_ended;
  }

 private:
  Sent* sent_;
};

// The events of all batches, which must be numbered without gaps.
std::vector<json> EventsOf(FakeSockets::Sent& sent) {
  const std::lock_guard lock(sent.mutex);
  std::vector<json> events;
  for (size_t i = 0; i < sent.published.size(); ++i) {
    EXPECT_EQ(sent.published[i].first, i);
    const json batch = Parsed(sent.published[i].second);
    for (const json& event : batch[1]) events.push_back(event);
  }
  return events;
}

TEST(KvEventPublisher, SendsEveryEventInOrderBeforeItEnds) {
  FakeSockets::Sent sent;
  {
    KvEventPublisher publisher(KvEventEncoder("m", false), std::make_unique<FakeSockets>(&sent), nullptr);
    for (int i = 0; i < 100; ++i) publisher.Stored("", Tokens(64, i), 0);
    publisher.Cleared();
  }
  const std::vector<json> events = EventsOf(sent);
  ASSERT_EQ(events.size(), 101u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(events[static_cast<size_t>(i)][3][0], i);
  EXPECT_EQ(events.back()[0], "AllBlocksCleared");
}

TEST(KvEventPublisher, GivesKeptBatchesAgainFromANumberOn) {
  FakeSockets::Sent sent;
  KvEventPublisher publisher(KvEventEncoder("m", false), std::make_unique<FakeSockets>(&sent), nullptr);
  for (uint64_t i = 0; i < 3; ++i) {
    publisher.Stored("", Tokens(64, static_cast<int32_t>(i)), 0);
    while (publisher.num_batches() <= i) std::this_thread::yield();
  }
  {
    const std::lock_guard lock(sent.mutex);
    sent.requests.push_back(1);
  }
  for (;;) {
    const std::lock_guard lock(sent.mutex);
    if (sent.replays_ended == 1) break;
  }
  const std::lock_guard lock(sent.mutex);
  ASSERT_EQ(sent.replayed.size(), 2u);
  EXPECT_EQ(sent.replayed[0], sent.published[1]);
  EXPECT_EQ(sent.replayed[1], sent.published[2]);
}

TEST(KvEventPublisher, LostEventsAreFollowedByAllThatIsThere) {
  FakeSockets::Sent sent;
  std::unique_ptr<KvEventPublisher> publisher;
  // The cache has one page, of the tokens from 7 on.
  const auto resync = [&publisher] {
    publisher->BeginSnapshot();
    publisher->Stored("", Tokens(64, 7), 0);
    publisher->EndSnapshot();
  };
  publisher = std::make_unique<KvEventPublisher>(KvEventEncoder("m", false), std::make_unique<FakeSockets>(&sent), resync, /*most_queued_bytes=*/1000);
  publisher->Stored("", Tokens(64 * 20), 0);  // larger than the queue
  while (publisher->num_resyncs() == 0) std::this_thread::yield();
  publisher->StopResyncs();
  publisher->Removed("", Tokens(64, 7), 0);
  publisher.reset();
  const std::vector<json> events = EventsOf(sent);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0][0], "AllBlocksCleared");
  EXPECT_EQ(events[1][3][0], 7);
  EXPECT_EQ(events[2][0], "BlockRemoved");
}

}  // namespace
}  // namespace oscar::engine
