#include "src/engine/serve/auth.h"

#include <gtest/gtest.h>

#include <fstream>

#include "src/testing/temporary_folder.h"

namespace oscar::engine {
namespace {

Result<KeyRing> Read(const std::string& text) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "keys";
  std::ofstream(path) << text;
  return KeyRing::Read(path);
}

HttpRequest With(const std::string& key) {
  HttpRequest request;
  request.fields["authorization"] = "Bearer " + key;
  return request;
}

TEST(KeyRing, LinesHaveAKeyAndItsTenantRoleAndPriority) {
  const auto keys = Read("# ours\n\nalpha role=admin\nbeta name=web tenant=shop max_priority=-2\ngamma tenant=shop role=metrics\r\n");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->num_tenants(), 2);
  const ApiKey *alpha = keys->Find(With("alpha")), *beta = keys->Find(With("beta")), *gamma = keys->Find(With("gamma"));
  ASSERT_TRUE(alpha != nullptr && beta != nullptr && gamma != nullptr);
  EXPECT_EQ(alpha->tenant, "key1");
  EXPECT_EQ(beta->least_priority, -2);
  EXPECT_EQ(beta->tenant_index, gamma->tenant_index);
  EXPECT_NE(alpha->tenant_index, beta->tenant_index);
  EXPECT_EQ(keys->Find(With("delta")), nullptr);
  EXPECT_EQ(keys->Find(HttpRequest()), nullptr);
  for (const KeyRole needed : {KeyRole::kMetrics, KeyRole::kUser, KeyRole::kAdmin}) {
    EXPECT_TRUE(alpha->Allows(needed));
    EXPECT_EQ(beta->Allows(needed), needed != KeyRole::kAdmin);
    EXPECT_EQ(gamma->Allows(needed), needed == KeyRole::kMetrics);
  }
}

TEST(KeyRing, WhatCannotBeReadIsRefusedByLineWithoutTheKey) {
  for (const char* text : {"secret word", "ok\nsecret role=king", "secret max_priority=x", "secret max_priority=", "secret tenant="}) {
    const auto keys = Read(text);
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_EQ(keys.status().message().find("secret"), std::string::npos) << keys.status().message();
    EXPECT_NE(keys.status().message().find("line"), std::string::npos) << keys.status().message();
  }
  EXPECT_FALSE(Read("# nothing\n").ok());
}

HttpRequest From(const std::string& origin) {
  HttpRequest request;
  request.fields["origin"] = origin;
  return request;
}

TEST(Hosts, LoopbackNamesAreKnownWithAndWithoutPorts) {
  for (const char* host : {"localhost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]:8080", "[::1]"}) EXPECT_TRUE(IsLoopback(HostOf(host))) << host;
  for (const char* host : {"evil.example", "127.0.0.1.evil.example:80", "localhost.evil:8080", ""}) EXPECT_FALSE(IsLoopback(HostOf(host))) << host;
}

TEST(Origins, OnlyNamedOnesAreEchoed) {
  const std::vector<std::string> allowed = {"https://a.example"};
  EXPECT_TRUE(OriginFields(From("https://a.example"), {}).empty());
  EXPECT_EQ(OriginFields(From("https://a.example"), allowed).size(), 3u);
  for (const char* other : {"https://a.example.evil", "http://a.example", "null", "*"}) {
    EXPECT_EQ(OriginFields(From(other), allowed).size(), 1u) << other;  // Vary
    EXPECT_TRUE(PreflightFields(From(other), allowed).empty()) << other;
  }
  EXPECT_EQ(PreflightFields(From("https://a.example"), allowed).size(), 3u);
}

}  // namespace
}  // namespace oscar::engine
