#include "src/engine/serve/routes.h"

#include <algorithm>

namespace oscar::engine {
namespace {

constexpr Route kRoutes[] = {
    {"/", "GET", RouteKind::kPage},
    {"/favicon.ico", "GET", RouteKind::kPage},
    {"/health", "GET", RouteKind::kHealth},
    {"/ready", "GET", RouteKind::kHealth},
    {"/live", "GET", RouteKind::kHealth},
    {"/health_generate", "GET", RouteKind::kHealthGenerate},
    {"/metrics", "GET", RouteKind::kMetrics},
    {"/v1/loads", "GET", RouteKind::kMetrics},
    {"/v1/cache", "GET", RouteKind::kMetrics},
    {"/v1/models", "GET", RouteKind::kDescription},
    {"/v1/models/{id}", "GET", RouteKind::kDescription},
    {"/version", "GET", RouteKind::kDescription},
    {"/model_info", "GET", RouteKind::kDescription},
    {"/server_info", "GET", RouteKind::kDescription},
    {"/tokenizer_info", "GET", RouteKind::kDescription},
    {"/openapi.json", "GET", RouteKind::kDescription},
    {"/v1/chat/completions", "POST", RouteKind::kCompletion},
    {"/v1/completions", "POST", RouteKind::kCompletion},
    {"/inference/v1/generate", "POST", RouteKind::kCompletion},
    {"/v1/chat/completions/render", "POST", RouteKind::kRender},
    {"/v1/completions/render", "POST", RouteKind::kRender},
    {"/tokenize", "POST", RouteKind::kTokens},
    {"/v1/tokenize", "POST", RouteKind::kTokens},
    {"/detokenize", "POST", RouteKind::kTokens},
    {"/v1/detokenize", "POST", RouteKind::kTokens},
    {"/flush_cache", "POST", RouteKind::kAdmin},
    {"/reset_prefix_cache", "POST", RouteKind::kAdmin},
    {"/abort_request", "POST", RouteKind::kAdmin},
    {"/v1/kv", "GET", RouteKind::kAdmin},
    {"/v1/kv/save", "POST", RouteKind::kAdmin},
    {"/v1/kv/restore", "POST", RouteKind::kAdmin},
    {"/v1/kv/{name}", "DELETE", RouteKind::kAdmin},
};

bool Fits(const Route& route, std::string_view path) {
  const size_t open = route.path.find('{');
  return open == std::string_view::npos ? path == route.path : path.starts_with(route.path.substr(0, open));
}

}  // namespace

KeyRole Route::role() const {
  if (kind == RouteKind::kAdmin) return KeyRole::kAdmin;
  return path == "/metrics" ? KeyRole::kMetrics : KeyRole::kUser;
}

std::string Route::Allowed() const { return std::string(method) + (method == "GET" ? ", HEAD, OPTIONS" : ", OPTIONS"); }

std::span<const Route> Routes() { return kRoutes; }

const Route* FindRoute(std::string_view path) {
  const auto* found = std::ranges::find_if(kRoutes, [&](const Route& route) { return Fits(route, path); });
  return found == std::end(kRoutes) ? nullptr : found;
}

}  // namespace oscar::engine
