#include "src/engine/serve/auth.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

base::Sha256Digest DigestOf(std::string_view key) {
  base::Sha256 hash;
  hash.Update(key);
  return hash.Finish();
}

Status ReadAttribute(const std::string& attribute, ApiKey* key) {
  const auto invalid = [&](const std::string& what) { return Status(StatusCode::kInvalidArgument, what); };
  const size_t equals = attribute.find('=');
  const std::string name = attribute.substr(0, equals), value = equals == std::string::npos ? "" : attribute.substr(equals + 1);
  if (name == "name" && !value.empty()) {
    key->name = value;
  } else if (name == "role" && value == "user") {
    key->role = KeyRole::kUser;
  } else if (name == "role" && value == "metrics") {
    key->role = KeyRole::kMetrics;
  } else if (name == "role" && value == "admin") {
    key->role = KeyRole::kAdmin;
  } else if (name == "tenant" && !value.empty()) {
    key->tenant = value;
  } else if (name == "max_priority" && std::from_chars(value.data(), value.data() + value.size(), key->least_priority).ptr == value.data() + value.size() &&
             !value.empty()) {
  } else {
    return invalid("behind a key stand name=NAME, tenant=NAME, role=user, metrics or admin, and max_priority=N");
  }
  return {};
}

}  // namespace

Result<KeyRing> KeyRing::Read(const std::filesystem::path& path) {
  KeyRing ring;
  if (path.empty()) return ring;
  const std::string option = "--api-key-file " + path.string();
  std::ifstream file(path);
  if (!file) return Status(StatusCode::kNotFound, option + ": cannot be read");
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || word[0] == '#') continue;
    ApiKey key;
    key.digest = DigestOf(word);
    while (words >> word) OSCAR_TRY(ReadAttribute(word, &key).WithContext(option + ", line " + std::to_string(number)));
    ring.Keep(std::move(key));
  }
  if (ring.keys_.empty()) return Status(StatusCode::kInvalidArgument, option + ": holds no key");
  return ring;
}

void KeyRing::Add(std::string_view key) {
  ApiKey added;
  added.digest = DigestOf(key);
  added.role = KeyRole::kAdmin;
  Keep(std::move(added));
}

void KeyRing::Keep(ApiKey key) {
  if (key.tenant.empty()) key.tenant = key.name.empty() ? "key" + std::to_string(keys_.size() + 1) : key.name;
  const auto known = std::ranges::find(tenants_, key.tenant);
  key.tenant_index = static_cast<int>(known - tenants_.begin());
  if (known == tenants_.end()) tenants_.push_back(key.tenant);
  keys_.push_back(std::move(key));
}

const ApiKey* KeyRing::Find(const HttpRequest& request) const {
  std::string presented;
  if (const std::string* given = request.Find("authorization"); given != nullptr && given->starts_with("Bearer ")) {
    presented = given->substr(7);
  } else if (const std::string* api_key = request.Find("x-api-key")) {
    presented = *api_key;
  }
  const base::Sha256Digest digest = DigestOf(presented);
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_) {
    uint8_t difference = 0;  // compared in full whatever the bytes, so that time tells nothing
    for (size_t i = 0; i < digest.size(); ++i) difference |= static_cast<uint8_t>(digest[i] ^ key.digest[i]);
    if (difference == 0) found = &key;
  }
  return found;
}

bool IsLoopback(std::string_view host) { return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == "[::1]"; }

std::string_view HostOf(std::string_view field) { return field.substr(0, field.ends_with(']') ? std::string_view::npos : field.rfind(':')); }

HttpFields OriginFields(const HttpRequest& request, const std::vector<std::string>& allowed) {
  if (allowed.empty()) return {};
  const std::string* origin = request.Find("origin");
  if (origin == nullptr || std::ranges::find(allowed, *origin) == allowed.end()) return {{"Vary", "Origin"}};
  return {{"Vary", "Origin"}, {"Access-Control-Allow-Origin", *origin}, {"Access-Control-Expose-Headers", "x-request-id, retry-after, x-oscar-ignored-fields"}};
}

HttpFields PreflightFields(const HttpRequest& request, const std::vector<std::string>& allowed) {
  const std::string* origin = request.Find("origin");
  if (origin == nullptr || std::ranges::find(allowed, *origin) == allowed.end()) return {};
  return {{"Access-Control-Allow-Methods", "GET, POST"}, {"Access-Control-Allow-Headers", "authorization, content-type, x-api-key, x-request-id"},
          {"Access-Control-Max-Age", "600"}};
}

}  // namespace oscar::engine
