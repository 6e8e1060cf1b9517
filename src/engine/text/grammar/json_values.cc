#include "src/engine/text/grammar/json_values.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "src/engine/text/grammar/regex.h"
#include "src/engine/text/utf8.h"

namespace oscar::engine::grammar {
namespace {

using E = Expression;
using json = nlohmann::ordered_json;

std::string Spelled(const json& value, JsonWords words) {
  if (words == JsonWords::kPython && value.is_boolean()) return value == true ? "True" : "False";
  if (words == JsonWords::kPython && value.is_null()) return "None";
  if (words == JsonWords::kJson || !value.is_structured()) return value.dump();
  std::string text;
  for (const auto& [key, element] : value.items()) {
    text += (text.empty() ? "" : ", ") + (value.is_object() ? json(key).dump() + ": " : "") + Spelled(element, words);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

E Digits(int least, int most) { return E::Repeat(E::CodePoints({{'0', '9'}}), least, most); }

// Decimal texts of one length from low to high.
E DigitRange(const std::string& low, const std::string& high) {
  if (low == high) return E::Bytes(low);
  const size_t rest = low.size() - 1;
  const auto digit = [](char from, char to) { return E::CodePoints({{static_cast<char32_t>(from), static_cast<char32_t>(to)}}); };
  if (rest == 0) return digit(low[0], high[0]);
  if (low[0] == high[0]) return E::Sequence({digit(low[0], low[0]), DigitRange(low.substr(1), high.substr(1))});
  std::vector<E> choices;
  char from = low[0], to = high[0];
  if (low.find_first_not_of('0', 1) != std::string::npos) choices.push_back(E::Sequence({digit(from, from), DigitRange(low.substr(1), std::string(rest, '9'))})), ++from;
  if (high.find_first_not_of('9', 1) != std::string::npos) choices.push_back(E::Sequence({digit(to, to), DigitRange(std::string(rest, '0'), high.substr(1))})), --to;
  if (from <= to) choices.push_back(E::Sequence({digit(from, to), Digits(static_cast<int>(rest), static_cast<int>(rest))}));
  return E::Choice(std::move(choices));
}

// 0 <= low <= high.
E NaturalRange(uint64_t low, uint64_t high) {
  const std::string first = std::to_string(low), last = std::to_string(high);
  std::vector<E> choices;
  for (size_t length = first.size(); length <= last.size(); ++length) {
    choices.push_back(DigitRange(length == first.size() ? first : "1" + std::string(length - 1, '0'), length == last.size() ? last : std::string(length, '9')));
  }
  return E::Choice(std::move(choices));
}

}  // namespace

Expression InOrder(const std::vector<Member>& members, const std::optional<Expression>& more, const Expression& comma, const std::string& name, RuleSet* rules) {
  // tails[i]: what may follow a member, from member i on. Rules, so that each is written once.
  std::vector<E> tails(members.size() + 1);
  tails[members.size()] = more ? E::Repeat(E::Sequence({comma, *more}), 0, E::kNoLimit) : E::Bytes("");
  for (size_t i = members.size(); i-- > 0;) {
    E next = E::Sequence({comma, members[i].text});
    if (!members[i].required) next = E::Optional(std::move(next));
    tails[i] = E::Rule(rules->Add(name, E::Sequence({std::move(next), tails[i + 1]})));
  }
  std::vector<E> choices;  // by the first member that is there
  size_t i = 0;
  for (; i < members.size(); ++i) {
    choices.push_back(E::Sequence({members[i].text, tails[i + 1]}));
    if (members[i].required) break;
  }
  if (i == members.size()) {
    if (more) choices.push_back(E::Sequence({*more, tails[members.size()]}));
    choices.push_back(E::Bytes(""));
  }
  return E::Choice(std::move(choices));
}

Expression Separated(Expression first, Expression rest, int least, int most) {
  if (most == 0) return E::Bytes("");
  E all = E::Sequence({std::move(first), E::Repeat(std::move(rest), std::max(0, least - 1), most == E::kNoLimit ? E::kNoLimit : most - 1)});
  return least == 0 ? E::Optional(std::move(all)) : all;
}

Expression JsonValues::Once(int* rule, const char* name, Expression (JsonValues::*make)()) {
  if (*rule < 0) {
    *rule = rules_->Add(name);
    Expression body = (this->*make)();
    rules_->bodies[static_cast<size_t>(*rule)] = std::move(body);
  }
  return E::Rule(*rule);
}

Expression JsonValues::Space() { return Once(&space_, "space", &JsonValues::MakeSpace); }
Expression JsonValues::Character() { return Once(&character_, "character", &JsonValues::MakeCharacter); }
Expression JsonValues::String() { return Once(&string_, "string", &JsonValues::MakeString); }
Expression JsonValues::Number() { return Once(&number_, "number", &JsonValues::MakeNumber); }
Expression JsonValues::Object() { return Once(&object_, "object", &JsonValues::MakeObject); }
Expression JsonValues::Array() { return Once(&array_, "array", &JsonValues::MakeArray); }
Expression JsonValues::Any() { return Once(&any_, "value", &JsonValues::MakeAny); }
Expression JsonValues::Comma() { return E::Sequence({E::Bytes(","), Space()}); }
Expression JsonValues::Colon() { return E::Sequence({E::Bytes(":"), Space()}); }
Expression JsonValues::Boolean() const { return E::Choice({Constant(true), Constant(false)}); }
Expression JsonValues::Null() const { return Constant(nullptr); }
Expression JsonValues::Constant(const json& value) const { return E::Bytes(Spelled(value, words_)); }

Expression JsonValues::MakeSpace() {
  return E::Optional(E::Choice({E::Bytes(" "), E::Sequence({E::Bytes("\n"), E::Repeat(E::CodePoints({{' ', ' '}}), 0, 16)})}));
}

// One code point: as it is, or by an escape. Escapes of surrogates are left out, so that a count of these is one of code points.
Expression JsonValues::MakeCharacter() {
  const E hex = E::CodePoints({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  return E::Choice({E::CodePoints({{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}}),
                    E::Sequence({E::Bytes("\\"), E::CodePoints({{'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}})}),
                    E::Sequence({E::Bytes("\\u"), E::CodePoints({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), hex, hex, hex}),
                    E::Sequence({E::Bytes("\\u"), E::CodePoints({{'D', 'D'}, {'d', 'd'}}), E::CodePoints({{'0', '7'}}), hex, hex})});
}

Expression JsonValues::MakeString() { return StringOfLength(0, E::kNoLimit); }

Expression JsonValues::StringOfLength(int least, int most) {
  return E::Sequence({E::Bytes("\""), E::Repeat(Character(), least, most), E::Bytes("\"")});
}

// As long as a double is exact: sampling without an end would be allowed otherwise.
Expression JsonValues::MakeNumber() {
  return E::Sequence({E::Optional(E::Bytes("-")), E::Choice({E::Bytes("0"), E::Sequence({E::CodePoints({{'1', '9'}}), Digits(0, 15)})}),
                      E::Optional(E::Sequence({E::Bytes("."), Digits(1, 15)})),
                      E::Optional(E::Sequence({E::CodePoints({{'E', 'E'}, {'e', 'e'}}), E::Optional(E::CodePoints({{'+', '+'}, {'-', '-'}})), Digits(1, 2)}))});
}

Expression JsonValues::MakeObject() {
  const E member = E::Sequence({String(), Colon(), Any()});
  return E::Sequence({E::Bytes("{"), Space(), Separated(member, E::Sequence({Comma(), member}), 0, E::kNoLimit), Space(), E::Bytes("}")});
}

Expression JsonValues::MakeArray() {
  return E::Sequence({E::Bytes("["), Space(), Separated(Any(), E::Sequence({Comma(), Any()}), 0, E::kNoLimit), Space(), E::Bytes("]")});
}

Expression JsonValues::MakeAny() { return E::Choice({Object(), Array(), String(), Number(), Boolean(), Null()}); }

Expression JsonValues::Integer(int64_t low, int64_t high) const {
  constexpr int64_t kMost = 999'999'999'999'999'999;
  low = std::max(low, -kMost);
  high = std::min(high, kMost);
  std::vector<E> choices;
  if (low < 0 && low <= high) {
    choices.push_back(E::Sequence({E::Bytes("-"), NaturalRange(static_cast<uint64_t>(high < 0 ? -high : 1), static_cast<uint64_t>(-low))}));
  }
  if (high >= 0 && low <= high) choices.push_back(NaturalRange(static_cast<uint64_t>(std::max<int64_t>(0, low)), static_cast<uint64_t>(high)));
  return E::Choice(std::move(choices));
}

Result<Expression> JsonValues::Format(std::string_view name) const {
  // There is no year 0, and the 29th of February is left to calendars.
  const std::string date = "((\\d{3}[1-9]|\\d\\d[1-9]0|\\d[1-9]00|[1-9]000)-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8])))";
  const std::string time = "(([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d))";
  std::string pattern;
  if (name == "date") pattern = date;
  if (name == "time") pattern = time;
  if (name == "date-time") pattern = date + "T" + time;
  if (name == "uuid") pattern = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";
  if (pattern.empty()) return Status(StatusCode::kUnsupported, "format " + std::string(name));
  Result<E> text = ParseRegex(pattern, {.whole = true, .json_string = true});
  if (!text.ok()) return text.status();
  return E::Sequence({E::Bytes("\""), *std::move(text), E::Bytes("\"")});
}

// Along the tree of the taken keys: a key leaves it at a character that no taken one has there, or ends where none ends.
Expression JsonValues::KeyExcept(const std::vector<std::string>& taken) {
  const std::vector<CodePointRange> allowed = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
  const E rest = E::Repeat(E::CodePoints(allowed), 0, E::kNoLimit);
  std::map<std::u32string, std::set<char32_t>> tree;  // prefix -> next characters
  std::set<std::u32string> ends;
  tree[U""];
  for (const std::string& key : taken) {
    std::u32string prefix;
    for (std::string_view left = key; !left.empty();) {
      const Utf8Step step = NextUtf8(left);
      left.remove_prefix(step.size);
      tree[prefix].insert(step.code_point);
      prefix += step.code_point;
      tree[prefix];
    }
    ends.insert(prefix);
  }
  std::map<std::u32string, int> rules;
  for (const auto& [prefix, next] : tree) rules[prefix] = rules_->Add("key");
  for (const auto& [prefix, next] : tree) {
    std::vector<E> choices;
    std::vector<CodePointRange> others = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    for (const char32_t c : next) {
      others.emplace_back(c, c);
      if (c >= 0x20 && c != '"' && c != '\\') choices.push_back(E::Sequence({E::CodePoints({{c, c}}), E::Rule(rules[prefix + c])}));
    }
    choices.push_back(E::Sequence({E::CodePoints(Complement(others)), rest}));
    if (!ends.contains(prefix)) choices.push_back(E::Bytes(""));
    rules_->bodies[static_cast<size_t>(rules[prefix])] = E::Choice(std::move(choices));
  }
  return E::Sequence({E::Bytes("\""), E::Rule(rules[U""]), E::Bytes("\"")});
}

}  // namespace oscar::engine::grammar
