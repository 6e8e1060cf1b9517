// EngineOptions: the settings that every command shares, with their defaults beside the fields. One vocabulary on the command
// line (tools/command_line.h); a setting is honoured or refused, never ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "src/engine/ops/ops.h"
#include "src/engine/weights/checkpoint.h"

namespace oscar::engine {

inline constexpr int kDefaultContext = 4096;  // tokens, when neither --ctx nor a smaller model decides

enum class LoadFormat : uint8_t { kGguf, kDummy };

struct EngineOptions {
  std::string model;                // a path, or a name in the model cache
  WeightPrecision weights = WeightPrecision::kStored;
  LoadFormat load_format = LoadFormat::kGguf;  // kDummy: `model` names a published shape, its weights are random
  std::string kv = "int2:balanced";  // codec:method
  std::optional<int> encode_effort;  // of methods with error feedback, 0 to 2; empty: 2
  std::filesystem::path profile;    // empty: the one beside the model (ModelCache::ProfilePath)
  int sink = 64;                    // multiples of 64 (method.md 5.1)
  int recent = 256;
  int context = 0;                  // tokens; 0: min(kDefaultContext, what the model was trained for)
  int threads = 0;                  // 0: the cores this process may use
  Device device = Device::kCpu;     // where model and cache are computed
  bool deterministic = false;       // bits of a token's logits do not depend on how its tokens came into steps
};

}  // namespace oscar::engine
