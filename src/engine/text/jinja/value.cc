#include "src/engine/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "src/engine/text/jinja/unicode_text.h"

namespace oscar::engine::jinja {
namespace {

constexpr size_t kElementBytes = 2 * sizeof(Value);

int CheckedDepth(int depth) {
  if (depth > kMaxValueDepth) Fail("a value is nested too deeply", StatusCode::kResourceExhausted);
  return depth;
}

std::string QuotePython(std::string_view text) {
  const bool use_double = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = use_double ? '"' : '\'';
  std::string result(1, quote);
  for (char32_t c : DecodeUtf8(text)) {
    char escaped[12];
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      result += '\\';
      result += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      result += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) {
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(c));
      result += escaped;
    } else if (c > 0xFF && IsSpace(c)) {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      result += escaped;
    } else {
      AppendUtf8(c, &result);
    }
  }
  return result + quote;
}

std::string EscapeHtml(std::string_view text) {
  std::string result;
  for (char c : text) {
    static constexpr std::string_view kSpecial = "&<>'\"", kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const size_t place = kSpecial.find(c);
    result += place != kSpecial.npos ? kEscapes[place] : std::string_view(&c, 1);
  }
  return result;
}

// Elements in Python's notation, between brackets.
std::string ReprItems(const std::vector<Value>& items, char open, char close, Budget& budget) {
  std::string result(1, open);
  for (size_t i = 0; i < items.size(); ++i) result += (i > 0 ? ", " : "") + Repr(items[i], budget);
  return result + (open == '(' && items.size() == 1 ? "," : "") + close;
}

bool HasOrder(const Sequence* a, const Sequence* b) {
  return a != nullptr && b != nullptr && a->kind == b->kind &&
         (a->kind == SequenceKind::kList || a->kind == SequenceKind::kTuple);
}

}  // namespace

void FailUndefined(const Undefined& undefined) {
  Fail(undefined.reason != nullptr ? *undefined.reason : "a value is undefined");
}

const Value* Dict::Find(std::string_view text_key) const {
  std::string key = "s";
  const auto found = index.find(key.append(text_key));
  return found != index.end() ? &entries[found->second].second : nullptr;
}

const Value* Dict::Find(const Value& key, Budget& budget) const {
  const auto found = index.find(DictKey(key, budget));
  return found != index.end() ? &entries[found->second].second : nullptr;
}

void Dict::Set(const Value& key, Value value, Budget& budget) {
  budget.SpendBytes(2 * kElementBytes);
  depth = CheckedDepth(std::max({depth, ValueDepth(key) + 1, ValueDepth(value) + 1}));
  const auto [place, inserted] = index.try_emplace(DictKey(key, budget), entries.size());
  if (inserted) {
    entries.emplace_back(key, std::move(value));
  } else {
    entries[place->second].second = std::move(value);
  }
}

Value MakeText(std::string text, Budget& budget) {
  budget.SpendBytes(text.size());
  return Value(std::make_shared<const std::string>(std::move(text)));
}

Value MakeMarkup(std::string text, Budget& budget) {
  return Value(Markup{std::get<Text>(MakeText(std::move(text), budget).data)});
}

Value AddTexts(const Value& a, const Value& b, Budget& budget) {
  const bool is_markup = a.Is<Markup>() || b.Is<Markup>();
  const auto part = [&](const Value& value) {
    budget.SpendBytes(value.text()->size());
    return is_markup && !value.Is<Markup>() ? EscapeHtml(*value.text()) : *value.text();
  };
  std::string sum = part(a) + part(b);
  return is_markup ? MakeMarkup(std::move(sum), budget) : MakeText(std::move(sum), budget);
}

Value MakeSequence(SequenceKind kind, std::vector<Value> items, Budget& budget) {
  budget.SpendBytes(items.size() * kElementBytes);
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  for (const Value& item : items) sequence->depth = CheckedDepth(std::max(sequence->depth, ValueDepth(item) + 1));
  sequence->items = std::move(items);
  return Value(std::move(sequence));
}

Value MakeDict(std::vector<std::pair<Value, Value>> entries, Budget& budget) {
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : entries) dict->Set(key, std::move(value), budget);
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

Value MakeUndefined(std::string reason) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(reason))});
}

int ValueDepth(const Value& value) {
  if (const Sequence* sequence = value.sequence()) return sequence->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  if (const Function* function = value.function()) return function->depth;
  if (const Loop* loop = value.loop()) return loop->value_depth;
  return 0;
}

std::string_view TypeName(const Value& value) {
  static constexpr std::string_view kNames[] = {"Undefined", "NoneType",    "bool",     "int",
                                                "float",     "str",         "list",     "dict",
                                                "Namespace", "LoopContext", "function", "Markup"};
  static constexpr std::string_view kSequenceNames[] = {"list", "tuple", "range", "dict view", "iterator"};
  if (const Sequence* sequence = value.sequence()) return kSequenceNames[static_cast<size_t>(sequence->kind)];
  return kNames[value.data.index()];
}

bool ToInteger(const Value& value, int64_t* number) {
  if (const bool* held = value.If<bool>()) return *number = *held, true;
  if (const int64_t* held = value.If<int64_t>()) return *number = *held, true;
  return false;
}

bool ToNumber(const Value& value, double* number) {
  if (const double* held = value.If<double>()) return *number = *held, true;
  int64_t integer = 0;
  if (!ToInteger(value, &integer)) return false;
  *number = static_cast<double>(integer);
  return true;
}

bool Truth(const Value& value) {
  if (value.Is<Undefined>() || value.Is<None>()) return false;
  if (const std::string* text = value.text()) return !text->empty();
  if (const Sequence* sequence = value.sequence()) {
    return sequence->kind == SequenceKind::kIterator || !sequence->items.empty();
  }
  if (const Dict* dict = value.dict()) return !dict->entries.empty();
  double number = 0;
  return !ToNumber(value, &number) || number != 0;
}

bool Equal(const Value& a, const Value& b, Budget& budget) {
  budget.Spend(1);
  int64_t left_integer = 0, right_integer = 0;
  if (ToInteger(a, &left_integer) && ToInteger(b, &right_integer)) return left_integer == right_integer;
  double left = 0, right = 0;
  if (ToNumber(a, &left) && ToNumber(b, &right)) return left == right;
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
  if (a.data.index() != b.data.index()) return false;
  if (a.Is<Undefined>() || a.Is<None>()) return true;
  const Sequence *x = a.sequence(), *y = b.sequence();
  if (x != nullptr && x != y) {
    if (x->kind != y->kind || x->items.size() != y->items.size()) return false;
    if (x->kind == SequenceKind::kIterator || x->kind == SequenceKind::kView) return false;
    for (size_t i = 0; i < x->items.size(); ++i) {
      if (!Equal(x->items[i], y->items[i], budget)) return false;
    }
    return true;
  }
  const Dict *c = a.dict(), *d = b.dict();
  if (c != nullptr && c != d) {
    if (c->entries.size() != d->entries.size()) return false;
    for (const auto& [key, value] : c->entries) {
      const Value* other = d->Find(key, budget);
      if (other == nullptr || !Equal(value, *other, budget)) return false;
    }
    return true;
  }
  if (const Function* f = a.function()) return f == b.function();
  return a.name_space() == b.name_space() && a.loop() == b.loop();
}

bool Less(const Value& a, const Value& b, Budget& budget) {
  budget.Spend(1);
  int64_t left_integer = 0, right_integer = 0;
  if (ToInteger(a, &left_integer) && ToInteger(b, &right_integer)) return left_integer < right_integer;
  double left = 0, right = 0;
  if (ToNumber(a, &left) && ToNumber(b, &right)) return left < right;
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();  // UTF-8 sorts as code points do
  if (const Sequence* x = a.sequence(), *y = b.sequence(); HasOrder(x, y)) {
    for (size_t i = 0; i < x->items.size() && i < y->items.size(); ++i) {
      if (!Equal(x->items[i], y->items[i], budget)) return Less(x->items[i], y->items[i], budget);
    }
    return x->items.size() < y->items.size();
  }
  for (const Value* value : {&a, &b}) {
    if (const Undefined* undefined = value->If<Undefined>()) FailUndefined(*undefined);
  }
  Fail("'" + std::string(TypeName(a)) + "' and '" + std::string(TypeName(b)) + "' cannot be ordered");
}

std::string DictKey(const Value& value, Budget& budget) {
  budget.Spend(1);
  if (const std::string* text = value.text()) return "s" + *text;
  int64_t integer = 0;
  if (ToInteger(value, &integer)) return "i" + std::to_string(integer);
  if (const double* number = value.If<double>()) {
    const bool integral = std::abs(*number) < 9e18 && *number == std::trunc(*number);
    return integral ? "i" + std::to_string(static_cast<int64_t>(*number)) : "f" + FloatRepr(*number);
  }
  if (value.Is<None>()) return "n";
  const Sequence* sequence = value.sequence();
  const bool is_range = sequence != nullptr && sequence->kind == SequenceKind::kRange;
  if (is_range || (sequence != nullptr && sequence->kind == SequenceKind::kTuple)) {
    std::string key = is_range ? "r" : "(";
    for (const Value& item : sequence->items) {
      const std::string part = DictKey(item, budget);
      key += std::to_string(part.size()) + ":" + part;
      budget.SpendBytes(part.size());
    }
    return key;
  }
  if (value.Is<Undefined>()) return "u";
  const bool unhashable = value.dict() != nullptr || (sequence != nullptr && sequence->kind != SequenceKind::kIterator);
  Fail("a '" + std::string(TypeName(value)) + "' as the key of a dict",
       unhashable ? StatusCode::kInvalidArgument : StatusCode::kUnsupported);
}

// The shortest digits that read back as `value`, in Python's layout: exponent below 1e-4 and from 1e16 on.
std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string text(buffer, written.ptr);
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) {
    std::snprintf(buffer, sizeof buffer, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return text.substr(0, e) + buffer;
  }
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  const std::string result(buffer, fixed.ptr);
  return result.find('.') == result.npos ? result + ".0" : result;
}

std::string ToText(const Value& value, Budget& budget) {
  if (const std::string* text = value.text()) return *text;
  return value.Is<Undefined>() ? std::string() : Repr(value, budget);
}

std::string Repr(const Value& value, Budget& budget) {
  if (value.Is<Undefined>()) return "Undefined";
  if (value.Is<None>()) return "None";
  if (const bool* held = value.If<bool>()) return *held ? "True" : "False";
  if (const int64_t* held = value.If<int64_t>()) return std::to_string(*held);
  if (const double* held = value.If<double>()) return FloatRepr(*held);
  std::string result;
  if (const std::string* text = value.text(); text != nullptr && !value.Is<Markup>()) {
    result = QuotePython(*text);
  } else if (const Sequence* sequence = value.sequence();
             sequence != nullptr && sequence->kind != SequenceKind::kIterator) {
    if (sequence->kind == SequenceKind::kRange) return sequence->name;
    const bool tuple = sequence->kind == SequenceKind::kTuple;
    result = ReprItems(sequence->items, tuple ? '(' : '[', tuple ? ')' : ']', budget);
    if (sequence->kind == SequenceKind::kView) result = sequence->name + "(" + result + ")";
  } else if (const Dict* dict = value.dict()) {
    for (const auto& [key, held] : dict->entries) {
      result += (result.empty() ? "" : ", ") + Repr(key, budget) + ": " + Repr(held, budget);
    }
    result = "{" + result + "}";
  } else {
    Fail("printing a value of type '" + std::string(TypeName(value)) + "'", StatusCode::kUnsupported);
  }
  budget.SpendBytes(result.size());
  return result;
}

std::vector<Value> Iterate(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (value.Is<Undefined>()) return items;
  if (Sequence* sequence = value.sequence()) {
    items.assign(sequence->items.begin() + static_cast<std::ptrdiff_t>(sequence->num_consumed), sequence->items.end());
    if (sequence->kind == SequenceKind::kIterator) sequence->num_consumed = sequence->items.size();
    if (sequence->failure.has_value()) throw *sequence->failure;
  } else if (const Dict* dict = value.dict()) {
    for (const auto& entry : dict->entries) items.push_back(entry.first);
  } else if (const std::string* text = value.text()) {
    budget.SpendBytes(text->size() * kElementBytes * 2);
    for (char32_t c : DecodeUtf8(*text)) items.push_back(MakeText(EncodeUtf8(std::u32string(1, c)), budget));
  } else {
    Fail("a '" + std::string(TypeName(value)) + "' cannot be iterated");
  }
  budget.SpendBytes(items.size() * sizeof(Value));
  return items;
}

int64_t Length(const Value& value) {
  if (value.Is<Undefined>()) return 0;
  if (const std::string* text = value.text()) return static_cast<int64_t>(CountCodePoints(*text));
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->entries.size());
  if (const Loop* loop = value.loop()) return static_cast<int64_t>(loop->items->size());
  const Sequence* sequence = value.sequence();
  if (sequence == nullptr || sequence->kind == SequenceKind::kIterator) {
    Fail("a '" + std::string(TypeName(value)) + "' has no length");
  }
  return static_cast<int64_t>(sequence->items.size());
}

}  // namespace oscar::engine::jinja
