#include "src/engine/hub/model_cache.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <system_error>
#include <utility>

namespace oscar::engine {
namespace {

constexpr std::string_view kExtension = ".gguf";

// The base directory specification: a relative XDG_CACHE_HOME is to be ignored.
std::filesystem::path UserCacheRoot() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::filesystem::path(cache) / "oscar" / "models";
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') {
    const passwd* user = getpwuid(getuid());
    home = user != nullptr ? user->pw_dir : nullptr;
  }
  if (home == nullptr || home[0] != '/') return {};
  return std::filesystem::path(home) / ".cache" / "oscar" / "models";
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string JoinNames(const std::vector<std::filesystem::path>& paths) {
  std::string names;
  for (const auto& path : paths) names += (names.empty() ? "" : ", ") + path.filename().string();
  return names;
}

}  // namespace

ModelCache::ModelCache(std::filesystem::path root) : root_(root.empty() ? UserCacheRoot() : std::move(root)) {}

std::vector<std::filesystem::path> ModelCache::List() const {
  std::vector<std::filesystem::path> models;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root_, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code no_file;
    if (entry->is_regular_file(no_file) && LowerCase(entry->path().extension().string()) == kExtension) {
      models.push_back(entry->path());
    }
  }
  std::sort(models.begin(), models.end());
  return models;
}

Result<std::filesystem::path> ModelCache::Resolve(std::string_view model) const {
  if (model.empty()) return Status(StatusCode::kInvalidArgument, "the model's name is empty");
  const std::filesystem::path path(model);
  std::error_code error;
  if (std::filesystem::exists(path, error)) return path;
  if (model.find('/') != std::string_view::npos) {
    return Status(StatusCode::kNotFound, fmt::format("{}: no such model file", model));
  }
  const std::vector<std::filesystem::path> models = List();
  const std::string wanted = LowerCase(model);
  const auto name_of = [](const std::filesystem::path& file) { return file.filename().string(); };
  // From the strictest reading of the name to the loosest; the first that fits decides.
  const std::vector<std::function<bool(const std::string&)>> readings = {
      [&](const std::string& name) { return name == model; },
      [&](const std::string& name) { return name == std::string(model) + std::string(kExtension); },
      [&](const std::string& name) { return LowerCase(name) == wanted || LowerCase(name) == wanted + std::string(kExtension); },
      [&](const std::string& name) { return LowerCase(name).starts_with(wanted); },
  };
  for (const auto& fits : readings) {
    std::vector<std::filesystem::path> found;
    for (const auto& file : models) {
      if (fits(name_of(file))) found.push_back(file);
    }
    if (found.size() == 1) return found.front();
    if (found.size() > 1) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("the model name '{}' fits several: {}", model, JoinNames(found)));
    }
  }
  const std::string there = models.empty() ? "has no models yet" : "has " + JoinNames(models);
  return Status(StatusCode::kNotFound,
                fmt::format("'{}' is neither a file nor a model in the cache; {} {}", model, root_.string(), there));
}

std::filesystem::path ModelCache::ProfilePath(const std::filesystem::path& model, std::string_view method) {
  std::string name = model.filename().string();
  if (LowerCase(name).ends_with(kExtension)) name.resize(name.size() - kExtension.size());
  std::string plain_method(method);
  for (char& c : plain_method) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' || c == '-';
    if (!plain) c = '-';
  }
  return model.parent_path() / (name + "." + plain_method + ".profile.safetensors");
}

}  // namespace oscar::engine
