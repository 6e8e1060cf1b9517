#include "src/engine/runtime/text_source.h"

#include <fstream>
#include <unistd.h>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

class TextSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("oscar_text_source_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_ / "sub");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  std::filesystem::path folder_;
};

TEST(ValidUtf8Prefix, StopsAtTheFirstByteThatIsNotUtf8) {
  EXPECT_EQ(ValidUtf8Prefix("h\xC3\xA9llo \xF0\x9F\x98\x80"), 11u);
  EXPECT_EQ(ValidUtf8Prefix("ab\xFF"), 2u);
  EXPECT_EQ(ValidUtf8Prefix("ab\xC3"), 2u);
  EXPECT_EQ(ValidUtf8Prefix("a\xC0\x80"), 1u);              // overlong
  EXPECT_EQ(ValidUtf8Prefix("a\xED\xA0\x80"), 1u);          // surrogate
  EXPECT_EQ(ValidUtf8Prefix("a\xF4\x90\x80\x80"), 1u);      // above U+10FFFF
  EXPECT_EQ(ValidUtf8Prefix(std::string_view("a\0b", 3)), 1u);
}

TEST_F(TextSourceTest, AFolderIsReadInPathOrderWithoutFilesThatAreNotText) {
  Write("b.txt", "second");
  Write("a.txt", "first");
  Write("image.bin", std::string("\x89PNG\0\0", 6));
  Write("sub/c.txt", "third");
  const auto source = ReadTextSource(folder_, 1 << 20);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(source->text, "first\nsecond\nthird\n");
}

TEST_F(TextSourceTest, ASingleFileThatIsNotTextIsRefusedByName) {
  const auto path = Write("image.bin", std::string("\x89PNG\0\0", 6));
  const auto source = ReadTextSource(path, 1 << 20);
  ASSERT_FALSE(source.ok());
  EXPECT_EQ(source.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(source.status().message().find("image.bin"), std::string::npos);
}

TEST_F(TextSourceTest, ALimitCutsAtACharacter) {
  const auto path = Write("t.txt", "ab\xC3\xA9");
  const auto source = ReadTextSource(path, 3);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(source->text, "ab");
}

TEST_F(TextSourceTest, MissingAndEmptyAreErrors) {
  EXPECT_EQ(ReadTextSource(folder_ / "none", 10).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadTextSource(Write("empty.txt", ""), 10).status().code(), StatusCode::kInvalidArgument);
  std::filesystem::create_directories(folder_ / "hollow");
  EXPECT_EQ(ReadTextSource(folder_ / "hollow", 10).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace oscar::engine
