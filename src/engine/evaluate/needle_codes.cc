#include "src/engine/evaluate/needle_codes.h"

#include <algorithm>
#include <functional>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/seeded_draw.h"
#include "src/engine/evaluate/token_scores.h"

namespace oscar::engine {
namespace {

struct Needle {
  std::vector<int32_t> statement;  // up to the code
  std::vector<int32_t> code;
};

Result<std::vector<Needle>> MakeNeedles(const Tokenizer& tokenizer, SeededDraw& draw, int count) {
  std::vector<Needle> needles;
  for (int i = 0; i < count; ++i) {
    const std::string key = draw.New([](SeededDraw& d) { return d.Key(); });
    const std::string code = draw.New([](SeededDraw& d) { return d.Digits(7); });
    Needle needle;
    OSCAR_ASSIGN_OR_RETURN(needle.statement, tokenizer.Encode("\nThe code of the " + key + " is", {.add_special = false}));
    OSCAR_ASSIGN_OR_RETURN(needle.code, tokenizer.Encode(" " + code, {.add_special = false}));
    needles.push_back(std::move(needle));
  }
  return needles;
}

void Append(std::vector<int32_t>& to, std::span<const int32_t> tokens) { to.insert(to.end(), tokens.begin(), tokens.end()); }

// Logits of rows [answer_begin - 1, end - 1) predict the answer's tokens; the prose before goes through without logits.
// `advance` is told the position reached, and says when to stop.
Status CountRecalled(Engine& engine, KvCache& cache, const NeedleText& text, const std::function<Status(int)>& advance,
                     NeedleCodesCell* cell) {
  OSCAR_ASSIGN_OR_RETURN(const SequenceId sequence, cache.NewSequence());
  const std::span<const int32_t> tokens = text.tokens;
  const int last = static_cast<int>(tokens.size()) - 1;
  std::vector<float> logits;
  std::vector<int32_t> predicted(tokens.size(), -1);
  for (int at = 0; at < last;) {
    OSCAR_TRY(advance(at));
    const bool scored = at >= text.answer_begin - 1;
    const int end = scored ? last : text.answer_begin - 1;
    const int count = std::min({scored ? 64 : kMaxStepTokens, cache.config().max_step_tokens, end - at});
    const StepSequence step{sequence, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count)), scored};
    OSCAR_TRY(engine.model().Forward({&step, 1}, cache, scored ? &logits : nullptr));
    const size_t vocab = scored ? logits.size() / static_cast<size_t>(count) : 0;
    for (int i = 0; scored && i < count; ++i) {
      predicted[static_cast<size_t>(at + i + 1)] = ArgMax(std::span(logits).subspan(static_cast<size_t>(i) * vocab, vocab));
    }
    at += count;
  }
  double right = 0, total = 0;
  for (const NeedleText::Code& code : text.codes) {
    int matching = 0;
    for (int i = code.begin; i < code.end; ++i) matching += predicted[static_cast<size_t>(i)] == tokens[static_cast<size_t>(i)];
    right += matching;
    total += code.end - code.begin;
    cell->recalled += matching == code.end - code.begin;
    ++cell->codes;
  }
  cell->tokens_right += right / total;
  return cache.Release(sequence);
}

}  // namespace

Result<NeedleText> MakeNeedleText(const Tokenizer& tokenizer, const NeedleCodesRequest& request, int length, int text) {
  SeededDraw draw(request.seed * 1'000'003 + static_cast<uint64_t>(length) * 1009 + static_cast<uint64_t>(text));
  OSCAR_ASSIGN_OR_RETURN(std::vector<Needle> needles, MakeNeedles(tokenizer, draw, request.codes));
  OSCAR_ASSIGN_OR_RETURN(const std::vector<int32_t> stop, tokenizer.Encode(".\n", {.add_special = false}));
  OSCAR_ASSIGN_OR_RETURN(const std::vector<int32_t> question,
                         tokenizer.Encode("\n\nHere are all the codes of this text once more.\n", {.add_special = false}));
  int64_t fixed = static_cast<int64_t>(question.size()) + (tokenizer.adds_bos() ? 1 : 0);
  for (const Needle& needle : needles) {
    fixed += 2 * static_cast<int64_t>(needle.statement.size() + needle.code.size() + stop.size());
  }
  const int64_t prose = length - fixed;
  if (prose < request.codes) {
    return {StatusCode::kInvalidArgument, "needle: " + std::to_string(length) + " tokens have no room for " +
                                              std::to_string(request.codes) + " codes and prose between them"};
  }
  const int64_t available = static_cast<int64_t>(request.prose.size());
  if (available < prose) {
    return {StatusCode::kInvalidArgument, "needle: the text has " + std::to_string(available) + " tokens, " + std::to_string(prose) +
                                              " are needed for a length of " + std::to_string(length)};
  }
  const size_t start = static_cast<size_t>(request.texts > 1 ? (available - prose) * text / (request.texts - 1) : 0);
  NeedleText made;
  if (tokenizer.adds_bos()) made.tokens.push_back(tokenizer.bos_id());
  made.codes.resize(needles.size());
  int64_t used = 0;
  for (size_t i = 0; i < needles.size(); ++i) {
    const int64_t until = prose * static_cast<int64_t>(2 * i + 1) / static_cast<int64_t>(2 * needles.size());
    Append(made.tokens, request.prose.subspan(start + static_cast<size_t>(used), static_cast<size_t>(until - used)));
    used = until;
    made.codes[i].hidden_at = static_cast<int>(made.tokens.size());
    Append(made.tokens, needles[i].statement);
    Append(made.tokens, needles[i].code);
    Append(made.tokens, stop);
  }
  Append(made.tokens, request.prose.subspan(start + static_cast<size_t>(used), static_cast<size_t>(prose - used)));
  Append(made.tokens, question);
  made.answer_begin = static_cast<int>(made.tokens.size());
  std::vector<size_t> order(needles.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  draw.Shuffle(order);
  for (const size_t i : order) {
    Append(made.tokens, needles[i].statement);
    made.codes[i].begin = static_cast<int>(made.tokens.size());
    Append(made.tokens, needles[i].code);
    made.codes[i].end = static_cast<int>(made.tokens.size());
    Append(made.tokens, stop);
  }
  return made;
}

Result<std::vector<NeedleCodesCell>> RunNeedleCodes(Engine& engine, const NeedleCodesRequest& request) {
  std::vector<NeedleCodesCell> cells;
  int64_t total = 0, done = 0;
  const int64_t runs = request.texts * static_cast<int64_t>(request.methods.size());
  for (const int length : request.lengths) total += runs * length;
  for (const int length : request.lengths) {
    std::vector<NeedleText> texts;
    for (int text = 0; text < request.texts; ++text) {
      OSCAR_ASSIGN_OR_RETURN(NeedleText made, MakeNeedleText(engine.tokenizer(), request, length, text));
      texts.push_back(std::move(made));
    }
    for (const KvSetup& setup : request.methods) {
      OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> cache, engine.NewCache(setup, length));
      NeedleCodesCell cell{setup.method.name(), length, 0, 0, 0, 0};
      for (const NeedleText& text : texts) {
        const auto advance = [&](int position) {
          request.control.Report(done + position, total);
          return request.control.CheckCancelled();
        };
        OSCAR_TRY(CountRecalled(engine, *cache, text, advance, &cell));
        done += length;
      }
      cell.tokens_right /= request.texts;
      cell.bits_per_element = LedgerAt(setup.method, engine.model().config().kv.head_dim, length, engine.options().sink,
                                       engine.options().recent).at_length;
      cells.push_back(std::move(cell));
    }
  }
  request.control.Report(total, total);
  return cells;
}

}  // namespace oscar::engine
