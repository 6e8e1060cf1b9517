// Status and Result<T>: how every fallible public function of oscar answers. No exception crosses a public header.
// Read on: docs/engine-contract.md, "Errors".
#pragma once

#include <cassert>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace oscar {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // a bad option or argument of the caller
  kNotFound,            // a file, name or id that does not exist
  kUnsupported,         // well-formed, but not something we implement
  kCorruptData,         // bytes from a file or the network that break their format
  kNonFinite,           // NaN or infinity where a number is needed
  kResourceExhausted,   // out of pages or memory; nothing was lost
  kFailedPrecondition,  // right call, wrong time: a profile that does not fit the model, say
  kIoError,             // the operating system or the network said no
  kCancelled,           // interrupted by the user
  kInternal,            // a fault of ours that could still be reported
};

std::string_view StatusCodeName(StatusCode code);

// A code and one sentence that names what and where (file, tensor, field; layer, head and position).
class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
    assert(code != StatusCode::kOk);
  }
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // The same error with `context` and ": " in front of its message, for a caller that knows the file or request.
  Status WithContext(std::string_view context) const {
    return ok() ? *this : Status(code_, std::string(context) + ": " + message_);
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) { assert(!std::get<1>(state_).ok()); }
  Result(StatusCode code, std::string message) : Result(Status(code, std::move(message))) {}

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }
  // Precondition of the four below: ok().
  const T& value() const& { return std::get<0>(state_); }
  T& value() & { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  std::variant<T, Status> state_;
};

inline std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kCorruptData: return "corrupt data";
    case StatusCode::kNonFinite: return "non-finite value";
    case StatusCode::kResourceExhausted: return "resource exhausted";
    case StatusCode::kFailedPrecondition: return "failed precondition";
    case StatusCode::kIoError: return "i/o error";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kInternal: return "internal error";
  }
  return "unknown";
}

}  // namespace oscar
