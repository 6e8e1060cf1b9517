// How long masks take over the vocabulary of a real model: OSCAR_TEST_MODELS=FOLDER [OSCAR_BENCH_MODEL=FILE.gguf in it].
#include "src/engine/text/grammar/matcher.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <vector>

#include "src/engine/text/grammar/json_schema.h"
#include "src/io/gguf.h"

namespace oscar::engine::grammar {
namespace {

constexpr const char* kSchemas[] = {
    R"({"type":"object"})",
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":120},"tags":{"type":"array","items":{"enum":["a","b","c"]}}},
        "required":["name","age","tags"],"additionalProperties":false})",
    R"({"type":"object","properties":{"title":{"type":"string"},"steps":{"type":"array","items":{"type":"object","properties":{"text":{"type":"string"},"minutes":{"type":"number"}},
        "required":["text","minutes"]}}},"required":["title","steps"]})",
};

std::shared_ptr<const TokenTrie> RealTrie() {
  static const std::shared_ptr<const TokenTrie> kTrie = []() -> std::shared_ptr<const TokenTrie> {
    const char* folder = std::getenv("OSCAR_TEST_MODELS");
    const char* name = std::getenv("OSCAR_BENCH_MODEL");
    if (folder == nullptr) return nullptr;
    const auto file = io::GgufFile::Open(std::filesystem::path(folder) / (name != nullptr ? name : "SmolLM2-135M-Instruct.Q4_1.gguf"));
    if (!file.ok()) return nullptr;
    const auto tokenizer = Tokenizer::Create(file->metadata());
    return tokenizer.ok() ? std::make_shared<const TokenTrie>(**tokenizer) : nullptr;
  }();
  return kTrie;
}

Result<std::shared_ptr<const Grammar>> Make(int64_t which, std::shared_ptr<const TokenTrie> trie) {
  RuleSet rules;
  const auto root = AddJsonSchema(nlohmann::ordered_json::parse(kSchemas[which]), {}, &rules, nullptr);
  if (!root.ok()) return root.status();
  rules.root = *root;
  return Grammar::Create(rules, std::move(trie));
}

// Masks of answers of 60 random tokens; the time is that of the masks alone, p99 among the counters. Second argument 1: masks are kept
// over answers, as in a server; 0: every answer has a grammar that nobody has used, so that most states are seen for the first time.
void BM_Mask(benchmark::State& state) {
  const auto trie = RealTrie();
  if (trie == nullptr) return state.SkipWithError("no model in OSCAR_TEST_MODELS");
  auto grammar = Make(state.range(0), trie);
  std::mt19937_64 rng(5);
  GrammarMatcher matcher(*grammar);
  std::vector<double> times;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    const auto mask = matcher.Mask();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    state.SetIterationTime(times.back());
    std::optional<int32_t> next;
    const auto allowed = [&](int32_t token) { return HasToken(**mask, token) && !trie->bytes(token).empty(); };
    for (int tries = 0; tries < 200 && !next; ++tries) {
      const auto token = static_cast<int32_t>(rng() % static_cast<uint64_t>(trie->num_tokens()));
      if (allowed(token)) next = token;
    }
    for (int32_t token = 0; token < trie->num_tokens() && !next; ++token) {
      if (allowed(token)) next = token;
    }
    if (!next || times.size() % 60 == 0) {
      if (state.range(1) == 0) grammar = Make(state.range(0), trie);
      matcher = GrammarMatcher(*grammar);
    } else {
      matcher.Accept(*next);
    }
  }
  std::ranges::sort(times);
  state.counters["p50_us"] = 1e6 * times[times.size() / 2];
  state.counters["p99_us"] = 1e6 * times[times.size() * 99 / 100];
}
BENCHMARK(BM_Mask)->ArgsProduct({{0, 1, 2}, {0, 1}})->Unit(benchmark::kMicrosecond)->Iterations(6000)->UseManualTime();

void BM_Compile(benchmark::State& state) {
  const auto trie = RealTrie();
  if (trie == nullptr) return state.SkipWithError("no model in OSCAR_TEST_MODELS");
  for (auto _ : state) benchmark::DoNotOptimize(Make(state.range(0), trie));
}
BENCHMARK(BM_Compile)->DenseRange(0, 2)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace oscar::engine::grammar
