#include "src/io/jsonl_file.h"

#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "gtest/gtest.h"

namespace oscar::io {
namespace {

class JsonLines : public ::testing::Test {
 protected:
  std::filesystem::path path_ = std::filesystem::path(::testing::TempDir()) / "lines.jsonl";
  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  void WriteCompressed(const std::string& text) {
    gzFile file = gzopen(path_.c_str(), "wb");
    ASSERT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())), static_cast<int>(text.size()));
    ASSERT_EQ(gzclose(file), Z_OK);
  }
};

TEST_F(JsonLines, PlainAndCompressedFilesGiveTheSameObjects) {
  const std::string text = "{\"a\": 1}\n\n  \r\n{\"a\": \"\\u00e9\"}";
  Write(text);
  const auto plain = ReadJsonLines(path_);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  ASSERT_EQ(plain->size(), 2u);
  EXPECT_EQ((*plain)[1]["a"], "é");
  WriteCompressed(text);
  const auto compressed = ReadJsonLines(path_);
  ASSERT_TRUE(compressed.ok()) << compressed.status().message();
  EXPECT_EQ(*compressed, *plain);
}

TEST_F(JsonLines, WhatIsWrittenIsReadBackAndAppendedTo) {
  for (const auto mode : {JsonLinesWriter::Mode::kTruncate, JsonLinesWriter::Mode::kAppend}) {
    auto writer = JsonLinesWriter::Open(path_, mode);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    ASSERT_TRUE(writer->Write({{"text", "a\nb"}}).ok());
    ASSERT_TRUE(writer->Write({{"text", "\xff"}}).ok());
  }
  const auto lines = ReadJsonLines(path_);
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  ASSERT_EQ(lines->size(), 4u);
  EXPECT_EQ((*lines)[2]["text"], "a\nb");
  EXPECT_EQ((*lines)[3]["text"], "\xEF\xBF\xBD");
  const auto refused = JsonLinesWriter::Open("/nonexistent/x", JsonLinesWriter::Mode::kAppend);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("/nonexistent/x"), std::string::npos);
  auto full = JsonLinesWriter::Open("/dev/full", JsonLinesWriter::Mode::kAppend);
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->Write({{"a", 1}}).code(), StatusCode::kIoError);
}

TEST_F(JsonLines, ADamagedCompressedFileIsNamedOnce) {
  WriteCompressed("{\"a\": \"" + std::string(5000, 'x') + "\"}\n");
  const auto size = std::filesystem::file_size(path_);
  std::fstream(path_, std::ios::binary | std::ios::in | std::ios::out).seekp(static_cast<std::streamoff>(size / 2)).write("\xff\xff\xff\xff", 4);
  const Status status = ReadJsonLines(path_).status();
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_TRUE(status.message().starts_with(path_.string() + ": ")) << status.message();
  EXPECT_EQ(status.message().find(path_.string(), 1), std::string::npos) << status.message();
}

TEST_F(JsonLines, ErrorsNameFileAndLine) {
  for (const char* text : {"{\"a\": 1}\n[1]\n", "{\"a\": 1}\n{\"a\": \n"}) {
    Write(text);
    const auto lines = ReadJsonLines(path_);
    ASSERT_FALSE(lines.ok()) << text;
    EXPECT_EQ(lines.status().code(), StatusCode::kCorruptData);
    EXPECT_NE(lines.status().message().find("lines.jsonl: line 2"), std::string::npos) << lines.status().message();
  }
  EXPECT_EQ(ReadJsonLines("/nonexistent/x").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadJsonLines(::testing::TempDir()).status().code(), StatusCode::kIoError);
}

TEST_F(JsonLines, ACutGzipStreamIsAnErrorAndNotAShorterFile) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "{\"a\": " + std::to_string(i * 7919 % 10007) + "}\n";
  WriteCompressed(text);
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) / 2);
  EXPECT_EQ(ReadJsonLines(path_).status().code(), StatusCode::kIoError);
}

}  // namespace
}  // namespace oscar::io
