#include "src/engine/text/grammar/regex.h"

#include <cstdio>

#include "src/base/status_macros.h"
#include "src/engine/text/grammar/code_point_reader.h"
#include "src/engine/text/utf8.h"

namespace oscar::engine::grammar {
namespace {

constexpr int kMaxDepth = 200;

class RegexParser {
 public:
  RegexParser(std::string_view pattern, const RegexOptions& options) : reader_(pattern), options_(options) {}

  Result<Expression> Parse() {
    const Expression anything = Expression::Repeat(CodePointsIn({{0, 0x10FFFF}}, options_.json_string), 0, Expression::kNoLimit);
    // Anchors count per alternative at the top: "^a|b$" is "a..." or "...b".
    std::vector<Expression> alternatives;
    do {
      const bool from_start = reader_.Take("^") || options_.whole;
      OSCAR_ASSIGN_OR_RETURN(Expression middle, ParseSequence(0));
      const bool to_end = reader_.Take("$") || options_.whole;
      std::vector<Expression> parts;
      if (!from_start) parts.push_back(anything);
      parts.push_back(std::move(middle));
      if (!to_end) parts.push_back(anything);
      alternatives.push_back(Expression::Sequence(std::move(parts)));
    } while (reader_.Take("|"));
    if (!reader_.done()) return reader_.Error(reader_.LooksAt(")") ? "a ')' without a '('" : "an anchor inside the pattern, or a misplaced mark,");
    return Expression::Choice(std::move(alternatives));
  }

 private:
  Result<Expression> ParseChoice(int depth) {
    if (depth > kMaxDepth) return reader_.Error("groups nested too deeply");
    std::vector<Expression> alternatives;
    do {
      OSCAR_ASSIGN_OR_RETURN(Expression one, ParseSequence(depth));
      alternatives.push_back(std::move(one));
    } while (reader_.Take("|"));
    return Expression::Choice(std::move(alternatives));
  }

  Result<Expression> ParseSequence(int depth) {
    std::vector<Expression> parts;
    while (!reader_.done() && !reader_.LooksAt("|") && !reader_.LooksAt(")") && !reader_.LooksAt("$")) {
      OSCAR_ASSIGN_OR_RETURN(Expression part, ParseAtom(depth));
      OSCAR_ASSIGN_OR_RETURN(part, ParseMarks(std::move(part)));
      parts.push_back(std::move(part));
    }
    return Expression::Sequence(std::move(parts));
  }

  Result<Expression> ParseMarks(Expression part) {
    int least = 1, most = 1;
    if (reader_.Take("*")) {
      least = 0, most = Expression::kNoLimit;
    } else if (reader_.Take("+")) {
      most = Expression::kNoLimit;
    } else if (reader_.Take("?")) {
      least = 0;
    } else if (reader_.Take("{")) {
      OSCAR_ASSIGN_OR_RETURN(const auto counts, reader_.ReadRepeat());
      least = counts.first, most = counts.second;
    } else {
      return part;
    }
    if (!reader_.Take("?")) reader_.Take("+");
    return Expression::Repeat(std::move(part), least, most);
  }

  Result<Expression> ParseAtom(int depth) {
    if (reader_.Take("(")) {
      if (reader_.Take("?:")) {
      } else if (reader_.LooksAt("?<") && !reader_.LooksAt("?<=") && !reader_.LooksAt("?<!")) {
        while (!reader_.done() && !reader_.Take(">")) reader_.Read();
      } else if (reader_.LooksAt("?")) {
        return Unsupported("look-around and flags");
      }
      OSCAR_ASSIGN_OR_RETURN(Expression inner, ParseChoice(depth + 1));
      if (!reader_.Take(")")) return reader_.Error("a '(' without a ')', or an anchor inside a group,");
      return inner;
    }
    if (reader_.Take("[")) return ParseClass();
    if (reader_.Take(".")) return CodePointsIn(Complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}), options_.json_string);
    if (reader_.Take("\\")) {
      OSCAR_ASSIGN_OR_RETURN(std::vector<CodePointRange> ranges, ParseEscape());
      return CodePointsIn(std::move(ranges), options_.json_string);
    }
    if (reader_.LooksAt("*") || reader_.LooksAt("+") || reader_.LooksAt("?") || reader_.LooksAt("{") || reader_.LooksAt("^")) {
      return reader_.Error("a misplaced '" + std::string(1, reader_.Peek()) + "'");
    }
    const char32_t c = reader_.Read();
    return CodePointsIn({{c, c}}, options_.json_string);
  }

  // Behind a backslash.
  Result<std::vector<CodePointRange>> ParseEscape() {
    if (reader_.done()) return reader_.Error("a backslash at the end");
    if (reader_.Take("u{")) return reader_.Error("an escape \\u{...}");
    const char32_t letter = reader_.Read();
    if (std::vector<CodePointRange> named = ClassEscape(letter); !named.empty()) return named;
    if (const auto control = ControlEscape(letter)) return std::vector<CodePointRange>{{*control, *control}};
    if (letter == 'u' || letter == 'x') {
      OSCAR_ASSIGN_OR_RETURN(const char32_t c, reader_.ReadHex(letter == 'u' ? 4 : 2));
      return std::vector<CodePointRange>{{c, c}};
    }
    if (letter == 'b' || letter == 'B' || letter == 'p' || letter == 'P' || letter == 'k' || (letter >= '1' && letter <= '9')) {
      return Unsupported("\\b, \\p and back references");
    }
    return std::vector<CodePointRange>{{letter, letter}};
  }

  // Behind a '['.
  Result<Expression> ParseClass() {
    const bool negated = reader_.Take("^");
    std::vector<CodePointRange> ranges;
    while (!reader_.Take("]")) {
      if (reader_.done()) return reader_.Error("a '[' without a ']'");
      OSCAR_ASSIGN_OR_RETURN(std::vector<CodePointRange> low, ParseClassPart());
      const bool single = low.size() == 1 && low[0].first == low[0].second;
      if (single && reader_.LooksAt("-") && !reader_.LooksAt("-]")) {
        reader_.Take("-");
        if (reader_.done()) return reader_.Error("a '[' without a ']'");
        OSCAR_ASSIGN_OR_RETURN(const std::vector<CodePointRange> high, ParseClassPart());
        if (high.size() != 1 || high[0].first != high[0].second || high[0].first < low[0].first) return reader_.Error("a range of no characters");
        low[0].second = high[0].second;
      }
      ranges.insert(ranges.end(), low.begin(), low.end());
    }
    return CodePointsIn(negated ? Complement(std::move(ranges)) : std::move(ranges), options_.json_string);
  }

  Result<std::vector<CodePointRange>> ParseClassPart() {
    if (reader_.Take("\\b")) return std::vector<CodePointRange>{{8, 8}};
    if (reader_.Take("\\-")) return std::vector<CodePointRange>{{'-', '-'}};
    if (reader_.Take("\\")) return ParseEscape();
    const char32_t c = reader_.Read();
    return std::vector<CodePointRange>{{c, c}};
  }

  Status Unsupported(const std::string& what) const {
    return {StatusCode::kUnsupported, "regular expression: " + what + " are not supported, at byte " + std::to_string(reader_.position())};
  }

  CodePointReader reader_;
  const RegexOptions options_;
};

bool IsUtf8(std::string_view text) {
  bool valid = true;
  return text.empty() || (NextUtf8Run(text, &valid).size() == text.size() && valid);
}

}  // namespace

Expression CodePointsIn(std::vector<CodePointRange> ranges, bool json_string) {
  ranges = Normalized(std::move(ranges));
  if (!json_string) return Expression::CodePoints(std::move(ranges));
  std::vector<CodePointRange> plain;
  std::vector<Expression> choices;
  const auto escape = [&](char32_t c) {
    constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    if (const size_t at = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos; at != std::string_view::npos) {
      choices.push_back(Expression::Bytes({'\\', kLetters[at]}));
    } else {
      char text[8];
      std::snprintf(text, sizeof(text), "\\u%04x", static_cast<unsigned>(c));
      choices.push_back(Expression::Bytes(text));
    }
  };
  for (auto [low, high] : ranges) {
    for (; low <= high && low < 0x20; ++low) escape(low);
    for (const char32_t special : {U'"', U'\\'}) {
      if (low > special || high < special) continue;
      if (low < special) plain.emplace_back(low, special - 1);
      escape(special);
      low = special + 1;
    }
    if (low <= high) plain.emplace_back(low, high);
  }
  if (choices.empty()) return Expression::CodePoints(std::move(plain));
  if (!plain.empty()) choices.push_back(Expression::CodePoints(std::move(plain)));
  return Expression::Choice(std::move(choices));
}

Result<Expression> ParseRegex(std::string_view pattern, const RegexOptions& options) {
  if (!IsUtf8(pattern)) return Status(StatusCode::kInvalidArgument, "regular expression: not valid UTF-8");
  Result<Expression> parsed = RegexParser(pattern, options).Parse();
  if (!parsed.ok() && parsed.status().code() == StatusCode::kInvalidArgument) return parsed.status().WithContext("regular expression");
  return parsed;
}

}  // namespace oscar::engine::grammar
