// JsonValues: the rules that every JSON grammar is made of.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/engine/text/grammar/expression.h"

namespace oscar::engine::grammar {

// How true, false and null are written.
enum class JsonWords { kJson, kPython };

class JsonValues {
 public:
  explicit JsonValues(RuleSet* rules, JsonWords words = JsonWords::kJson) : rules_(rules), words_(words) {}

  // White space where a writer may put it: none, a space, or a line end with up to 16 spaces.
  Expression Space();
  Expression Comma();  // with the space behind it
  Expression Colon();
  Expression Any();
  Expression Object();
  Expression Array();
  Expression String();
  Expression StringOfLength(int least, int most);
  Expression Number();
  Expression Boolean() const;
  Expression Null() const;
  // This value alone.
  Expression Constant(const nlohmann::ordered_json& value) const;
  // From low to high, both included, of at most 18 digits.
  Expression Integer(int64_t low, int64_t high) const;
  // A string of the formats date, time, date-time and uuid; kUnsupported for another.
  Result<Expression> Format(std::string_view name) const;
  // A key that is none of `taken`, without escapes.
  Expression KeyExcept(const std::vector<std::string>& taken);

 private:
  // The rule is made when it is first asked for.
  Expression Once(int* rule, const char* name, Expression (JsonValues::*make)());
  Expression MakeSpace();
  Expression MakeCharacter();
  Expression MakeString();
  Expression MakeNumber();
  Expression MakeObject();
  Expression MakeArray();
  Expression MakeAny();
  Expression Character();

  RuleSet* rules_;
  const JsonWords words_;
  int space_ = -1, character_ = -1, string_ = -1, number_ = -1, object_ = -1, array_ = -1, any_ = -1;
};

struct Member {
  Expression text;
  bool required = false;
};

// Members in their order, a comma between each two, those that are not required there or not; and behind them any number of `more`. `name`: of the rules.
Expression InOrder(const std::vector<Member>& members, const std::optional<Expression>& more, const Expression& comma, const std::string& name, RuleSet* rules);

// `first`, then `rest` (with its comma) again and again: `least` to `most` elements in all.
Expression Separated(Expression first, Expression rest, int least, int most);

}  // namespace oscar::engine::grammar
