// Attention and demotion of one layer, by context length, head dimension and method. Times are of the whole verb on one
// thread; items are (query head, token) pairs, bytes are those of the pages that are read.
#include <benchmark/benchmark.h>

#include <cmath>
#include <optional>
#include <random>

#include "src/base/thread_pool.h"
#include "src/testing/seeds.h"
#include "src/testing/shadow_cache.h"

namespace oscar {
namespace {

// 14 query heads over 2 KV heads, as Qwen2.5-0.5B; 9 over 3, as SmolLM2, at d = 64; 32 over 8, as Llama-3-8B, at d = 128.
const KvShape kShapes[] = {{1, 14, 2, 64}, {1, 9, 3, 64}, {1, 32, 8, 128}};

struct Layer {
  Layer(const char* method, const KvShape& shape, int length, int num_queries)
      : profile(DataFreeProfile(method, shape).value()),
        context{ParseKvMethod(method)->codec, &profile, shape, &pool, {}},
        cache(context, 0, 64, 256, length / kPageTokens + 2, 1) {
    if (!cache.AppendRandom(sequence, length).ok() || !cache.DemoteFor(sequence, length - 1, length - num_queries).ok()) std::abort();
    item = {length - num_queries, num_queries, sequence.bf16_table, sequence.encoded_table};
    std::mt19937_64 rng(2);
    queries = testing::NormalVector(rng, static_cast<size_t>(num_queries * shape.num_query_heads * shape.head_dim));
    out.resize(queries.size());
    params.storage = cache.storage();
    params.sink = 64;
    params.recent = 256;
    params.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    params.sequences = {&item, 1};
    params.queries = PackedRows<const float>(queries.data(), num_queries, shape.num_query_heads, shape.head_dim);
    params.out = PackedRows(out.data(), num_queries, shape.num_query_heads, shape.head_dim);
    workspace.resize(AttendWorkspaceBytes(context, params));
    params.workspace = workspace;
  }
  base::ThreadPool pool{1};
  CodecProfile profile;
  KernelContext context;
  testing::ShadowCache cache;
  testing::ShadowSequence sequence;
  AttendSequence item;
  std::vector<float> queries, out;
  std::vector<std::byte> workspace;
  AttendParams params;
};

void AttendWith(benchmark::State& state, const char* method, int num_queries) {
  const KvShape& shape = kShapes[state.range(0)];
  Layer layer(method, shape, static_cast<int>(state.range(1)), num_queries);
  for (auto _ : state) {
    if (!Attend(layer.context, layer.params).ok()) state.SkipWithError("Attend failed");
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * shape.num_query_heads * state.range(1) * num_queries);
  state.SetLabel("d " + std::to_string(shape.head_dim) + ", g " + std::to_string(shape.group()));
}
void Decode(benchmark::State& state, const char* method) { AttendWith(state, method, 1); }
void Prefill(benchmark::State& state, const char* method) { AttendWith(state, method, 512); }

void DemotePage(benchmark::State& state, const char* method) {
  const KvShape& shape = kShapes[state.range(0)];
  Layer layer(method, shape, 1024, 1);
  const DemoteParams::Page page{4, layer.sequence.bf16_table.back(), layer.sequence.encoded_table[4]};
  for (auto _ : state) {
    if (!Demote(layer.context, {0, layer.cache.storage(), {&page, 1}}).ok()) state.SkipWithError("Demote failed");
  }
  state.SetItemsProcessed(state.iterations() * shape.num_kv_heads * 2 * kPageTokens);  // rows
}

void Lengths(benchmark::internal::Benchmark* bench) {
  for (int shape : {0, 1, 2}) {
    for (int length : {1024, 8192, 32768}) bench->Args({shape, length});
  }
  bench->Unit(benchmark::kMicrosecond);
}
void PromptLengths(benchmark::internal::Benchmark* bench) {
  for (int shape : {0, 1, 2}) {
    for (int length : {512, 8192}) bench->Args({shape, length});
  }
  bench->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(Decode, bf16, "bf16")->Apply(Lengths);
BENCHMARK_CAPTURE(Decode, int2, "int2:hadamard")->Apply(Lengths);
BENCHMARK_CAPTURE(Prefill, bf16, "bf16")->Apply(PromptLengths);
BENCHMARK_CAPTURE(Prefill, int2, "int2:hadamard")->Apply(PromptLengths);
BENCHMARK_CAPTURE(DemotePage, int2, "int2:hadamard")->Arg(0)->Arg(2)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace oscar
