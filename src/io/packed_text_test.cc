#include "src/io/packed_text.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace oscar::io {
namespace {

constexpr size_t kMost = 1 << 20;
constexpr char kCases[] = R"([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}])";

// Made by Python: base64.b64encode(zlib.compress(pickle.dumps(text, protocol)))
constexpr char kProtocol2[] = "eJxrYIqwYmBgiK5WyswrKC1RslJQMlQwislT0lFQyi8tgQoZQwRKUotLSioLUkFCxSUpmXlKtbGFDHoAe1wTcQ==";
constexpr char kProtocol4[] = "eJxrYJlqxwABPVbR1UqZeQWlJUpWCkqGCkYxeUo6Ckr5pSVQIWOIQElqcUlJZUEqSKi4JCUzT6k2dooeALEqFJ0=";
constexpr char kProtocol5[] = "eJxrYJ1qxwABPVbR1UqZeQWlJUpWCkqGCkYxeUo6Ckr5pSVQIWOIQElqcUlJZUEqSKi4JCUzT6k2dooeALFyFJ4=";
// An object whose pickle calls os.system, and the list ["a"].
constexpr char kCall[] = "eJxrYJkqzwABPawF+cWZFVN62Iori0tSc6dMntLDUlJUmjqldUrQFD0AA2gOlA==";
constexpr char kList[] = "eJxrYJnKwQABsVN6GBOnJOoBACKxBCQ=";
// "x" 70,000 times: a long text, and a stream 700 times shorter than its content.
constexpr char kLong[] =
    "eNrtwTENACAMALAtmQGMTA8yODkRgWBMcLY9NdfI2AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAADAd7cf"
    "jJI2IQ==";

TEST(UnpackText, ReadsATextOfEveryPickleProtocol) {
  for (const char* packed : {kProtocol2, kProtocol4, kProtocol5}) {
    const auto text = UnpackText(packed, kMost);
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(*text, kCases);
  }
  const auto text = UnpackText(kLong, kMost);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(*text, std::string(70000, 'x'));
}

TEST(UnpackText, APickleThatCallsOrBuildsIsRefusedByItsOpcode) {
  for (const char* packed : {kCall, kList}) {
    const auto text = UnpackText(packed, kMost);
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.status().code(), packed == kCall ? StatusCode::kCorruptData : StatusCode::kUnsupported) << text.status().message();
    EXPECT_NE(text.status().message().find("pickle"), std::string::npos);
  }
}

TEST(UnpackText, AStreamThatGrowsBeyondTheLimitIsRefused) {
  EXPECT_EQ(UnpackText(kLong, 60000).status().code(), StatusCode::kResourceExhausted);
}

TEST(UnpackText, NoPrefixIsTakenForTheWhole) {
  const std::string packed = kProtocol4, stream = *DecodeBase64(packed), pickle = *Inflate(stream, kMost);
  for (size_t size = 0; size < packed.size(); ++size) EXPECT_FALSE(UnpackText(packed.substr(0, size), kMost).ok() && size + 1 < packed.size()) << size;
  for (size_t size = 0; size < stream.size(); ++size) EXPECT_FALSE(Inflate(stream.substr(0, size), kMost).ok()) << size;
  for (size_t size = 0; size < pickle.size(); ++size) EXPECT_FALSE(ReadPickledText(pickle.substr(0, size)).ok()) << size;
  EXPECT_FALSE(Inflate(stream + "x", kMost).ok());
  EXPECT_FALSE(ReadPickledText(pickle + "x").ok());
}

TEST(DecodeBase64, FollowsTheRfcAndNamesWhatDoesNotBelong) {
  const std::pair<const char*, const char*> cases[] = {{"", ""}, {"Zg==", "f"}, {"Zm8=", "fo"}, {"Zm9v", "foo"}, {"Zm9vYg==", "foob"},
                                                       {"Zm9v\nYmE=", "fooba"}, {"Zm9vYmFy", "foobar"}, {"Zg", "f"}, {"+/+/", "\xFB\xFF\xBF"}};
  for (const auto& [text, bytes] : cases) {
    const auto decoded = DecodeBase64(text);
    ASSERT_TRUE(decoded.ok()) << text;
    EXPECT_EQ(*decoded, bytes);
  }
  for (const char* text : {"Z", "Zg=", "Zm9v=", "Zm=9v", "Zm9v!", "Z-==", "===="}) EXPECT_FALSE(DecodeBase64(text).ok()) << text;
  EXPECT_NE(DecodeBase64("Zm9v!").status().message().find("byte 4"), std::string::npos);
}

}  // namespace
}  // namespace oscar::io
