#include "src/engine/report/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>

#include "src/base/check.h"

namespace oscar::engine {
namespace {

constexpr std::array<std::string_view, 7> kByteUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

std::string NonFiniteText(double value) { return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

// Three significant digits of a value in [0, 1024), at most two of them behind the point.
std::string ThreeDigits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

}  // namespace

std::string FormatBytes(double bytes) {
  if (!std::isfinite(bytes) || bytes < 0) return "-";
  size_t unit = 0;
  // Not 1024: 1023.5 MiB would print as "1024 MiB", and is 1.00 GiB.
  while (bytes >= 1023.5 && unit + 1 < kByteUnits.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  return fmt::format("{} {}", unit == 0 ? fmt::format("{:.0f}", bytes) : ThreeDigits(bytes), kByteUnits[unit]);
}

std::string FormatBytesPerSecond(double bytes_per_second) {
  const std::string bytes = FormatBytes(bytes_per_second);
  return bytes == "-" ? bytes : bytes + "/s";
}

std::string FormatDecimal(double value, int decimals, std::string_view unit) {
  OSCAR_CHECK(decimals >= 0 && decimals <= 12);
  std::string text = std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : NonFiniteText(value);
  if (text.find_first_not_of("-0.") == std::string::npos && text.front() == '-') text.erase(0, 1);
  if (!unit.empty()) text += fmt::format(" {}", unit);
  return text;
}

std::string FormatSignificant(double value, int digits) {
  OSCAR_CHECK(digits >= 1 && digits <= 12);
  if (!std::isfinite(value)) return NonFiniteText(value);
  if (value == 0) return "0";
  // Rounding comes first: 999999.9 with three digits is a million and so in scientific form.
  const std::string scientific = fmt::format("{:.{}e}", value, digits - 1);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (exponent < -4 || exponent >= 6) return scientific;
  return fmt::format("{:.{}f}", value, std::max(0, digits - 1 - exponent));
}

std::string FormatCount(int64_t count) {
  std::string text = fmt::format("{}", count);
  const size_t first_digit = count < 0 ? 1 : 0;
  for (size_t end = text.size(); end > first_digit + 3;) {
    end -= 3;
    text.insert(end, 1, ',');
  }
  return text;
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds >= 99.0 * 3600.0) return ">99 h";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const int64_t hours = whole / 3600;
  if (hours == 0) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", hours, whole / 60 % 60, whole % 60);
}

}  // namespace oscar::engine
