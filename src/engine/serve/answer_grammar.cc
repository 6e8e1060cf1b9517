#include "src/engine/serve/answer_grammar.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/status_macros.h"
#include "src/engine/text/grammar/ebnf.h"
#include "src/engine/text/grammar/json_schema.h"
#include "src/engine/text/grammar/json_values.h"
#include "src/engine/text/grammar/regex.h"

namespace oscar::engine {
namespace {

using grammar::RuleSet;
using json = nlohmann::ordered_json;
using E = grammar::Expression;

// Everything that the grammar depends on, as one text.
std::string KeyOf(const AnswerDemand& demand) {
  json key = {static_cast<int>(demand.constraint.kind), demand.constraint.text, demand.constraint.choices, demand.constraint.strict,
              static_cast<int>(demand.tools.choice), demand.tools.parallel, static_cast<int>(demand.parser.format), demand.parser.reasoning,
              demand.parser.reasoning_open};
  for (const ToolUse::Tool& tool : demand.tools.tools) key.push_back({tool.name, tool.parameters, tool.strict});
  return key.dump(-1, ' ', false, json::error_handler_t::replace);
}

// What the answer's text is when it is no call.
Result<E> ConstraintText(const Constraint& constraint, RuleSet* rules, std::vector<std::string>* ignored) {
  switch (constraint.kind) {
    case Constraint::Kind::kNone: return E::Bytes("");
    case Constraint::Kind::kObject: return E::Rule(grammar::AddJsonObject(rules));
    case Constraint::Kind::kSchema: {
      OSCAR_ASSIGN_OR_RETURN(const int rule, grammar::AddJsonSchema(json::parse(constraint.text), {.strict = constraint.strict}, rules, ignored));
      return E::Rule(rule);
    }
    case Constraint::Kind::kRegex: return grammar::ParseRegex(constraint.text, {});
    case Constraint::Kind::kChoice: {
      std::vector<E> choices;
      for (const std::string& choice : constraint.choices) choices.push_back(E::Bytes(choice));
      return E::Choice(std::move(choices));
    }
    case Constraint::Kind::kEbnf: {
      OSCAR_ASSIGN_OR_RETURN(RuleSet parsed, grammar::ParseEbnf(constraint.text));
      *rules = std::move(parsed);  // it is the first to add rules
      return E::Rule(rules->root);
    }
  }
  return E::Bytes("");
}

// {"name": ..., "arguments": ...} of one of the tools.
Result<E> CallObject(const AnswerDemand& demand, RuleSet* rules, std::vector<std::string>* ignored) {
  const char* key = demand.parser.format == ToolFormat::kLlama3 ? "parameters" : "arguments";
  std::vector<E> calls;
  for (const ToolUse::Tool& tool : demand.tools.tools) {
    int arguments = -1;
    if (tool.parameters.empty()) {
      arguments = grammar::AddJsonObject(rules);
    } else {
      json schema = json::parse(tool.parameters);
      if (!schema.contains("type") && !schema.contains("$ref") && !schema.contains("anyOf") && !schema.contains("oneOf")) schema["type"] = "object";
      auto added = grammar::AddJsonSchema(schema, {.strict = tool.strict}, rules, ignored);
      if (!added.ok()) return added.status().WithContext("tool " + tool.name);
      arguments = *added;
    }
    calls.push_back(E::Sequence({E::Bytes("{\"name\": " + json(tool.name).dump() + ", \"" + key + "\": "), E::Rule(arguments), E::Bytes("}")}));
  }
  return E::Rule(rules->Add("call", E::Choice(std::move(calls))));
}

// Calls where the answer must have them, or free text in which calls may stand.
Result<E> CallText(const AnswerDemand& demand, RuleSet* rules, std::vector<std::string>* ignored) {
  OSCAR_ASSIGN_OR_RETURN(const E object, CallObject(demand, rules, ignored));
  const bool must = demand.tools.choice == ToolUse::Choice::kRequired, more = demand.tools.parallel;
  if (demand.parser.format == ToolFormat::kLlama3) {
    if (must) return object;
    const E letter = E::CodePoints(grammar::Complement({{'{', '{'}, {' ', ' '}, {'\n', '\n'}}));
    return E::Choice({object, E::Bytes(""), E::Sequence({letter, E::Repeat(E::CodePoints({{0, 0x10FFFF}}), 0, E::kNoLimit)})});
  }
  const E body = E::Sequence({E::Bytes("\n"), object, E::Bytes("\n</tool_call>")});
  const E marked = E::Sequence({E::Bytes("<tool_call>"), body});
  if (must) return E::Sequence({marked, E::Repeat(E::Sequence({E::Bytes("\n"), marked}), 0, more ? E::kNoLimit : 0)});
  const E with_text = E::Sequence({E::Until("<tool_call>"), body});
  const E text = E::Without("<tool_call>");
  if (demand.constraint.kind != Constraint::Kind::kNone) {  // the constraint's text stands instead of a call, not around it
    return E::Sequence({marked, E::Repeat(E::Sequence({E::Bytes("\n"), marked}), 0, more ? E::kNoLimit : 0)});
  }
  if (!more) return E::Choice({text, with_text});
  return E::Sequence({E::Repeat(with_text, 0, E::kNoLimit), text});
}

Result<RuleSet> RulesOf(const AnswerDemand& demand, std::vector<std::string>* ignored) {
  RuleSet rules;
  std::vector<E> answers;
  if (demand.constraint.kind != Constraint::Kind::kNone && demand.tools.choice != ToolUse::Choice::kRequired) {
    OSCAR_ASSIGN_OR_RETURN(E text, ConstraintText(demand.constraint, &rules, ignored));
    answers.push_back(std::move(text));
  }
  if (demand.tools.choice != ToolUse::Choice::kNone) {
    OSCAR_ASSIGN_OR_RETURN(E text, CallText(demand, &rules, ignored));
    answers.push_back(std::move(text));
  }
  E answer = E::Rule(rules.Add("answer", E::Choice(std::move(answers))));
  const E thought = E::Sequence({E::Until("</think>"), E::Repeat(E::CodePoints({{'\n', '\n'}}), 0, 2)});
  if (demand.parser.reasoning_open) {
    answer = E::Sequence({thought, std::move(answer)});
  } else if (demand.parser.reasoning) {
    answer = E::Choice({answer, E::Sequence({E::Bytes("<think>"), thought, answer})});
  }
  rules.root = rules.Add("root", std::move(answer));
  return rules;
}

ApiError ErrorOf(const AnswerDemand& demand, const Status& status) {
  const std::string param = demand.constraint.kind != Constraint::Kind::kNone ? demand.constraint.param : "tools";
  const bool is_schema = demand.constraint.kind == Constraint::Kind::kSchema || param == "tools";
  const char* code = status.code() == StatusCode::kResourceExhausted ? "schema_too_complex" : is_schema ? "unsupported_schema" : "invalid_grammar";
  return ApiError::Invalid(code, param, param + ": " + Quoted(status.message()));
}

}  // namespace

std::variant<AnswerGrammar, ApiError> AnswerGrammars::For(const AnswerDemand& demand) {
  std::string key = KeyOf(demand);
  std::shared_ptr<const grammar::TokenTrie> trie;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, key, &std::pair<std::string, AnswerGrammar>::first);
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return kept_.front().second;
    }
    if (trie_ == nullptr) trie_ = std::make_shared<const grammar::TokenTrie>(tokenizer_);
    trie = trie_;
  }
  AnswerGrammar made;
  const Result<RuleSet> rules = RulesOf(demand, &made.ignored);
  if (!rules.ok()) return ErrorOf(demand, rules.status());
  const auto compiled = grammar::Grammar::Create(*rules, std::move(trie));
  if (!compiled.ok()) return ErrorOf(demand, compiled.status());
  // The first mask is made here, not between two steps; a grammar that cannot afford one is refused before it runs.
  if (const auto mask = grammar::GrammarMatcher(*compiled).Mask(); !mask.ok()) return ErrorOf(demand, {StatusCode::kResourceExhausted, mask.status().message()});
  made.grammar = *compiled;
  const std::lock_guard lock(mutex_);
  kept_.emplace_front(std::move(key), made);
  if (kept_.size() > kMostKept) kept_.pop_back();
  return made;
}

}  // namespace oscar::engine
