// The routes of the server (serving.md 3): what each takes, who may use it, and the name under which it is counted.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "src/engine/serve/auth.h"

namespace oscar::engine {

enum class RouteKind : uint8_t {
  kPage,            // the chat page, its icon
  kHealth,          // public, from stamps alone
  kMetrics,         // numbers of the server: metrics, load, cache
  kDescription,     // what is served
  kTokens,          // text to tokens and back
  kCompletion,      // chat and text completions
  kRender,          // their prompts alone
  kHealthGenerate,  // one token, end to end
  kAdmin,           // prefixes, aborts, KV files
};

struct Route {
  std::string_view path;    // "{x}" stands for the rest
  std::string_view method;  // "GET" (and HEAD), "POST" or "DELETE"
  RouteKind kind;
  bool is_public() const { return kind == RouteKind::kPage || kind == RouteKind::kHealth; }
  // The least that a key must be.
  KeyRole role() const;
  std::string Allowed() const;  // "GET, HEAD, OPTIONS"
  bool Takes(std::string_view given) const { return given == method || (given == "HEAD" && method == "GET"); }
};

std::span<const Route> Routes();
// The route of a path without its query; null when there is none.
const Route* FindRoute(std::string_view path);

}  // namespace oscar::engine
