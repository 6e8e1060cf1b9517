#include "src/engine/text/jinja/expression_parser.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "src/engine/text/jinja/builtins.h"

namespace oscar::engine::jinja {

bool Contains(Names names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

// --- tokens and nodes ---

ExpressionParser::Nesting::Nesting(ExpressionParser* parser) : parser_(parser) {
  if (++parser->depth_ > kMaxSourceDepth) {
    parser->FailHere("the template is nested too deeply", StatusCode::kResourceExhausted);
  }
}

void ExpressionParser::FailHere(std::string message, StatusCode code) const {
  Fail(std::move(message), code, Now().line);
}

std::string ExpressionParser::Describe() const {
  switch (Now().type) {
    case TokenType::kTagEnd: return "the end of the tag";
    case TokenType::kVariableEnd: return "the end of the expression";
    case TokenType::kEnd: return "the end of the template";
    default: return "'" + Now().text.substr(0, 40) + "'";
  }
}

void ExpressionParser::ExpectOperator(std::string_view text) {
  if (!SkipOperator(text)) FailHere("expected '" + std::string(text) + "', got " + Describe());
}

std::string ExpressionParser::ExpectName() {
  if (Now().type != TokenType::kName) FailHere("expected a name, got " + Describe());
  return tokens_[place_++].text;
}

void ExpressionParser::ExpectEnd(TokenType type) {
  if (Now().type != type) FailHere("unexpected " + Describe());
  ++place_;
}

ExpressionPtr ExpressionParser::Make(ExpressionKind kind, int line, std::string name,
                                     std::vector<ExpressionPtr> children) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  node->name = std::move(name);
  node->children = std::move(children);
  for (const ExpressionPtr& child : node->children) {
    if (child != nullptr) node->depth = std::max(node->depth, child->depth + 1);
  }
  if (node->depth > kMaxSourceDepth) FailHere("an expression is nested too deeply", StatusCode::kResourceExhausted);
  return node;
}

ExpressionPtr ExpressionParser::MakeLiteral(Value value) const {
  ExpressionPtr node = Make(ExpressionKind::kLiteral, Now().line, {});
  node->literal = std::move(value);
  return node;
}

void ExpressionParser::NoteSpecialName(std::string_view name) {
  if (macro_ == nullptr) return;
  macro_->uses_varargs = macro_->uses_varargs || name == "varargs";
  macro_->uses_kwargs = macro_->uses_kwargs || name == "kwargs";
  macro_->uses_caller = macro_->uses_caller || name == "caller";
}

// --- expressions ---
ExpressionPtr ExpressionParser::ParseExpression(bool with_conditional) {
  Nesting nesting(this);
  ExpressionPtr value = ParseOr();
  while (with_conditional && AtName("if")) {
    const int line = tokens_[place_++].line;
    ++num_conditions_;
    ExpressionPtr condition = ParseOr();
    ExpressionPtr otherwise = SkipName("else") ? ParseExpression() : nullptr;
    --num_conditions_;
    value =
        MakeOf(ExpressionKind::kConditional, line, {}, std::move(condition), std::move(value), std::move(otherwise));
  }
  return value;
}

ExpressionPtr ExpressionParser::ParseOr() {
  ExpressionPtr left = ParseAnd();
  while (AtName("or")) {
    const int line = tokens_[place_++].line;
    left = MakeOf(ExpressionKind::kOr, line, {}, std::move(left), ParseAnd());
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseAnd() {
  ExpressionPtr left = ParseNot();
  while (AtName("and")) {
    const int line = tokens_[place_++].line;
    left = MakeOf(ExpressionKind::kAnd, line, {}, std::move(left), ParseNot());
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseNot() {
  if (!AtName("not")) return ParseCompare();
  Nesting nesting(this);
  const int line = tokens_[place_++].line;
  return MakeOf(ExpressionKind::kUnary, line, "not", ParseNot());
}

ExpressionPtr ExpressionParser::ParseCompare() {
  const int line = Now().line;
  std::vector<ExpressionPtr> operands;
  std::vector<std::string> operators;
  operands.push_back(ParseSum());
  for (;;) {
    if (Now().type == TokenType::kOperator && Contains({"==", "!=", "<", "<=", ">", ">="}, Now().text)) {
      operators.push_back(tokens_[place_++].text);
    } else if (SkipName("in")) {
      operators.push_back("in");
    } else if (AtName("not") && Next().type == TokenType::kName && Next().text == "in") {
      place_ += 2;
      operators.push_back("not in");
    } else {
      break;
    }
    operands.push_back(ParseSum());
  }
  if (operators.empty()) return std::move(operands[0]);
  ExpressionPtr node = Make(ExpressionKind::kCompare, line, {}, std::move(operands));
  node->operators = std::move(operators);
  return node;
}

template <class ParseOperand>
ExpressionPtr ExpressionParser::ParseBinary(Names operators, ParseOperand parse_operand) {
  ExpressionPtr left = parse_operand();
  while (Now().type == TokenType::kOperator && Contains(operators, Now().text)) {
    const Token& token = tokens_[place_++];
    left = MakeOf(ExpressionKind::kBinary, token.line, token.text, std::move(left), parse_operand());
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseSum() {
  return ParseBinary({"+", "-"}, [this] { return ParseConcat(); });
}

ExpressionPtr ExpressionParser::ParseConcat() {
  const int line = Now().line;
  std::vector<ExpressionPtr> parts;
  do {
    parts.push_back(ParseBinary({"*", "/", "//", "%"},
                                [this] { return ParseBinary({"**"}, [this] { return ParseUnary(true); }); }));
  } while (SkipOperator("~"));
  if (parts.size() == 1) return std::move(parts[0]);
  return Make(ExpressionKind::kConcat, line, {}, std::move(parts));
}

ExpressionPtr ExpressionParser::ParseUnary(bool with_filters) {
  ExpressionPtr node;
  if (AtOperator("-") || AtOperator("+")) {
    Nesting nesting(this);
    const Token& sign = tokens_[place_++];
    node = MakeOf(ExpressionKind::kUnary, sign.line, sign.text, ParseUnary(false));
  } else {
    node = ParsePrimary();
  }
  node = ParsePostfix(std::move(node));
  while (with_filters) {
    if (AtOperator("|")) {
      node = ParseFilter(std::move(node));
    } else if (AtName("is")) {
      node = ParseTest(std::move(node));
    } else if (AtOperator("(")) {
      node = ParseCall(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

ExpressionPtr ExpressionParser::ParsePrimary() {
  const Token& token = Now();
  switch (token.type) {
    case TokenType::kName: {
      ++place_;
      if (Contains({"true", "True", "false", "False"}, token.text))
        return MakeLiteral(token.text[0] == 't' || token.text[0] == 'T');
      if (Contains({"none", "None"}, token.text)) return MakeLiteral(None{});
      NoteSpecialName(token.text);
      return Make(ExpressionKind::kName, token.line, token.text);
    }
    case TokenType::kString: {
      std::string text;
      while (Now().type == TokenType::kString) text += tokens_[place_++].text;
      return MakeLiteral(std::make_shared<const std::string>(std::move(text)));
    }
    case TokenType::kInteger: {
      errno = 0;
      const int64_t number = std::strtoll(token.text.c_str(), nullptr, 10);
      if (errno == ERANGE) FailHere("an integer beyond 64 bits", StatusCode::kUnsupported);
      ++place_;
      return MakeLiteral(number);
    }
    case TokenType::kFloat: ++place_; return MakeLiteral(std::strtod(token.text.c_str(), nullptr));
    default: break;
  }
  if (SkipOperator("(")) {
    ExpressionPtr inner = AtOperator(")") ? Make(ExpressionKind::kTuple, token.line, {}) : ParseTuple();
    ExpectOperator(")");
    return inner;
  }
  if (SkipOperator("[")) return Make(ExpressionKind::kList, token.line, {}, ParseItems("]", /*pairs=*/false));
  if (SkipOperator("{")) return Make(ExpressionKind::kDict, token.line, {}, ParseItems("}", /*pairs=*/true));
  FailHere("expected an expression, got " + Describe());
}

// Items of a list or, with `pairs`, keys and values of a dict, up to and with `closing`.
std::vector<ExpressionPtr> ExpressionParser::ParseItems(std::string_view closing, bool pairs) {
  std::vector<ExpressionPtr> items;
  while (!SkipOperator(closing)) {
    if (!items.empty()) ExpectOperator(",");
    if (SkipOperator(closing)) break;
    items.push_back(ParseExpression());
    if (!pairs) continue;
    ExpectOperator(":");
    items.push_back(ParseExpression());
  }
  return items;
}

bool ExpressionParser::AtTupleEnd() const {
  return Now().type == TokenType::kTagEnd || Now().type == TokenType::kVariableEnd || AtOperator(")");
}

// One expression, or several with commas: a tuple.
ExpressionPtr ExpressionParser::ParseTuple(bool with_conditional) {
  const int line = Now().line;
  ExpressionPtr first = ParseExpression(with_conditional);
  if (!AtOperator(",")) return first;
  std::vector<ExpressionPtr> items;
  items.push_back(std::move(first));
  while (SkipOperator(",") && !AtTupleEnd()) items.push_back(ParseExpression(with_conditional));
  return Make(ExpressionKind::kTuple, line, {}, std::move(items));
}

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr node) {
  for (;;) {
    const int line = Now().line;
    if (SkipOperator(".")) {
      if (Now().type == TokenType::kInteger) {
        node = MakeOf(ExpressionKind::kSubscript, line, {}, std::move(node), ParsePrimary());
      } else {
        node = MakeOf(ExpressionKind::kAttribute, line, ExpectName(), std::move(node));
      }
    } else if (SkipOperator("[")) {
      node = ParseSubscript(std::move(node), line);
    } else if (AtOperator("(")) {
      node = ParseCall(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr node, int line) {
  const auto part = [this] { return AtOperator(":") || AtOperator("]") ? nullptr : ParseExpression(); };
  ExpressionPtr start = part();
  if (start != nullptr && SkipOperator("]")) {
    return MakeOf(ExpressionKind::kSubscript, line, {}, std::move(node), std::move(start));
  }
  if (AtOperator(",")) FailHere("a subscript with several parts", StatusCode::kUnsupported);
  ExpectOperator(":");
  ExpressionPtr stop = part();
  ExpressionPtr step = SkipOperator(":") ? part() : nullptr;
  ExpectOperator("]");
  return MakeOf(ExpressionKind::kSlice, line, {}, std::move(node), std::move(start), std::move(stop), std::move(step));
}

// Appends the arguments in parentheses to `node`.
void ExpressionParser::ParseArguments(Expression* node) {
  ExpectOperator("(");
  bool first = true;
  while (!SkipOperator(")")) {
    if (!first) ExpectOperator(",");
    first = false;
    if (SkipOperator(")")) break;
    if (AtOperator("*") || AtOperator("**")) FailHere("* and ** arguments of a call", StatusCode::kUnsupported);
    const bool keyword = Now().type == TokenType::kName && Next().type == TokenType::kOperator && Next().text == "=";
    if (!keyword && !node->keywords.empty()) FailHere("a positional argument follows a keyword argument");
    std::string name = keyword ? Now().text : std::string();
    if (keyword) place_ += 2;
    ExpressionPtr value = ParseExpression();
    node->depth = std::max(node->depth, value->depth + 1);
    if (keyword) {
      for (const auto& other : node->keywords) {
        if (other.first == name) FailHere("keyword argument '" + name + "' is given twice");
      }
      node->keywords.emplace_back(std::move(name), std::move(value));
    } else {
      node->children.push_back(std::move(value));
    }
  }
}

ExpressionPtr ExpressionParser::ParseCall(ExpressionPtr callee) {
  ExpressionPtr node = MakeOf(ExpressionKind::kCall, Now().line, {}, std::move(callee));
  ParseArguments(node.get());
  return node;
}

// `|name(...)`; the bar may be missing for the first filter of a filter tag.
ExpressionPtr ExpressionParser::ParseFilter(ExpressionPtr input) {
  SkipOperator("|");
  const int line = Now().line;
  std::string name = ExpectName();
  if (num_conditions_ == 0 && !IsFilter(name)) Fail("the filter '" + name + "'", StatusCode::kUnsupported, line);
  ExpressionPtr node = MakeOf(ExpressionKind::kFilter, line, std::move(name), std::move(input));
  if (AtOperator("(")) ParseArguments(node.get());
  return node;
}

ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr input) {
  const int line = tokens_[place_++].line;
  const bool negated = SkipName("not");
  std::string name = ExpectName();
  if (num_conditions_ == 0 && !IsTest(name)) Fail("the test '" + name + "'", StatusCode::kUnsupported, line);
  ExpressionPtr node = MakeOf(ExpressionKind::kTest, line, std::move(name), std::move(input));
  const bool literal =
      Now().type == TokenType::kString || Now().type == TokenType::kInteger || Now().type == TokenType::kFloat;
  if (AtOperator("(")) {
    ParseArguments(node.get());
  } else if (literal || AtOperator("[") || AtOperator("{") ||
             (Now().type == TokenType::kName && !Contains({"else", "or", "and"}, Now().text))) {
    if (AtName("is")) FailHere("tests cannot be chained with 'is'");
    ExpressionPtr argument = ParsePostfix(ParsePrimary());
    node->depth = std::max(node->depth, argument->depth + 1);
    node->children.push_back(std::move(argument));
  }
  return negated ? MakeOf(ExpressionKind::kUnary, line, "not", std::move(node)) : std::move(node);
}

}  // namespace oscar::engine::jinja
