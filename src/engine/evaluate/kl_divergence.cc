#include "src/engine/evaluate/kl_divergence.h"

#include <algorithm>
#include <cmath>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

// Per method, one value per scored token in order.
struct Series {
  std::vector<double> nll, kl;
  std::vector<uint8_t> agrees;
};

// Scores the rows of one step on all threads. series[0] is the exact cache when `compare`.
void ScoreRows(Executor& executor, const ScoredRows& rows, bool compare, std::vector<Series>& series) {
  const size_t n = rows.targets.size(), before = series[0].nll.size();
  const size_t vocab = rows.logits[0].size() / n;
  for (Series& one : series) {
    one.nll.resize(before + n);
    one.kl.resize(before + n);
    one.agrees.resize(before + n);
  }
  RunOn(executor, [&](int thread, int num_threads) {
    for (size_t i = thread; i < n; i += num_threads) {
      const auto exact = rows.logits[0].subspan(i * vocab, vocab);
      for (size_t m = 0; m < series.size(); ++m) {
        const auto logits = rows.logits[m].subspan(i * vocab, vocab);
        series[m].nll[before + i] = NegativeLogLikelihood(logits, rows.targets[i]);
        if (!compare || m == 0) continue;
        series[m].kl[before + i] = KlDivergence(exact, logits);
        series[m].agrees[before + i] = ArgMax(exact) == ArgMax(logits);
      }
    }
  });
}

double MeanBits(const KvSetup& setup, const Engine& engine, int head_dim, const WindowPlan& plan) {
  double sum = 0;
  const KvWindows windows = engine.WindowsOf(setup);
  for (int position = plan.window - 1 - plan.scored; position < plan.window - 1; ++position) {
    sum += LedgerAt(setup.method, head_dim, position + 1, windows.sink, windows.recent).at_length;
  }
  return sum / plan.scored;
}

// The series runs window by window, `scored` positions each.
std::vector<BucketScore> BucketsOf(const Series& series, const WindowPlan& plan) {
  const int count = std::min(plan.buckets, plan.scored), first_scored = plan.window - 1 - plan.scored;
  std::vector<BucketScore> buckets;
  for (int bucket = 0; bucket < count; ++bucket) {
    const auto begin = static_cast<size_t>(int64_t{plan.scored} * bucket / count), end = static_cast<size_t>(int64_t{plan.scored} * (bucket + 1) / count);
    double nll = 0, kl = 0, taken = 0;
    for (size_t window = 0; window < plan.starts.size(); ++window) {
      for (size_t i = window * static_cast<size_t>(plan.scored) + begin; i < window * static_cast<size_t>(plan.scored) + end; ++i) {
        nll += series.nll[i];
        kl += series.kl[i];
        ++taken;
      }
    }
    buckets.push_back({first_scored + static_cast<int>(begin), first_scored + static_cast<int>(end) - 1, std::exp(nll / taken), kl / taken});
  }
  return buckets;
}

double PerplexityOf(const Series& series) { return std::exp(Summarize(series.nll).mean); }

}  // namespace

Result<ScoreReport> ScoreMethods(Engine& engine, const std::vector<KvSetup>& methods, std::span<const int32_t> tokens,
                                 const WindowPlan& plan, bool compare, const RunControl& control) {
  std::vector<KvSetup> run;
  if (compare) {
    OSCAR_ASSIGN_OR_RETURN(KvSetup exact, engine.SetUpKv("bf16", {}));
    run.push_back(std::move(exact));
  }
  run.insert(run.end(), methods.begin(), methods.end());
  std::vector<Series> series(run.size());
  const auto visit = [&](const ScoredRows& rows) {
    ScoreRows(engine.model().executor(), rows, compare, series);
    return Status();
  };
  OSCAR_TRY(RunWindows(engine, run, tokens, plan, visit, control));

  ScoreReport report{engine.identity().name, "", plan.window, plan.scored, static_cast<int>(plan.starts.size()), 0, 0, {}, {}};
  report.num_scored = static_cast<int64_t>(series[0].nll.size());
  if (compare) {
    report.exact_perplexity = PerplexityOf(series[0]);
    report.exact_buckets = BucketsOf(series[0], plan);
  }
  for (size_t m = compare ? 1 : 0; m < run.size(); ++m) {
    MethodScore score;
    score.method = run[m].method.name();
    score.perplexity = PerplexityOf(series[m]);
    score.bits_per_element = MeanBits(run[m], engine, engine.model().config().kv.head_dim, plan);
    score.compared = compare;
    score.buckets = BucketsOf(series[m], plan);
    if (compare) {
      score.kl = Summarize(series[m].kl);
      double agreeing = 0;
      for (const uint8_t agrees : series[m].agrees) agreeing += agrees;
      score.top1_agreement = agreeing / static_cast<double>(series[m].agrees.size());
    }
    report.methods.push_back(std::move(score));
  }
  return report;
}

}  // namespace oscar::engine
