// Pattern and PatternMatcher: PCRE2 with Unicode classes, bounded in steps and stack, so that no
// text can hang or crash it.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "oscar/result.h"

namespace oscar::engine {

class Pattern {
 public:
  // kInvalidArgument with PCRE2's message and the offset. Classes and case are Unicode's
  // (PCRE2_UTF, PCRE2_UCP). Compiled to machine code where the system allows that; the interpreter
  // gives the same matches.
  static Result<Pattern> Compile(std::string_view pattern);

 private:
  friend class PatternMatcher;
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  explicit Pattern(pcre2_code* code) : code_(code) {}
  std::unique_ptr<pcre2_code, Free> code_;
};

// Working memory of matching; for one thread at a time, any number of patterns.
class PatternMatcher {
 public:
  struct Match {
    size_t begin = 0, end = 0;  // bytes of the subject
  };

  PatternMatcher();

  // The first non-empty match that begins at or after `from`, if any. kResourceExhausted when the
  // pattern backtracks more than kStepsPerByte steps for each byte of the subject (and 10 million),
  // or needs more than kStackBytes of stack. Precondition: `subject` is valid UTF-8 and `from` lies
  // between two of its characters.
  Result<std::optional<Match>> Find(const Pattern& pattern, std::string_view subject, size_t from);

  static constexpr size_t kStackBytes = size_t{1} << 20;
  static constexpr size_t kStepsPerByte = 16;

 private:
  struct Free {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
    void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
  };
  std::unique_ptr<pcre2_match_data, Free> data_;
  std::unique_ptr<pcre2_match_context, Free> context_;
  std::unique_ptr<pcre2_jit_stack, Free> stack_;
};

}  // namespace oscar::engine
