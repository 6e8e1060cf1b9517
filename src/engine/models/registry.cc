// The list of architectures: one line each.

#include <algorithm>
#include <string>

#include "src/engine/models/arch.h"

namespace oscar::engine {

extern const ModelArch kLlama;
extern const ModelArch kQwen2;
extern const ModelArch kQwen3;
extern const ModelArch kQwen3Moe;

namespace {
constexpr const ModelArch* kArchs[] = {&kLlama, &kQwen2, &kQwen3, &kQwen3Moe};
}  // namespace

const ModelArch* FindArch(std::string_view name) {
  for (const ModelArch* arch : kArchs) {
    if (std::ranges::find(arch->names, name) != arch->names.end()) return arch;
  }
  return nullptr;
}

std::string ArchNames() {
  std::string text;
  for (const ModelArch* arch : kArchs) {
    for (std::string_view name : arch->names) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

}  // namespace oscar::engine
