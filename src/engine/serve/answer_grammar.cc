#include "src/engine/serve/answer_grammar.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/status_macros.h"
#include "src/engine/serve/call_grammar.h"
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

// `in_tools`: an error is one of the tools.
Result<RuleSet> RulesOf(const AnswerDemand& demand, std::vector<std::string>* ignored, bool* in_tools) {
  RuleSet rules;
  std::vector<E> answers;
  if (demand.constraint.kind != Constraint::Kind::kNone && demand.tools.choice != ToolUse::Choice::kRequired) {
    OSCAR_ASSIGN_OR_RETURN(E text, ConstraintText(demand.constraint, &rules, ignored));
    answers.push_back(std::move(text));
  }
  if (demand.tools.choice != ToolUse::Choice::kNone) {
    // The constraint's text stands instead of a call, not around it.
    const CallDemand calls{demand.tools, demand.parser, /*no_text=*/demand.constraint.kind != Constraint::Kind::kNone};
    *in_tools = true;
    OSCAR_ASSIGN_OR_RETURN(E text, CallText(calls, &rules, ignored));
    *in_tools = answers.empty();  // of what follows: the tools are all there is
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

ApiError ErrorOf(const AnswerDemand& demand, bool in_tools, const Status& status) {
  const std::string param = in_tools ? "tools" : demand.constraint.param;
  const bool is_schema = in_tools || demand.constraint.kind == Constraint::Kind::kSchema;
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
    // Markers that are control tokens are text in an answer that is told apart by them, and nowhere else.
    const bool marked = !marker_tokens_.empty() && (demand.parser.tools || demand.parser.reasoning || demand.parser.reasoning_open);
    std::shared_ptr<const grammar::TokenTrie>& kept = marked ? marked_trie_ : trie_;
    if (kept == nullptr) kept = std::make_shared<const grammar::TokenTrie>(tokenizer_, marked ? marker_tokens_ : std::vector<int32_t>());
    trie = kept;
  }
  AnswerGrammar made;
  bool in_tools = false;
  const Result<RuleSet> rules = RulesOf(demand, &made.ignored, &in_tools);
  if (!rules.ok()) return ErrorOf(demand, in_tools, rules.status());
  const auto compiled = grammar::Grammar::Create(*rules, std::move(trie));
  if (!compiled.ok()) return ErrorOf(demand, in_tools, compiled.status());
  // The first mask is made here, not between two steps; a grammar that cannot afford one is refused before it runs.
  if (const auto mask = grammar::GrammarMatcher(*compiled).Mask(); !mask.ok()) return ErrorOf(demand, in_tools, {StatusCode::kResourceExhausted, mask.status().message()});
  made.grammar = *compiled;
  const std::lock_guard lock(mutex_);
  kept_.emplace_front(std::move(key), made);
  if (kept_.size() > kMostKept) kept_.pop_back();
  return made;
}

}  // namespace oscar::engine
