// Checks of option values that CLI11 does not have, or does not say in a user's words.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <map>
#include <string>

namespace oscar::tools {

// One of the names, which becomes its value. An error lists the names.
template <class Enum>
CLI::Validator OneOf(const std::map<std::string, Enum>& names) {
  return CLI::Validator(
      [names](std::string& text) -> std::string {
        const auto found = names.find(text);
        if (found != names.end()) {
          text = std::to_string(static_cast<int>(found->second));
          return "";
        }
        std::string list;
        for (const auto& [name, value] : names) list += (list.empty() ? "" : ", ") + name;
        return "\"" + text + "\": must be one of " + list;
      },
      "");
}

// A whole number of 64 bits without a sign; CLI11 itself wraps and saturates.
inline CLI::Validator Seed() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        return error == std::errc() && end == text.data() + text.size() ? "" : "\"" + text + "\": must be a whole number from 0 to 18446744073709551615";
      },
      "");
}

}  // namespace oscar::tools
