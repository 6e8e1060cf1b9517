#include "src/engine/hub/hub_client.h"

#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "src/base/digest.h"
#include "src/testing/loopback_server.h"
#include "src/testing/seeds.h"
#include "src/testing/temporary_folder.h"

namespace oscar::engine {
namespace {

using testing::LoopbackReply;
using testing::LoopbackRequest;
using testing::LoopbackServer;
using testing::ServeContent;
using Framing = LoopbackReply::Framing;

std::string RandomContent(size_t size, uint64_t seed) {
  std::mt19937_64 rng(testing::TestSeed(seed));
  std::string content(size, '\0');
  for (char& c : content) c = static_cast<char>(rng());
  return content;
}

std::string Sha256Hex(const std::string& content) {
  base::Sha256 sha;
  sha.Update(content);
  return base::HexFromDigest(sha.Finish());
}

std::string Quoted(const std::string& text) { return "\"" + text + "\""; }

class PullTest : public ::testing::Test {
 protected:
  PullRequest Request(const LoopbackServer& server) const {
    PullRequest request;
    request.source = server.Url("/m.gguf");
    request.directory = folder_.path();
    return request;
  }
  std::filesystem::path File(const std::string& name) const { return folder_.path() / name; }
  std::string Read(const std::string& name) const {
    std::ifstream file(File(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) names.insert(entry.path().filename().string());
    return names;
  }
  // A first call that ends after `bytes` of `content`.
  void LeavePart(const std::string& content, const std::string& etag, size_t bytes) {
    const LoopbackServer server([&](const LoopbackRequest& got) {
      LoopbackReply reply = ServeContent(got, content, etag);
      reply.send_bytes = bytes;
      return reply;
    });
    const auto cut = Pull(Request(server));
    ASSERT_EQ(cut.status().code(), StatusCode::kIoError) << cut.status().message();
    ASSERT_EQ(Read("m.gguf.part"), content.substr(0, bytes));
    // The next server listens elsewhere; a resume is about the same URL.
    std::string record = Read("m.gguf.part.json");
    const std::string from = server.Url("");
    record.replace(record.find(from), from.size(), "BASE");
    std::ofstream(File("m.gguf.part.json")) << record;
  }
  void PointPartAt(const LoopbackServer& server) {
    std::string record = Read("m.gguf.part.json");
    record.replace(record.find("BASE"), 4, server.Url(""));
    std::ofstream(File("m.gguf.part.json")) << record;
  }

  testing::TemporaryFolder folder_;
  const std::string content_ = RandomContent(300'000, 1);
  const std::string sha256_ = Sha256Hex(content_);
};

TEST_F(PullTest, AFileArrivesWholeAndNothingElseIsLeft) {
  const LoopbackServer server([&](const LoopbackRequest& got) { return ServeContent(got, content_, "\"v1\""); });
  PullRequest request = Request(server);
  uint64_t last_done = 0;
  uint64_t last_total = 0;
  request.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last_done);
    last_done = done;
    last_total = total;
  };
  request.sha256 = sha256_;
  const auto path = Pull(request);
  ASSERT_TRUE(path.ok()) << path.status().message();
  EXPECT_EQ(*path, File("m.gguf"));
  EXPECT_EQ(Read("m.gguf"), content_);
  EXPECT_EQ(Names(), (std::set<std::string>{"m.gguf"}));
  EXPECT_EQ(last_done, content_.size());
  EXPECT_EQ(last_total, content_.size());
}

TEST_F(PullTest, AHubSourceAsksTheEndpointForTheRevision) {
  const LoopbackServer server([&](const LoopbackRequest& got) {
    EXPECT_EQ(got.target, "/o/r/resolve/v2/m.gguf");
    return ServeContent(got, content_, Quoted(sha256_));
  });
  PullRequest request = Request(server);
  request.source = "hf:o/r/m.gguf@v2";
  request.hub_endpoint = server.Url("");
  EXPECT_TRUE(Pull(request).ok());
  EXPECT_EQ(Read("m.gguf"), content_);
}

TEST_F(PullTest, ACutDownloadIsResumedFromWhereItWas) {
  LeavePart(content_, "\"v1\"", 100'000);
  const LoopbackServer server([&](const LoopbackRequest& got) { return ServeContent(got, content_, "\"v1\""); });
  PointPartAt(server);
  PullRequest request = Request(server);
  request.sha256 = sha256_;
  std::vector<uint64_t> done;
  request.progress = [&](uint64_t bytes, uint64_t) { done.push_back(bytes); };
  const auto path = Pull(request);
  ASSERT_TRUE(path.ok()) << path.status().message();
  EXPECT_EQ(Read("m.gguf"), content_);
  ASSERT_EQ(server.requests().size(), 1u);
  EXPECT_EQ(server.requests()[0].headers.at("range"), "bytes=100000-");
  EXPECT_EQ(server.requests()[0].headers.at("if-range"), "\"v1\"");
  EXPECT_EQ(done.front(), 100'000u);
}

TEST_F(PullTest, ADownloadCutAtEveryTurnEndsInTheSameBytes) {
  const LoopbackServer server([&](const LoopbackRequest& got) {
    LoopbackReply reply = ServeContent(got, content_, "\"v1\"");
    reply.send_bytes = 70'001;
    return reply;
  });
  PullRequest request = Request(server);
  request.sha256 = sha256_;
  int num_calls = 1;
  while (!Pull(request).ok() && num_calls < 20) ++num_calls;
  EXPECT_EQ(num_calls, 5);
  EXPECT_EQ(Read("m.gguf"), content_);
}

TEST_F(PullTest, AFileThatChangedBetweenTheCallsIsFetchedAfresh) {
  LeavePart(content_, "\"v1\"", 100'000);
  const std::string other = RandomContent(250'000, 2);
  const LoopbackServer server([&](const LoopbackRequest& got) { return ServeContent(got, other, "\"v2\""); });
  PointPartAt(server);
  ASSERT_TRUE(Pull(Request(server)).ok());
  EXPECT_EQ(Read("m.gguf"), other);
}

TEST_F(PullTest, AServerThatIgnoresIfRangeButShowsAnotherEtagIsNotTrusted) {
  LeavePart(content_, "\"v1\"", 100'000);
  const std::string other = RandomContent(300'000, 3);
  const LoopbackServer server([&](LoopbackRequest got) {
    got.headers.erase("if-range");
    return ServeContent(got, other, "\"v2\"");
  });
  PointPartAt(server);
  ASSERT_TRUE(Pull(Request(server)).ok());
  EXPECT_EQ(Read("m.gguf"), other);
  EXPECT_EQ(server.requests().size(), 2u);
}

TEST_F(PullTest, AServerThatIgnoresTheRangeSendsTheFileFromTheStart) {
  LeavePart(content_, "\"v1\"", 100'000);
  const LoopbackServer server([&](LoopbackRequest got) {
    got.headers.erase("range");
    return ServeContent(got, content_, "\"v1\"");
  });
  PointPartAt(server);
  ASSERT_TRUE(Pull(Request(server)).ok());
  EXPECT_EQ(Read("m.gguf"), content_);
}

TEST_F(PullTest, ARangeThatCannotBeSatisfiedStartsOver) {
  LeavePart(content_, "\"v1\"", 200'000);
  const std::string shorter = content_.substr(0, 150'000);
  const LoopbackServer server([&](LoopbackRequest got) {
    got.headers.erase("if-range");
    return ServeContent(got, shorter, "\"v1\"");
  });
  PointPartAt(server);
  ASSERT_TRUE(Pull(Request(server)).ok());
  EXPECT_EQ(Read("m.gguf"), shorter);
}

TEST_F(PullTest, ARangeOfAnotherPlaceStartsOver) {
  LeavePart(content_, "\"v1\"", 100'000);
  const LoopbackServer server([&](const LoopbackRequest& got) {
    LoopbackReply reply = ServeContent(got, content_, "\"v1\"");
    if (reply.status == 206) {
      reply.headers.back().second = "bytes 99999-299999/300000";
      reply.body = content_.substr(99'999);
    }
    return reply;
  });
  PointPartAt(server);
  ASSERT_TRUE(Pull(Request(server)).ok());
  EXPECT_EQ(Read("m.gguf"), content_);
}

TEST_F(PullTest, APartOfAnotherUrlOrWithABrokenRecordIsNotContinued) {
  for (const char* record : {"", "{", "[]", "{\"url\": 7}", "{\"url\": \"http://h/m.gguf\", \"etag\": \"\\\"v1\\\"\"}"}) {
    std::ofstream(File("m.gguf.part")) << std::string(1000, 'x');
    std::ofstream(File("m.gguf.part.json")) << record;
    const LoopbackServer server([&](const LoopbackRequest& got) {
      EXPECT_FALSE(got.headers.contains("range")) << record;
      return ServeContent(got, content_, "\"v1\"");
    });
    PullRequest request = Request(server);
    request.overwrite = true;
    ASSERT_TRUE(Pull(request).ok()) << record;
    EXPECT_EQ(Read("m.gguf"), content_);
    EXPECT_EQ(Names(), (std::set<std::string>{"m.gguf"}));
  }
}

TEST_F(PullTest, APartThatIsWholeOnlyNeedsTheVerdict) {
  const LoopbackServer server([&](const LoopbackRequest& got) { return ServeContent(got, content_, "\"v1\""); });
  const std::string record = "{\"url\": \"" + server.Url("/m.gguf") + "\", \"sha256\": \"" + sha256_ + "\", \"total_bytes\": 300000}";
  std::ofstream(File("m.gguf.part")) << content_;
  std::ofstream(File("m.gguf.part.json")) << record;
  ASSERT_TRUE(Pull(Request(server)).ok());
  EXPECT_EQ(Read("m.gguf"), content_);
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(PullTest, DamageInTheResumedPartIsFoundAndRemoved) {
  LeavePart(content_, "\"v1\"", 100'000);
  std::fstream(File("m.gguf.part")).put('?');
  const LoopbackServer server([&](const LoopbackRequest& got) { return ServeContent(got, content_, "\"v1\""); });
  PointPartAt(server);
  PullRequest request = Request(server);
  request.sha256 = sha256_;
  EXPECT_EQ(Pull(request).status().code(), StatusCode::kCorruptData);
  EXPECT_TRUE(Names().empty());
  EXPECT_TRUE(Pull(request).ok());
  EXPECT_EQ(Read("m.gguf"), content_);
}

TEST_F(PullTest, AWrongHashRemovesTheBytesWhoeverGaveIt) {
  const std::string wrong = Sha256Hex("another file");
  enum class Source { kRequest, kEtag, kLinkedEtag };
  for (const Source source : {Source::kRequest, Source::kEtag, Source::kLinkedEtag}) {
    const LoopbackServer server([&](const LoopbackRequest& got) {
      LoopbackReply reply = ServeContent(got, content_, source == Source::kEtag ? Quoted(wrong) : "\"v1\"");
      if (source == Source::kLinkedEtag) reply.headers.emplace_back("X-Linked-Etag", Quoted(wrong));
      return reply;
    });
    PullRequest request = Request(server);
    if (source == Source::kRequest) request.sha256 = wrong;
    const auto path = Pull(request);
    EXPECT_EQ(path.status().code(), StatusCode::kCorruptData);
    EXPECT_NE(path.status().message().find(wrong), std::string::npos);
    EXPECT_NE(path.status().message().find(sha256_), std::string::npos);
    EXPECT_TRUE(Names().empty());
  }
}

TEST_F(PullTest, TheRequestsHashOverrulesTheServers) {
  const LoopbackServer server([&](const LoopbackRequest& got) { return ServeContent(got, content_, Quoted(std::string(64, '0'))); });
  PullRequest request = Request(server);
  request.sha256 = sha256_;
  EXPECT_TRUE(Pull(request).ok());
}

TEST_F(PullTest, AFileThatIsThereIsNotFetchedAgain) {
  std::ofstream(File("m.gguf")) << content_;
  int num_bodies = 0;
  const LoopbackServer server([&](const LoopbackRequest& got) {
    ++num_bodies;
    return ServeContent(got, content_, Quoted(sha256_));
  });
  PullRequest request = Request(server);
  request.sha256 = sha256_;
  EXPECT_TRUE(Pull(request).ok());
  EXPECT_EQ(num_bodies, 0);  // the hash is known: no question to ask
  request.sha256.clear();
  EXPECT_TRUE(Pull(request).ok());
  EXPECT_EQ(num_bodies, 1);
  EXPECT_EQ(Names(), (std::set<std::string>{"m.gguf"}));
}

TEST_F(PullTest, AnotherFileOfTheNameIsReplacedOnlyWhenAsked) {
  std::ofstream(File("m.gguf")) << "precious";
  const LoopbackServer server([&](const LoopbackRequest& got) { return ServeContent(got, content_, "\"v1\""); });
  for (const std::string& sha256 : {sha256_, std::string()}) {
    PullRequest request = Request(server);
    request.sha256 = sha256;
    const auto refused = Pull(request);
    EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(refused.status().message().find(Sha256Hex("precious")), std::string::npos);
    EXPECT_EQ(Read("m.gguf"), "precious");
  }
  PullRequest request = Request(server);
  request.overwrite = true;
  ASSERT_TRUE(Pull(request).ok());
  EXPECT_EQ(Read("m.gguf"), content_);
}

TEST_F(PullTest, HttpErrorsAreNamedAndLeaveNothing) {
  for (const auto& [status, code] : {std::pair{404, StatusCode::kNotFound}, {410, StatusCode::kNotFound},
                                     {401, StatusCode::kFailedPrecondition}, {403, StatusCode::kFailedPrecondition},
                                     {500, StatusCode::kIoError}, {503, StatusCode::kIoError}, {204, StatusCode::kIoError},
                                     {206, StatusCode::kIoError}, {304, StatusCode::kIoError}, {416, StatusCode::kIoError}}) {
    const LoopbackServer server([status = status](const LoopbackRequest&) {
      LoopbackReply reply;
      reply.status = status;
      if (status != 204 && status != 304) reply.body = "<html>not a model</html>";
      return reply;
    });
    const auto path = Pull(Request(server));
    EXPECT_EQ(path.status().code(), code) << status << " " << path.status().message();
    EXPECT_TRUE(Names().empty());
  }
}

TEST_F(PullTest, AServerErrorDoesNotCostWhatWasThere) {
  LeavePart(content_, "\"v1\"", 100'000);
  bool is_well = false;
  const LoopbackServer server([&](const LoopbackRequest& got) {
    LoopbackReply reply = ServeContent(got, content_, "\"v1\"");
    if (!is_well) reply.status = 500;
    return reply;
  });
  PointPartAt(server);
  const auto failed = Pull(Request(server));
  EXPECT_EQ(failed.status().code(), StatusCode::kIoError);
  EXPECT_NE(failed.status().message().find("100000 bytes are kept"), std::string::npos) << failed.status().message();
  is_well = true;
  ASSERT_TRUE(Pull(Request(server)).ok());
  EXPECT_EQ(Read("m.gguf"), content_);
  EXPECT_EQ(server.requests().back().headers.at("range"), "bytes=100000-");
}

LoopbackReply RedirectTo(const std::string& location, int status = 302) {
  LoopbackReply reply;
  reply.status = status;
  reply.headers.emplace_back("Location", location);
  reply.body = "elsewhere";
  return reply;
}

TEST_F(PullTest, RedirectsAreFollowedAndTheHubsHeadersOnTheWayCount) {
  for (const int status : {301, 302, 303, 307, 308}) {
    const LoopbackServer server([&](const LoopbackRequest& got) {
      if (got.target == "/cdn/x?sig=1") return ServeContent(got, content_, "\"v1\"");
      LoopbackReply reply = RedirectTo("/cdn/x?sig=1", status);
      reply.headers.emplace_back("X-Linked-Etag", Quoted(Sha256Hex("what the hub has")));
      reply.headers.emplace_back("X-Linked-Size", "300000");
      return reply;
    });
    // The hub's hash is of another file, so following it must end in kCorruptData; a request's own hash overrules it.
    EXPECT_EQ(Pull(Request(server)).status().code(), StatusCode::kCorruptData);
    PullRequest request = Request(server);
    request.sha256 = sha256_;
    ASSERT_TRUE(Pull(request).ok());
    EXPECT_EQ(Read("m.gguf"), content_);
    std::filesystem::remove(File("m.gguf"));
  }
}

TEST_F(PullTest, ALinkedSizeThatTheServerContradictsIsCorrupt) {
  const LoopbackServer server([&](const LoopbackRequest& got) {
    LoopbackReply reply = ServeContent(got, content_, "\"v1\"");
    reply.headers.emplace_back("X-Linked-Size", "300001");
    return reply;
  });
  EXPECT_EQ(Pull(Request(server)).status().code(), StatusCode::kCorruptData);
  EXPECT_TRUE(Names().empty());
}

TEST_F(PullTest, ARedirectLoopEnds) {
  const LoopbackServer server([&](const LoopbackRequest& got) { return RedirectTo(got.target); });
  const auto path = Pull(Request(server));
  EXPECT_EQ(path.status().code(), StatusCode::kIoError);
  EXPECT_NE(path.status().message().find("10 redirects"), std::string::npos);
  EXPECT_EQ(server.requests().size(), 11u);
}

TEST_F(PullTest, ARedirectToAFileOrNowhereIsRefused) {
  for (const char* location : {"file:///etc/passwd", "ftp://127.0.0.1/m.gguf", "http://", ""}) {
    const LoopbackServer server([&](const LoopbackRequest&) { return RedirectTo(location); });
    const auto path = Pull(Request(server));
    EXPECT_EQ(path.status().code(), StatusCode::kIoError) << location << ": " << path.status().message();
    EXPECT_TRUE(Names().empty());
  }
}

TEST_F(PullTest, ATokenGoesToTheFirstServerOnly) {
  const LoopbackServer cdn([&](const LoopbackRequest& got) {
    EXPECT_FALSE(got.headers.contains("authorization"));
    return ServeContent(got, content_, "\"v1\"");
  });
  const LoopbackServer hub([&](const LoopbackRequest& got) {
    EXPECT_EQ(got.headers.at("authorization"), "Bearer secret");
    return RedirectTo(cdn.Url("/x"));
  });
  PullRequest request = Request(hub);
  request.token = "secret";
  EXPECT_TRUE(Pull(request).ok());
  EXPECT_EQ(cdn.requests().size(), 1u);
}

TEST_F(PullTest, ATokenIsNotSentInTheClear) {
  PullRequest request;
  request.directory = folder_.path();
  request.source = "http://hub.invalid/m.gguf";
  request.token = "secret";
  const auto path = Pull(request);
  EXPECT_EQ(path.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(path.status().message().find("secret"), std::string::npos);
}

TEST_F(PullTest, AMissingLengthNeedsAnotherWitnessOfTheEnd) {
  Framing framing = Framing::kUntilClose;
  size_t send_bytes = content_.size();
  const LoopbackServer server([&](const LoopbackRequest& got) {
    LoopbackReply reply = ServeContent(got, content_, "\"v1\"");
    reply.framing = framing;
    reply.send_bytes = send_bytes;
    return reply;
  });
  PullRequest request = Request(server);
  EXPECT_EQ(Pull(request).status().code(), StatusCode::kUnsupported);
  request.sha256 = sha256_;
  EXPECT_TRUE(Pull(request).ok());
  EXPECT_EQ(Read("m.gguf"), content_);
  std::filesystem::remove(File("m.gguf"));

  send_bytes = 1000;  // looks like the end, is a cut
  EXPECT_EQ(Pull(request).status().code(), StatusCode::kCorruptData);

  framing = Framing::kChunked;
  request.sha256.clear();
  EXPECT_EQ(Pull(request).status().code(), StatusCode::kIoError);
  send_bytes = content_.size();
  EXPECT_TRUE(Pull(request).ok());
  EXPECT_EQ(Read("m.gguf"), content_);
}

TEST_F(PullTest, CompressedBytesAreRefused) {
  const LoopbackServer server([&](const LoopbackRequest& got) {
    LoopbackReply reply = ServeContent(got, content_, "\"v1\"");
    reply.headers.emplace_back("Content-Encoding", "gzip");
    return reply;
  });
  EXPECT_EQ(Pull(Request(server)).status().code(), StatusCode::kUnsupported);
}

TEST_F(PullTest, AnEmptyFileIsAFile) {
  const LoopbackServer server([&](const LoopbackRequest& got) { return ServeContent(got, "", "\"v1\""); });
  ASSERT_TRUE(Pull(Request(server)).ok());
  EXPECT_EQ(std::filesystem::file_size(File("m.gguf")), 0u);
}

TEST_F(PullTest, ASilentServerIsGivenUpAndResumable) {
  const LoopbackServer server([&](const LoopbackRequest& got) {
    LoopbackReply reply = ServeContent(got, content_, "\"v1\"");
    reply.send_bytes = 500;
    reply.stall = true;
    return reply;
  });
  PullRequest request = Request(server);
  request.stall_timeout_s = 1;
  const auto path = Pull(request);
  EXPECT_EQ(path.status().code(), StatusCode::kIoError);
  EXPECT_NE(path.status().message().find("1 KiB/s for 1 s"), std::string::npos) << path.status().message();
  EXPECT_EQ(Read("m.gguf.part"), content_.substr(0, 500));
}

TEST_F(PullTest, CancellingKeepsWhatCame) {
  std::atomic<bool> cancelled = false;
  const LoopbackServer server([&](const LoopbackRequest& got) {
    LoopbackReply reply = ServeContent(got, content_, "\"v1\"");
    reply.send_bytes = 50'000;
    reply.stall = true;
    return reply;
  });
  PullRequest request = Request(server);
  request.cancelled = &cancelled;
  request.progress = [&](uint64_t done, uint64_t) { cancelled = done >= 10'000; };
  const auto path = Pull(request);
  EXPECT_EQ(path.status().code(), StatusCode::kCancelled);
  EXPECT_GE(Read("m.gguf.part").size(), 10'000u);
  EXPECT_TRUE(Names().contains("m.gguf.part.json"));
}

TEST_F(PullTest, CancellingDoesNotWaitForASilentServer) {
  std::atomic<bool> cancelled = false;
  const LoopbackServer server([&](const LoopbackRequest& got) {
    cancelled = true;
    LoopbackReply reply = ServeContent(got, content_, "\"v1\"");
    reply.send_bytes = 0;
    reply.stall = true;
    return reply;
  });
  PullRequest request = Request(server);
  request.cancelled = &cancelled;
  EXPECT_EQ(Pull(request).status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(Names().empty());
}

TEST_F(PullTest, TwoPullsOfOneFileDoNotWriteOverEachOther) {
  const LoopbackServer server([&](const LoopbackRequest& got) { return ServeContent(got, content_, "\"v1\""); });
  PullRequest request = Request(server);
  request.sha256 = sha256_;
  Status second;
  request.progress = [&](uint64_t, uint64_t) {
    if (second.ok()) {
      PullRequest other = Request(server);
      second = Pull(other).status();
    }
  };
  EXPECT_TRUE(Pull(request).ok());
  EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(second.message().find("another pull"), std::string::npos) << second.message();
  EXPECT_EQ(Read("m.gguf"), content_);
}

TEST_F(PullTest, AFileTooLargeForTheDiskIsRefusedBeforeAByteComes) {
  const LoopbackServer server([&](const LoopbackRequest& got) {
    LoopbackReply reply = ServeContent(got, content_, "\"v1\"");
    reply.framing = Framing::kUntilClose;
    reply.headers.emplace_back("Content-Length", "9000000000000000000");
    return reply;
  });
  const auto path = Pull(Request(server));
  EXPECT_EQ(path.status().code(), StatusCode::kResourceExhausted) << path.status().message();
  EXPECT_TRUE(Names().empty());
}

TEST_F(PullTest, AWriteThatFailsNamesTheFile) {
  const LoopbackServer server([&](const LoopbackRequest& got) { return ServeContent(got, content_, "\"v1\""); });
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto path = Pull(Request(server));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(path.status().code(), StatusCode::kIoError);
  EXPECT_NE(path.status().message().find("m.gguf.part"), std::string::npos) << path.status().message();
  ASSERT_TRUE(Pull(Request(server)).ok());  // and goes on when there is room
  EXPECT_EQ(Read("m.gguf"), content_);
}

TEST_F(PullTest, NobodyThereIsAnIoErrorAndLeavesNothing) {
  PullRequest request;
  {
    const LoopbackServer gone([&](const LoopbackRequest& got) { return ServeContent(got, "", "\"\""); });
    request = Request(gone);
  }
  EXPECT_EQ(Pull(request).status().code(), StatusCode::kIoError);
  EXPECT_TRUE(Names().empty());
}

TEST_F(PullTest, BadArgumentsAreNamed) {
  PullRequest good;
  good.source = "http://127.0.0.1:9/m.gguf";
  good.directory = folder_.path();
  std::vector<PullRequest> bad(6, good);
  bad[0].source = "nothing";
  bad[1].sha256 = "abc";
  bad[2].token = "two words";
  bad[3].directory.clear();
  bad[4].stall_timeout_s = 0;
  bad[5].token = "line\nbreak";
  for (const PullRequest& request : bad) EXPECT_EQ(Pull(request).status().code(), StatusCode::kInvalidArgument);
  good.directory = "/proc/none/models";
  EXPECT_EQ(Pull(good).status().code(), StatusCode::kIoError);
}

TEST_F(PullTest, ATokenFileIsReadWithoutItsWhiteSpace) {
  std::ofstream(File("token")) << "  secret_123\n";
  const auto token = ReadTokenFile(File("token"));
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(*token, "secret_123");
  for (const char* text : {"", "\n", "two words", "caf\xc3\xa9"}) {
    std::ofstream(File("token")) << text;
    EXPECT_EQ(ReadTokenFile(File("token")).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ReadTokenFile(File("none")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace oscar::engine
