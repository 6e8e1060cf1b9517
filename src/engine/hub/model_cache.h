// The user's model cache: $XDG_CACHE_HOME/oscar/models (or ~/.cache/oscar/models), and what `-m NAME` finds there.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"

namespace oscar::engine {

class ModelCache {
 public:
  // `root` empty: the user's cache; it stays empty when the user has no home. Created when first written.
  explicit ModelCache(std::filesystem::path root = {});
  const std::filesystem::path& root() const { return root_; }
  // A path that exists is itself; else a file in the cache by its name, with or without ".gguf", case-insensitive, or a unique
  // prefix. kNotFound lists what the cache has; kInvalidArgument when the name fits several.
  Result<std::filesystem::path> Resolve(std::string_view model) const;
  // The *.gguf files of the cache (not of its sub-folders), sorted by name; empty when there is no cache yet.
  std::vector<std::filesystem::path> List() const;
  // Where the profile of a model and method is kept: beside the model, NAME.METHOD.profile.safetensors, where NAME is the file
  // name without ".gguf" and METHOD has '-' for what is not a letter, digit, '.', '_' or '-' ("int2:oscar" -> "int2-oscar").
  static std::filesystem::path ProfilePath(const std::filesystem::path& model, std::string_view method);

 private:
  std::filesystem::path root_;
};

}  // namespace oscar::engine
