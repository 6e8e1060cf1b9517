// Methods of texts, lists, dicts and `loop`, as Python has them. Positions in texts count code points.
#include <algorithm>
#include <limits>
#include <map>

#include "src/engine/text/jinja/builtins.h"
#include "src/engine/text/jinja/unicode_text.h"

namespace oscar::engine::jinja {
namespace {

// `name` is the method's, so that one function can serve two of a kind.
using TextMethod = Value (*)(CallContext& context, const std::string& self, std::string_view name,
                             const Arguments& arguments);

template <std::string (*kTransform)(std::string_view)>
Value Transform(CallContext& context, const std::string& self, std::string_view name, const Arguments& arguments) {
  BoundArguments(name, arguments, {});
  return MakeText(kTransform(self), context.budget);
}

Value Strip(CallContext& context, const std::string& self, std::string_view name, const Arguments& arguments) {
  const BoundArguments bound(name, arguments, {"chars"});
  const bool left = name != "rstrip", right = name != "lstrip", spaces = bound[0] == nullptr || bound[0]->Is<None>();
  return MakeText(
      std::string(spaces ? StripSpace(self, left, right) : StripCharacters(self, bound.Text(0, ""), left, right)),
      context.budget);
}

std::vector<std::string> SplitAtSpaces(std::string_view text, int64_t most) {
  std::vector<std::string> parts;
  for (text = StripSpace(text, true, false); !text.empty(); text = StripSpace(text, true, false)) {
    size_t end = 0;
    if (most-- == 0) {
      end = text.size();
    } else {
      while (end < text.size() && StripSpace(text.substr(end), true, false).size() == text.size() - end) {
        do ++end;
        while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
      }
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

Value Split(CallContext& context, const std::string& self, std::string_view name, const Arguments& arguments) {
  const BoundArguments bound(name, arguments, {"sep", "maxsplit"});
  int64_t most = bound.Integer(1, -1);
  if (most < 0) most = std::numeric_limits<int64_t>::max();
  const bool from_right = name == "rsplit";
  std::vector<std::string> parts;
  context.budget.SpendBytes(self.size());
  if (bound[0] == nullptr || bound[0]->Is<None>()) {
    if (from_right && most != std::numeric_limits<int64_t>::max())
      Fail("rsplit() at spaces with maxsplit", StatusCode::kUnsupported);
    parts = SplitAtSpaces(self, most);
    if (!parts.empty()) parts.back() = StripSpace(parts.back(), false, parts.size() <= static_cast<size_t>(most));
  } else {
    const std::string_view separator = bound.Text(0, "");
    if (separator.empty()) Fail(std::string(name) + "() needs a separator that is not empty");
    std::string_view rest = self;
    for (; most > 0; --most) {
      const size_t at = from_right ? rest.rfind(separator) : rest.find(separator);
      if (at == rest.npos) break;
      parts.emplace_back(from_right ? rest.substr(at + separator.size()) : rest.substr(0, at));
      rest = from_right ? rest.substr(0, at) : rest.substr(at + separator.size());
    }
    parts.emplace_back(rest);
    if (from_right) std::reverse(parts.begin(), parts.end());
  }
  std::vector<Value> items;
  for (std::string& part : parts) items.push_back(MakeText(std::move(part), context.budget));
  return MakeSequence(SequenceKind::kList, std::move(items), context.budget);
}

Value Lines(CallContext& context, const std::string& self, std::string_view name, const Arguments& arguments) {
  BoundArguments(name, arguments, {});
  std::vector<Value> items;
  for (std::string& line : SplitLines(self)) items.push_back(MakeText(std::move(line), context.budget));
  return MakeSequence(SequenceKind::kList, std::move(items), context.budget);
}

// self[start:end] in code points.
std::u32string Window(const std::string& self, const BoundArguments& bound, int64_t* start) {
  const std::u32string points = DecodeUtf8(self);
  const auto size = static_cast<int64_t>(points.size());
  const auto place = [&](int64_t at) { return at < 0 ? std::max<int64_t>(at + size, 0) : at; };
  *start = place(bound.Integer(1, 0));
  const int64_t end = std::min(place(bound.Integer(2, size)), size);
  if (*start > end) return std::u32string(1, char32_t{0xFFFFFFFF});  // not even an empty text is found here
  return points.substr(static_cast<size_t>(*start), static_cast<size_t>(end - *start));
}

Value StartsOrEnds(CallContext& context, const std::string& self, std::string_view name, const Arguments& arguments) {
  const BoundArguments bound(name, arguments, {"affix", "start", "end"}, 1);
  int64_t start = 0;
  context.budget.SpendBytes(self.size());
  const std::u32string window = Window(self, bound, &start);
  std::vector<Value> affixes = {*bound[0]};
  if (const Sequence* tuple = bound[0]->sequence(); tuple != nullptr && tuple->kind == SequenceKind::kTuple)
    affixes = tuple->items;
  for (const Value& affix : affixes) {
    if (const Undefined* undefined = affix.If<Undefined>()) FailUndefined(*undefined);
    if (affix.text() == nullptr) Fail(std::string(name) + "() needs a text or a tuple of texts");
    const std::u32string wanted = DecodeUtf8(*affix.text());
    const bool outside = window.size() == 1 && window[0] == char32_t{0xFFFFFFFF};
    if (!outside && (name == "startswith" ? window.starts_with(wanted) : window.ends_with(wanted))) return true;
  }
  return false;
}

Value Find(CallContext& context, const std::string& self, std::string_view name, const Arguments& arguments) {
  const BoundArguments bound(name, arguments, {"sub", "start", "end"}, 1);
  int64_t start = 0;
  context.budget.SpendBytes(self.size());
  const std::u32string window = Window(self, bound, &start), wanted = DecodeUtf8(bound.Text(0, ""));
  const bool outside = window.size() == 1 && window[0] == char32_t{0xFFFFFFFF};
  if (bound[0]->text() == nullptr) Fail(std::string(name) + "() needs a text");
  if (name == "count") {
    int64_t count = 0;
    for (size_t at = outside ? window.npos : window.find(wanted); at != window.npos && !wanted.empty();
         at = window.find(wanted, at + wanted.size()))
      ++count;
    return wanted.empty() && !outside ? static_cast<int64_t>(window.size()) + 1 : count;
  }
  const size_t at = outside ? window.npos : name[0] == 'r' ? window.rfind(wanted) : window.find(wanted);
  if (at == window.npos && name.ends_with("index")) Fail(std::string(name) + "(): the text is not found");
  return at == window.npos ? int64_t{-1} : start + static_cast<int64_t>(at);
}

Value Replace(CallContext& context, const std::string& self, std::string_view name, const Arguments& arguments) {
  const BoundArguments bound(name, arguments, {"old", "new", "count"}, 2);
  if (bound[0]->Is<None>() || bound[1]->Is<None>()) Fail("replace() needs texts");
  return MakeText(ReplaceText(self, bound.Text(0, ""), bound.Text(1, ""), bound.Integer(2, -1), context.budget),
                  context.budget);
}

Value RemoveAffix(CallContext& context, const std::string& self, std::string_view name, const Arguments& arguments) {
  const std::string_view affix = BoundArguments(name, arguments, {"affix"}, 1).Text(0, "");
  const bool prefix = name == "removeprefix";
  if (!(prefix ? self.starts_with(affix) : self.ends_with(affix))) return MakeText(self, context.budget);
  return MakeText(prefix ? self.substr(affix.size()) : self.substr(0, self.size() - affix.size()), context.budget);
}

Value Join(CallContext& context, const std::string& self, std::string_view name, const Arguments& arguments) {
  const BoundArguments bound(name, arguments, {"iterable"}, 1);
  std::string result;
  bool first = true;
  for (const Value& item : Iterate(*bound[0], context.budget)) {
    if (item.text() == nullptr) Fail("join() needs texts, not a '" + std::string(TypeName(item)) + "'");
    context.budget.SpendBytes(self.size() + item.text()->size());
    result += (first ? "" : self) + *item.text();
    first = false;
  }
  return MakeText(std::move(result), context.budget);
}

// {}, {0} and {name} without format specifications.
Value Format(CallContext& context, const std::string& self, std::string_view, const Arguments& arguments) {
  std::string result;
  size_t next = 0;
  for (size_t i = 0; i < self.size(); ++i) {
    const char c = self[i];
    if (c != '{' && c != '}') {
      result += c;
    } else if (i + 1 < self.size() && self[i + 1] == c) {
      result += self[++i];
    } else {
      const size_t end = self.find('}', i);
      if (c == '}' || end == self.npos) Fail("format(): a brace without its partner");
      const std::string field = self.substr(i + 1, end - i - 1);
      const bool is_index = field.find_first_not_of("0123456789") == field.npos;
      const auto named = std::find_if(arguments.keywords.begin(), arguments.keywords.end(),
                                      [&](const auto& k) { return k.first == field; });
      if (field.size() > 8 && is_index) Fail("format(): there is no argument " + field);
      if (field.find_first_of(".[:!{") != field.npos)
        Fail("format() with the field '" + field + "'", StatusCode::kUnsupported);
      const size_t index = field.empty() ? next++ : is_index ? static_cast<size_t>(std::stoi(field)) : 0;
      if (is_index ? index >= arguments.positional.size() : named == arguments.keywords.end())
        Fail("format(): there is no argument '" + field + "'");
      result += ToText(is_index ? arguments.positional[index] : named->second, context.budget);
      i = end;
    }
  }
  return MakeText(std::move(result), context.budget);
}

// isdigit, isalpha, isalnum, isspace: all code points are of that kind, and there is one. isupper, islower: by case.
Value HasKind(CallContext& context, const std::string& self, std::string_view name, const Arguments& arguments) {
  BoundArguments(name, arguments, {});
  context.budget.SpendBytes(self.size());
  if (name == "isupper") return ToUpper(self) == self && ToLower(self) != self;
  if (name == "islower") return ToLower(self) == self && ToUpper(self) != self;
  const std::u32string points = DecodeUtf8(self);
  return !points.empty() && std::all_of(points.begin(), points.end(), [&](char32_t c) {
    const bool digit = c >= '0' && c <= '9';
    if (name == "isspace") return IsSpace(c);
    if (name == "isalpha") return IsAlphabetic(c);
    return digit || (name == "isalnum" && IsAlphabetic(c));
  });
}

const std::map<std::string_view, TextMethod>& TextMethods() {
  static const std::map<std::string_view, TextMethod> methods = {
      {"capitalize", Transform<Capitalize>},
      {"count", Find},
      {"endswith", StartsOrEnds},
      {"find", Find},
      {"format", Format},
      {"index", Find},
      {"isalnum", HasKind},
      {"isalpha", HasKind},
      {"isdigit", HasKind},
      {"islower", HasKind},
      {"isspace", HasKind},
      {"isupper", HasKind},
      {"join", Join},
      {"lower", Transform<ToLower>},
      {"lstrip", Strip},
      {"removeprefix", RemoveAffix},
      {"removesuffix", RemoveAffix},
      {"replace", Replace},
      {"rfind", Find},
      {"rindex", Find},
      {"rsplit", Split},
      {"rstrip", Strip},
      {"split", Split},
      {"splitlines", Lines},
      {"startswith", StartsOrEnds},
      {"strip", Strip},
      {"title", Transform<ToTitle>},
      {"upper", Transform<ToUpper>},
  };
  return methods;
}

Value CallDictMethod(CallContext& context, const Value& receiver, std::string_view name, const Arguments& arguments) {
  const Dict& dict = *receiver.dict();
  if (name == "get") {
    const BoundArguments bound(name, arguments, {"key", "default"}, 1);
    const Value* found = dict.Find(*bound[0], context.budget);
    return found != nullptr ? *found : bound[1] != nullptr ? *bound[1] : Value(None{});
  }
  BoundArguments(name, arguments, {});
  if (name == "copy") return receiver;
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries) {
    items.push_back(name == "keys"     ? key
                    : name == "values" ? value
                                       : MakeSequence(SequenceKind::kTuple, {key, value}, context.budget));
  }
  Value view = MakeSequence(SequenceKind::kView, std::move(items), context.budget);
  view.sequence()->name = "dict_" + std::string(name);
  return view;
}

Value CallListMethod(CallContext& context, const Value& receiver, std::string_view name, const Arguments& arguments) {
  const std::vector<Value>& items = receiver.sequence()->items;
  if (name == "copy") return BoundArguments(name, arguments, {}), receiver;
  const BoundArguments bound(name, arguments, {"value"}, 1);
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!Equal(items[i], *bound[0], context.budget)) continue;
    if (name == "index") return static_cast<int64_t>(i);
    ++count;
  }
  if (name == "index") Fail("index(): the value is not in the list");
  return count;
}

}  // namespace

std::string ReplaceText(std::string_view text, std::string_view from, std::string_view to, int64_t count,
                        Budget& budget) {
  std::string result;
  size_t position = 0;
  budget.SpendBytes(text.size());
  for (; count != 0; --count) {
    size_t at = text.find(from, position);
    if (at == text.npos) break;
    if (from.empty() && at < text.size()) {  // Python puts `to` before every code point and at the end
      size_t next = at + 1;
      while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xC0) == 0x80) ++next;
      result.append(to).append(text.substr(at, next - at));
      position = next;
    } else {
      result.append(text.substr(position, at - position)).append(to);
      position = at + from.size();
    }
    budget.SpendBytes(to.size());
    if (from.empty() && at == text.size()) break;
  }
  return result.append(text.substr(position));
}

bool HasMethod(const Value& receiver, std::string_view name) {
  if (receiver.text() != nullptr) return TextMethods().count(name) > 0;
  if (receiver.dict() != nullptr)
    return name == "get" || name == "items" || name == "keys" || name == "values" || name == "copy";
  if (receiver.loop() != nullptr) return name == "cycle";
  const Sequence* sequence = receiver.sequence();
  if (sequence == nullptr || sequence->kind > SequenceKind::kRange) return false;
  return name == "index" || name == "count" || (name == "copy" && sequence->kind == SequenceKind::kList);
}

Value CallMethod(CallContext& context, const Value& receiver, std::string_view name, const Arguments& arguments) {
  context.budget.Spend(1);
  if (const std::string* text = receiver.text()) {
    const Value result = TextMethods().at(name)(context, *text, name, arguments);
    const bool makes_text = result.text() != nullptr || result.sequence() != nullptr;
    if (receiver.Is<Markup>() && makes_text)
      Fail("the method '" + std::string(name) + "' of a safe text", StatusCode::kUnsupported);
    return result;
  }
  if (receiver.dict() != nullptr) return CallDictMethod(context, receiver, name, arguments);
  if (receiver.sequence() != nullptr) return CallListMethod(context, receiver, name, arguments);
  const std::vector<Value>& choices = arguments.positional;
  if (choices.empty() || !arguments.keywords.empty()) Fail("loop.cycle() needs values");
  return choices[receiver.loop()->index % choices.size()];
}

}  // namespace oscar::engine::jinja
