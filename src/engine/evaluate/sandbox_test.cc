#include "src/engine/evaluate/sandbox.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

using End = SandboxOutcome::End;

class Sandbox : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto probe = RunSandboxed({"true"}, "", {});
    if (!probe.ok() && probe.status().code() == StatusCode::kUnsupported) GTEST_SKIP() << probe.status().message();
    ASSERT_TRUE(probe.ok()) << probe.status().message();
    ASSERT_EQ(probe->end, End::kExited) << probe->error_output;
  }
  static SandboxOutcome Run(const std::string& script, std::string_view input = "", SandboxLimits limits = {}) {
    const auto outcome = RunSandboxed({"sh", "-c", script}, input, limits);
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return outcome.ok() ? *outcome : SandboxOutcome{};
  }
  static SandboxOutcome RunPython(const std::string& program, SandboxLimits limits = {}) {
    const auto outcome = RunSandboxed({"python3", "-I", "-"}, program, limits);
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return outcome.ok() ? *outcome : SandboxOutcome{};
  }
};

TEST_F(Sandbox, PassesInputOutputAndTheExitStatus) {
  const std::string text(300'000, 'x');
  const SandboxOutcome outcome = Run("cat; echo problem >&2; exit 3", text);
  EXPECT_EQ(outcome.end, End::kExited);
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.output, text);
  EXPECT_EQ(outcome.error_output, "problem\n");
}

TEST_F(Sandbox, AProgramThatReadsNothingDoesNotBlock) {
  const SandboxOutcome outcome = Run("exec 0<&-; echo done", std::string(1 << 20, 'x'));
  EXPECT_EQ(outcome.output, "done\n");
  EXPECT_EQ(outcome.code, 0);
}

TEST_F(Sandbox, EndsWhatRunsTooLong) {
  for (const char* script : {"while :; do :; done", "sleep 100", "sleep 100 & wait", "exec >&- 2>&-; sleep 100"}) {
    const SandboxOutcome outcome = Run(script, "", {.wall_seconds = 0.5});
    EXPECT_EQ(outcome.end, End::kTimedOut) << script;
  }
}

TEST_F(Sandbox, EndsWhatPrintsTooMuchAndKeepsTheBeginning) {
  const SandboxOutcome outcome = Run("yes", "", {.output_bytes = 10'000});
  EXPECT_EQ(outcome.end, End::kOutputTooLong);
  EXPECT_EQ(outcome.output.size(), 10'000u);
  EXPECT_EQ(outcome.output.substr(0, 4), "y\ny\n");
}

TEST_F(Sandbox, RefusesMemoryBeyondTheLimit) {
  const SandboxOutcome outcome = RunPython("x = bytearray(1 << 30)", {.memory_bytes = uint64_t{512} << 20});
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.error_output.find("MemoryError"), std::string::npos) << outcome.error_output;
}

TEST_F(Sandbox, HasNoNetworkNotEvenLoopback) {
  const SandboxOutcome outcome = RunPython(
      "import socket\ns = socket.socket()\ntry:\n  s.connect(('127.0.0.1', 9))\nexcept OSError as e:\n  print(e.errno)\n");
  EXPECT_EQ(outcome.output, "101\n") << outcome.error_output;  // ENETUNREACH: the loopback interface of its namespace is down
}

TEST_F(Sandbox, WritesInItsOwnFolderOnlyAndLeavesNothing) {
  const auto outside = std::filesystem::path(::testing::TempDir()) / "oscar_sandbox_outside";
  std::filesystem::remove(outside);
  const SandboxOutcome outcome = Run("pwd; echo in > inside && cat inside; echo out > " + outside.string() + " || echo refused; echo x > /dev/null");
  EXPECT_NE(outcome.output.find("in\nrefused\n"), std::string::npos) << outcome.output;
  EXPECT_FALSE(std::filesystem::exists(outside));
  const std::string folder = outcome.output.substr(0, outcome.output.find('\n'));
  EXPECT_NE(folder.find("oscar-sandbox-"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(Sandbox, WritesNoFileBeyondTheLimit) {
  const SandboxOutcome outcome = Run("head -c 100000 /dev/zero > big; stat -c %s big", "", {.file_bytes = 5000});
  EXPECT_EQ(outcome.output, "5000\n");
}

TEST_F(Sandbox, DoesNotSeeTheEnvironmentOrOtherProcesses) {
  setenv("OSCAR_SECRET", "hidden", 1);
  const SandboxOutcome outcome = Run("echo \"[$OSCAR_SECRET]\" $$; kill -9 " + std::to_string(getpid()) + " 2>/dev/null || echo refused");
  EXPECT_EQ(outcome.output, "[] 1\nrefused\n");
}

TEST_F(Sandbox, ReportsSignals) {
  const SandboxOutcome outcome = RunPython("import ctypes\nctypes.string_at(0)\n");
  EXPECT_EQ(outcome.end, End::kSignalled);
  EXPECT_EQ(outcome.code, 11);
}

TEST_F(Sandbox, NamesAProgramThatDoesNotExist) {
  for (const char* name : {"no-such-program-here", "/nonexistent/program"}) {
    const auto outcome = RunSandboxed({name}, "", {});
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.status().code(), StatusCode::kNotFound);
    EXPECT_NE(outcome.status().message().find(name), std::string::npos);
  }
}

}  // namespace
}  // namespace oscar::engine
