// Who may ask: API keys, the Host field on loopback, origins of other sites' pages (serving.md 11).
#pragma once

#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/base/digest.h"
#include "src/engine/serve/http_server.h"

namespace oscar::engine {

enum class KeyRole { kUser, kMetrics, kAdmin };

struct ApiKey {
  base::Sha256Digest digest{};  // the key itself is not kept
  std::string name;             // for logs; may be empty
  KeyRole role = KeyRole::kUser;
  std::string tenant;           // whose share of the machine it uses, and whose prefixes it sees; the name, or "keyN", unless given
  int tenant_index = 0;
  int least_priority = std::numeric_limits<int>::min();  // lower numbers are more urgent: a key may not go below
  // An admin may do everything; reading metrics is the least that a key may do.
  bool Allows(KeyRole needed) const { return role == KeyRole::kAdmin || needed == KeyRole::kMetrics || role == needed; }
};

class KeyRing {
 public:
  // A file of lines "key [name=NAME] [tenant=NAME] [role=user|metrics|admin] [max_priority=N]", '#' before comments; an empty path
  // is an empty ring.
  // kNotFound when it cannot be read, kInvalidArgument naming the line, or when it holds no key.
  static Result<KeyRing> Read(const std::filesystem::path& path);
  // A key on the command line; it is an admin's.
  void Add(std::string_view key);

  bool empty() const { return keys_.empty(); }
  int num_tenants() const { return static_cast<int>(tenants_.size()); }
  // The key of Authorization: Bearer or X-Api-Key, or null. Takes as long whether it is known or not.
  const ApiKey* Find(const HttpRequest& request) const;

 private:
  void Keep(ApiKey key);

  std::vector<ApiKey> keys_;
  std::vector<std::string> tenants_;
};

bool IsLoopback(std::string_view host);
// The host of a Host field, without the port.
std::string_view HostOf(std::string_view field);

// Header fields for a page of another site whose origin is in `allowed`; empty for others.
HttpFields OriginFields(const HttpRequest& request, const std::vector<std::string>& allowed);
// The answer to OPTIONS: what such a page may send.
HttpFields PreflightFields(const HttpRequest& request, const std::vector<std::string>& allowed);

}  // namespace oscar::engine
