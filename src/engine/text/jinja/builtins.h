// What a template can call: filters, tests, methods of values and global functions, and how values are indexed. Each
// fails where Python and Jinja would raise. The code is in filters.cc, value_tests.cc, methods.cc, arithmetic.cc and,
// for access and globals, access.cc.
#pragma once

#include <ctime>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/engine/text/jinja/value.h"

namespace oscar::engine::jinja {

// What calls share during one rendering.
struct CallContext {
  Budget& budget;
  std::time_t now = 0;  // for strftime_now
  std::vector<std::shared_ptr<Namespace>>
      namespaces;  // all ever made: their owner clears them, for they may hold cycles
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// Arguments by parameter, bound as Python binds them: too many, too few, unknown or doubled ones fail.
class BoundArguments {
 public:
  BoundArguments(std::string_view callee, const Arguments& arguments,
                 std::initializer_list<std::string_view> parameters, size_t num_required = 0);
  const Value* operator[](size_t parameter) const { return values_[parameter]; }  // null: not given
  bool Flag(size_t parameter) const { return values_[parameter] != nullptr && Truth(*values_[parameter]); }
  int64_t Integer(size_t parameter, int64_t fallback) const;  // None counts as not given
  std::string_view Text(size_t parameter, std::string_view fallback) const;

 private:
  [[noreturn]] void FailType(size_t parameter, std::string_view wanted) const;
  std::string callee_;
  std::vector<const Value*> values_;
  std::vector<std::string_view> names_;
};

bool IsFilter(std::string_view name);
bool IsTest(std::string_view name);
Value ApplyFilter(CallContext& context, std::string_view name, const Value& input, const Arguments& arguments);
bool ApplyTest(CallContext& context, std::string_view name, const Value& input, const Arguments& arguments);

bool IsGlobal(std::string_view name);
Value CallGlobal(CallContext& context, std::string_view name, const Arguments& arguments);
bool HasMethod(const Value& receiver, std::string_view name);
Value CallMethod(CallContext& context, const Value& receiver, std::string_view name, const Arguments& arguments);

// value.name and value[key]: undefined when absent; fail on an undefined value.
Value GetAttribute(const Value& value, std::string_view name);
Value GetItem(CallContext& context, const Value& value, const Value& key);
// value[start : stop : step]; an absent part is None.
Value GetSlice(CallContext& context, const Value& value, const Value& start, const Value& stop, const Value& step);
bool Contains(CallContext& context, const Value& container, const Value& item);  // item in container
// a operation b for + - * / // % **. Fails as Python does, and on integers beyond 64 bits.
Value Arithmetic(std::string_view operation, const Value& a, const Value& b, Budget& budget);
std::string ReplaceText(std::string_view text, std::string_view from, std::string_view to, int64_t count,
                        Budget& budget);

}  // namespace oscar::engine::jinja
