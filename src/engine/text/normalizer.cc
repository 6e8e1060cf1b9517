#include "src/engine/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "src/base/check.h"
#include "src/engine/text/utf8.h"

namespace oscar::engine {
namespace {

// Every character below U+0300 is its own NFC and never composes with one before it.
bool IsPlainLatin(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
}

int CombiningClass(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Canonical ordering: each run of marks sorted by combining class, equals in their order.
// utf8proc's own ordering swaps neighbours, quadratic in the run's length, so a text of a million
// marks would stop us.
void OrderMarks(std::vector<utf8proc_int32_t>* points) {
  for (auto it = points->begin(); it != points->end();) {
    if (CombiningClass(*it) == 0) {
      ++it;
      continue;
    }
    const auto end = std::find_if(
        it, points->end(), [](utf8proc_int32_t point) { return CombiningClass(point) == 0; });
    std::stable_sort(it, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    it = end;
  }
}

}  // namespace

std::string NormalizeNfc(std::string_view text) {
  if (IsPlainLatin(text)) return std::string(text);
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    OSCAR_CHECK(step.kind == Utf8Kind::kCharacter);
    utf8proc_int32_t expanded[32];  // the longest canonical decomposition has four characters
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(step.code_point), expanded, 32,
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
    OSCAR_CHECK(count >= 1 && count <= 32);
    points.insert(points.end(), expanded, expanded + count);
    text.remove_prefix(step.size);
  }
  OrderMarks(&points);
  const utf8proc_ssize_t size =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  OSCAR_CHECK(size >= 0);
  std::string normalized;
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    AppendUtf8(static_cast<uint32_t>(points[static_cast<size_t>(i)]), &normalized);
  }
  return normalized;
}

}  // namespace oscar::engine
