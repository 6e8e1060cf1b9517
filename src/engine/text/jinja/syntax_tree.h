// What the parser makes and the evaluator walks.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/engine/text/jinja/value.h"

namespace oscar::engine::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using StatementList = std::vector<std::unique_ptr<Statement>>;

enum class ExpressionKind {
  kLiteral,      // literal
  kName,         // name
  kList,         // children
  kTuple,        // children
  kDict,         // children: key, value, key, value ...
  kUnary,        // name: "-", "+", "not"
  kBinary,       // name: the operator; two children
  kAnd,          // two children
  kOr,           // two children
  kConcat,       // children, joined as text
  kCompare,      // children, names between them in `operators`
  kConditional,  // condition, then, else (may be null)
  kAttribute,    // child.name
  kSubscript,    // child[child]
  kSlice,        // child[start : stop : step], the last three may be null
  kCall,         // child(children...; keywords)
  kFilter,       // child|name(children...; keywords)
  kTest,         // child is name(children...; keywords)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 0;
  int depth = 1;
  std::string name;
  Value literal;
  std::vector<ExpressionPtr> children;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  std::vector<std::string> operators;
};

struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  StatementList body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

enum class StatementKind {
  kText,      // text
  kOutput,    // expressions[0]
  kIf,        // expressions[i] guards bodies[i]; one more body is the else branch
  kFor,       // expressions: target, items, condition (may be null); bodies: loop, else
  kSet,       // expressions: target, value
  kSetBlock,  // expressions: target, filters of kCapturedName (may be null); bodies[0]
  kFilter,    // expressions[0]: filters of kCapturedName; bodies[0]
  kWith,      // expressions: target, value, target, value ...; bodies[0]
  kScope,     // bodies[0]: {% generation %}, which marks the answer for training and prints it as it is
  kMacro,     // macro
  kCall,      // macro: the caller's body; expressions[0]: the call
  kBreak,
  kContinue,
};

// The variable that holds a captured text while its filters run; no template can name it.
inline constexpr char kCapturedName[] = "{captured}";

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  std::vector<ExpressionPtr> expressions;
  std::vector<StatementList> bodies;
  Macro macro;
};

}  // namespace oscar::engine::jinja
