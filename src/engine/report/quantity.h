// Numbers as people read them in tables and progress lines: ASCII, a unit, no locale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace oscar::engine {

// "17 B", "1.21 GiB": three significant digits in powers of 1024, whole bytes below 1 KiB. Negative or non-finite: "-".
std::string FormatBytes(double bytes);

// "12.3 MiB/s". Negative or non-finite rates: "-".
std::string FormatBytesPerSecond(double bytes_per_second);

// `value` with `decimals` (0 to 12) places, then a space and the unit if one is given: "2.28 bits/element". Non-finite: "nan",
// "inf", "-inf". A value that rounds to zero loses its sign.
std::string FormatDecimal(double value, int decimals, std::string_view unit = {});

// `digits` (1 to 12) significant digits, but never fewer than the integer part has; in scientific form outside [1e-4, 1e6):
// "0.0312", "1234", "8.12e-05". For KL divergences.
std::string FormatSignificant(double value, int digits);

// "1,234,567".
std::string FormatCount(int64_t count);

// "0:07", "12:34", "3:04:05"; more than 99 hours: ">99 h". Rounded to whole seconds. Negative or non-finite: "-".
std::string FormatDuration(double seconds);

}  // namespace oscar::engine
