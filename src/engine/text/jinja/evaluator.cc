#include "src/engine/text/jinja/evaluator.h"

#include <algorithm>

namespace oscar::engine::jinja {

class Evaluator::Frame {
 public:
  explicit Frame(Evaluator* evaluator) : evaluator_(evaluator) {
    if (evaluator->depth_ >= evaluator->budget_.limits().max_depth)
      Fail("calls are nested too deeply", StatusCode::kResourceExhausted);
    ++evaluator->depth_;
    evaluator->budget_.Spend(1);
  }
  ~Frame() { --evaluator_->depth_; }

 private:
  Evaluator* evaluator_;
};

class Evaluator::ScopeEntry {
 public:
  ScopeEntry(Evaluator* evaluator, std::shared_ptr<Scope> parent) : evaluator_(evaluator), outer_(evaluator->scope_) {
    evaluator->scope_ = std::make_shared<Scope>();
    evaluator->scope_->parent = std::move(parent);
  }
  explicit ScopeEntry(Evaluator* evaluator) : ScopeEntry(evaluator, evaluator->scope_) {}
  ~ScopeEntry() { evaluator_->scope_ = std::move(outer_); }

 private:
  Evaluator* evaluator_;
  std::shared_ptr<Scope> outer_;
};

Evaluator::Evaluator(Budget& budget, std::time_t now, std::map<std::string, Value, std::less<>> variables)
    : budget_(budget), context_{budget, now, {}}, scope_(std::make_shared<Scope>()) {
  scope_->variables = std::move(variables);
}

Evaluator::~Evaluator() {
  for (const auto& scope : captured_) scope->variables.clear();
  for (const auto& name_space : context_.namespaces) name_space->attributes.clear();
}

std::string Evaluator::Run(const StatementList& body) {
  std::string output;
  output_ = &output;
  ScopeEntry entry(this);
  Execute(body);
  return output;
}

// --- statements ---

void Evaluator::Write(std::string_view text) {
  budget_.SpendBytes(text.size());
  if (output_->size() + text.size() > budget_.limits().max_output_bytes) {
    Fail("the rendered text is too long", StatusCode::kResourceExhausted);
  }
  *output_ += text;
}

Evaluator::Flow Evaluator::Execute(const StatementList& body) {
  for (const auto& statement : body) {
    try {
      const Frame frame(this);
      const Flow flow = ExecuteOne(*statement);
      if (flow != Flow::kNormal) return flow;
    } catch (Error& error) {
      if (error.line == 0) error.line = statement->line;
      throw;
    }
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::ExecuteOne(const Statement& statement) {
  switch (statement.kind) {
    case StatementKind::kText: Write(statement.text); break;
    case StatementKind::kOutput: Write(ToText(Evaluate(*statement.expressions[0]), budget_)); break;
    case StatementKind::kIf: return ExecuteIf(statement);
    case StatementKind::kFor: return ExecuteFor(statement);
    case StatementKind::kSet: Assign(*statement.expressions[0], Evaluate(*statement.expressions[1])); break;
    case StatementKind::kSetBlock:
    case StatementKind::kFilter: return ExecuteCaptured(statement);
    case StatementKind::kWith: return ExecuteWith(statement);
    case StatementKind::kScope: {
      const ScopeEntry entry(this);
      return Execute(statement.bodies[0]);
    }
    case StatementKind::kMacro: scope_->variables[statement.macro.name] = MakeMacro(statement.macro); break;
    case StatementKind::kCall: ExecuteCall(statement); break;
    case StatementKind::kBreak: return Flow::kBreak;
    case StatementKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::ExecuteIf(const Statement& statement) {
  for (size_t i = 0; i < statement.expressions.size(); ++i) {
    if (Truth(Evaluate(*statement.expressions[i]))) return Execute(statement.bodies[i]);
  }
  return statement.bodies.size() > statement.expressions.size() ? Execute(statement.bodies.back()) : Flow::kNormal;
}

Evaluator::Flow Evaluator::ExecuteFor(const Statement& statement) {
  const Expression& target = *statement.expressions[0];
  std::vector<Value> items = Iterate(Evaluate(*statement.expressions[1]), budget_);
  if (const Expression* condition = statement.expressions[2].get()) {
    std::vector<Value> kept;
    for (Value& item : items) {
      const ScopeEntry entry(this);
      Assign(target, item);
      if (Truth(Evaluate(*condition))) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    const ScopeEntry entry(this);
    return Execute(statement.bodies[1]);
  }
  auto loop = std::make_shared<Loop>();
  for (const Value& item : items) loop->value_depth = std::max(loop->value_depth, ValueDepth(item) + 1);
  loop->items = std::make_shared<const std::vector<Value>>(std::move(items));
  Flow flow = Flow::kNormal;
  for (; loop->index < loop->items->size() && flow != Flow::kBreak; ++loop->index) {
    budget_.Spend(1);
    const ScopeEntry entry(this);
    scope_->variables["loop"] = loop;
    Assign(target, (*loop->items)[loop->index]);
    flow = Execute(statement.bodies[0]);
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::ExecuteWith(const Statement& statement) {
  // All values are those of the outside, so they are made before the first name is set.
  std::vector<Value> values;
  for (size_t i = 1; i < statement.expressions.size(); i += 2) values.push_back(Evaluate(*statement.expressions[i]));
  const ScopeEntry entry(this);
  for (size_t i = 0; i < values.size(); ++i) Assign(*statement.expressions[2 * i], values[i]);
  return Execute(statement.bodies[0]);
}

// {% set x %}...{% endset %} and {% filter f %}...{% endfilter %}.
Evaluator::Flow Evaluator::ExecuteCaptured(const Statement& statement) {
  std::string captured;
  std::string* outer = std::exchange(output_, &captured);
  Flow flow = Flow::kNormal;
  {
    const ScopeEntry entry(this);
    flow = Execute(statement.bodies[0]);
  }
  output_ = outer;
  if (flow != Flow::kNormal) return flow;
  const bool is_set = statement.kind == StatementKind::kSetBlock;
  const Expression* filters = statement.expressions[is_set ? 1 : 0].get();
  Value value = MakeText(std::move(captured), budget_);
  if (filters != nullptr) {
    const ScopeEntry entry(this);
    scope_->variables[kCapturedName] = value;
    value = Evaluate(*filters);
  }
  if (is_set) {
    Assign(*statement.expressions[0], value);
  } else {
    Write(ToText(value, budget_));
  }
  return flow;
}

void Evaluator::ExecuteCall(const Statement& statement) {
  const Expression& call = *statement.expressions[0];
  const Value callee = Evaluate(*call.children[0]);
  Arguments arguments = EvaluateArguments(call);
  arguments.keywords.emplace_back("caller", MakeMacro(statement.macro));
  Write(ToText(Call(callee, arguments), budget_));
}

void Evaluator::Assign(const Expression& target, const Value& value) {
  if (target.kind == ExpressionKind::kName) {
    scope_->variables[target.name] = value;
  } else if (target.kind == ExpressionKind::kAttribute) {
    Namespace* name_space = EvaluateName(target.children[0]->name).name_space();
    if (name_space == nullptr)
      Fail("'" + target.children[0]->name + "' is no namespace, so its attributes cannot be set");
    name_space->attributes[target.name] = value;
  } else {
    const std::vector<Value> items = Iterate(value, budget_);
    if (items.size() != target.children.size()) {
      Fail("cannot unpack " + std::to_string(items.size()) + " values into " + std::to_string(target.children.size()) +
           " names");
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(*target.children[i], items[i]);
  }
}

Value Evaluator::MakeMacro(const Macro& macro) {
  auto function = std::make_shared<Function>();
  function->name = macro.name;
  function->macro = &macro;
  function->scope = scope_;
  if (captured_.empty() || captured_.back() != scope_) captured_.push_back(scope_);
  budget_.SpendBytes(sizeof(Function) + sizeof(Scope));
  return Value(std::shared_ptr<const Function>(std::move(function)));
}

// --- expressions ---

Value Evaluator::Evaluate(const Expression& expression) {
  const Frame frame(this);
  return EvaluateKind(expression);
}

Value Evaluator::EvaluateKind(const Expression& expression) {
  const auto child = [&](size_t i) { return Evaluate(*expression.children[i]); };
  switch (expression.kind) {
    case ExpressionKind::kLiteral: return expression.literal;
    case ExpressionKind::kName: return EvaluateName(expression.name);
    case ExpressionKind::kList: return MakeSequence(SequenceKind::kList, EvaluateAll(expression.children), budget_);
    case ExpressionKind::kTuple: return MakeSequence(SequenceKind::kTuple, EvaluateAll(expression.children), budget_);
    case ExpressionKind::kDict: return EvaluateDict(expression);
    case ExpressionKind::kUnary: return EvaluateUnary(expression);
    case ExpressionKind::kBinary: {
      const Value left = child(0);
      return Arithmetic(expression.name, left, child(1), budget_);
    }
    case ExpressionKind::kAnd: {
      Value left = child(0);
      return Truth(left) ? child(1) : left;
    }
    case ExpressionKind::kOr: {
      Value left = child(0);
      return Truth(left) ? left : child(1);
    }
    case ExpressionKind::kConcat: return EvaluateConcat(expression);
    case ExpressionKind::kCompare: return EvaluateCompare(expression);
    case ExpressionKind::kConditional:
      if (Truth(child(0))) return child(1);
      return expression.children[2] != nullptr ? child(2)
                                               : MakeUndefined("the condition of an 'if' without 'else' is false");
    case ExpressionKind::kAttribute: return GetAttribute(child(0), expression.name);
    case ExpressionKind::kSubscript: {
      const Value container = child(0);
      return GetItem(context_, container, child(1));
    }
    case ExpressionKind::kSlice: return EvaluateSlice(expression);
    case ExpressionKind::kCall: {
      const Value callee = child(0);
      return Call(callee, EvaluateArguments(expression));
    }
    case ExpressionKind::kFilter: {
      const Value input = child(0);
      return ApplyFilter(context_, expression.name, input, EvaluateArguments(expression));
    }
    case ExpressionKind::kTest: {
      const Value input = child(0);
      return ApplyTest(context_, expression.name, input, EvaluateArguments(expression));
    }
  }
  return Value();
}

Value Evaluator::EvaluateName(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const auto found = scope->variables.find(name); found != scope->variables.end()) return found->second;
  }
  if (!IsGlobal(name)) return MakeUndefined("'" + name + "' is undefined");
  auto function = std::make_shared<Function>();
  function->name = name;
  return Value(std::shared_ptr<const Function>(std::move(function)));
}

std::vector<Value> Evaluator::EvaluateAll(const std::vector<ExpressionPtr>& expressions, size_t first) {
  std::vector<Value> values;
  for (size_t i = first; i < expressions.size(); ++i) values.push_back(Evaluate(*expressions[i]));
  return values;
}

Value Evaluator::EvaluateDict(const Expression& expression) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i + 1 < expression.children.size(); i += 2) {
    Value key = Evaluate(*expression.children[i]);
    entries.emplace_back(std::move(key), Evaluate(*expression.children[i + 1]));
  }
  return MakeDict(std::move(entries), budget_);
}

Value Evaluator::EvaluateUnary(const Expression& expression) {
  const Value value = Evaluate(*expression.children[0]);
  if (expression.name == "not") return !Truth(value);
  if (value.Is<double>() && expression.name == "-") return -*value.If<double>();
  double number = 0;
  if (!value.Is<Undefined>() && !ToNumber(value, &number))
    Fail("a sign before a '" + std::string(TypeName(value)) + "'");
  return Arithmetic(expression.name, value.Is<double>() ? Value(0.0) : Value(int64_t{0}), value, budget_);
}

Value Evaluator::EvaluateConcat(const Expression& expression) {
  std::string result;
  for (const ExpressionPtr& part : expression.children) {
    const std::string text = ToText(Evaluate(*part), budget_);
    budget_.SpendBytes(text.size());
    result += text;
  }
  return MakeText(std::move(result), budget_);
}

Value Evaluator::EvaluateCompare(const Expression& expression) {
  Value left = Evaluate(*expression.children[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = Evaluate(*expression.children[i + 1]);
    const std::string& name = expression.operators[i];
    bool holds = false;
    if (name == "==" || name == "!=") {
      holds = Equal(left, right, budget_) == (name == "==");
    } else if (name == "in" || name == "not in") {
      holds = Contains(context_, right, left) == (name == "in");
    } else {
      holds = name[0] == '<' ? Less(left, right, budget_) : Less(right, left, budget_);
      if (!holds && name.size() == 2) holds = Equal(left, right, budget_);
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::EvaluateSlice(const Expression& expression) {
  const auto part = [&](size_t i) {
    return expression.children[i] != nullptr ? Evaluate(*expression.children[i]) : Value(None{});
  };
  const Value value = part(0), start = part(1), stop = part(2), step = part(3);
  return GetSlice(context_, value, start, stop, step);
}

Arguments Evaluator::EvaluateArguments(const Expression& expression) {
  Arguments arguments{EvaluateAll(expression.children, 1), {}};
  for (const auto& [name, value] : expression.keywords) arguments.keywords.emplace_back(name, Evaluate(*value));
  return arguments;
}

Value Evaluator::Call(const Value& callee, const Arguments& arguments) {
  const Function* function = callee.function();
  if (const Undefined* undefined = callee.If<Undefined>()) FailUndefined(*undefined);
  if (function == nullptr) Fail("a '" + std::string(TypeName(callee)) + "' cannot be called");
  if (function->macro != nullptr) return CallMacro(*function, arguments);
  if (!function->receiver.Is<Undefined>()) return CallMethod(context_, function->receiver, function->name, arguments);
  return CallGlobal(context_, function->name, arguments);
}

Value Evaluator::CallMacro(const Function& function, const Arguments& arguments) {
  const Frame frame(this);
  const ScopeEntry entry(this, function.scope);
  std::string text;
  std::string* outer = std::exchange(output_, &text);
  BindParameters(*function.macro, arguments, scope_.get());
  Execute(function.macro->body);
  output_ = outer;
  return MakeText(std::move(text), budget_);
}

void Evaluator::BindParameters(const Macro& macro, const Arguments& arguments, Scope* scope) {
  const size_t num_parameters = macro.parameters.size(), num_given = arguments.positional.size();
  auto keywords = arguments.keywords;
  const auto take = [&](const std::string& name, Value* value) {
    const auto found = std::find_if(keywords.begin(), keywords.end(), [&](const auto& k) { return k.first == name; });
    if (found == keywords.end()) return false;
    *value = std::move(found->second);
    keywords.erase(found);
    return true;
  };
  for (size_t i = 0; i < num_parameters; ++i) {
    const std::string& name = macro.parameters[i];
    Value value = MakeUndefined("parameter '" + name + "' was not provided");
    if (i < num_given) {
      value = arguments.positional[i];
    } else if (!take(name, &value) && i + macro.defaults.size() >= num_parameters) {
      value = Evaluate(*macro.defaults[i + macro.defaults.size() - num_parameters]);
    }
    scope->variables[name] = std::move(value);
  }
  if (macro.uses_caller && scope->variables.count("caller") == 0) {
    Value caller = MakeUndefined("no caller defined");
    take("caller", &caller);
    scope->variables["caller"] = std::move(caller);
  }
  if (!macro.uses_kwargs && !keywords.empty())
    Fail("macro '" + macro.name + "' takes no keyword argument '" + keywords[0].first + "'");
  if (!macro.uses_varargs && num_given > num_parameters) {
    Fail("macro '" + macro.name + "' takes not more than " + std::to_string(num_parameters) + " argument(s)");
  }
  if (macro.uses_varargs) {
    const auto first = arguments.positional.begin() + static_cast<long>(std::min(num_given, num_parameters));
    scope->variables["varargs"] =
        MakeSequence(SequenceKind::kTuple, std::vector<Value>(first, arguments.positional.end()), budget_);
  }
  if (macro.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [name, value] : keywords) entries.emplace_back(MakeText(name, budget_), std::move(value));
    scope->variables["kwargs"] = MakeDict(std::move(entries), budget_);
  }
}

}  // namespace oscar::engine::jinja
