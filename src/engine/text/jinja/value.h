// Values of the template language, with Python's meaning of truth, equality, order and printing. Containers never
// change once made, apart from Namespace and from the consumed part of an iterator. Texts are valid UTF-8.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "src/engine/text/jinja/budget.h"

namespace oscar::engine::jinja {

struct Sequence;
struct Dict;
struct Namespace;
struct Loop;
struct Function;
using Text = std::shared_ptr<const std::string>;
struct None {};
struct Undefined {
  Text reason;  // "'x' is undefined"; may be null
};

// A text that went through `safe`: added to another text (AddTexts) it escapes the HTML characters of that one, which
// published templates do run into. Only some operations take it; the others refuse it.
struct Markup {
  Text text;
};

struct Value {
  using Variant =
      std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<Sequence>, std::shared_ptr<const Dict>,
                   std::shared_ptr<Namespace>, std::shared_ptr<Loop>, std::shared_ptr<const Function>, Markup>;
  Variant data;

  Value() = default;
  template <class T>
  requires(!std::is_same_v<T, Value> && std::is_constructible_v<Variant, T>) Value(T held) : data(std::move(held)) {}
  template <class T>
  const T* If() const {
    return std::get_if<T>(&data);
  }
  template <class T>
  bool Is() const {
    return std::holds_alternative<T>(data);
  }
  const std::string* text() const {
    if (const Markup* markup = If<Markup>()) return markup->text.get();
    return Is<Text>() ? std::get<Text>(data).get() : nullptr;
  }
  Sequence* sequence() const { return Held<std::shared_ptr<Sequence>>(); }
  const Dict* dict() const { return Held<std::shared_ptr<const Dict>>(); }
  Namespace* name_space() const { return Held<std::shared_ptr<Namespace>>(); }
  const Loop* loop() const { return Held<std::shared_ptr<Loop>>(); }
  const Function* function() const { return Held<std::shared_ptr<const Function>>(); }

 private:
  template <class P>
  typename P::element_type* Held() const {
    const P* held = std::get_if<P>(&data);
    return held != nullptr ? held->get() : nullptr;
  }
};

// An iterator (what `map` or `items` give in Jinja) can be read once and has no length; a view (dict.keys()) and a
// range print in their own way.
enum class SequenceKind { kList, kTuple, kRange, kView, kIterator };
struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  size_t num_consumed = 0;       // kIterator only
  std::optional<Error> failure;  // kIterator only: thrown behind the last item
  std::string name;              // "dict_keys" of a view, "range(0, 3)" of a range
  int depth = 0;
};

// Ordered as inserted. Keys are texts in practice; equal numbers are one key, as in Python.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::map<std::string, size_t, std::less<>> index;  // DictKey(key) -> place in entries
  int depth = 0;

  const Value* Find(std::string_view text_key) const;
  const Value* Find(const Value& key, Budget& budget) const;
  void Set(const Value& key, Value value, Budget& budget);  // for the maker of the dict only
};

struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};

struct Loop {
  std::shared_ptr<const std::vector<Value>> items;
  size_t index = 0;
  int value_depth = 0;
};

struct Scope;
struct Macro;
struct Function {
  std::string name;              // of the method, global function or macro
  Value receiver;                // of a method
  const Macro* macro = nullptr;  // owned by the syntax tree
  std::shared_ptr<Scope> scope;  // where the macro was defined
  int depth = 0;
};

// Makers: they pay, and refuse values nested deeper than kMaxValueDepth.
Value MakeText(std::string text, Budget& budget);
Value MakeMarkup(std::string text, Budget& budget);
// a + b of two texts; if one is Markup, the sum is, and the other is escaped for HTML.
Value AddTexts(const Value& a, const Value& b, Budget& budget);
Value MakeSequence(SequenceKind kind, std::vector<Value> items, Budget& budget);
Value MakeDict(std::vector<std::pair<Value, Value>> entries, Budget& budget);
Value MakeUndefined(std::string reason);
int ValueDepth(const Value& value);

std::string_view TypeName(const Value& value);  // as Python names it: "str", "dict"
bool Truth(const Value& value);
bool Equal(const Value& a, const Value& b, Budget& budget);
bool Less(const Value& a, const Value& b, Budget& budget);  // fails on types without an order
std::string DictKey(const Value& value, Budget& budget);    // equal values have equal keys; fails on lists and dicts
std::string ToText(const Value& value, Budget& budget);     // str(value)
std::string Repr(const Value& value, Budget& budget);
std::string FloatRepr(double value);
bool ToNumber(const Value& value, double* number);    // of bool, int and float
bool ToInteger(const Value& value, int64_t* number);  // of bool and int
// The elements that a loop sees: items, dict keys or code points. Consumes an iterator. Fails on other types.
std::vector<Value> Iterate(const Value& value, Budget& budget);
int64_t Length(const Value& value);  // len(value)
[[noreturn]] void FailUndefined(const Undefined& undefined);

}  // namespace oscar::engine::jinja
