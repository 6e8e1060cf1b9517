#include "src/engine/text/grammar/expression.h"

#include <algorithm>

namespace oscar::engine::grammar {
namespace {

Expression Make(Expression::Kind kind) {
  Expression made;
  made.kind = kind;
  return made;
}

Expression OfText(Expression::Kind kind, std::string text) {
  Expression made = Make(kind);
  made.bytes = std::move(text);
  return made;
}

Expression OfChildren(Expression::Kind kind, std::vector<Expression> children) {
  Expression made = Make(kind);
  made.children = std::move(children);
  return made;
}

}  // namespace

Expression Expression::Bytes(std::string text) { return OfText(Kind::kBytes, std::move(text)); }
Expression Expression::Without(std::string text) { return OfText(Kind::kWithout, std::move(text)); }
Expression Expression::Until(std::string text) { return OfText(Kind::kUntil, std::move(text)); }
Expression Expression::Sequence(std::vector<Expression> children) { return OfChildren(Kind::kSequence, std::move(children)); }
Expression Expression::Choice(std::vector<Expression> children) { return OfChildren(Kind::kChoice, std::move(children)); }

Expression Expression::CodePoints(std::vector<CodePointRange> ranges) {
  Expression made = Make(Kind::kCodePoints);
  made.ranges = std::move(ranges);
  return made;
}

Expression Expression::Repeat(Expression child, int least, int most) {
  Expression made = Make(Kind::kRepeat);
  made.children.push_back(std::move(child));
  made.least = least;
  made.most = most;
  return made;
}

Expression Expression::Rule(int rule) {
  Expression made = Make(Kind::kRule);
  made.rule = rule;
  return made;
}

std::vector<CodePointRange> Normalized(std::vector<CodePointRange> ranges) {
  std::ranges::sort(ranges);
  std::vector<CodePointRange> joined;
  for (const CodePointRange& range : ranges) {
    if (!joined.empty() && range.first <= joined.back().second + 1) {
      joined.back().second = std::max(joined.back().second, range.second);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

std::vector<CodePointRange> Complement(std::vector<CodePointRange> ranges) {
  std::vector<CodePointRange> rest;
  char32_t next = 0;
  for (const auto& [low, high] : Normalized(std::move(ranges))) {
    if (low > next) rest.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= 0x10FFFF) rest.emplace_back(next, 0x10FFFF);
  return rest;
}

int RuleSet::Add(std::string name, Expression body) {
  names.push_back(std::move(name));
  bodies.push_back(std::move(body));
  return static_cast<int>(names.size()) - 1;
}

}  // namespace oscar::engine::grammar
