#include "src/engine/serve/masks_ahead.h"

#include <gtest/gtest.h>

#include <random>

#include "src/engine/text/grammar/ebnf.h"
#include "src/engine/text/grammar/grammar_fixture.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

std::shared_ptr<const grammar::Grammar> NewGrammar() {
  const auto rules = grammar::ParseEbnf("root ::= \"[\" (word (\",\" word)*)? \"]\"\nword ::= \"\\\"\" [^\"\\\\]{1,6} \"\\\"\" | root");
  EXPECT_TRUE(rules.ok());
  return *grammar::Grammar::Create(*rules, grammar::TestTrie());
}

TEST(MasksAhead, AnswersUnderWayGetTheMasksThatTheyWouldGetAlone) {
  std::mt19937_64 rng(oscar::testing::TestSeed(3));
  MasksAhead ahead;
  const auto shared = NewGrammar(), alone = NewGrammar();
  std::vector<grammar::GrammarMatcher> answers(4, grammar::GrammarMatcher(shared)), judges(4, grammar::GrammarMatcher(alone));
  for (int step = 0; step < 200; ++step) {
    ahead.Make(answers);
    for (size_t i = 0; i < answers.size(); ++i) {
      const auto mask = answers[i].Mask(), wanted = judges[i].Mask();
      ASSERT_TRUE(mask.ok() && wanted.ok());
      ASSERT_EQ(**mask, **wanted) << "answer " << i << " at step " << step;
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < shared->trie().num_tokens(); ++token) {
        if (token != grammar::kEnd && grammar::Allows(**mask, token)) allowed.push_back(token);
      }
      if (allowed.empty()) {
        answers[i] = grammar::GrammarMatcher(shared);
        judges[i] = grammar::GrammarMatcher(alone);
        continue;
      }
      const int32_t token = allowed[rng() % allowed.size()];
      answers[i].Accept(token);
      judges[i].Accept(token);
    }
  }
}

TEST(MasksAhead, EndsWithoutACallAndBehindOne) {
  { MasksAhead unused; }
  MasksAhead ahead;
  ahead.Make({grammar::GrammarMatcher(NewGrammar())});
}

}  // namespace
}  // namespace oscar::engine
