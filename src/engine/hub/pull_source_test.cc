#include "src/engine/hub/pull_source.h"

#include <string>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

constexpr std::string_view kHub = "https://hub.example";

struct Good {
  std::string source;
  std::string url;
  std::string file_name;
};

TEST(PullSource, HubSourcesAndUrlsBecomeAUrlAndAName) {
  for (const Good& good : {
           Good{"hf:owner/repo/m.gguf", "https://hub.example/owner/repo/resolve/main/m.gguf", "m.gguf"},
           Good{"hf:o/r/sub/dir/M-1.Q4_K.gguf@v1.0", "https://hub.example/o/r/resolve/v1.0/sub/dir/M-1.Q4_K.gguf", "M-1.Q4_K.gguf"},
           Good{"hf:o/r/m.gguf@refs/pr/3", "https://hub.example/o/r/resolve/refs%2Fpr%2F3/m.gguf", "m.gguf"},
           Good{"hf:o/r/tokenizer.json", "https://hub.example/o/r/resolve/main/tokenizer.json", "tokenizer.json"},
           Good{"hf:o/r/a b/m.gguf", "https://hub.example/o/r/resolve/main/a%20b/m.gguf", "m.gguf"},
           Good{"http://h:81/x/m.safetensors?sig=1#top", "http://h:81/x/m.safetensors?sig=1", "m.safetensors"},
           Good{"https://h/x/../m%2Bq.gguf", "https://h/m%2Bq.gguf", "m+q.gguf"},
       }) {
    const auto parsed = ParsePullSource(good.source, kHub);
    ASSERT_TRUE(parsed.ok()) << good.source << ": " << parsed.status().message();
    EXPECT_EQ(parsed->url, good.url);
    EXPECT_EQ(parsed->file_name, good.file_name);
  }
}

TEST(PullSource, AnEndpointMayHaveAPathAndATrailingSlash) {
  const auto parsed = ParsePullSource("hf:o/r/m.gguf", "http://127.0.0.1:9/mirror/");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->url, "http://127.0.0.1:9/mirror/o/r/resolve/main/m.gguf");
}

TEST(PullSource, WhatCannotBecomeAPlainModelFileIsRefused) {
  for (const std::string source : {
           "", "m.gguf", "/tmp/m.gguf", "ftp://h/m.gguf", "file:///m.gguf", "http://", "http:///m.gguf", "https://h/", "https://h/m",
           "https://h/m.exe", "https://h/.gguf", "https://h/.m.gguf", "https://h/a%2Fm.gguf", "https://h/%2E%2E%2Fm.gguf",
           "https://h/a..m.gguf", "https://h/a%5Cm.gguf", "https://h/a%00m.gguf", "https://h/m.gguf%0A", "https://h/a b.gguf",
           "https://h/%C3%A9.gguf", "https://u:p@h/m.gguf", "https://u@h/m.gguf", "https://h/m.gguf.part.json", "https://h:99999/m.gguf",
           "hf:", "hf:o/m.gguf", "hf:o//m.gguf", "hf:o/r/", "hf:o/r/../m.gguf", "hf:../r/m.gguf", "hf:o/r/m.gguf@", "hf:o/r/m.gguf@a b",
           "hf:o/r/m.gguf@..", "hf:o/r/m.txt", "hf:o/r/m\n.gguf"}) {
    const auto parsed = ParsePullSource(source, kHub);
    ASSERT_FALSE(parsed.ok()) << source;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << source;
    EXPECT_FALSE(parsed.status().message().empty());
  }
  EXPECT_FALSE(ParsePullSource(std::string("https://h/").append(250, 'a') + ".gguf", kHub).ok());
  EXPECT_FALSE(ParsePullSource(std::string("https://h/").append(9000, 'a') + "/m.gguf", kHub).ok());
}

TEST(PullSource, AnEndpointThatIsNoBaseUrlIsRefused) {
  for (const char* endpoint : {"", "hub", "ftp://hub", "https://hub?x=1", "https://hub#x", "https://u:p@hub"}) {
    EXPECT_FALSE(ParsePullSource("hf:o/r/m.gguf", endpoint).ok()) << endpoint;
  }
}

TEST(PullSource, AnOriginIsSchemeHostAndPort) {
  EXPECT_EQ(ParseOrigin("https://H.example/x")->origin, "https://h.example:443");
  EXPECT_EQ(ParseOrigin("http://h:8080/")->origin, "http://h:8080");
  for (const char* url : {"http://localhost:1/", "http://127.0.0.1/", "http://127.1.2.3/", "http://[::1]/"}) {
    EXPECT_TRUE(ParseOrigin(url)->is_loopback) << url;
  }
  for (const char* url : {"http://127.evil.example/", "http://localhost.example/", "http://128.0.0.1/"}) {
    EXPECT_FALSE(ParseOrigin(url)->is_loopback) << url;
  }
}

TEST(PullSource, ARedirectNeverLeavesHttpOrDropsTheProtection) {
  EXPECT_TRUE(CheckRedirect("http://a/x", "http://b/y").ok());
  EXPECT_TRUE(CheckRedirect("http://a/x", "https://b/y").ok());
  EXPECT_TRUE(CheckRedirect("https://a/x", "https://b/y").ok());
  for (const char* target : {"http://a/x", "file:///etc/passwd", "ftp://a/x", "gopher://a/x", "", "https://u:p@b/"}) {
    const Status status = CheckRedirect("https://a/x", target);
    EXPECT_EQ(status.code(), StatusCode::kIoError) << target;
  }
}

TEST(PullSource, QueriesAreNotShown) {
  EXPECT_EQ(UrlWithoutQuery("https://h/m.gguf?token=secret#x"), "https://h/m.gguf");
  const auto parsed = ParsePullSource("gopher://h/m.gguf?token=secret", kHub);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().message().find("secret"), std::string::npos);
}

}  // namespace
}  // namespace oscar::engine
