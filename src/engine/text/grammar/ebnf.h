// Grammars in EBNF, in the notation that llama.cpp (GBNF) and others read:
//   root ::= greeting (", " name)* "!"
//   name ::= [A-Z] [a-z]{1,10}     # a comment
// Literals in double quotes with the escapes \n \r \t \\ \" \xHH \uHHHH \UHHHHHHHH, character classes, '.', groups, '|', and the marks
// * + ? {m} {m,} {m,n}. The first rule is `root`'s; a rule goes on over line ends until the next "name ::=".
#pragma once

#include <string_view>

#include "oscar/result.h"
#include "src/engine/text/grammar/expression.h"

namespace oscar::engine::grammar {

// kInvalidArgument with the place, or naming a rule that is not defined, defined twice, or missing (root).
Result<RuleSet> ParseEbnf(std::string_view text);

}  // namespace oscar::engine::grammar
