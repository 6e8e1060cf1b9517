// Walks a syntax tree and writes text.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/engine/text/jinja/builtins.h"
#include "src/engine/text/jinja/syntax_tree.h"

namespace oscar::engine::jinja {

// Variables of a template, loop body or macro call. Reads go up to the parents, writes do not.
struct Scope {
  std::map<std::string, Value, std::less<>> variables;
  std::shared_ptr<Scope> parent;
};

class Evaluator {
 public:
  Evaluator(Budget& budget, std::time_t now, std::map<std::string, Value, std::less<>> variables);
  ~Evaluator();  // breaks the cycles of macros and namespaces
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // Once per evaluator. Throws Error with a line.
  std::string Run(const StatementList& body);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Frame;       // one level of evaluation, against the native stack's end
  class ScopeEntry;  // a new scope until its end

  Flow Execute(const StatementList& body);
  Flow ExecuteOne(const Statement& statement);
  Flow ExecuteIf(const Statement& statement);
  Flow ExecuteFor(const Statement& statement);
  Flow ExecuteWith(const Statement& statement);
  void ExecuteCall(const Statement& statement);
  Flow ExecuteCaptured(const Statement& statement);
  void Write(std::string_view text);
  void Assign(const Expression& target, const Value& value);
  Value MakeMacro(const Macro& macro);

  Value Evaluate(const Expression& expression);
  Value EvaluateKind(const Expression& expression);
  Value EvaluateName(const std::string& name);
  Value EvaluateDict(const Expression& expression);
  Value EvaluateUnary(const Expression& expression);
  Value EvaluateConcat(const Expression& expression);
  Value EvaluateCompare(const Expression& expression);
  Value EvaluateSlice(const Expression& expression);
  std::vector<Value> EvaluateAll(const std::vector<ExpressionPtr>& expressions, size_t first = 0);
  Arguments EvaluateArguments(const Expression& expression);
  Value Call(const Value& callee, const Arguments& arguments);
  Value CallMacro(const Function& function, const Arguments& arguments);
  // The macro's parameters, then surplus arguments, as variables of `scope`.
  void BindParameters(const Macro& macro, const Arguments& arguments, Scope* scope);

  Budget& budget_;
  CallContext context_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> captured_;  // by macros
  std::string* output_ = nullptr;
  int depth_ = 0;
};

}  // namespace oscar::engine::jinja
