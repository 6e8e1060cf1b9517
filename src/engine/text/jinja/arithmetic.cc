// Python's arithmetic: exact integers, true and floored division, repeated and joined texts and lists.
#include <cmath>

#include "src/engine/text/jinja/builtins.h"

namespace oscar::engine::jinja {
namespace {

[[noreturn]] void FailOverflow() { Fail("an integer beyond 64 bits", StatusCode::kUnsupported); }

int64_t Power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) FailOverflow();
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) FailOverflow();
  }
  return result;
}

double FloorRemainder(double a, double b) {
  const double remainder = std::fmod(a, b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b
         : remainder == 0                             ? std::copysign(0.0, b)
                                                      : remainder;
}

Value IntegerArithmetic(std::string_view operation, int64_t a, int64_t b) {
  int64_t result = 0;
  if (operation == "+"   ? __builtin_add_overflow(a, b, &result)
      : operation == "-" ? __builtin_sub_overflow(a, b, &result)
                         : operation == "*" && __builtin_mul_overflow(a, b, &result)) {
    FailOverflow();
  }
  if (operation == "+" || operation == "-" || operation == "*") return result;
  if (operation == "**")
    return b >= 0 ? Value(Power(a, b)) : Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
  if (operation == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) return operation == "%" ? Value(int64_t{0}) : IntegerArithmetic("-", 0, a);
  const int64_t remainder = ((a % b) + b) % b;
  return operation == "%" ? remainder : (a - remainder) / b;
}

Value FloatArithmetic(std::string_view operation, double a, double b) {
  if (operation == "+") return a + b;
  if (operation == "-") return a - b;
  if (operation == "*") return a * b;
  if (operation == "/") return a / b;
  if (operation == "%") return FloorRemainder(a, b);
  if (operation == "//") return std::floor((a - FloorRemainder(a, b)) / b + 0.5);
  if (a < 0 && b != std::trunc(b)) Fail("a root of a negative number", StatusCode::kUnsupported);
  return std::pow(a, b);
}

Value Repeat(const Value& value, int64_t count, Budget& budget) {
  if (const std::string* text = value.text()) {
    std::string result;
    for (int64_t i = 0; i < count && !text->empty(); ++i) {
      budget.SpendBytes(text->size());
      result += *text;
    }
    return value.Is<Markup>() ? MakeMarkup(std::move(result), budget) : MakeText(std::move(result), budget);
  }
  std::vector<Value> items;
  const Sequence& sequence = *value.sequence();
  for (int64_t i = 0; i < count && !sequence.items.empty(); ++i) {
    budget.SpendBytes(sequence.items.size() * sizeof(Value));
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return MakeSequence(sequence.kind, std::move(items), budget);
}

bool IsRepeatable(const Value& value) {
  return value.text() != nullptr || (value.sequence() != nullptr && value.sequence()->kind <= SequenceKind::kTuple);
}

}  // namespace

Value Arithmetic(std::string_view operation, const Value& a, const Value& b, Budget& budget) {
  int64_t left = 0, right = 0;
  double x = 0, y = 0;
  if (operation == "%" && a.text() != nullptr) Fail("formatting a text with %", StatusCode::kUnsupported);
  for (const Value* value : {&a, &b}) {
    if (const Undefined* undefined = value->If<Undefined>()) FailUndefined(*undefined);
  }
  if (ToNumber(a, &x) && ToNumber(b, &y)) {
    const bool divides = operation == "/" || operation == "//" || operation == "%";
    if (y == 0 && divides) Fail("division by zero");
    if (x == 0 && y < 0 && operation == "**") Fail("division by zero");
    return ToInteger(a, &left) && ToInteger(b, &right) ? IntegerArithmetic(operation, left, right)
                                                       : FloatArithmetic(operation, x, y);
  }
  if (operation == "*" && IsRepeatable(a) && ToInteger(b, &right)) return Repeat(a, right, budget);
  if (operation == "*" && IsRepeatable(b) && ToInteger(a, &left)) return Repeat(b, left, budget);
  if (operation == "+" && a.text() != nullptr && b.text() != nullptr) {
    return AddTexts(a, b, budget);
  }
  if (operation == "+" && IsRepeatable(a) && a.sequence() && b.sequence() && a.sequence()->kind == b.sequence()->kind) {
    budget.SpendBytes((a.sequence()->items.size() + b.sequence()->items.size()) * sizeof(Value));
    std::vector<Value> items = a.sequence()->items;
    items.insert(items.end(), b.sequence()->items.begin(), b.sequence()->items.end());
    return MakeSequence(a.sequence()->kind, std::move(items), budget);
  }
  Fail("'" + std::string(TypeName(a)) + "' " + std::string(operation) + " '" + std::string(TypeName(b)) +
       "' is not defined");
}

}  // namespace oscar::engine::jinja
