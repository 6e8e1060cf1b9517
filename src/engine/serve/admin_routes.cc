#include "src/engine/serve/admin_routes.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "src/engine/serve/request_fields.h"
#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kKvPrefix = "/v1/kv/";
constexpr std::string_view kKvSuffix = ".oscarkv";

RouteAnswer Refused(const ApiError& error) { return {error.status, error.Body()}; }

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= 64 && name[0] != '.' && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

RouteAnswer ClearPrefixes(Scheduler& scheduler) {
  ordered_json answer;
  const Status status = scheduler.Call([&](KvCache& cache) {
    PrefixCache& prefixes = *cache.prefixes();
    const PrefixStats before = prefixes.prefix_stats();
    const KvCacheStats held = cache.stats();
    prefixes.Clear();
    const int64_t freed = before.idle_encoded_pages * int64_t{kPageTokens};
    answer = {{"success", true},
              {"flushed_tokens", freed},
              {"flushed_bytes", held.used_bytes() - cache.stats().used_bytes()},
              {"detached_tokens", std::max<int64_t>(0, before.tokens - freed)}};
  });
  return status.ok() ? RouteAnswer{200, JsonText(answer)} : Refused(FromStatus(status));
}

RouteAnswer Abort(std::string_view body, const AdminContext& context) {
  const auto parsed = io::ParseJson(body);
  if (!parsed.ok() || !parsed->is_object()) return Refused(ApiError::Invalid("invalid_json", "", "the body must be a JSON object"));
  RequestFields fields(*parsed);
  const std::optional<std::string> named = fields.Text("request_id"), short_named = fields.Text("rid");
  const bool all = fields.Bool("abort_all").value_or(false);
  for (const auto* id : {&named, &short_named}) {
    if (*id && (*id)->empty()) fields.Fail(ApiError::Invalid("invalid_value", id == &named ? "request_id" : "rid", "the id of a request is not empty"));
  }
  if (fields.ok() && !all && !named && !short_named) {
    fields.Fail(ApiError::Invalid("missing_required_parameter", "request_id", "request_id: is required, or abort_all: true"));
  }
  if (!fields.ok()) return Refused(fields.error());
  return {200, JsonText({{"aborted", context.abort(all ? "" : named ? *named : *short_named)}})};
}

RouteAnswer FileError(const Status& status) {
  if (status.code() == StatusCode::kCorruptData || status.code() == StatusCode::kFailedPrecondition) {
    return Refused(ApiError::Invalid("kv_file_rejected", "name", status.message().substr(status.message().rfind('/') + 1)));
  }
  if (status.code() == StatusCode::kNotFound) return Refused({404, "invalid_request_error", "kv_file_not_found", "name", "there is no such KV file", {}});
  return Refused(FromStatus(status));
}

RouteAnswer KvFiles(const AdminContext& context) {
  ordered_json files = ordered_json::array();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(context.kv_folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(kKvSuffix)) continue;
    std::error_code ignored;
    files.push_back({{"name", name.substr(0, name.size() - kKvSuffix.size())}, {"bytes", entry.file_size(ignored)}});
  }
  return {200, JsonText({{"files", std::move(files)}})};
}

RouteAnswer SaveOrRestore(bool save, std::string_view body, const AdminContext& context) {
  const auto parsed = io::ParseJson(body);
  if (!parsed.ok() || !parsed->is_object()) return Refused(ApiError::Invalid("invalid_json", "", "the body must be a JSON object"));
  const json name = parsed->value("name", json());
  if (!name.is_string() || !IsName(name.get<std::string>())) {
    return Refused(ApiError::Invalid("invalid_value", "name", "name: must be 1 to 64 of A-Z a-z 0-9 . _ - and not begin with a dot"));
  }
  const std::filesystem::path path = context.kv_folder / (name.get<std::string>() + std::string(kKvSuffix));
  Status done;
  ordered_json answer = {{"success", true}};
  std::unique_ptr<PrefixCopy> copy;
  const Status called = context.scheduler.Call([&](KvCache& cache) {
    PrefixCache& prefixes = *cache.prefixes();
    if (save) {
      Result<std::unique_ptr<PrefixCopy>> copied = prefixes.Copy(context.model_fingerprint);
      done = copied.status();
      if (copied.ok()) copy = *std::move(copied);
    } else {
      const Result<int> restored = prefixes.Restore(path, context.model_fingerprint);
      done = restored.status();
      if (restored.ok()) answer["resume_points"] = *restored;
    }
  });
  if (!called.ok()) return Refused(FromStatus(called));
  if (copy != nullptr) {  // steps go on while it is written
    done = copy->Save(path);
    answer["resume_points"] = copy->resume_points();
  }
  if (!done.ok()) return FileError(done);
  std::error_code ignored;
  answer["bytes"] = std::filesystem::file_size(path, ignored);
  return {200, JsonText(answer)};
}

RouteAnswer DeleteFile(std::string_view name, const AdminContext& context) {
  std::error_code error;
  const bool removed = IsName(name) && std::filesystem::remove(context.kv_folder / (std::string(name) + std::string(kKvSuffix)), error);
  if (!removed) return FileError({StatusCode::kNotFound, "no such file"});
  return {200, JsonText({{"success", true}})};
}

}  // namespace

RouteAnswer RunAdminRoute(std::string_view path, std::string_view method, std::string_view body, const AdminContext& context) {
  if (path == "/flush_cache" || path == "/reset_prefix_cache") return ClearPrefixes(context.scheduler);
  if (path == "/abort_request") return Abort(body, context);
  if (context.kv_folder.empty()) return Refused(FromHttpStatus(404, "no --kv-dir: this server keeps no KV files"));
  if (path == "/v1/kv") return KvFiles(context);
  if (method == "DELETE") return DeleteFile(path.substr(kKvPrefix.size()), context);
  return SaveOrRestore(path == "/v1/kv/save", body, context);
}

}  // namespace oscar::engine
