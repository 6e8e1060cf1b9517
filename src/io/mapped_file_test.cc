#include "src/io/mapped_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <sys/stat.h>

#include "gtest/gtest.h"

namespace oscar::io {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  std::filesystem::path Write(const std::string& name, const std::string& text) {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("mapped_file_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(MappedFileTest, BytesAreThoseOfTheFileAndOutliveAMove) {
  auto opened = MappedFile::Open(Write("a", "hello"));
  ASSERT_TRUE(opened.ok());
  MappedFile first = std::move(opened).value();
  const MappedFile second = std::move(first);
  ASSERT_EQ(second.bytes().size(), 5u);
  EXPECT_EQ(static_cast<char>(second.bytes()[4]), 'o');
}

TEST_F(MappedFileTest, AnEmptyFileIsAnEmptySpan) {
  const auto opened = MappedFile::Open(Write("empty", ""));
  ASSERT_TRUE(opened.ok());
  EXPECT_TRUE(opened->bytes().empty());
}

TEST_F(MappedFileTest, AMissingFileIsNotFoundAndNamed) {
  const auto opened = MappedFile::Open(folder_ / "missing.gguf");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::kNotFound);
  EXPECT_NE(opened.status().message().find("missing.gguf"), std::string::npos);
}

TEST_F(MappedFileTest, AFolderIsRefused) {
  const auto opened = MappedFile::Open(folder_);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(MappedFileTest, AFifoIsRefusedWithoutWaitingForAWriter) {
  const auto path = folder_ / "fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto opened = MappedFile::Open(path);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace oscar::io
