#include "src/engine/report/progress.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class ProgressTest : public ::testing::Test {
 protected:
  ProgressOptions Options(ProgressStyle style, const std::string& unit = "") {
    ProgressOptions options;
    options.label = "m.gguf";
    options.unit = unit;
    options.style = style;
    options.now_seconds = [this] { return now_; };
    options.write = [this](std::string_view text) { written_ += text; };
    return options;
  }
  std::string Taken() { return std::exchange(written_, std::string()); }

  double now_ = 1000.0;
  std::string written_;
};

TEST_F(ProgressTest, ATerminalLineRedrawsItselfAndPadsWhatWasLonger) {
  Progress progress(Options(ProgressStyle::kTerminal));
  progress.Update(0, 100 * kMiB);
  EXPECT_EQ(Taken(), "\rm.gguf:   0%, 0 B of 100 MiB");
  now_ += 1;
  progress.Update(10 * kMiB, 100 * kMiB);
  EXPECT_EQ(Taken(), "\rm.gguf:  10%, 10.0 MiB of 100 MiB, 10.0 MiB/s, ETA 0:09");
  now_ += 9;
  progress.Update(100 * kMiB, 100 * kMiB);
  EXPECT_EQ(Taken(), "\rm.gguf: 100%, 100 MiB of 100 MiB, 10.0 MiB/s, ETA 0:00 ");
  progress.Finish();
  EXPECT_EQ(Taken(), "\rm.gguf: 100 MiB in 0:10, 10.0 MiB/s                   \n");
}

TEST_F(ProgressTest, ATerminalIsDrawnTenTimesASecondAtMost) {
  Progress progress(Options(ProgressStyle::kTerminal));
  for (int i = 0; i < 1000; ++i) {
    progress.Update(static_cast<uint64_t>(i), 1000);
    now_ += 1.0 / 1024;
  }
  EXPECT_EQ(std::count(written_.begin(), written_.end(), '\r'), 10);
  progress.Finish();
}

TEST_F(ProgressTest, AnUnfinishedTerminalLineIsErased) {
  {
    Progress progress(Options(ProgressStyle::kTerminal));
    progress.Update(1, 4);
    Taken();
  }
  EXPECT_EQ(Taken(), "\r" + std::string(std::string("m.gguf:  25%, 1 B of 4 B").size(), ' ') + "\r");
}

TEST_F(ProgressTest, ALineIsCutAtTheTerminalsWidth) {
  ProgressOptions options = Options(ProgressStyle::kTerminal);
  options.terminal_columns = 12;
  Progress progress(options);
  progress.Update(1, 4);
  EXPECT_EQ(Taken(), "\rm.gguf:  25%");
  progress.Finish();
}

TEST_F(ProgressTest, PlainOutputHasALineForEachTenthAndOneAtTheEnd) {
  Progress progress(Options(ProgressStyle::kPlain, "tokens"));
  for (uint64_t done = 0; done <= 2000; ++done) {
    progress.Update(done, 2000);
    now_ += 0.01;
  }
  progress.Finish();
  EXPECT_EQ(std::count(written_.begin(), written_.end(), '\n'), 11);
  EXPECT_EQ(written_.substr(0, written_.find('\n')), "m.gguf:  10%, 200 of 2,000 tokens, 100 tokens/s, ETA 0:18");
  EXPECT_NE(written_.find("m.gguf: 100%, 2,000 of 2,000 tokens"), std::string::npos);
  EXPECT_NE(written_.find("m.gguf: 2,000 tokens in 0:20, 100 tokens/s\n"), std::string::npos) << written_;
  EXPECT_EQ(written_.find('\r'), std::string::npos);
}

TEST_F(ProgressTest, AHundredPercentIsSaidOnlyWhenAllIsThere) {
  Progress progress(Options(ProgressStyle::kPlain));
  progress.Update(0, UINT64_MAX);
  progress.Update(UINT64_MAX - 1, UINT64_MAX);
  EXPECT_NE(written_.find(" 99%"), std::string::npos) << written_;
}

TEST_F(ProgressTest, WithoutATotalPlainOutputSpeaksEveryThirtySeconds) {
  Progress progress(Options(ProgressStyle::kPlain));
  for (int second = 0; second <= 90; ++second) {
    progress.Update(static_cast<uint64_t>(second) * kMiB, 0);
    now_ += 1;
  }
  EXPECT_EQ(written_, "m.gguf: 30.0 MiB, 1.00 MiB/s\nm.gguf: 60.0 MiB, 1.00 MiB/s\nm.gguf: 90.0 MiB, 1.00 MiB/s\n");
}

TEST_F(ProgressTest, WhatWasThereBeforeIsNotSpeed) {
  Progress progress(Options(ProgressStyle::kPlain));
  progress.Update(50 * kMiB, 100 * kMiB);
  now_ += 10;
  progress.Update(60 * kMiB, 100 * kMiB);
  EXPECT_EQ(Taken(), "m.gguf:  60%, 60.0 MiB of 100 MiB, 1.00 MiB/s, ETA 0:40\n");
  progress.Finish();
  EXPECT_EQ(Taken(), "m.gguf: 60.0 MiB in 0:10, 1.00 MiB/s\n");
}

TEST_F(ProgressTest, TheRateIsThatOfTheLastSeconds) {
  Progress progress(Options(ProgressStyle::kTerminal));
  uint64_t done = 0;
  for (int second = 0; second < 100; ++second, now_ += 1) progress.Update(done += 100 * kMiB, 100'000 * kMiB);
  for (int second = 0; second < 30; ++second, now_ += 1) progress.Update(done += kMiB, 100'000 * kMiB);
  const std::string last = written_.substr(written_.rfind('\r'));
  EXPECT_NE(last.find(", 1.00 MiB/s"), std::string::npos) << last;
  progress.Finish();
}

TEST_F(ProgressTest, StartingOverStartsTheRateAndTheTenthsOver) {
  Progress progress(Options(ProgressStyle::kPlain));
  progress.Update(90 * kMiB, 100 * kMiB);
  now_ += 1;
  progress.Update(0, 100 * kMiB);
  now_ += 1;
  progress.Update(10 * kMiB, 100 * kMiB);
  EXPECT_EQ(Taken(), "m.gguf:  10%, 10.0 MiB of 100 MiB, 10.0 MiB/s, ETA 0:09\n");
}

TEST_F(ProgressTest, SilenceIsSilent) {
  Progress progress(Options(ProgressStyle::kSilent));
  progress.Update(1, 2);
  progress.Update(2, 2);
  progress.Finish();
  EXPECT_EQ(written_, "");
}

TEST_F(ProgressTest, FinishingWhatNeverBeganSaysNothing) {
  Progress progress(Options(ProgressStyle::kTerminal));
  progress.Finish();
  EXPECT_EQ(written_, "");
}

TEST(ProgressStyle, AFileIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(ProgressStyleOf(file, /*quiet=*/false), ProgressStyle::kPlain);
  EXPECT_EQ(ProgressStyleOf(file, /*quiet=*/true), ProgressStyle::kSilent);
  std::fclose(file);
}

}  // namespace
}  // namespace oscar::engine
