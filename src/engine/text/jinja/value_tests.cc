// The tests of "x is ...".
#include <map>

#include "src/engine/text/jinja/builtins.h"
#include "src/engine/text/jinja/unicode_text.h"

namespace oscar::engine::jinja {
namespace {

// input is `argument`; tests without argument get null.
using Test = bool (*)(CallContext& context, const Value& input, const Value* argument);
struct TestEntry {
  int num_arguments;
  Test test;
};

int64_t Remainder(const Value& input, const Value* divisor) {
  int64_t value = 0, by = 2;
  if (const Undefined* undefined = input.If<Undefined>()) FailUndefined(*undefined);
  if (!ToInteger(input, &value) || (divisor != nullptr && !ToInteger(*divisor, &by))) {
    Fail("a test of divisibility needs integers",
         input.Is<double>() ? StatusCode::kUnsupported : StatusCode::kInvalidArgument);
  }
  if (by == 0) Fail("division by zero");
  return by == -1 ? 0 : ((value % by) + by) % by;
}

bool IsSame(const Value& a, const Value& b, Budget& budget) {
  if (a.data.index() != b.data.index()) return false;
  if (a.sequence() != nullptr) return a.sequence() == b.sequence();
  if (a.dict() != nullptr) return a.dict() == b.dict();
  return Equal(a, b, budget);
}

bool IsIterable(const Value& v) { return v.Is<Undefined>() || v.text() || v.sequence() || v.dict() || v.loop(); }
bool IsBoolean(const Value& v, bool wanted) { return v.Is<bool>() && *v.If<bool>() == wanted; }

const std::map<std::string_view, TestEntry>& Tests() {
  using C = CallContext;
  using V = Value;
  static const TestEntry equal{1, [](C& c, const V& v, const V* a) { return Equal(v, *a, c.budget); }};
  static const TestEntry unequal{1, [](C& c, const V& v, const V* a) { return !Equal(v, *a, c.budget); }};
  static const TestEntry less{1, [](C& c, const V& v, const V* a) { return Less(v, *a, c.budget); }};
  static const TestEntry greater{1, [](C& c, const V& v, const V* a) { return Less(*a, v, c.budget); }};
  static const TestEntry at_most{
      1, [](C& c, const V& v, const V* a) { return Less(v, *a, c.budget) || Equal(v, *a, c.budget); }};
  static const TestEntry at_least{
      1, [](C& c, const V& v, const V* a) { return Less(*a, v, c.budget) || Equal(v, *a, c.budget); }};
  static const std::map<std::string_view, TestEntry> tests = {
      {"==", equal},
      {"eq", equal},
      {"equalto", equal},
      {"!=", unequal},
      {"ne", unequal},
      {"<", less},
      {"lt", less},
      {"lessthan", less},
      {">", greater},
      {"gt", greater},
      {"greaterthan", greater},
      {"<=", at_most},
      {"le", at_most},
      {">=", at_least},
      {"ge", at_least},
      {"in", {1, [](C& c, const V& v, const V* a) { return Contains(c, *a, v); }}},
      {"sameas", {1, [](C& c, const V& v, const V* a) { return IsSame(v, *a, c.budget); }}},
      {"divisibleby", {1, [](C&, const V& v, const V* a) { return Remainder(v, a) == 0; }}},
      {"odd", {0, [](C&, const V& v, const V*) { return Remainder(v, nullptr) == 1; }}},
      {"even", {0, [](C&, const V& v, const V*) { return Remainder(v, nullptr) == 0; }}},
      {"defined", {0, [](C&, const V& v, const V*) { return !v.Is<Undefined>(); }}},
      {"undefined", {0, [](C&, const V& v, const V*) { return v.Is<Undefined>(); }}},
      {"none", {0, [](C&, const V& v, const V*) { return v.Is<None>(); }}},
      {"boolean", {0, [](C&, const V& v, const V*) { return v.Is<bool>(); }}},
      {"true", {0, [](C&, const V& v, const V*) { return IsBoolean(v, true); }}},
      {"false", {0, [](C&, const V& v, const V*) { return IsBoolean(v, false); }}},
      {"integer", {0, [](C&, const V& v, const V*) { return v.Is<int64_t>(); }}},
      {"float", {0, [](C&, const V& v, const V*) { return v.Is<double>(); }}},
      {"number", {0, [](C&, const V& v, const V*) { return v.Is<int64_t>() || v.Is<double>() || v.Is<bool>(); }}},
      {"string", {0, [](C&, const V& v, const V*) { return v.text() != nullptr; }}},
      {"mapping", {0, [](C&, const V& v, const V*) { return v.dict() != nullptr; }}},
      {"iterable", {0, [](C&, const V& v, const V*) { return IsIterable(v); }}},
      // Anything with a length and indices; Jinja counts an undefined value in.
      {"sequence",
       {0,
        [](C&, const V& v, const V*) {
          return v.Is<Undefined>() || v.text() || v.dict() ||
                 (v.sequence() && v.sequence()->kind <= SequenceKind::kRange);
        }}},
      {"callable", {0, [](C&, const V& v, const V*) { return v.function() != nullptr || v.Is<Undefined>(); }}},
      {"lower",
       {0,
        [](C& c, const V& v, const V*) {
          const std::string text = ToText(v, c.budget);
          return ToLower(text) == text && ToUpper(text) != text;
        }}},
      {"upper",
       {0,
        [](C& c, const V& v, const V*) {
          const std::string text = ToText(v, c.budget);
          return ToUpper(text) == text && ToLower(text) != text;
        }}},
  };
  return tests;
}

}  // namespace

bool IsTest(std::string_view name) { return Tests().count(name) > 0; }

bool ApplyTest(CallContext& context, std::string_view name, const Value& input, const Arguments& arguments) {
  const auto found = Tests().find(name);
  if (found == Tests().end()) Fail("the test '" + std::string(name) + "'", StatusCode::kUnsupported);
  const int num_arguments = found->second.num_arguments;
  if (!arguments.keywords.empty() || arguments.positional.size() != static_cast<size_t>(num_arguments)) {
    Fail("the test '" + std::string(name) + "' takes " + std::to_string(num_arguments) + " argument(s)");
  }
  return found->second.test(context, input, num_arguments > 0 ? &arguments.positional[0] : nullptr);
}

}  // namespace oscar::engine::jinja
