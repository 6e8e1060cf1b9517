// Tokens to expressions: a recursive descent with Jinja's precedences. parser.cc builds the statements on it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/engine/text/jinja/lexer.h"
#include "src/engine/text/jinja/syntax_tree.h"

namespace oscar::engine::jinja {

using Names = std::initializer_list<std::string_view>;
bool Contains(Names names, std::string_view name);

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  // Counts nesting, of recursion and of the tree alike, since both are walked on the stack.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser* parser);
    ~Nesting() { --parser_->depth_; }

   private:
    ExpressionParser* parser_;
  };

  const Token& Now() const { return tokens_[place_]; }
  const Token& Next() const { return tokens_[place_ + 1 < tokens_.size() ? place_ + 1 : place_]; }
  [[noreturn]] void FailHere(std::string message, StatusCode code = StatusCode::kCorruptData) const;
  bool AtOperator(std::string_view text) const { return Now().type == TokenType::kOperator && Now().text == text; }
  bool AtName(std::string_view text) const { return Now().type == TokenType::kName && Now().text == text; }
  bool SkipOperator(std::string_view text) { return AtOperator(text) && ++place_; }
  bool SkipName(std::string_view text) { return AtName(text) && ++place_; }
  std::string Describe() const;  // the current token, for messages
  void ExpectOperator(std::string_view text);
  std::string ExpectName();
  void ExpectEnd(TokenType type);

  ExpressionPtr Make(ExpressionKind kind, int line, std::string name, std::vector<ExpressionPtr> children = {}) const;
  template <class... Children>
  ExpressionPtr MakeOf(ExpressionKind kind, int line, std::string name, Children... child) const {
    std::vector<ExpressionPtr> children;
    (children.push_back(std::move(child)), ...);
    return Make(kind, line, std::move(name), std::move(children));
  }
  ExpressionPtr MakeLiteral(Value value) const;

  // From the loosest binding to the tightest.
  ExpressionPtr ParseTuple(bool with_conditional = true);  // one expression, or several with commas
  ExpressionPtr ParseExpression(bool with_conditional = true);
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  template <class ParseOperand>
  ExpressionPtr ParseBinary(Names operators, ParseOperand parse_operand);
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcat();
  ExpressionPtr ParseUnary(bool with_filters);
  ExpressionPtr ParsePrimary();
  std::vector<ExpressionPtr> ParseItems(std::string_view closing, bool pairs);
  bool AtTupleEnd() const;
  ExpressionPtr ParsePostfix(ExpressionPtr node);
  ExpressionPtr ParseSubscript(ExpressionPtr node, int line);
  void ParseArguments(Expression* node);  // appends the arguments in parentheses
  ExpressionPtr ParseCall(ExpressionPtr callee);
  // `|name(...)`; the bar may be missing for the first filter of a filter tag.
  ExpressionPtr ParseFilter(ExpressionPtr input);
  ExpressionPtr ParseTest(ExpressionPtr input);

  // A macro takes surplus arguments only when its body reads them.
  void NoteSpecialName(std::string_view name);

  std::vector<Token> tokens_;
  size_t place_ = 0;
  int depth_ = 0;
  // Inside an `if`, an unknown filter or test is refused only when it is reached, as in Jinja: templates ask first.
  int num_conditions_ = 0;
  Macro* macro_ = nullptr;
};

}  // namespace oscar::engine::jinja
