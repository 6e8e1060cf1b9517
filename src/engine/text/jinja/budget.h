// Limits of one parse or rendering and the error that stops it. A template is data from a model file, so it may be
// hostile: everything that takes time, memory or stack is paid for from a Budget. Error is the only exception of this
// folder; it is thrown inside it alone and caught in template.cc, which answers with a Status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "oscar/result.h"

namespace oscar::engine::jinja {

struct Error {
  StatusCode code = StatusCode::kInvalidArgument;
  std::string message;
  int line = 0;  // of the template; 0: not known yet, filled in by the evaluator
};

[[noreturn]] inline void Fail(std::string message, StatusCode code = StatusCode::kInvalidArgument, int line = 0) {
  throw Error{code, std::move(message), line};
}

// Nesting of expressions and statements in the source, of JSON documents, and of lists and dicts in values.
inline constexpr int kMaxSourceDepth = 100;
inline constexpr int kMaxJsonDepth = 128;
inline constexpr int kMaxValueDepth = 200;

struct Limits {
  int64_t max_steps = 50'000'000;              // nodes evaluated and elements visited: a few seconds
  int64_t max_bytes = int64_t{512} << 20;      // texts and elements ever made by one rendering
  size_t max_output_bytes = size_t{64} << 20;  // the rendered text
  int max_depth = 1000;                        // nodes being evaluated at one time, through macro calls
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}
  void Spend(int64_t steps) {
    if ((steps_ += steps) > limits_.max_steps) Fail("rendering takes too many steps", StatusCode::kResourceExhausted);
  }
  void SpendBytes(size_t bytes) {
    if (bytes > static_cast<size_t>(limits_.max_bytes) || (bytes_ += static_cast<int64_t>(bytes)) > limits_.max_bytes) {
      Fail("rendering takes too much memory", StatusCode::kResourceExhausted);
    }
    Spend(static_cast<int64_t>(bytes / 64 + 1));
  }
  const Limits& limits() const { return limits_; }

 private:
  Limits limits_;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace oscar::engine::jinja
