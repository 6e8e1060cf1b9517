#include "src/engine/serve/routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "src/engine/serve/embedded_files.h"

namespace oscar::engine {
namespace {

TEST(Routes, AreThoseOfTheOpenApiFileButForThePage) {
  std::set<std::string> described, served;
  const nlohmann::json file = nlohmann::json::parse(OpenApiDescription());
  for (const auto& [path, methods] : file.at("paths").items()) {
    for (const auto& [method, _] : methods.items()) described.insert(method + " " + path);
  }
  for (const Route& route : Routes()) {
    std::string method(route.method);
    std::ranges::transform(method, method.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (route.kind != RouteKind::kPage) served.insert(method + " " + std::string(route.path));
  }
  EXPECT_EQ(served, described);
}

TEST(Routes, PathsAreFoundWholeOrByTheirBeginning) {
  EXPECT_EQ(FindRoute("/nowhere"), nullptr);
  EXPECT_EQ(FindRoute(""), nullptr);
  EXPECT_EQ(FindRoute("/v1/kv/save")->method, "POST");
  EXPECT_EQ(FindRoute("/v1/kv/other")->method, "DELETE");
  EXPECT_EQ(FindRoute("/v1/models/a/b")->path, "/v1/models/{id}");
  EXPECT_EQ(FindRoute("/v1/models")->Allowed(), "GET, HEAD, OPTIONS");
  EXPECT_TRUE(FindRoute("/health")->Takes("HEAD"));
  EXPECT_FALSE(FindRoute("/tokenize")->Takes("GET"));
}

TEST(Routes, OnlyThePageAndHealthArePublicAndOnlyAdminsMayChangeTheServer) {
  for (const Route& route : Routes()) {
    const bool open = route.path == "/" || route.path == "/favicon.ico" || route.path == "/health" || route.path == "/ready" || route.path == "/live";
    EXPECT_EQ(route.is_public(), open) << route.path;
    const bool admin = route.path.starts_with("/v1/kv") || route.path == "/flush_cache" || route.path == "/reset_prefix_cache" || route.path == "/abort_request";
    EXPECT_EQ(route.role() == KeyRole::kAdmin, admin) << route.path;
  }
  EXPECT_EQ(FindRoute("/metrics")->role(), KeyRole::kMetrics);
}

}  // namespace
}  // namespace oscar::engine
