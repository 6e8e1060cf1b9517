#include "src/engine/text/pattern.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <string>

namespace oscar::engine {
namespace {

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

Result<Pattern> Pattern::Compile(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (code == nullptr) {
    return {StatusCode::kInvalidArgument, "pattern \"" + std::string(pattern) + "\", offset " +
                                              std::to_string(offset) + ": " + ErrorText(error)};
  }
  // Fails where executable memory is forbidden; pcre2_match() then interprets.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Pattern(code);
}

PatternMatcher::PatternMatcher()
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(32 * 1024, kStackBytes, nullptr)) {
  if (data_ == nullptr || context_ == nullptr) throw std::bad_alloc();
  // Without a stack of our own PCRE2 uses 32 KiB of the thread's.
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  pcre2_set_heap_limit(context_.get(), kStackBytes / 1024);
}

Result<std::optional<PatternMatcher::Match>> PatternMatcher::Find(const Pattern& pattern,
                                                                  std::string_view subject,
                                                                  size_t from) {
  const size_t steps = std::min<size_t>(10'000'000 + kStepsPerByte * subject.size(),
                                        std::numeric_limits<uint32_t>::max());
  pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(steps));
  const int count =
      pcre2_match(pattern.code_.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(),
                  from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data_.get(), context_.get());
  if (count == PCRE2_ERROR_NOMATCH) return std::optional<Match>();
  if (count < 0) {
    return {StatusCode::kResourceExhausted, "splitting a text of " +
                                                std::to_string(subject.size()) + " bytes at byte " +
                                                std::to_string(from) + ": " + ErrorText(count)};
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data_.get());
  return std::optional<Match>(Match{offsets[0], offsets[1]});
}

}  // namespace oscar::engine
