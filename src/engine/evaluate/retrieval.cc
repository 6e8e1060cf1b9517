#include "src/engine/evaluate/retrieval.h"

#include <utility>

#include "src/base/status_macros.h"
#include "src/engine/runtime/generate.h"

namespace oscar::engine {
namespace {

constexpr int kMostUnits = 1 << 20;

struct FittedItem {
  RetrievalItem item;
  std::vector<int32_t> tokens;
};

Result<std::vector<int32_t>> PromptTokens(const Engine& engine, const RetrievalItem& item) {
  if (engine.chat_template() == nullptr) {
    return engine.tokenizer().Encode(item.prompt + "\n" + item.answer_start, {.add_special = true, .parse_special = false});
  }
  return engine.EncodeChat({.messages = {{.role = "user", .content = item.prompt}}}, item.answer_start);
}

// The item with the most filling that leaves room for its answer within `length` tokens.
Result<FittedItem> Fit(const Engine& engine, const RetrievalRequest& request, RetrievalTask task, int length, uint64_t seed) {
  const auto make = [&](int size) -> Result<FittedItem> {
    OSCAR_ASSIGN_OR_RETURN(RetrievalItem item, MakeRetrievalItem(task, request.sources, seed, size));
    OSCAR_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, PromptTokens(engine, item));
    return FittedItem{std::move(item), std::move(tokens)};
  };
  const auto fits = [&](const FittedItem& made) { return static_cast<int64_t>(made.tokens.size()) + made.item.max_new_tokens <= length; };
  OSCAR_ASSIGN_OR_RETURN(FittedItem best, make(0));
  if (!fits(best)) {
    return {StatusCode::kInvalidArgument, std::string(RetrievalTaskName(task)) + ": the question alone has " +
                                              std::to_string(best.tokens.size()) + " tokens and its answer up to " +
                                              std::to_string(best.item.max_new_tokens) + ": more than the length of " +
                                              std::to_string(length)};
  }
  int fitting = 0, too_large = 1;
  size_t previous = 0;
  // Doubling first: encoding costs by the length, and most of a search from above would be wasted.
  for (; too_large < kMostUnits; too_large *= 2) {
    OSCAR_ASSIGN_OR_RETURN(FittedItem made, make(too_large));
    if (!fits(made)) break;
    if (made.tokens.size() == previous) return made;  // the source has no more
    previous = made.tokens.size();
    fitting = too_large;
    best = std::move(made);
  }
  while (too_large - fitting > 1) {
    const int middle = fitting + (too_large - fitting) / 2;
    OSCAR_ASSIGN_OR_RETURN(FittedItem made, make(middle));
    if (fits(made)) {
      fitting = middle;
      best = std::move(made);
    } else {
      too_large = middle;
    }
  }
  return best;
}

}  // namespace

Result<std::vector<RetrievalCell>> RunRetrieval(Engine& engine, const RetrievalRequest& request) {
  std::vector<RetrievalCell> cells;
  int64_t done = 0, total = 0;
  const int64_t runs = static_cast<int64_t>(request.tasks.size() * request.methods.size()) * request.samples;
  for (const int length : request.lengths) total += runs * length;
  for (const RetrievalTask task : request.tasks) {
    for (const int length : request.lengths) {
      std::vector<FittedItem> items;
      for (int sample = 0; sample < request.samples; ++sample) {
        OSCAR_TRY(request.control.CheckCancelled());
        const uint64_t seed = request.seed * 1'000'003 + static_cast<uint64_t>(sample) * 101 + static_cast<uint64_t>(task);
        OSCAR_ASSIGN_OR_RETURN(FittedItem item, Fit(engine, request, task, length, seed));
        items.push_back(std::move(item));
      }
      for (const KvSetup& setup : request.methods) {
        OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> cache, engine.NewCache(setup, length));
        OSCAR_ASSIGN_OR_RETURN(Conversation conversation, Conversation::Start(engine, *cache));
        RetrievalCell cell{task, length, setup.method.name(), 0, 0, 0};
        for (int sample = 0; sample < request.samples; ++sample) {
          const FittedItem& fitted = items[static_cast<size_t>(sample)];
          GenerateRequest generate;
          generate.prompt = fitted.tokens;
          generate.answer = {.sampling = {.temperature = 0}, .max_tokens = fitted.item.max_new_tokens};
          generate.cancelled = request.control.cancelled;
          OSCAR_ASSIGN_OR_RETURN(const GenerateResult result, conversation.Generate(generate));
          OSCAR_TRY(request.control.CheckCancelled());
          RetrievalAnswer answer{task, length, sample, cell.method, result.prompt_tokens, fitted.item.expected, result.text, 0};
          answer.score = ScoreAnswer(fitted.item, result.text);
          cell.score += answer.score / request.samples;
          cell.prompt_tokens += static_cast<double>(result.prompt_tokens) / request.samples;
          if (request.on_answer) OSCAR_TRY(request.on_answer(answer));
          request.control.Report(done += length, total);
        }
        cell.bits_per_element = LedgerAt(setup.method, engine.model().config().kv.head_dim, length, engine.options().sink,
                                         engine.options().recent).at_length;
        cells.push_back(std::move(cell));
      }
    }
  }
  return cells;
}

}  // namespace oscar::engine
