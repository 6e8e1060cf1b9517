// The results of `oscar bench`, `bench prefill` and `bench decode`, as text and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/engine/bench/speed.h"
#include "src/engine/models/model.h"
#include "tools/bench_ceilings.h"

namespace oscar::tools {

struct BenchTableInputs {
  engine::SpeedPart part = engine::SpeedPart::kBoth;
  bool processor_time = false;
  std::optional<Ceilings> ceilings;  // none: no shares of them
  engine::ModelConfig config;
  uint64_t step_weight_bytes = 0;
};

std::string BenchJson(const engine::SpeedReport& report, const BenchTableInputs& inputs);
std::string BenchText(const engine::SpeedReport& report, const BenchTableInputs& inputs);

}  // namespace oscar::tools
