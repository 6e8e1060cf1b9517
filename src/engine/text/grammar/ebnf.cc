#include "src/engine/text/grammar/ebnf.h"

#include <map>
#include <optional>

#include "src/base/status_macros.h"
#include "src/engine/text/grammar/code_point_reader.h"
#include "src/engine/text/utf8.h"

namespace oscar::engine::grammar {
namespace {

constexpr int kMaxDepth = 200;

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

class EbnfParser {
 public:
  explicit EbnfParser(std::string_view text) : reader_(text) {}

  Result<RuleSet> Parse() {
    for (SkipSpace(); !reader_.done(); SkipSpace()) {
      const std::string name = ReadName();
      SkipSpace();
      if (name.empty() || !reader_.Take("::=")) return reader_.Error("a rule 'name ::= ...' is expected");
      const int rule = RuleOf(name);
      if (defined_[static_cast<size_t>(rule)]) return reader_.Error("rule " + name + " is defined twice");
      OSCAR_ASSIGN_OR_RETURN(rules_.bodies[static_cast<size_t>(rule)], ParseChoice(0));
      defined_[static_cast<size_t>(rule)] = true;
    }
    for (size_t rule = 0; rule < defined_.size(); ++rule) {
      if (!defined_[rule]) return Status(StatusCode::kInvalidArgument, "rule " + rules_.names[rule] + " is not defined");
    }
    const auto root = numbers_.find("root");
    if (root == numbers_.end()) return Status(StatusCode::kInvalidArgument, "there is no rule root");
    rules_.root = root->second;
    return std::move(rules_);
  }

 private:
  void SkipSpace() {
    while (!reader_.done()) {
      if (reader_.Take(" ") || reader_.Take("\t") || reader_.Take("\n") || reader_.Take("\r")) continue;
      if (!reader_.LooksAt("#")) return;
      while (!reader_.done() && !reader_.LooksAt("\n")) reader_.Read();
    }
  }

  std::string ReadName() {
    std::string name;
    while (!reader_.done() && IsNameCharacter(reader_.Peek())) name += static_cast<char>(reader_.Read());
    return name;
  }

  int RuleOf(const std::string& name) {
    const auto [found, is_new] = numbers_.try_emplace(name, static_cast<int>(defined_.size()));
    if (is_new) {
      rules_.Add(name);
      defined_.push_back(false);
    }
    return found->second;
  }

  Result<Expression> ParseChoice(int depth) {
    if (depth > kMaxDepth) return reader_.Error("groups nested too deeply");
    std::vector<Expression> alternatives;
    do {
      std::vector<Expression> parts;
      for (SkipSpace(); !reader_.done() && !reader_.LooksAt("|") && !reader_.LooksAt(")"); SkipSpace()) {
        OSCAR_ASSIGN_OR_RETURN(std::optional<Expression> part, ParseAtom(depth));
        if (!part) break;  // the next rule begins
        OSCAR_ASSIGN_OR_RETURN(*part, ParseMarks(*std::move(part)));
        parts.push_back(*std::move(part));
      }
      alternatives.push_back(Expression::Sequence(std::move(parts)));
    } while (reader_.Take("|"));
    return Expression::Choice(std::move(alternatives));
  }

  Result<Expression> ParseMarks(Expression part) {
    if (reader_.Take("*")) return Expression::Repeat(std::move(part), 0, Expression::kNoLimit);
    if (reader_.Take("+")) return Expression::Repeat(std::move(part), 1, Expression::kNoLimit);
    if (reader_.Take("?")) return Expression::Optional(std::move(part));
    if (!reader_.Take("{")) return part;
    OSCAR_ASSIGN_OR_RETURN(const auto counts, reader_.ReadRepeat());
    return Expression::Repeat(std::move(part), counts.first, counts.second);
  }

  // Nothing where a name is followed by "::=".
  Result<std::optional<Expression>> ParseAtom(int depth) {
    if (reader_.Take("(")) {
      OSCAR_ASSIGN_OR_RETURN(Expression inner, ParseChoice(depth + 1));
      if (!reader_.Take(")")) return reader_.Error("a '(' without a ')'");
      return std::optional(std::move(inner));
    }
    if (reader_.Take("\"")) return ParseLiteral();
    if (reader_.Take("[")) return ParseClass();
    if (reader_.Take(".")) return std::optional(Expression::CodePoints({{0, 0x10FFFF}}));
    if (!IsNameCharacter(reader_.Peek())) return reader_.Error("a misplaced '" + std::string(1, reader_.Peek()) + "'");
    const CodePointReader before = reader_;
    const std::string name = ReadName();
    CodePointReader after = reader_;
    SkipSpace();
    if (reader_.LooksAt("::=")) {
      reader_ = before;
      return std::optional<Expression>();
    }
    reader_ = after;
    return std::optional(Expression::Rule(RuleOf(name)));
  }

  Result<std::optional<Expression>> ParseLiteral() {
    std::string text;
    while (!reader_.Take("\"")) {
      if (reader_.done()) return reader_.Error("a literal without its end");
      OSCAR_ASSIGN_OR_RETURN(const char32_t c, ReadCharacter());
      AppendUtf8(static_cast<uint32_t>(c), &text);
    }
    return std::optional(Expression::Bytes(std::move(text)));
  }

  Result<std::optional<Expression>> ParseClass() {
    const bool negated = reader_.Take("^");
    std::vector<CodePointRange> ranges;
    while (!reader_.Take("]")) {
      if (reader_.done()) return reader_.Error("a '[' without a ']'");
      OSCAR_ASSIGN_OR_RETURN(const char32_t low, ReadCharacter());
      char32_t high = low;
      if (reader_.LooksAt("-") && !reader_.LooksAt("-]")) {
        reader_.Take("-");
        if (reader_.done()) return reader_.Error("a '[' without a ']'");
        OSCAR_ASSIGN_OR_RETURN(high, ReadCharacter());
      }
      if (high < low) return reader_.Error("a range of no characters");
      ranges.emplace_back(low, high);
    }
    return std::optional(Expression::CodePoints(negated ? Complement(std::move(ranges)) : Normalized(std::move(ranges))));
  }

  Result<char32_t> ReadCharacter() {
    if (!reader_.Take("\\")) return reader_.Read();
    if (reader_.done()) return reader_.Error("a backslash at the end");
    const char32_t letter = reader_.Read();
    if (letter == 'x') return reader_.ReadHex(2);
    if (letter == 'u') return reader_.ReadHex(4);
    if (letter == 'U') return reader_.ReadHex(8);
    return ControlEscape(letter).value_or(letter);
  }

  CodePointReader reader_;
  RuleSet rules_;
  std::vector<bool> defined_;
  std::map<std::string, int> numbers_;
};

}  // namespace

Result<RuleSet> ParseEbnf(std::string_view text) {
  bool valid = true;
  if (!text.empty() && (NextUtf8Run(text, &valid).size() != text.size() || !valid)) return Status(StatusCode::kInvalidArgument, "grammar: not valid UTF-8");
  Result<RuleSet> rules = EbnfParser(text).Parse();
  if (!rules.ok()) return rules.status().WithContext("grammar");
  return rules;
}

}  // namespace oscar::engine::grammar
