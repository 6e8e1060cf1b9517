// The filters of "x|...".
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "src/engine/text/jinja/builtins.h"
#include "src/engine/text/jinja/json_text.h"
#include "src/engine/text/jinja/unicode_text.h"

namespace oscar::engine::jinja {
namespace {

using Filter = Value (*)(CallContext& context, const Value& input, const Arguments& arguments);

template <std::string (*kTransform)(std::string_view)>
Value FilterText(CallContext& context, const Value& input, const Arguments& arguments) {
  BoundArguments("a text filter", arguments, {});
  return MakeText(kTransform(ToText(input, context.budget)), context.budget);
}

// Jinja's own title: capitals after spaces, hyphens and opening brackets only.
std::string TitleByBreaks(std::string_view text) {
  std::u32string points = DecodeUtf8(text);
  std::string result;
  for (size_t start = 0; start < points.size();) {
    const auto breaks = [&](size_t i) {
      return IsSpace(points[i]) || std::u32string_view(U"-({[<").find(points[i]) != std::u32string_view::npos;
    };
    size_t end = start + 1;
    while (end < points.size() && breaks(end) == breaks(start)) ++end;
    const std::string part = EncodeUtf8(points.substr(start, end - start));
    result += breaks(start) ? part
                            : ToUpper(EncodeUtf8(points.substr(start, 1))) +
                                  ToLower(EncodeUtf8(points.substr(start + 1, end - start - 1)));
    start = end;
  }
  return result;
}

// element.a.0.b for the attribute "a.0.b"; `fallback` (may be null) replaces what is undefined.
Value Attribute(CallContext& context, Value element, const Value& attribute, const Value* fallback) {
  if (attribute.text() == nullptr) {
    element = GetItem(context, element, attribute);
    return element.Is<Undefined>() && fallback != nullptr ? *fallback : element;
  }
  const std::string& path = *attribute.text();
  for (size_t start = 0; start <= path.size();) {
    const size_t end = std::min(path.find('.', start), path.size());
    const std::string part = path.substr(start, end - start);
    const bool is_index = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    element =
        GetItem(context, element, is_index ? Value(int64_t{std::atoi(part.c_str())}) : MakeText(part, context.budget));
    if (element.Is<Undefined>() && fallback != nullptr) element = *fallback;
    start = end + 1;
  }
  return element;
}

// An iterator over the elements that `collect` appends. Jinja runs such filters only as far as their result is read, so
// an error is raised at the end of the elements before it.
template <class Collect>
Value MakeLazy(CallContext& context, Collect collect) {
  std::vector<Value> items;
  std::optional<Error> failure;
  try {
    collect(items);
  } catch (const Error& error) {
    if (error.code != StatusCode::kInvalidArgument) throw;
    failure = error;
  }
  Value iterator = MakeSequence(SequenceKind::kIterator, std::move(items), context.budget);
  iterator.sequence()->failure = std::move(failure);
  return iterator;
}

Value WithoutCase(const Value& value, Budget& budget) {
  return value.text() != nullptr ? MakeText(ToLower(*value.text()), budget) : value;
}

Value FilterToJson(CallContext& context, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii_only = bound.Flag(0);
  style.sort_keys = bound.Flag(3);
  if (bound[1] != nullptr && bound[1]->text() != nullptr) style.indent = *bound[1]->text();
  if (bound[1] != nullptr && bound[1]->text() == nullptr && !bound[1]->Is<None>()) {
    const int64_t width = std::max<int64_t>(bound.Integer(1, 0), 0);
    if (width > 1000) Fail("tojson(): an indent of more than 1000", StatusCode::kUnsupported);
    style.indent = std::string(static_cast<size_t>(width), ' ');
  }
  if (style.indent.has_value()) style.item_separator = ",";
  if (bound[2] != nullptr && !bound[2]->Is<None>()) {
    const std::vector<Value> separators = Iterate(*bound[2], context.budget);
    if (separators.size() != 2 || separators[0].text() == nullptr || separators[1].text() == nullptr) {
      Fail("tojson(): separators must be two texts");
    }
    style.item_separator = *separators[0].text();
    style.key_separator = *separators[1].text();
  }
  return MakeText(DumpJson(input, style, context.budget), context.budget);
}

Value FilterTrim(CallContext& context, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("trim", arguments, {"chars"});
  const std::string text = ToText(input, context.budget);
  const bool spaces = bound[0] == nullptr || bound[0]->Is<None>();
  return MakeText(
      std::string(spaces ? StripSpace(text, true, true) : StripCharacters(text, bound.Text(0, ""), true, true)),
      context.budget);
}

Value FilterReplace(CallContext& context, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"}, 2);
  const std::string text = ToText(input, context.budget), from = ToText(*bound[0], context.budget),
                    to = ToText(*bound[1], context.budget);
  return MakeText(ReplaceText(text, from, to, bound.Integer(2, -1), context.budget), context.budget);
}

Value FilterIndent(CallContext& context, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("indent", arguments, {"width", "first", "blank"});
  std::string indention;
  if (bound[0] != nullptr && bound[0]->text() != nullptr) {
    indention = *bound[0]->text();
  } else {
    indention.assign(static_cast<size_t>(std::clamp<int64_t>(bound.Integer(0, 4), 0, 1000)), ' ');
  }
  if (input.text() == nullptr) Fail("the filter 'indent' needs a text, not a '" + std::string(TypeName(input)) + "'");
  const std::vector<std::string> lines = SplitLines(*input.text() + "\n");
  std::string result = bound.Flag(1) ? indention : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    context.budget.SpendBytes(indention.size() + lines[i].size());
    result += (i > 0 ? "\n" : "") + (i > 0 && (bound.Flag(2) || !lines[i].empty()) ? indention : "") + lines[i];
  }
  return MakeText(std::move(result), context.budget);
}

Value FilterDefault(CallContext&, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("default", arguments, {"default_value", "boolean"});
  const bool absent = input.Is<Undefined>() || (bound.Flag(1) && !Truth(input));
  if (!absent) return input;
  return bound[0] != nullptr ? *bound[0] : Value(std::make_shared<const std::string>());
}

Value FilterLength(CallContext&, const Value& input, const Arguments& arguments) {
  BoundArguments("length", arguments, {});
  return Length(input);
}

Value FilterJoin(CallContext& context, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("join", arguments, {"d", "attribute"});
  const std::string separator = bound[0] != nullptr ? ToText(*bound[0], context.budget) : "";
  std::string result;
  bool first = true;
  for (Value item : Iterate(input, context.budget)) {
    if (bound[1] != nullptr && !bound[1]->Is<None>()) item = Attribute(context, std::move(item), *bound[1], nullptr);
    context.budget.SpendBytes(separator.size());
    result += (first ? "" : separator) + ToText(item, context.budget);
    first = false;
  }
  return MakeText(std::move(result), context.budget);
}

Value FilterFirst(CallContext& context, const Value& input, const Arguments& arguments) {
  BoundArguments("first", arguments, {});
  if (Sequence* sequence = input.sequence(); sequence != nullptr && sequence->kind == SequenceKind::kIterator) {
    if (sequence->num_consumed < sequence->items.size()) return sequence->items[sequence->num_consumed++];
    if (sequence->failure.has_value()) throw *sequence->failure;
    return MakeUndefined("no first item, the sequence is empty");
  }
  const std::vector<Value> items = Iterate(input, context.budget);
  return items.empty() ? MakeUndefined("no first item, the sequence is empty") : items.front();
}

void FailOnIterator(const Value& value, std::string_view filter) {
  if (value.sequence() != nullptr && value.sequence()->kind == SequenceKind::kIterator) {
    Fail("the filter '" + std::string(filter) + "' cannot read a '" + std::string(TypeName(value)) + "' backwards");
  }
}

Value FilterLast(CallContext& context, const Value& input, const Arguments& arguments) {
  BoundArguments("last", arguments, {});
  FailOnIterator(input, "last");
  const std::vector<Value> items = Iterate(input, context.budget);
  return items.empty() ? MakeUndefined("no last item, the sequence is empty") : items.back();
}

Value FilterList(CallContext& context, const Value& input, const Arguments& arguments) {
  BoundArguments("list", arguments, {});
  return MakeSequence(SequenceKind::kList, Iterate(input, context.budget), context.budget);
}

Value FilterReverse(CallContext& context, const Value& input, const Arguments& arguments) {
  BoundArguments("reverse", arguments, {});
  std::vector<Value> items;
  if (const std::string* text = input.text()) {
    std::u32string points = DecodeUtf8(*text);
    std::reverse(points.begin(), points.end());
    return MakeText(EncodeUtf8(points), context.budget);
  }
  items = Iterate(input, context.budget);
  std::reverse(items.begin(), items.end());
  // Jinja reverses what cannot be read backwards through a list, and gives that list.
  const bool list = input.sequence() != nullptr && input.sequence()->kind == SequenceKind::kIterator;
  return MakeSequence(list ? SequenceKind::kList : SequenceKind::kIterator, std::move(items), context.budget);
}

Value FilterString(CallContext& context, const Value& input, const Arguments& arguments) {
  BoundArguments("string", arguments, {});
  return MakeText(ToText(input, context.budget), context.budget);
}

Value FilterSafe(CallContext& context, const Value& input, const Arguments& arguments) {
  BoundArguments("safe", arguments, {});
  return MakeMarkup(ToText(input, context.budget), context.budget);
}

// float(text) of Python, without digit separators.
bool ParseFloat(std::string_view text, double* number) {
  text = StripSpace(text, true, true);
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (parsed.ec == std::errc::result_out_of_range) *number = std::strtod(std::string(text).c_str(), nullptr);
  return parsed.ec != std::errc::invalid_argument && parsed.ptr == text.data() + text.size() &&
         text.find('(') == text.npos;
}

Value FilterFloat(CallContext&, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("float", arguments, {"default"});
  double number = 0;
  if (const Undefined* undefined = input.If<Undefined>()) FailUndefined(*undefined);
  if (ToNumber(input, &number) || (input.text() != nullptr && ParseFloat(*input.text(), &number))) return number;
  return bound[0] != nullptr ? *bound[0] : Value(0.0);
}

Value FilterInt(CallContext&, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("int", arguments, {"default"});
  int64_t integer = 0;
  double number = 0;
  if (const Undefined* undefined = input.If<Undefined>()) FailUndefined(*undefined);
  if (ToInteger(input, &integer)) return integer;
  if (const std::string* text = input.text()) {
    std::string_view digits = StripSpace(*text, true, true);
    if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), integer);
    if (parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size()) return integer;
  }
  if ((ToNumber(input, &number) || (input.text() != nullptr && ParseFloat(*input.text(), &number))) &&
      std::isfinite(number)) {
    if (std::abs(number) >= 9.2e18) Fail("an integer beyond 64 bits", StatusCode::kUnsupported);
    return static_cast<int64_t>(number);
  }
  return bound[0] != nullptr ? *bound[0] : Value(int64_t{0});
}

Value FilterAbs(CallContext&, const Value& input, const Arguments& arguments) {
  BoundArguments("abs", arguments, {});
  int64_t integer = 0;
  if (ToInteger(input, &integer)) {
    if (integer == INT64_MIN) Fail("an integer beyond 64 bits", StatusCode::kUnsupported);
    return std::abs(integer);
  }
  if (const double* number = input.If<double>()) return std::abs(*number);
  if (const Undefined* undefined = input.If<Undefined>()) FailUndefined(*undefined);
  Fail("the filter 'abs' needs a number, not a '" + std::string(TypeName(input)) + "'");
}

Value FilterRound(CallContext&, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("round", arguments, {"precision", "method"});
  const int64_t precision = bound.Integer(0, 0);
  const std::string_view method = bound.Text(1, "common");
  double number = 0;
  if (method != "common" && method != "ceil" && method != "floor")
    Fail("round(): the method must be common, ceil or floor");
  if (const Undefined* undefined = input.If<Undefined>()) FailUndefined(*undefined);
  if (!ToNumber(input, &number))
    Fail("the filter 'round' needs a number, not a '" + std::string(TypeName(input)) + "'");
  if (precision < 0 || precision > 300) Fail("round() to that precision", StatusCode::kUnsupported);
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    return (method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) / scale;
  }
  int64_t integer = 0;
  if (ToInteger(input, &integer)) return integer;
  char buffer[700];  // printf rounds the exact decimal value half to even, as Python does
  std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), number);
  return std::strtod(buffer, nullptr);
}

Value FilterSort(CallContext& context, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : Iterate(input, context.budget)) {
    Value key = item;
    if (bound[2] != nullptr && !bound[2]->Is<None>()) {
      if (bound[2]->text() != nullptr && bound[2]->text()->find(',') != std::string::npos)
        Fail("sort by several attributes", StatusCode::kUnsupported);
      key = Attribute(context, item, *bound[2], nullptr);
    }
    keyed.emplace_back(bound.Flag(1) ? key : WithoutCase(key, context.budget), item);
  }
  const bool reverse = bound.Flag(0);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? Less(b.first, a.first, context.budget) : Less(a.first, b.first, context.budget);
  });
  std::vector<Value> items;
  for (auto& entry : keyed) items.push_back(std::move(entry.second));
  return MakeSequence(SequenceKind::kList, std::move(items), context.budget);
}

// min and max: the first of the extreme elements.
template <bool kMax>
Value FilterExtreme(CallContext& context, const Value& input, const Arguments& arguments) {
  const BoundArguments bound(kMax ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  Value best = MakeUndefined("no aggregated item, the sequence is empty"), best_key;
  bool first = true;
  for (const Value& item : Iterate(input, context.budget)) {
    const bool by_attribute = bound[1] != nullptr && !bound[1]->Is<None>();
    Value key = by_attribute ? Attribute(context, item, *bound[1], nullptr) : item;
    if (!bound.Flag(0)) key = WithoutCase(key, context.budget);
    if (first || (kMax ? Less(best_key, key, context.budget) : Less(key, best_key, context.budget))) {
      best = item;
      best_key = key;
    }
    first = false;
  }
  return best;
}

Value FilterSum(CallContext& context, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("sum", arguments, {"attribute", "start"});
  const bool by_attribute = bound[0] != nullptr && !bound[0]->Is<None>();
  Value sum = bound[1] != nullptr ? *bound[1] : Value(int64_t{0});
  if (sum.text() != nullptr) Fail("sum() cannot add texts");
  for (const Value& item : Iterate(input, context.budget)) {
    const Value term = by_attribute ? Attribute(context, item, *bound[0], nullptr) : item;
    sum = Arithmetic("+", sum, term, context.budget);
  }
  return sum;
}

Value FilterUnique(CallContext& context, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("unique", arguments, {"case_sensitive", "attribute"});
  const bool by_attribute = bound[1] != nullptr && !bound[1]->Is<None>();
  return MakeLazy(context, [&](std::vector<Value>& items) {
    std::set<std::string> seen;
    for (const Value& item : Iterate(input, context.budget)) {
      const Value key = by_attribute ? Attribute(context, item, *bound[1], nullptr) : item;
      const Value cased = bound.Flag(0) ? key : WithoutCase(key, context.budget);
      if (seen.insert(DictKey(cased, context.budget)).second) items.push_back(item);
    }
  });
}

std::vector<Value> DictItems(const Value& input, Budget& budget) {
  std::vector<Value> items;
  if (input.Is<Undefined>()) return items;
  if (input.dict() == nullptr) Fail("items of a '" + std::string(TypeName(input)) + "', which is no mapping");
  for (const auto& [key, value] : input.dict()->entries)
    items.push_back(MakeSequence(SequenceKind::kTuple, {key, value}, budget));
  return items;
}

Value FilterItems(CallContext& context, const Value& input, const Arguments& arguments) {
  BoundArguments("items", arguments, {});
  return MakeLazy(context, [&](std::vector<Value>& items) { items = DictItems(input, context.budget); });
}

Value FilterDictSort(CallContext& context, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string_view by = bound.Text(1, "key");
  if (by != "key" && by != "value") Fail("dictsort(): 'by' must be key or value");
  if (const Undefined* undefined = input.If<Undefined>()) FailUndefined(*undefined);
  const Value items = MakeSequence(SequenceKind::kList, DictItems(input, context.budget), context.budget);
  Arguments sort{{bound.Flag(2), bound.Flag(0), int64_t{by == "key" ? 0 : 1}}, {}};
  return FilterSort(context, items, sort);
}

// map, select and their kin look at nothing when their input is false, be it an empty list or None.
Value FilterMap(CallContext& context, const Value& input, const Arguments& arguments) {
  return MakeLazy(context, [&](std::vector<Value>& items) {
    if (!Truth(input)) return;
    if (arguments.positional.empty()) {
      const BoundArguments bound("map", arguments, {"attribute", "default"}, 1);
      for (Value& item : Iterate(input, context.budget)) {
        items.push_back(Attribute(context, std::move(item), *bound[0], bound[1]));
      }
      return;
    }
    const std::string name = ToText(arguments.positional[0], context.budget);
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin());
    for (const Value& item : Iterate(input, context.budget)) items.push_back(ApplyFilter(context, name, item, rest));
  });
}

// select, reject: a test (truth without one) of the items; selectattr, rejectattr: of one of their attributes.
template <bool kKeep, bool kByAttribute>
Value FilterSelect(CallContext& context, const Value& input, const Arguments& arguments) {
  return MakeLazy(context, [&](std::vector<Value>& items) {
    if (!Truth(input)) return;
    Arguments rest = arguments;
    Value attribute;
    if (kByAttribute) {
      if (rest.positional.empty()) Fail("selectattr() and rejectattr() need an attribute");
      attribute = rest.positional[0];
      rest.positional.erase(rest.positional.begin());
    }
    const bool has_test = !rest.positional.empty();
    const std::string test = has_test ? ToText(rest.positional[0], context.budget) : "";
    if (has_test) rest.positional.erase(rest.positional.begin());
    for (const Value& item : Iterate(input, context.budget)) {
      const Value tested = kByAttribute ? Attribute(context, item, attribute, nullptr) : item;
      if ((has_test ? ApplyTest(context, test, tested, rest) : Truth(tested)) == kKeep) items.push_back(item);
    }
  });
}

const std::map<std::string_view, Filter>& Filters() {
  static const std::map<std::string_view, Filter> filters = {
      {"abs", FilterAbs},
      {"capitalize", FilterText<Capitalize>},
      {"count", FilterLength},
      {"d", FilterDefault},
      {"default", FilterDefault},
      {"dictsort", FilterDictSort},
      {"first", FilterFirst},
      {"float", FilterFloat},
      {"indent", FilterIndent},
      {"int", FilterInt},
      {"items", FilterItems},
      {"join", FilterJoin},
      {"last", FilterLast},
      {"length", FilterLength},
      {"list", FilterList},
      {"lower", FilterText<ToLower>},
      {"map", FilterMap},
      {"max", FilterExtreme<true>},
      {"min", FilterExtreme<false>},
      {"reject", FilterSelect<false, false>},
      {"rejectattr", FilterSelect<false, true>},
      {"replace", FilterReplace},
      {"reverse", FilterReverse},
      {"safe", FilterSafe},
      {"round", FilterRound},
      {"select", FilterSelect<true, false>},
      {"selectattr", FilterSelect<true, true>},
      {"sort", FilterSort},
      {"string", FilterString},
      {"sum", FilterSum},
      {"title", FilterText<TitleByBreaks>},
      {"tojson", FilterToJson},
      {"trim", FilterTrim},
      {"unique", FilterUnique},
      {"upper", FilterText<ToUpper>},
  };
  return filters;
}

}  // namespace

bool IsFilter(std::string_view name) { return Filters().count(name) > 0; }

Value ApplyFilter(CallContext& context, std::string_view name, const Value& input, const Arguments& arguments) {
  context.budget.Spend(1);
  const auto found = Filters().find(name);
  if (found == Filters().end()) Fail("the filter '" + std::string(name) + "'", StatusCode::kUnsupported);
  const Value result = found->second(context, input, arguments);
  if (!input.Is<Markup>()) return result;
  // Which filters keep a text safe, and which give a plain one.
  static constexpr std::string_view kKeeping[] = {"capitalize", "indent", "lower", "string", "trim", "upper"};
  static constexpr std::string_view kPlain[] = {"count",  "d",    "default", "float", "int",   "join",
                                                "length", "list", "replace", "safe",  "title", "tojson"};
  const auto has = [name](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (has(kPlain)) return result;
  if (!has(kKeeping)) Fail("the filter '" + std::string(name) + "' of a safe text", StatusCode::kUnsupported);
  return MakeMarkup(*result.text(), context.budget);
}

}  // namespace oscar::engine::jinja
