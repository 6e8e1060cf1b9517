// From what a request demands of an answer (structured output, tools) to the grammar that its sampling keeps to. Compiled grammars are
// kept: the requests of one program mostly say the same.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "src/engine/serve/api_error.h"
#include "src/engine/serve/constraint_fields.h"
#include "src/engine/serve/tool_fields.h"
#include "src/engine/text/chat/answer_parser.h"
#include "src/engine/text/grammar/matcher.h"

namespace oscar::engine {

struct AnswerDemand {
  Constraint constraint;
  ToolUse tools;
  AnswerParser::Options parser;  // the notation of calls and reasoning
  bool demands_nothing() const { return constraint.kind == Constraint::Kind::kNone && tools.choice == ToolUse::Choice::kNone; }
};

struct AnswerGrammar {
  std::shared_ptr<const grammar::Grammar> grammar;
  std::vector<std::string> ignored;  // keywords of schemas
};

class AnswerGrammars {
 public:
  // marker_tokens: MarkerTokens of the model's format. The tokenizer must outlive it.
  AnswerGrammars(const Tokenizer& tokenizer, std::vector<int32_t> marker_tokens) : tokenizer_(tokenizer), marker_tokens_(std::move(marker_tokens)) {}
  // Precondition: it demands something. Thread-safe; takes milliseconds the first time.
  std::variant<AnswerGrammar, ApiError> For(const AnswerDemand& demand);

 private:
  static constexpr size_t kMostKept = 32;
  const Tokenizer& tokenizer_;
  const std::vector<int32_t> marker_tokens_;
  std::mutex mutex_;
  std::shared_ptr<const grammar::TokenTrie> trie_, marked_trie_;  // made for the first request that needs it
  std::list<std::pair<std::string, AnswerGrammar>> kept_;         // the last used first
};

}  // namespace oscar::engine
