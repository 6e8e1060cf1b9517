// Decode attention on cold pages, inside CUDA graphs (gpu.md 11): read ceiling, BF16 rows through
// the same kernel, INT2, and the load-only and compute-only variants, all in one run. Prints a
// table; JSON lines to a file with --json PATH.
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "src/kv/codec/affine/cuda_demote.h"
#include "src/kv/codec/affine/cuda_prefill.h"
#include "src/kv/kernels/cuda/cache_kernels.h"
#include "src/kv/kernels/cuda/decode_fixture.h"

namespace oscar::kernels::cuda {
namespace {

using affine::DecodeKernelKind;
using fixture::DeviceBuffer;
using fixture::Launch;
using fixture::Problem;

constexpr int64_t kRotationBytes = 640'000'000;

__global__ void ReadAndReduce(const uint4* data, size_t pieces, uint32_t* sink) {
  uint32_t sum = 0;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 7 * stride < pieces; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) v[n] = __ldcs(data + i + n * stride);
#pragma unroll
    for (int n = 0; n < 8; ++n) sum += v[n].x ^ v[n].y ^ v[n].z ^ v[n].w;
  }
  for (; i < pieces; i += stride) sum += data[i].x;
  if (sum == 0x12345678u) *sink = sum;
}

__global__ void FillRandom(uint32_t* data, size_t words) {
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    data[i] = static_cast<uint32_t>(fixture::Mix(i));
  }
}

struct Timing {
  double min_us, median_us, p95_us;
  int replays, launches;
};

// The card lowers its clocks after some 0.1 s at the power cap. So every figure is taken after a
// pause and `work_ms` of the same work: a little for what a kernel takes in a burst, much for what
// it takes when nothing else runs.
constexpr float kBurstMs = 20, kSustainedMs = 500;
constexpr auto kPause = std::chrono::milliseconds(150);

// Microseconds per launch over replays of one graph that holds `launches` launches.
Timing TimeGraph(int launches, const std::function<void(cudaStream_t, int)>& launch, int replays,
                 float work_ms = kBurstMs) {
  cudaStream_t stream;
  OSCAR_FIXTURE_CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  OSCAR_FIXTURE_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < launches; ++i) launch(stream, i);
  OSCAR_FIXTURE_CHECK(cudaStreamEndCapture(stream, &graph));
  OSCAR_FIXTURE_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  OSCAR_FIXTURE_CHECK(cudaEventCreate(&begin));
  OSCAR_FIXTURE_CHECK(cudaEventCreate(&end));
  std::this_thread::sleep_for(kPause);
  for (float ms = 0; ms < work_ms;) {
    OSCAR_FIXTURE_CHECK(cudaEventRecord(begin, stream));
    for (int i = 0; i < 3; ++i) OSCAR_FIXTURE_CHECK(cudaGraphLaunch(exec, stream));
    OSCAR_FIXTURE_CHECK(cudaEventRecord(end, stream));
    OSCAR_FIXTURE_CHECK(cudaEventSynchronize(end));
    float round = 0;
    OSCAR_FIXTURE_CHECK(cudaEventElapsedTime(&round, begin, end));
    ms += round;
  }
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    OSCAR_FIXTURE_CHECK(cudaEventRecord(begin, stream));
    OSCAR_FIXTURE_CHECK(cudaGraphLaunch(exec, stream));
    OSCAR_FIXTURE_CHECK(cudaEventRecord(end, stream));
    OSCAR_FIXTURE_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    OSCAR_FIXTURE_CHECK(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms * 1e3 / launches);
  }
  std::sort(times.begin(), times.end());
  OSCAR_FIXTURE_CHECK(cudaGraphExecDestroy(exec));
  OSCAR_FIXTURE_CHECK(cudaGraphDestroy(graph));
  OSCAR_FIXTURE_CHECK(cudaStreamDestroy(stream));
  return {times.front(), times[times.size() / 2], times[times.size() * 95 / 100], replays,
          launches};
}

FILE* g_json = nullptr;
double g_ceiling = 0;  // bytes per microsecond

void Report(const std::string& name, const Timing& t, double bytes) {
  const double rate = bytes / t.median_us;
  std::printf("%-44s %9.2f %9.2f %9.2f  %6.3f TB/s", name.c_str(), t.median_us, t.min_us, t.p95_us,
              rate * 1e-6);
  if (g_ceiling > 0) std::printf("  %5.1f %%", 100 * rate / g_ceiling);
  std::printf("\n");
  std::fflush(stdout);
  if (g_json != nullptr) {
    std::fprintf(g_json,
                 "{\"name\":\"%s\",\"median_us\":%.3f,\"min_us\":%.3f,\"p95_us\":%.3f,\"bytes\":%."
                 "0f,\"replays\":%d,"
                 "\"launches\":%d,\"ceiling_fraction\":%.4f}\n",
                 name.c_str(), t.median_us, t.min_us, t.p95_us, bytes, t.replays, t.launches,
                 g_ceiling > 0 ? rate / g_ceiling : 1.0);
  }
}

void MeasureCeiling(int num_sms) {
  const size_t bytes = size_t{6} << 30;
  DeviceBuffer<uint32_t> data(bytes / 4), sink(1);
  FillRandom<<<num_sms * 8, 512>>>(data.data(), bytes / 4);
  OSCAR_FIXTURE_CHECK(cudaDeviceSynchronize());
  double best = 0;
  for (const int grid : {528, 2112, 16896}) {
    const Timing t = TimeGraph(
        1,
        [&](cudaStream_t stream, int) {
          ReadAndReduce<<<grid, 512, 0, stream>>>(reinterpret_cast<const uint4*>(data.data()),
                                                  bytes / 16, sink.data());
        },
        15);
    Report("ceiling/read/6GiB/grid" + std::to_string(grid), t, bytes);
    best = std::max(best, bytes / t.median_us);
  }
  g_ceiling = best;
}

struct Options {
  std::vector<int> lengths = {8192, 32768, 102400}, batches = {1, 4, 16, 32}, groups = {4, 8};
  bool variants = true, rows = true, overlap = true, demotion = true, prefill = false,
       sustained = false;
  int64_t whole_splits_below_bytes = -1;
  int head_dim = 128;
  bool page_beta = false;
};

void MeasureInt2(int tokens, int batch, int group, const Options& options, int num_sms) {
  Problem problem;
  problem.group = group;
  problem.head_dim = options.head_dim;
  problem.has_page_beta = options.page_beta;
  const SequenceExtent extent = ExtentOfSequence(tokens, 64, 256);
  DecodePlanOptions plan;
  plan.kv_heads = problem.kv_heads;
  plan.head_dim = options.head_dim;
  plan.num_ctas = num_sms;
  if (options.whole_splits_below_bytes >= 0)
    plan.whole_splits_below_bytes = options.whole_splits_below_bytes;
  const std::string shape = "/d" + std::to_string(options.head_dim) + "/g" + std::to_string(group) +
                            "/n" + std::to_string(tokens) + "/b" + std::to_string(batch);
  auto measure = [&](const SequenceExtent& e, const std::string& kind, bool variants) {
    problem.sequences.assign(batch, e);
    const int64_t bytes = PlanDecode(problem.sequences, plan).bytes;
    const int sets = static_cast<int>(std::clamp<int64_t>(kRotationBytes / bytes + 1, 2, 100));
    Launch launch(problem, plan, sets, false);
    const int replays = static_cast<int64_t>(tokens) * batch > 1'000'000 ? 11 : 25;
    auto time = [&](DecodeKernelKind k, bool overlap, float work_ms = kBurstMs) {
      return TimeGraph(
          sets,
          [&](cudaStream_t stream, int i) {
            OSCAR_FIXTURE_CHECK(launch.Run(stream, i, k, overlap, false));
          },
          replays, work_ms);
    };
    Report("attend/cuda/" + kind + shape, time(DecodeKernelKind::kNormal, false), bytes);
    if (options.overlap && variants)
      Report("attend/cuda/" + kind + "+pdl" + shape, time(DecodeKernelKind::kNormal, true), bytes);
    if (options.sustained && variants)
      Report("attend/cuda/" + kind + "+sustained" + shape,
             time(DecodeKernelKind::kNormal, false, kSustainedMs), bytes);
    const bool has_variants =
        affine::FindDecodeKernel(options.head_dim, group, DecodeKernelKind::kLoadOnly) != nullptr;
    if (options.variants && variants && has_variants) {
      Report("attend/cuda/" + kind + "+load-only" + shape, time(DecodeKernelKind::kLoadOnly, false),
             bytes);
      Report("attend/cuda/" + kind + "+compute-only" + shape,
             time(DecodeKernelKind::kComputeOnly, false), bytes);
    }
  };
  measure(extent, "int2", true);
  measure({tokens / 64, 0}, "int2-no-window", true);
  if (options.rows && static_cast<int64_t>(tokens) * batch <= 3'300'000)
    measure({0, tokens}, "bf16", false);
}

// Demotion with the clip of int2:oscar: pages x layers, rows random, cold; of rows in code space,
// or raw with one matrix per layer, KV head and side.
void MeasureDemote(int pages, int layers, bool transforms, const std::string& name) {
  namespace layout = affine::device;
  constexpr int kD = 128, kHeads = 8;
  const int64_t row_bytes = int64_t{kHeads} * layout::Bf16BlockBytes(kD),
                code_bytes = int64_t{kHeads} * layout::BlockBytes(kD);
  const int64_t bytes = pages * layers * (row_bytes + code_bytes);
  const int sets = static_cast<int>(kRotationBytes / bytes + 2), all_pages = sets * pages * layers;
  DeviceBuffer<uint8_t> rows(all_pages * row_bytes), codes(all_pages * code_bytes);
  std::vector<int32_t> table(all_pages), num_rows = {all_pages * 64};
  std::iota(table.begin(), table.end(), 0);
  DeviceBuffer<int32_t> table_buffer(table), num_rows_buffer(num_rows);
  fixture::FillRowPages<<<dim3(all_pages, kHeads, 1), 256>>>(
      {rows.data(), table_buffer.data(), all_pages, num_rows_buffer.data(), kHeads, kD},
      fixture::Data::kNormal, 5);
  std::vector<DemoteJob> jobs;
  std::mt19937_64 rng(3);
  std::vector<int32_t> order(sets * pages);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), rng);
  for (const int32_t page : order) jobs.push_back({page, page});
  DeviceBuffer<DemoteJob> job_buffer(jobs);
  DeviceBuffer<DeviceStatus> status(1);
  status.Fill(0);
  DeviceBuffer<float> matrices(static_cast<size_t>(2) * layers * kHeads * kD * kD);
  std::vector<float> host_matrices(matrices.size());
  for (float& m : host_matrices) m = std::uniform_real_distribution<float>(-0.15f, 0.15f)(rng);
  matrices.Upload(host_matrices);
  DemoteSide sides[2] = {{122}, {117}};
  for (int side = 0; transforms && side < 2; ++side) {
    sides[side].matrix = matrices.data() + static_cast<size_t>(side) * layers * kHeads * kD * kD;
    sides[side].layer_stride = int64_t{kHeads} * kD * kD;
    sides[side].head_stride = int64_t{kD} * kD;
  }
  for (const bool overlap : {false, true}) {
    const Timing t = TimeGraph(
        sets,
        [&](cudaStream_t stream, int set) {
          const DemotePagesParams params{rows.data(),
                                         codes.data(),
                                         sets * pages * row_bytes,
                                         sets * pages * code_bytes,
                                         job_buffer.data() + set * pages,
                                         status.data(),
                                         kHeads,
                                         {sides[0], sides[1]}};
          OSCAR_FIXTURE_CHECK(affine::LaunchDemote(kD, params, pages, layers, overlap, stream));
        },
        25);
    Report(std::string(transforms ? "demote+transform" : "demote") + (overlap ? "+pdl" : "") +
               "/cuda/int2:oscar/d128/" + name,
           t, bytes);
  }
}

// A chunk of one sequence behind `prefix` tokens, one layer, d = 128, common space; all tokens are
// on pages of both kinds.
void MeasurePrefill(int prefix, int tokens, int group, int splits) {
  namespace layout = affine::device;
  constexpr int kD = 128, kHeads = 8, kSink = 64, kRecent = 256;
  const int pages = (prefix + tokens + 63) / 64;
  std::vector<int32_t> table(pages), counts = {pages}, row_counts = {pages * 64};
  std::iota(table.begin(), table.end(), 0);
  DeviceBuffer<int32_t> ids(table), num_pages(counts), num_rows(row_counts);
  DeviceBuffer<uint8_t> codes(static_cast<size_t>(pages) * kHeads * layout::BlockBytes(kD)),
      rows(static_cast<size_t>(pages) * kHeads * layout::Bf16BlockBytes(kD));
  fixture::FillCodePages<<<dim3(pages, kHeads, 1), 128>>>(
      {codes.data(), ids.data(), pages, num_pages.data(), kHeads, kD}, fixture::Data::kNormal, 1);
  fixture::FillRowPages<<<dim3(pages, kHeads, 1), 256>>>(
      {rows.data(), ids.data(), pages, num_rows.data(), kHeads, kD}, fixture::Data::kNormal, 2);
  const size_t outputs = static_cast<size_t>(tokens) * kHeads * group;
  std::vector<uint16_t> host_queries(outputs * kD);
  std::mt19937_64 rng(4);
  std::normal_distribution<float> normal;
  for (uint16_t& q : host_queries) q = base::Bf16FromF32(normal(rng));
  DeviceBuffer<uint16_t> queries(host_queries), out(outputs * kD);
  DeviceBuffer<float> parts(splits * outputs * kD), lses(splits * outputs);
  const PrefillParams params{queries.data(), nullptr,
                             nullptr,        codes.data(),
                             rows.data(),    ids.data(),
                             ids.data(),     prefix,
                             tokens,         kSink,
                             kRecent,        kHeads,
                             group,          1.4427f / std::sqrt(128.0f),
                             splits,         parts.data(),
                             lses.data()};
  const Timing t = TimeGraph(
      1,
      [&](cudaStream_t stream, int) {
        OSCAR_FIXTURE_CHECK(affine::LaunchPrefill(kD, params, stream));
        OSCAR_FIXTURE_CHECK(
            LaunchMerge({parts.data(), lses.data(), splits, static_cast<int32_t>(outputs), kD,
                         out.data(), nullptr, nullptr},
                        stream));
      },
      7);
  const double products = 4.0 * tokens * (prefix + tokens / 2.0) * kHeads * group * kD;
  std::printf("prefill/cuda/int2/d128/g%d/prefix%d/chunk%d/splits%d  %.1f us  %.1f TFLOP/s\n",
              group, prefix, tokens, splits, t.median_us, products / t.median_us * 1e-6);
  std::fflush(stdout);
}

std::vector<int> ParseList(const char* text) {
  std::vector<int> values;
  for (const char* p = text; *p != 0;) {
    char* end;
    values.push_back(static_cast<int>(std::strtol(p, &end, 10)));
    p = *end == ',' ? end + 1 : end;
    if (end == p && *p != 0) break;
  }
  return values;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const bool has_value = i + 1 < argc;
    if (arg == "--lengths" && has_value)
      options.lengths = ParseList(argv[++i]);
    else if (arg == "--batches" && has_value)
      options.batches = ParseList(argv[++i]);
    else if (arg == "--groups" && has_value)
      options.groups = ParseList(argv[++i]);
    else if (arg == "--whole-splits-below" && has_value)
      options.whole_splits_below_bytes = std::atoll(argv[++i]);
    else if (arg == "--no-variants")
      options.variants = false;
    else if (arg == "--head-dim" && has_value)
      options.head_dim = std::atoi(argv[++i]);
    else if (arg == "--page-beta")
      options.page_beta = true;
    else if (arg == "--sustained")
      options.sustained = true;
    else if (arg == "--prefill")
      options.prefill = true;
    else if (arg == "--no-demotion")
      options.demotion = false;
    else if (arg == "--no-bf16")
      options.rows = false;
    else if (arg == "--json" && has_value)
      g_json = std::fopen(argv[++i], "a");
    else {
      std::fprintf(stderr, "unknown argument %s\n", arg.c_str());
      return 2;
    }
  }
  cudaDeviceProp properties;
  OSCAR_FIXTURE_CHECK(cudaGetDeviceProperties(&properties, 0));
  const int num_sms = properties.multiProcessorCount;
  int driver = 0;
  OSCAR_FIXTURE_CHECK(cudaDriverGetVersion(&driver));
  std::printf("# %s, %d SMs, driver API %d\n# us per launch: median, min, p95\n", properties.name,
              num_sms, driver);
  for (const DecodeKernelKind kind :
       {DecodeKernelKind::kNormal, DecodeKernelKind::kLoadOnly, DecodeKernelKind::kComputeOnly}) {
    for (const int d : {64, 128, 192, 256}) {
      for (const int group : {4, 8, 16}) {
        const auto* kernel = affine::FindDecodeKernel(d, group, kind);
        if (kernel != nullptr) OSCAR_FIXTURE_CHECK(affine::PrepareDecodeKernel(*kernel));
      }
    }
  }
  MeasureCeiling(num_sms);
  if (options.prefill) {
    OSCAR_FIXTURE_CHECK(affine::PreparePrefill());
    for (const int group : options.groups) {
      MeasurePrefill(0, 8192, group, 1);
      MeasurePrefill(32768, 2048, group, 1);
      MeasurePrefill(102400, 8192, group, 1);
      MeasurePrefill(102400, 512, group, 4);
    }
  }
  for (const bool transforms : {false, true}) {
    if (!options.demotion) break;
    MeasureDemote(128, 1, transforms, "8192-tokens-1-layer");
    MeasureDemote(4, 36, transforms, "4-pages-36-layers");
    MeasureDemote(1, 36, transforms, "1-page-36-layers");
  }
  for (const int group : options.groups) {
    Options own = options;
    own.rows = options.rows && group == options.groups.front();
    for (const int tokens : options.lengths) {
      for (const int batch : options.batches) MeasureInt2(tokens, batch, group, own, num_sms);
    }
  }
  if (g_json != nullptr) std::fclose(g_json);
  return 0;
}

}  // namespace
}  // namespace oscar::kernels::cuda

int main(int argc, char** argv) { return oscar::kernels::cuda::Main(argc, argv); }
