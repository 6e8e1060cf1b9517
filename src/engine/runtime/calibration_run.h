// The calibration of a model: its Q, K and V rows over a text, streamed into moments, and the profile fitted from them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "oscar/calibrate.h"
#include "oscar/result.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/progress_callback.h"
#include "src/engine/runtime/text_source.h"

namespace oscar::engine {

inline constexpr int64_t kDefaultCalibrationTokens = 30000;  // per layer: the published budget (method.md 2.6)
inline constexpr int kDefaultCalibrationWindow = 2048;       // tokens per window; each window is a sequence of its own

struct CalibrationRequest {
  std::string method = "int2:balanced";
  TextSource text;
  int64_t num_tokens = kDefaultCalibrationTokens;
  int window_tokens = kDefaultCalibrationWindow;
  OscarFitOptions oscar_fit;  // int2:oscar only
  RunControl control;
};

// "int2:balanced", "int2:oscar", ...: what Calibrate can fit.
bool IsCalibrated(std::string_view method);

struct CalibrationOutcome {
  CodecProfile profile;
  std::variant<FitReport, BalancedReport, std::monostate> report;  // of int2:oscar, of a balanced method, of rotatekv
  int64_t num_tokens = 0;
  double seconds = 0;
};

// Prompt tokens only, no warm-up, two passes over the same windows (method.md 2.1, quality.md 6; rotatekv: one). kUnsupported for a method that
// is not calibrated; kInvalidArgument for a text that is too short; kCancelled leaves nothing behind.
Result<CalibrationOutcome> Calibrate(Engine& engine, const CalibrationRequest& request);

}  // namespace oscar::engine
