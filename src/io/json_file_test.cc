#include "src/io/json_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace oscar::io {
namespace {

using nlohmann::json;

std::filesystem::path TestFolder() {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "oscar_json_file_test";
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(ParseJson, BuildsTheValueThatTheTextDescribes) {
  const std::string text = R"({"a":[1,-2,2.5,true,null,"x\u00e9\n",{}],"b":{"c":{"d":[[]]}},"e":18446744073709551615})";
  const Result<json> value = ParseJson(text);
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(*value, json::parse(text));
  EXPECT_TRUE((*value)["e"].is_number_unsigned());
}

TEST(ParseJson, TakesScalarsAndSurroundingWhiteSpace) {
  EXPECT_EQ(ParseJson(" \t\r\n 7 \n").value(), json(7));
  EXPECT_EQ(ParseJson("\"\"").value(), json(""));
}

TEST(ParseJson, RefusesWhatIsNotOneStrictValue) {
  using namespace std::string_literals;
  for (const std::string& text : {""s,
                                  " "s,
                                  "{"s,
                                  "[1,]"s,
                                  "{\"a\":1,}"s,
                                  "{a:1}"s,
                                  "1 2"s,
                                  "{}x"s,
                                  "{}\0"s,
                                  "{}\0{}"s,
                                  "nul"s,
                                  "NaN"s,
                                  "+1"s,
                                  "01"s,
                                  "1e999"s,
                                  "// c\n1"s,
                                  "\"\xff\""s,
                                  "\"\xed\xa0\x80\""s,
                                  "\"\\ud800\""s,
                                  "\"a\nb\""s,
                                  "'a'"s}) {
    const Result<json> value = ParseJson(text);
    ASSERT_FALSE(value.ok()) << text;
    EXPECT_EQ(value.status().code(), StatusCode::kCorruptData) << text;
  }
}

TEST(ParseJson, RefusesAKeyThatOccursTwiceInOneObjectOnly) {
  EXPECT_TRUE(ParseJson(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})").ok());
  const Result<json> value = ParseJson(R"({"x":{"a":1,"b":2,"a":3}})");
  ASSERT_FALSE(value.ok());
  EXPECT_NE(value.status().message().find("\"a\" occurs twice"), std::string::npos) << value.status().message();
}

TEST(ParseJson, RefusesNestingBeyondTheLimit) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth)).ok());
  EXPECT_FALSE(ParseJson(nested(kMaxJsonDepth + 1)).ok());
  EXPECT_FALSE(ParseJson(std::string(1'000'000, '[')).ok());
}

TEST(JsonFile, ReadsWhatItWroteAndEndsWithANewline) {
  const std::filesystem::path path = TestFolder() / "value.json";
  const json value = {{"b", 1}, {"a", {1, 2}}};
  ASSERT_TRUE(WriteJsonFile(path, value).ok());
  ASSERT_TRUE(WriteJsonFile(path, value).ok());  // replaces
  EXPECT_EQ(ReadJsonFile(path).value(), value);
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": 1\n}\n");
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TestFolder())) num_files += entry.is_regular_file();
  EXPECT_EQ(num_files, 1u) << "a temporary file was left behind";
  std::filesystem::remove_all(TestFolder());
}

TEST(JsonFile, ErrorsNameThePath) {
  EXPECT_EQ(ReadJsonFile(TestFolder() / "absent.json").status().code(), StatusCode::kNotFound);
  const std::filesystem::path broken = TestFolder() / "broken.json";
  std::ofstream(broken) << "{\"a\":";
  const Status status = ReadJsonFile(broken).status();
  EXPECT_EQ(status.code(), StatusCode::kCorruptData);
  EXPECT_NE(status.message().find("broken.json"), std::string::npos);
  const Status no_folder = WriteJsonFile(TestFolder() / "no" / "such" / "folder.json", json(1));
  EXPECT_EQ(no_folder.code(), StatusCode::kNotFound);
  EXPECT_NE(no_folder.message().find("folder.json"), std::string::npos);
  std::filesystem::create_directories(TestFolder() / "a_folder" / "x");
  EXPECT_EQ(WriteJsonFile(TestFolder() / "a_folder", json(1)).code(), StatusCode::kIoError);
  std::filesystem::remove_all(TestFolder());
}

TEST(ReplaceInvalidUtf8, KeepsGoodTextAndReplacesBadBytes) {
  EXPECT_EQ(ReplaceInvalidUtf8("caf\u00e9 \"\\\n"), "caf\u00e9 \"\\\n");
  EXPECT_EQ(ReplaceInvalidUtf8("a\xff"
                               "b"),
            "a\ufffd"
            "b");
  EXPECT_EQ(ReplaceInvalidUtf8("\xe2\x82"), "\ufffd");
}

}  // namespace
}  // namespace oscar::io
