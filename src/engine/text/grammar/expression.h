// Expression: what the front ends (JSON schema, regular expression, EBNF) make of their input, and what Automaton::Compile takes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace oscar::engine::grammar {

// Code points, both ends included. Surrogates in a range are passed over: they have no UTF-8.
using CodePointRange = std::pair<char32_t, char32_t>;

struct Expression {
  enum class Kind {
    kBytes,       // exactly these bytes; none: the empty text
    kCodePoints,  // one code point of the ranges, as UTF-8
    kSequence,    // the children, one after the other
    kChoice,      // one of the children; without children nothing fits
    kRepeat,      // the only child, from `least` to `most` times
    kRule,        // the body of a rule
    kWithout,     // any bytes in which the text `bytes` does not occur
    kUntil,       // kWithout and then `bytes`: it ends at the first occurrence
  };
  static constexpr int kNoLimit = -1;

  Kind kind = Kind::kBytes;
  std::string bytes;
  std::vector<CodePointRange> ranges;
  std::vector<Expression> children;
  int least = 0, most = 0;
  int rule = -1;

  static Expression Bytes(std::string text);
  static Expression CodePoints(std::vector<CodePointRange> ranges);
  static Expression Sequence(std::vector<Expression> children);
  static Expression Choice(std::vector<Expression> children);
  static Expression Repeat(Expression child, int least, int most);
  static Expression Optional(Expression child) { return Repeat(std::move(child), 0, 1); }
  static Expression Rule(int rule);
  static Expression Without(std::string text);
  static Expression Until(std::string text);
};

// The ranges in order, without overlaps; and what they leave out of Unicode.
std::vector<CodePointRange> Normalized(std::vector<CodePointRange> ranges);
std::vector<CodePointRange> Complement(std::vector<CodePointRange> ranges);

// Named rules, by number.
struct RuleSet {
  std::vector<std::string> names;
  std::vector<Expression> bodies;
  int root = 0;

  int Add(std::string name, Expression body = {});
};

}  // namespace oscar::engine::grammar
