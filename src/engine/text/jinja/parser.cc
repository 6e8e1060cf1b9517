#include "src/engine/text/jinja/parser.h"

#include "src/engine/text/jinja/expression_parser.h"
#include "src/engine/text/jinja/lexer.h"

namespace oscar::engine::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  StatementList Run() {
    StatementList body = ParseBody({});
    if (Now().type != TokenType::kEnd) FailHere("unexpected tag '" + Next().text + "'");
    return body;
  }

 private:
  // Statements up to a tag whose name is in `ends`; the tag's begin and name are left unread.
  StatementList ParseBody(Names ends) {
    Nesting nesting(this);
    StatementList body;
    while (Now().type != TokenType::kEnd) {
      if (Now().type == TokenType::kTagBegin) {
        if (Next().type == TokenType::kName && Contains(ends, Next().text)) return body;
        if (Contains({"endfor", "endif", "elif", "else", "endset", "endmacro", "endcall", "endfilter", "endwith",
                      "endgeneration"},
                     Next().text))
          break;
        body.push_back(ParseTag());
      } else if (Now().type == TokenType::kData) {
        body.push_back(MakeStatement(StatementKind::kText));
        body.back()->text = tokens_[place_++].text;
      } else {
        body.push_back(MakeStatement(StatementKind::kOutput));
        ++place_;
        body.back()->expressions.push_back(ParseTuple());
        ExpectEnd(TokenType::kVariableEnd);
      }
    }
    if (ends.size() > 0)
      FailHere("expected '" + std::string(*(ends.end() - 1)) + "', got " +
               (Now().type == TokenType::kEnd ? Describe() : "'" + Next().text + "'"));
    return body;
  }

  std::unique_ptr<Statement> MakeStatement(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = Now().line;
    return statement;
  }

  // A body up to {% end %}, that tag included.
  StatementList ParseClosedBody(std::string_view end) {
    ExpectEnd(TokenType::kTagEnd);
    StatementList body = ParseBody({end});
    place_ += 2;
    ExpectEnd(TokenType::kTagEnd);
    return body;
  }

  std::unique_ptr<Statement> ParseTag() {
    ++place_;
    auto statement = MakeStatement(StatementKind::kScope);
    const std::string name = ExpectName();
    if (name == "if") {
      ParseIf(statement.get());
    } else if (name == "for") {
      ParseFor(statement.get());
    } else if (name == "set") {
      ParseSet(statement.get());
    } else if (name == "macro" || name == "call") {
      ParseMacro(statement.get(), name == "call");
    } else if (name == "filter") {
      statement->kind = StatementKind::kFilter;
      ParseFilteredBody(statement.get(), "endfilter");
    } else if (name == "with") {
      ParseWith(statement.get());
    } else if (name == "generation") {
      const int loops = std::exchange(num_loops_, 0);
      statement->bodies.push_back(ParseClosedBody("endgeneration"));
      num_loops_ = loops;
    } else if (name == "break" || name == "continue") {
      if (num_loops_ == 0) FailHere("'" + name + "' outside a loop");
      statement->kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      ExpectEnd(TokenType::kTagEnd);
    } else {
      Fail("the tag '" + name + "'", StatusCode::kUnsupported, statement->line);
    }
    return statement;
  }

  void ParseIf(Statement* statement) {
    statement->kind = StatementKind::kIf;
    ++num_conditions_;
    for (;;) {
      statement->expressions.push_back(ParseTuple(/*with_conditional=*/false));
      ExpectEnd(TokenType::kTagEnd);
      statement->bodies.push_back(ParseBody({"elif", "else", "endif"}));
      ++place_;
      const std::string name = ExpectName();
      if (name == "elif") continue;
      if (name == "else") {
        statement->bodies.push_back(ParseClosedBody("endif"));
      } else {
        ExpectEnd(TokenType::kTagEnd);
      }
      break;
    }
    --num_conditions_;
  }

  void ParseFor(Statement* statement) {
    statement->kind = StatementKind::kFor;
    statement->expressions.push_back(ParseTarget(/*with_attribute=*/false));
    if (!SkipName("in")) FailHere("expected 'in', got " + Describe());
    statement->expressions.push_back(ParseTuple(/*with_conditional=*/false));
    statement->expressions.push_back(SkipName("if") ? ParseExpression() : nullptr);
    if (AtName("recursive")) FailHere("recursive loops", StatusCode::kUnsupported);
    ExpectEnd(TokenType::kTagEnd);
    ++num_loops_;
    statement->bodies.push_back(ParseBody({"else", "endfor"}));
    --num_loops_;
    ++place_;
    if (ExpectName() == "else") {
      statement->bodies.push_back(ParseClosedBody("endfor"));
    } else {
      ExpectEnd(TokenType::kTagEnd);
      statement->bodies.emplace_back();
    }
  }

  // What can be assigned to: a name, namespace.attribute (in set), or several of them.
  ExpressionPtr ParseTarget(bool with_attribute) {
    Nesting nesting(this);
    const int line = Now().line;
    std::vector<ExpressionPtr> targets;
    bool is_tuple = false;
    do {
      if (!targets.empty() && AtTupleEnd()) break;
      if (SkipOperator("(")) {
        targets.push_back(ParseTarget(with_attribute));
        ExpectOperator(")");
      } else {
        const std::string name = ExpectName();
        if (Contains({"true", "True", "false", "False", "none", "None"}, name))
          FailHere("cannot assign to '" + name + "'");
        targets.push_back(Make(ExpressionKind::kName, line, name));
        if (with_attribute && SkipOperator(".")) {
          targets.back() = MakeOf(ExpressionKind::kAttribute, line, ExpectName(), std::move(targets.back()));
        }
      }
      is_tuple = is_tuple || AtOperator(",");
    } while (SkipOperator(","));
    if (!is_tuple) return std::move(targets[0]);
    return Make(ExpressionKind::kTuple, line, {}, std::move(targets));
  }

  void ParseSet(Statement* statement) {
    statement->kind = StatementKind::kSet;
    statement->expressions.push_back(ParseTarget(/*with_attribute=*/true));
    if (SkipOperator("=")) {
      statement->expressions.push_back(ParseTuple());
      ExpectEnd(TokenType::kTagEnd);
      return;
    }
    statement->kind = StatementKind::kSetBlock;
    ParseFilteredBody(statement, "endset");
  }

  void ParseFilteredBody(Statement* statement, std::string_view end) {
    const bool filtered = AtOperator("|") || statement->kind == StatementKind::kFilter;
    ExpressionPtr filters = filtered ? Make(ExpressionKind::kName, Now().line, kCapturedName) : nullptr;
    if (statement->kind == StatementKind::kFilter) filters = ParseFilter(std::move(filters));
    while (AtOperator("|")) filters = ParseFilter(std::move(filters));
    statement->expressions.push_back(std::move(filters));
    statement->bodies.push_back(ParseClosedBody(end));
  }

  void ParseWith(Statement* statement) {
    statement->kind = StatementKind::kWith;
    while (Now().type != TokenType::kTagEnd) {
      if (!statement->expressions.empty()) ExpectOperator(",");
      ExpressionPtr target = Make(ExpressionKind::kName, Now().line, {});
      target->name = ExpectName();
      statement->expressions.push_back(std::move(target));
      ExpectOperator("=");
      statement->expressions.push_back(ParseExpression());
    }
    statement->bodies.push_back(ParseClosedBody("endwith"));
  }

  // {% macro name(...) %} and {% call(...) callee(...) %}.
  void ParseMacro(Statement* statement, bool is_call) {
    statement->kind = is_call ? StatementKind::kCall : StatementKind::kMacro;
    Macro& macro = statement->macro;
    macro.name = is_call ? "caller" : ExpectName();
    Macro* outer = std::exchange(macro_, &macro);
    if (!is_call || AtOperator("(")) ParseParameters(&macro);
    macro_ = outer;
    if (is_call) {
      statement->expressions.push_back(ParseExpression());
      if (statement->expressions[0]->kind != ExpressionKind::kCall) FailHere("expected a call");
    }
    macro_ = &macro;
    const int loops = std::exchange(num_loops_, 0);
    macro.body = ParseClosedBody(is_call ? "endcall" : "endmacro");
    num_loops_ = loops;
    macro_ = outer;
  }

  void ParseParameters(Macro* macro) {
    ExpectOperator("(");
    while (!SkipOperator(")")) {
      if (!macro->parameters.empty()) ExpectOperator(",");
      macro->parameters.push_back(ExpectName());
      if (SkipOperator("=")) {
        macro->defaults.push_back(ParseExpression());
      } else if (!macro->defaults.empty()) {
        FailHere("a parameter without a default follows one with a default");
      }
    }
  }

  int num_loops_ = 0;
};

}  // namespace

StatementList Parse(std::string_view source) { return Parser(Tokenize(source)).Run(); }

}  // namespace oscar::engine::jinja
