// Arguments, attributes, items, slices and global functions.
#include <algorithm>
#include <limits>

#include "src/engine/text/jinja/builtins.h"
#include "src/engine/text/jinja/unicode_text.h"

namespace oscar::engine::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox

std::string ObjectName(const Value& value) {
  return value.Is<None>() ? "None" : "'" + std::string(TypeName(value)) + " object'";
}

Value LoopAttribute(const Loop& loop, std::string_view name) {
  const auto size = static_cast<int64_t>(loop.items->size()), index = static_cast<int64_t>(loop.index);
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == size;
  if (name == "length") return size;
  // The depth of recursion, which we do not have, not of nesting.
  if (name == "depth" || name == "depth0") return int64_t{name == "depth" ? 1 : 0};
  if (name == "previtem") return index > 0 ? (*loop.items)[loop.index - 1] : MakeUndefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < size ? (*loop.items)[loop.index + 1] : MakeUndefined("there is no next item");
  if (name == "changed") Fail("loop.changed", StatusCode::kUnsupported);
  return MakeUndefined("'loop' has no attribute '" + std::string(name) + "'");
}

// Methods that change their object are closed in the sandbox that Hugging Face renders in.
bool IsMutatingMethod(const Value& value, std::string_view name) {
  static constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                               "pop",    "remove", "reverse", "sort"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto has = [name](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  const Sequence* sequence = value.sequence();
  return (sequence != nullptr && sequence->kind == SequenceKind::kList && has(kList)) ||
         (value.dict() != nullptr && has(kDict));
}

// The place of `index` in `size` elements, or -1.
int64_t Place(const Value& key, int64_t size) {
  int64_t index = 0;
  if (!ToInteger(key, &index)) return -1;
  if (index < 0) index += size;
  return index >= 0 && index < size ? index : -1;
}

Value MakeRange(const BoundArguments& bound, size_t num_arguments, Budget& budget) {
  const int64_t start = num_arguments > 1 ? bound.Integer(0, 0) : 0;
  const int64_t stop = bound.Integer(num_arguments > 1 ? 1 : 0, 0), step = bound.Integer(2, 1);
  if (step == 0) Fail("range() needs a step other than 0");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) Fail("a range of more than 100000 elements");
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  Value range = MakeSequence(SequenceKind::kRange, std::move(items), budget);
  range.sequence()->name = "range(" + std::to_string(start) + ", " + std::to_string(stop) +
                           (step != 1 ? ", " + std::to_string(step) : "") + ")";
  return range;
}

std::vector<std::pair<Value, Value>> DictArguments(std::string_view callee, const Arguments& arguments,
                                                   Budget& budget) {
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1) Fail(std::string(callee) + "() takes at most one positional argument");
  for (const Value& source : arguments.positional) {
    if (const Dict* dict = source.dict()) {
      entries = dict->entries;
      continue;
    }
    for (const Value& item : Iterate(source, budget)) {
      std::vector<Value> pair = Iterate(item, budget);
      if (pair.size() != 2) Fail(std::string(callee) + "() needs pairs of key and value");
      entries.emplace_back(std::move(pair[0]), std::move(pair[1]));
    }
  }
  for (const auto& [name, value] : arguments.keywords) entries.emplace_back(MakeText(name, budget), value);
  return entries;
}

std::string FormatTime(std::time_t now, std::string format) {
  // A space at the end tells an empty result from one that does not fit.
  format += ' ';
  std::tm parts{};
  char buffer[1024];
  if (localtime_r(&now, &parts) == nullptr) Fail("strftime_now() cannot read the clock");
  const size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &parts);
  if (size == 0) Fail("strftime_now() makes a text of more than 1000 bytes");
  return std::string(buffer, size - 1);
}

}  // namespace

BoundArguments::BoundArguments(std::string_view callee, const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters, size_t num_required)
    : callee_(callee), values_(parameters.size(), nullptr), names_(parameters) {
  if (arguments.positional.size() > names_.size()) Fail(callee_ + "() has too many arguments");
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keywords) {
    const auto place = static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
    if (place == names_.size()) Fail(callee_ + "() has no argument '" + name + "'");
    if (values_[place] != nullptr) Fail(callee_ + "() got argument '" + name + "' twice");
    values_[place] = &value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (values_[i] == nullptr) Fail(callee_ + "() misses argument '" + std::string(names_[i]) + "'");
  }
}

void BoundArguments::FailType(size_t parameter, std::string_view wanted) const {
  if (const Undefined* undefined = values_[parameter]->If<Undefined>()) FailUndefined(*undefined);
  Fail(callee_ + "(): argument '" + std::string(names_[parameter]) + "' must be " + std::string(wanted) + ", not '" +
       std::string(TypeName(*values_[parameter])) + "'");
}

int64_t BoundArguments::Integer(size_t parameter, int64_t fallback) const {
  if (values_[parameter] == nullptr || values_[parameter]->Is<None>()) return fallback;
  int64_t number = 0;
  if (!ToInteger(*values_[parameter], &number)) FailType(parameter, "an integer");
  return number;
}

std::string_view BoundArguments::Text(size_t parameter, std::string_view fallback) const {
  if (values_[parameter] == nullptr || values_[parameter]->Is<None>()) return fallback;
  if (values_[parameter]->text() == nullptr) FailType(parameter, "a text");
  return *values_[parameter]->text();
}

Value GetAttribute(const Value& value, std::string_view name) {
  if (const Undefined* undefined = value.If<Undefined>()) FailUndefined(*undefined);
  if (IsMutatingMethod(value, name)) {
    return MakeUndefined("access to attribute '" + std::string(name) + "' of " + ObjectName(value) + " is unsafe");
  }
  if (HasMethod(value, name)) {
    auto method = std::make_shared<Function>();
    method->name = name;
    method->depth = ValueDepth(value) + 1;
    if (method->depth > kMaxValueDepth) Fail("a value is nested too deeply", StatusCode::kResourceExhausted);
    method->receiver = value;
    return Value(std::shared_ptr<const Function>(std::move(method)));
  }
  if (const Loop* loop = value.loop()) return LoopAttribute(*loop, name);
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->Find(name)) return *found;
  } else if (const Namespace* name_space = value.name_space()) {
    if (const auto found = name_space->attributes.find(name); found != name_space->attributes.end())
      return found->second;
  }
  return MakeUndefined(ObjectName(value) + " has no attribute '" + std::string(name) + "'");
}

Value GetItem(CallContext& context, const Value& value, const Value& key) {
  if (value.Is<Markup>()) Fail("an element of a safe text", StatusCode::kUnsupported);
  if (const Undefined* undefined = value.If<Undefined>()) FailUndefined(*undefined);
  const Sequence* sequence = value.sequence();
  if (const Dict* dict = value.dict(); dict != nullptr && key.dict() == nullptr &&
                                       (key.sequence() == nullptr || key.sequence()->kind == SequenceKind::kTuple)) {
    if (const Value* found = dict->Find(key, context.budget)) return *found;
  } else if (sequence != nullptr && sequence->kind <= SequenceKind::kRange) {
    const int64_t place = Place(key, static_cast<int64_t>(sequence->items.size()));
    if (place >= 0) return sequence->items[static_cast<size_t>(place)];
  } else if (const std::string* text = value.text(); text != nullptr && key.text() == nullptr) {
    context.budget.SpendBytes(text->size());
    const std::u32string points = DecodeUtf8(*text);
    const int64_t place = Place(key, static_cast<int64_t>(points.size()));
    if (place >= 0) return MakeText(EncodeUtf8(points.substr(static_cast<size_t>(place), 1)), context.budget);
  }
  if (const std::string* name = key.text()) return GetAttribute(value, *name);
  return MakeUndefined(ObjectName(value) + " has no element " +
                       (key.Is<int64_t>() ? Repr(key, context.budget) : "of that key"));
}

Value GetSlice(CallContext& context, const Value& value, const Value& start, const Value& stop, const Value& step) {
  const Sequence* sequence = value.sequence();
  const std::string* text = value.text();
  if (const Undefined* undefined = value.If<Undefined>()) FailUndefined(*undefined);
  if (value.Is<Markup>()) Fail("a slice of a safe text", StatusCode::kUnsupported);
  if (text == nullptr && (sequence == nullptr || sequence->kind > SequenceKind::kTuple)) {
    Fail("a slice of a '" + std::string(TypeName(value)) + "'",
         sequence != nullptr ? StatusCode::kUnsupported : StatusCode::kInvalidArgument);
  }
  const Arguments parts{{start, stop, step}, {}};
  const BoundArguments bound("slice", parts, {"start", "stop", "step"});
  const std::u32string points = text != nullptr ? DecodeUtf8(*text) : std::u32string();
  if (text != nullptr) context.budget.SpendBytes(text->size());
  const auto size = static_cast<int64_t>(text != nullptr ? points.size() : sequence->items.size());
  const int64_t stride = bound.Integer(2, 1);
  if (stride == 0) Fail("a slice needs a step other than 0");
  // Python's rule: negative places count from the end, then both are cut to the range that the direction can reach.
  const int64_t lowest = stride > 0 ? 0 : -1, highest = stride > 0 ? size : size - 1;
  const auto clamp = [&](size_t part, int64_t fallback) {
    if (bound[part]->Is<None>()) return fallback;
    const int64_t place = bound.Integer(part, 0);
    return std::clamp(place < 0 ? place + size : place, lowest, highest);
  };
  const int64_t first = clamp(0, stride > 0 ? lowest : highest), end = clamp(1, stride > 0 ? highest : lowest);
  std::vector<Value> items;
  std::u32string picked;
  for (int64_t i = first; stride > 0 ? i < end : i > end;) {
    context.budget.Spend(1);
    if (text != nullptr) {
      picked += points[static_cast<size_t>(i)];
    } else {
      items.push_back(sequence->items[static_cast<size_t>(i)]);
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (text != nullptr) return MakeText(EncodeUtf8(picked), context.budget);
  return MakeSequence(sequence->kind, std::move(items), context.budget);
}

bool Contains(CallContext& context, const Value& container, const Value& item) {
  if (const std::string* text = container.text()) {
    if (const Undefined* undefined = item.If<Undefined>()) FailUndefined(*undefined);
    if (item.text() == nullptr)
      Fail("'in' a text needs a text on its left, not a '" + std::string(TypeName(item)) + "'");
    context.budget.SpendBytes(text->size());
    return text->find(*item.text()) != text->npos;
  }
  if (const Dict* dict = container.dict()) return dict->Find(item, context.budget) != nullptr;
  for (const Value& element : Iterate(container, context.budget)) {
    if (Equal(element, item, context.budget)) return true;
  }
  return false;
}

bool IsGlobal(std::string_view name) {
  return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception" ||
         name == "strftime_now";
}

Value CallGlobal(CallContext& context, std::string_view name, const Arguments& arguments) {
  if (name == "range") {
    return MakeRange(BoundArguments(name, arguments, {"start", "stop", "step"}, 1), arguments.positional.size(),
                     context.budget);
  }
  if (name == "raise_exception") Fail(ToText(*BoundArguments(name, arguments, {"message"}, 1)[0], context.budget));
  if (name == "strftime_now") {
    return MakeText(FormatTime(context.now, std::string(BoundArguments(name, arguments, {"format"}, 1).Text(0, ""))),
                    context.budget);
  }
  std::vector<std::pair<Value, Value>> entries = DictArguments(name, arguments, context.budget);
  if (name == "dict") return MakeDict(std::move(entries), context.budget);
  auto made = std::make_shared<Namespace>();
  context.budget.SpendBytes(sizeof(Namespace) + entries.size() * sizeof(entries[0]));
  for (auto& [key, value] : entries) {
    if (key.text() == nullptr) Fail("namespace() needs names as keys");
    made->attributes[*key.text()] = std::move(value);
  }
  context.namespaces.push_back(made);
  return Value(std::move(made));
}

}  // namespace oscar::engine::jinja
