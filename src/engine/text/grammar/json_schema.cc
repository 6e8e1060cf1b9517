#include "src/engine/text/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "src/base/status_macros.h"
#include "src/engine/text/grammar/json_values.h"
#include "src/engine/text/grammar/regex.h"
#include "src/engine/text/grammar/schema_merge.h"

namespace oscar::engine::grammar {
namespace {

using json = nlohmann::ordered_json;
using E = Expression;

constexpr int kMaxDepth = 64, kMaxSchemas = 10'000, kMaxComparisons = 50'000;
constexpr int kMaxCount = 100'000;

class SchemaCompiler {
 public:
  SchemaCompiler(const json& root, const SchemaOptions& options, RuleSet* rules, std::vector<std::string>* ignored)
      : root_(root), options_(options), rules_(rules), ignored_(ignored), values_(rules, options.words) {}

  Result<int> Compile() {
    const int root = RuleOf("#");
    // Referenced schemas wait here, so that a long chain of them needs no deep stack.
    while (!pending_.empty()) {
      const auto [pointer, rule] = pending_.back();
      pending_.pop_back();
      OSCAR_ASSIGN_OR_RETURN(const json* schema, Resolve(pointer));
      OSCAR_ASSIGN_OR_RETURN(E body, Value(*schema, pointer));
      rules_->bodies[static_cast<size_t>(rule)] = std::move(body);
    }
    return root;
  }

 private:
  static Status Unsupported(const std::string& path, const std::string& what) { return {StatusCode::kUnsupported, path + ": " + what}; }
  static Status Invalid(const std::string& path, const std::string& what) { return {StatusCode::kInvalidArgument, path + ": " + what}; }

  int RuleOf(const std::string& pointer) {
    const auto [found, is_new] = by_pointer_.try_emplace(pointer, -1);
    if (is_new) {
      found->second = rules_->Add("schema " + pointer);
      pending_.emplace_back(pointer, found->second);
    }
    return found->second;
  }

  // "#" or "#/a/b" in the root schema.
  Result<const json*> Resolve(const std::string& pointer) const {
    if (pointer == "#") return &root_;
    if (!pointer.starts_with("#/")) return Unsupported(pointer.substr(0, 200), "only references into the schema itself (#/...) are followed");
    const json* at = &root_;
    for (size_t begin = 2; begin <= pointer.size();) {
      const size_t end = std::min(pointer.find('/', begin), pointer.size());
      std::string name = pointer.substr(begin, end - begin);
      for (const auto& [from, to] : {std::pair{"~1", "/"}, std::pair{"~0", "~"}}) {
        for (size_t place = name.find(from); place != std::string::npos; place = name.find(from, place + 1)) name.replace(place, 2, to);
      }
      const bool is_index = at->is_array() && !name.empty() && name.size() < 7 && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
      if (at->is_object() && at->contains(name)) {
        at = &(*at)[name];
      } else if (is_index && std::stoul(name) < at->size()) {
        at = &(*at)[std::stoul(name)];
      } else {
        return Invalid(pointer.substr(0, 200), "the schema has no such part");
      }
      begin = end + 1;
    }
    return at;
  }

  // The schema with its own $ref followed, so that it can be joined with others.
  Result<json> Followed(json schema, const std::string& path) const {
    for (int depth = 0; schema.is_object() && schema.contains("$ref"); ++depth) {
      if (!schema["$ref"].is_string()) return Invalid(path, "$ref must be a string");
      if (depth > kMaxDepth) return Invalid(path, "$ref leads in a circle");
      OSCAR_ASSIGN_OR_RETURN(const json* target, Resolve(schema["$ref"].get<std::string>()));
      schema.erase("$ref");
      OSCAR_ASSIGN_OR_RETURN(schema, MergeSchemas(std::move(schema), *target, path));
    }
    return schema;
  }

  Status Ignore(const std::string& path, const std::string& keyword) {
    if (options_.strict) return Unsupported(path, "the keyword " + keyword + " is not supported here");
    if (ignored_ != nullptr) ignored_->push_back(keyword);
    return {};
  }

  static bool Demands(const json& schema) {
    return std::ranges::any_of(schema.items(), [](const auto& member) { return !IsAnnotation(member.key()); });
  }

  Result<E> Value(const json& schema, const std::string& path) {
    if (schema == json(true)) return values_.Any();
    if (schema == json(false)) return E::Choice({});
    if (!schema.is_object()) return Invalid(path, "a schema must be an object, true or false");
    if (++depth_ > kMaxDepth) return Unsupported(path, "schemas nested more than 64 deep");
    if (++num_schemas_ > kMaxSchemas) return Status(StatusCode::kResourceExhausted, path + ": more than 10000 schemas, those of joined branches counted");
    Result<E> made = ObjectSchema(schema, path);
    --depth_;
    return made;
  }

  Result<E> ObjectSchema(const json& schema, const std::string& path) {
    json rest = schema;
    for (const char* keyword : {"$ref", "allOf", "anyOf", "oneOf"}) {
      const auto found = schema.find(keyword);
      if (found == schema.end()) continue;
      rest.erase(keyword);
      if (std::string_view(keyword) == "$ref") {
        if (found->is_string() && !Demands(rest)) {
          OSCAR_TRY(Resolve(found->get<std::string>()).status());
          return E::Rule(RuleOf(found->get<std::string>()));
        }
        OSCAR_ASSIGN_OR_RETURN(const json followed, Followed(schema, path));
        return Value(followed, path);
      }
      if (!found->is_array() || found->empty()) return Invalid(path, std::string(keyword) + " must be a list of schemas");
      if (std::string_view(keyword) == "allOf") {
        for (const json& part : *found) {
          OSCAR_ASSIGN_OR_RETURN(const json followed, Followed(part, path));
          OSCAR_ASSIGN_OR_RETURN(rest, MergeSchemas(std::move(rest), followed, path));
        }
        return Value(rest, path);
      }
      return OneOf(*found, rest, path + "/" + keyword, std::string_view(keyword) == "oneOf");
    }
    if (const auto found = schema.find("const"); found != schema.end()) return values_.Constant(*found);
    if (const auto found = schema.find("enum"); found != schema.end()) return Enumeration(*found, schema, path);
    return Typed(schema, path);
  }

  Result<E> OneOf(const json& branches, const json& rest, const std::string& path, bool disjoint) {
    std::vector<E> choices;
    std::vector<json> joined;
    for (const json& branch : branches) {
      if (!Demands(rest) && !disjoint) {
        OSCAR_ASSIGN_OR_RETURN(E choice, Value(branch, path + "/" + std::to_string(choices.size())));
        choices.push_back(std::move(choice));
        continue;
      }
      OSCAR_ASSIGN_OR_RETURN(const json followed, Followed(branch, path));
      for (const json& other : joined) {
        if (disjoint && ++num_comparisons_ > kMaxComparisons) return Status(StatusCode::kResourceExhausted, path + ": too many branches to tell apart");
        if (disjoint && !AreDisjoint(other, followed)) return Unsupported(path, "oneOf with branches that may fit together");
      }
      joined.push_back(followed);
      OSCAR_ASSIGN_OR_RETURN(const json whole, MergeSchemas(rest, followed, path));
      OSCAR_ASSIGN_OR_RETURN(E choice, Value(whole, path + "/" + std::to_string(choices.size())));
      choices.push_back(std::move(choice));
    }
    return E::Choice(std::move(choices));
  }

  Result<E> Enumeration(const json& list, const json& schema, const std::string& path) {
    if (!list.is_array() || list.empty()) return Invalid(path, "enum must be a list of values");
    std::vector<E> choices;
    for (const json& value : list) {
      if (FitsType(schema, value)) choices.push_back(values_.Constant(value));
    }
    return E::Choice(std::move(choices));
  }

  static bool FitsType(const json& schema, const json& value) {
    const auto found = schema.find("type");
    if (found == schema.end()) return true;
    const auto fits = [&](const json& type) {
      if (type == "number") return value.is_number();
      if (type == "integer") return value.is_number_integer();
      return type == value.type_name();
    };
    return found->is_array() ? std::ranges::any_of(*found, fits) : fits(*found);
  }

  // The type when the schema does not say: that of its keywords.
  static std::string TypeOfKeywords(const json& schema) {
    static const std::vector<std::pair<std::string, std::vector<std::string>>> kHints = {
        {"object", {"properties", "required", "additionalProperties"}}, {"array", {"items", "prefixItems", "minItems", "maxItems"}},
        {"string", {"pattern", "minLength", "maxLength", "format"}}, {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}}};
    for (const auto& [type, keywords] : kHints) {
      if (std::ranges::any_of(keywords, [&](const std::string& keyword) { return schema.contains(keyword); })) return type;
    }
    return "";
  }

  Result<E> Typed(const json& schema, const std::string& path) {
    const auto found = schema.find("type");
    const json types = found == schema.end() ? json(TypeOfKeywords(schema)) : *found;
    std::set<std::string> known = {"type"};
    std::vector<E> choices;
    for (const json& type : types.is_array() ? types : json::array({types})) {
      if (!type.is_string()) return Invalid(path, "type must be a name or a list of names");
      OSCAR_ASSIGN_OR_RETURN(E choice, OfType(type.get<std::string>(), schema, path, &known));
      choices.push_back(std::move(choice));
    }
    for (const auto& [keyword, value] : schema.items()) {
      if (!known.contains(keyword) && !IsAnnotation(keyword)) OSCAR_TRY(Ignore(path, keyword));
    }
    return E::Choice(std::move(choices));
  }

  Result<E> OfType(const std::string& type, const json& schema, const std::string& path, std::set<std::string>* known) {
    const auto knows = [known](std::initializer_list<const char*> keywords) { known->insert(keywords.begin(), keywords.end()); };
    if (type.empty()) return values_.Any();
    if (type == "null") return values_.Null();
    if (type == "boolean") return values_.Boolean();
    if (type == "number") return values_.Number();
    if (type == "integer") return knows({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}), Integer(schema, path);
    if (type == "string") return String(schema, path, known);
    if (type == "array") return knows({"items", "prefixItems", "minItems", "maxItems"}), Array(schema, path);
    if (type == "object") return knows({"properties", "required", "additionalProperties"}), Object(schema, path);
    return Invalid(path, "no type " + type.substr(0, 60));
  }

  Result<E> Integer(const json& schema, const std::string& path) {
    double low = -1e18, high = 1e18;
    for (const auto& [keyword, value] : schema.items()) {
      const bool exclusive = keyword.starts_with("exclusive");
      const bool lower = keyword == "minimum" || keyword == "exclusiveMinimum", upper = keyword == "maximum" || keyword == "exclusiveMaximum";
      if (!lower && !upper) continue;
      if (!value.is_number()) return Invalid(path, keyword + " must be a number");
      const double bound = value.get<double>();
      if (lower) low = std::max(low, exclusive ? std::floor(bound) + 1 : std::ceil(bound));
      if (upper) high = std::min(high, exclusive ? std::ceil(bound) - 1 : std::floor(bound));
    }
    if (low > high) return E::Choice({});
    return values_.Integer(static_cast<int64_t>(low), static_cast<int64_t>(high));
  }

  // A count of at most kMaxCount; beyond it a lower bound could not be met, and an upper one means nothing.
  Result<std::optional<int>> Count(const json& schema, const char* keyword, const std::string& path) const {
    const auto found = schema.find(keyword);
    if (found == schema.end()) return std::optional<int>();
    if (!found->is_number_integer() || *found < 0) return Invalid(path, std::string(keyword) + " must be a natural number");
    return std::optional<int>(static_cast<int>(std::min<uint64_t>(kMaxCount, found->get<uint64_t>())));
  }

  Result<E> String(const json& schema, const std::string& path, std::set<std::string>* known) {
    if (const auto pattern = schema.find("pattern"); pattern != schema.end()) {
      if (!pattern->is_string()) return Invalid(path, "pattern must be a string");
      known->insert("pattern");
      OSCAR_ASSIGN_OR_RETURN(E inside, ParseRegex(pattern->get<std::string>(), {.whole = false, .json_string = true}));
      return E::Sequence({E::Bytes("\""), std::move(inside), E::Bytes("\"")});
    }
    if (const auto format = schema.find("format"); format != schema.end() && format->is_string()) {
      Result<E> made = values_.Format(format->get<std::string>());
      if (made.ok()) {
        known->insert("format");
        return made;
      }
    }
    known->insert({"minLength", "maxLength"});
    OSCAR_ASSIGN_OR_RETURN(const std::optional<int> least, Count(schema, "minLength", path));
    OSCAR_ASSIGN_OR_RETURN(const std::optional<int> most, Count(schema, "maxLength", path));
    if (!least && !most) return values_.String();
    if (most && *most < least.value_or(0)) return E::Choice({});
    return values_.StringOfLength(least.value_or(0), most.value_or(E::kNoLimit));
  }

  Result<E> Array(const json& schema, const std::string& path) {
    OSCAR_ASSIGN_OR_RETURN(const std::optional<int> min_items, Count(schema, "minItems", path));
    OSCAR_ASSIGN_OR_RETURN(const std::optional<int> max_items, Count(schema, "maxItems", path));
    const int least = min_items.value_or(0), most = max_items.value_or(E::kNoLimit);
    if (most != E::kNoLimit && most < least) return E::Choice({});
    const json none = json::array();
    const auto given = schema.find("prefixItems"), items = schema.find("items");
    const json& prefix = given == schema.end() ? none : *given;
    if (!prefix.is_array()) return Invalid(path, "prefixItems must be a list of schemas");
    // Behind a prefix more items come only where `items` says what they are.
    const bool open = items != schema.end() || prefix.empty();
    const int count = most == E::kNoLimit ? static_cast<int>(prefix.size()) : std::min(most, static_cast<int>(prefix.size()));
    E rest = E::Bytes("");
    if (open) {
      OSCAR_ASSIGN_OR_RETURN(E item, items == schema.end() ? Result<E>(values_.Any()) : Value(*items, path + "/items"));
      const int item_rule = rules_->Add("item of " + path, std::move(item));
      const E next = E::Sequence({values_.Comma(), E::Rule(item_rule)});
      if (count == 0) {
        rest = Separated(E::Rule(item_rule), next, least, most);
      } else {
        rest = E::Repeat(next, std::max(0, least - count), most == E::kNoLimit ? most : most - count);
      }
    } else if (least > count) {
      return E::Choice({});
    }
    for (int i = count - 1; i >= 0; --i) {
      OSCAR_ASSIGN_OR_RETURN(E item, Value(prefix[static_cast<size_t>(i)], path + "/prefixItems/" + std::to_string(i)));
      E all = i == 0 ? E::Sequence({std::move(item), std::move(rest)}) : E::Sequence({values_.Comma(), std::move(item), std::move(rest)});
      // A rule each: an expression as deep as the list is long would need as deep a stack.
      rest = E::Rule(rules_->Add("items of " + path, i < least ? std::move(all) : E::Optional(std::move(all))));
    }
    return E::Sequence({E::Bytes("["), values_.Space(), std::move(rest), values_.Space(), E::Bytes("]")});
  }

  Result<std::vector<Member>> Members(const json& schema, const std::string& path, std::vector<std::string>* names) {
    json properties = json::object();
    if (const auto found = schema.find("properties"); found != schema.end()) properties = *found;
    if (!properties.is_object()) return Invalid(path, "properties must be an object");
    std::set<std::string> required;
    if (const auto found = schema.find("required"); found != schema.end()) {
      if (!found->is_array()) return Invalid(path, "required must be a list of names");
      for (const json& name : *found) {
        if (!name.is_string()) return Invalid(path, "required must be a list of names");
        required.insert(name.get<std::string>());
        if (!properties.contains(name.get<std::string>())) properties[name.get<std::string>()] = schema.value("additionalProperties", json(true));
      }
    }
    std::vector<Member> members;
    for (const auto& [name, value] : properties.items()) {
      OSCAR_ASSIGN_OR_RETURN(E inner, Value(value, path + "/properties/" + name));
      names->push_back(name);
      const int rule = rules_->Add("member of " + path, E::Sequence({E::Bytes(json(name).dump()), values_.Colon(), std::move(inner)}));
      members.push_back({E::Rule(rule), required.contains(name)});
    }
    return members;
  }

  Result<E> Object(const json& schema, const std::string& path) {
    std::vector<std::string> names;
    OSCAR_ASSIGN_OR_RETURN(const std::vector<Member> members, Members(schema, path, &names));
    const auto additional = schema.find("additionalProperties");
    // No type and no members at all: any object. Named members alone are the whole object unless more are allowed in words.
    if (members.empty() && (additional == schema.end() || *additional == json(true))) return values_.Object();
    std::optional<E> more;
    if (additional != schema.end() && *additional != json(false)) {
      OSCAR_ASSIGN_OR_RETURN(E inner, Value(*additional, path + "/additionalProperties"));
      const int rule = rules_->Add("more members of " + path, E::Sequence({values_.KeyExcept(names), values_.Colon(), std::move(inner)}));
      more = E::Rule(rule);
    }
    E inside = InOrder(members, more, values_.Comma(), "members of " + path, rules_);
    return E::Sequence({E::Bytes("{"), values_.Space(), std::move(inside), values_.Space(), E::Bytes("}")});
  }

  const json& root_;
  const SchemaOptions options_;
  RuleSet* rules_;
  std::vector<std::string>* ignored_;
  JsonValues values_;
  std::map<std::string, int> by_pointer_;
  std::vector<std::pair<std::string, int>> pending_;
  int depth_ = 0, num_schemas_ = 0, num_comparisons_ = 0;
};

}  // namespace

Result<int> AddJsonSchema(const nlohmann::ordered_json& schema, const SchemaOptions& options, RuleSet* rules, std::vector<std::string>* ignored) {
  Result<int> root = SchemaCompiler(schema, options, rules, ignored).Compile();
  if (!root.ok()) return root.status().WithContext("schema");
  return root;
}

int AddJsonObject(RuleSet* rules) {
  const Expression object = JsonValues(rules).Object();
  return object.rule;
}

}  // namespace oscar::engine::grammar
