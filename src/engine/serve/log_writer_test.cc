#include "src/engine/serve/log_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    CloseReader();
    close(ends[1]);
  }
  void CloseReader() {
    if (ends[0] >= 0) close(ends[0]);
    ends[0] = -1;
  }
  std::string Read(size_t count) {
    std::string text(count, '\0');
    size_t done = 0;
    while (done < count) {
      const ssize_t got = read(ends[0], text.data() + done, count - done);
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    return text.substr(0, done);
  }
  int ends[2] = {-1, -1};
};

TEST(LogWriter, LinesArriveInOrderAndWhole) {
  Pipe pipe;
  std::string expected;
  {
    LogWriter writer(pipe.ends[1]);
    for (int i = 0; i < 50; ++i) {
      const std::string line = "line " + std::to_string(i) + std::string(static_cast<size_t>(i * 30), 'x') + "\n";
      expected += line;
      writer.Write(line);
    }
    EXPECT_EQ(pipe.Read(expected.size()), expected);
    EXPECT_EQ(writer.num_dropped(), 0u);
  }
}

TEST(LogWriter, AReaderThatReadsNothingHoldsUpNobodyAndDroppedLinesAreCounted) {
  Pipe pipe;
  const std::string line(999, 'y');
  constexpr int kLines = 4000;  // more than pipe and queue hold
  {
    LogWriter writer(pipe.ends[1]);
    for (int i = 0; i < kLines; ++i) writer.Write(line + "\n");
    EXPECT_GT(writer.num_dropped(), 1000u);
    EXPECT_EQ(pipe.Read(line.size() + 1), line + "\n");  // the first lines are kept
  }  // and the end does not wait for the reader
}

TEST(LogWriter, AReaderThatIsGoneEndsNothing) {
  Pipe pipe;
  pipe.CloseReader();
  LogWriter writer(pipe.ends[1]);
  for (int i = 0; i < 10; ++i) writer.Write("nobody reads this\n");
  while (writer.num_dropped() < 10) {
  }
}

}  // namespace
}  // namespace oscar::engine
