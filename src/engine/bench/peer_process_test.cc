#include "src/engine/bench/peer_process.h"

#include <gtest/gtest.h>

namespace oscar::engine {
namespace {

std::vector<std::string> Shell(const std::string& script) { return {"sh", "-c", script}; }

TEST(PeerProcess, AnswersEachStepInOrder) {
  auto peer = PeerProcess::Start(Shell("echo other:f16; while read count first rest; do echo $count.$first $first; done"));
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  EXPECT_EQ((*peer)->name(), "other:f16");
  const std::vector<int32_t> tokens = {25, 7, 9};
  EXPECT_EQ((*peer)->Step(tokens).value().wall, 3.25);
  EXPECT_EQ((*peer)->Step(tokens).value().processor, 25);
  EXPECT_EQ((*peer)->Step(std::span(tokens).first(1)).value().wall, 1.25);
}

TEST(PeerProcess, ClearsAndFillsAndSaysWhatItsContextAdded) {
  auto peer = PeerProcess::Start(Shell("echo other:f16 4096; while read line; do echo 0 0; done"));
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  EXPECT_EQ((*peer)->name(), "other:f16");
  EXPECT_TRUE((*peer)->Clear().ok());
  EXPECT_TRUE((*peer)->Fill(9).ok());
  ASSERT_TRUE((*peer)->context_bytes().has_value());
  EXPECT_GT(*(*peer)->context_bytes(), 0) << "a shell is larger than that";
  auto silent = PeerProcess::Start(Shell("echo other; read line; echo no"));
  ASSERT_TRUE(silent.ok());
  EXPECT_FALSE((*silent)->context_bytes().has_value());
  EXPECT_FALSE((*silent)->Clear().ok());
  for (const char* greeting : {"other x", "other 5 6", "other -1", "other "}) {
    EXPECT_FALSE(PeerProcess::Start(Shell("echo '" + std::string(greeting) + "'; exec sleep 1000")).ok()) << greeting;
  }
}

TEST(PeerProcess, AMissingProgramAndBadAnswersAreErrors) {
  EXPECT_EQ(PeerProcess::Start({"/nonexistent/peer"}).status().code(), StatusCode::kNotFound);
  const std::vector<int32_t> tokens = {1};
  for (const char* answer : {"1.5x 1", "1.5", "1 2 3", "-1 1", "", "nan 1", "0 1", "1 0", "inf 1", "1 inf"}) {
    auto peer = PeerProcess::Start(Shell("echo other; read line; echo '" + std::string(answer) + "'"));
    ASSERT_TRUE(peer.ok());
    EXPECT_FALSE((*peer)->Step(tokens).ok()) << answer;
  }
  auto hanging = PeerProcess::Start(Shell("echo other; exec sleep 1000"));  // ended with its owner
  ASSERT_TRUE(hanging.ok());
  auto ended = PeerProcess::Start(Shell("echo other"));
  ASSERT_TRUE(ended.ok());
  EXPECT_FALSE((*ended)->Step(tokens).ok());
}

}  // namespace
}  // namespace oscar::engine
