// Windows of a text through the exact cache, for evaluations that look at rows and not at logits.
#pragma once

#include <cstdint>
#include <span>

#include "oscar/result.h"
#include "src/engine/evaluate/windows.h"
#include "src/engine/models/model.h"

namespace oscar::engine {

// Learns the position of the first row of the next step.
class StepObserver : public AttentionObserver {
 public:
  void set_first_position(int position) { first_position_ = position; }

 protected:
  int first_position() const { return first_position_; }

 private:
  int first_position_ = 0;
};

// Every token of every window, each window a sequence of its own. Progress counts tokens.
Status ObserveWindows(Engine& engine, std::span<const int32_t> tokens, const WindowPlan& plan, StepObserver& observer, const RunControl& control);

}  // namespace oscar::engine
