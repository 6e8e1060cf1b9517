// `oscar bench ceiling`, `attend` and `demote`: the machine's ceilings, and the KV cache of a model's shape beside them.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <memory>

#include "src/base/status_macros.h"
#include "src/base/thread_pool.h"
#include "src/engine/bench/kernel_speed.h"
#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"
#include "tools/bench_ceilings.h"
#include "tools/bench_plot.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

using engine::Cell;
using engine::NumberFormat;

struct KernelArguments {
  engine::EngineOptions engine;
  std::vector<std::string> methods{"bf16", "int2:balanced"};
  std::vector<int> contexts;
  int repeats = 15;
  PlotOptions plot;
  bool json = false, quiet = false;
};

Status RunCeiling(const KernelArguments& arguments) {
  if (arguments.engine.threads < 0) return {StatusCode::kInvalidArgument, "--threads must be positive"};
  base::ThreadPool pool(arguments.engine.threads > 0 ? arguments.engine.threads : engine::AvailableCores());
  OSCAR_ASSIGN_OR_RETURN(const Ceilings ceilings, MeasureCeilings(pool));
  engine::Table table("", {{"ceiling", "ceiling", ""},
                           {"median", "median", "1e9/s", NumberFormat::kDecimal, 2},
                           {"min", "min", "1e9/s", NumberFormat::kDecimal, 2},
                           {"max", "max", "1e9/s", NumberFormat::kDecimal, 2}});
  const auto add = [&](const char* name, const std::vector<double>& rates) {
    if (rates.empty()) return table.AddRow({std::string(name), Cell(), Cell(), Cell()});
    table.AddRow({std::string(name), Median(rates) / kGiga, rates.front() / kGiga, rates.back() / kGiga});
  };
  add("bytes read from memory", ceilings.read_bytes);
  add("multiply-adds of bytes", ceilings.byte_dots);
  if (arguments.json) {
    engine::JsonReport json("bench ceiling");
    json.Set("threads", int64_t{pool.num_threads()});
    json.Add("ceilings", table);
    fmt::print("{}", json.ToText());
    return {};
  }
  fmt::print("{} threads, all together\n{}", pool.num_threads(), table.ToText());
  return {};
}

// The share of the nearer ceiling: queries of 16 bits take two byte products per multiply-add.
Cell ShareOfCeiling(const engine::KernelCell& cell, double seconds, const Ceilings& ceilings) {
  constexpr double kProductsPerMultiplyAdd = 2;
  const double read_seconds = cell.bytes / Median(ceilings.read_bytes);
  if (cell.method == "bf16" || ceilings.byte_dots.empty()) return read_seconds / seconds;
  return std::max(read_seconds, kProductsPerMultiplyAdd * cell.multiply_adds / Median(ceilings.byte_dots)) / seconds;
}

enum class Kernel { kAttend, kDemote };

engine::Table KernelTable(const std::vector<engine::KernelCell>& cells, Kernel kernel, const Ceilings& ceilings) {
  const bool attend = kernel == Kernel::kAttend;
  std::vector<engine::Column> columns{{"context_tokens", "context", "tokens"},
                                      {"kv", "kv", ""},
                                      {"milliseconds", "median", "ms", NumberFormat::kSignificant, 4},
                                      {"milliseconds_min", "min", "ms", NumberFormat::kSignificant, 4},
                                      {"milliseconds_max", "max", "ms", NumberFormat::kSignificant, 4},
                                      {"speed_ratio", "speed", "to the first", NumberFormat::kDecimal, 2},
                                      {"bytes", "bytes", "", NumberFormat::kBytes},
                                      {"gigabytes_per_second", "rate", "GB/s", NumberFormat::kDecimal, 2}};
  if (attend) {
    columns.push_back({"giga_multiply_adds_per_second", "rate", "1e9 madd/s", NumberFormat::kDecimal, 2});
    columns.push_back({"share_of_ceiling", "of ceiling", "share", NumberFormat::kDecimal, 2});
  } else {
    columns.push_back({"nanoseconds_per_row", "row", "ns", NumberFormat::kDecimal, 1});
    columns.push_back({"tokens_per_second", "rate", "tokens/s", NumberFormat::kDecimal, 0});
  }
  engine::Table table("", columns);
  double first = 0;
  for (const engine::KernelCell& cell : cells) {
    const double median = Median(cell.seconds);
    if (&cell == &cells.front() || cell.context != (&cell)[-1].context) first = median;
    std::vector<Cell> row{int64_t{cell.context}, cell.method, 1e3 * median, 1e3 * cell.seconds.front(), 1e3 * cell.seconds.back(), first / median,
                          static_cast<uint64_t>(cell.bytes), cell.bytes / median / kGiga};
    if (attend) {
      row.insert(row.end(), {cell.multiply_adds / median / kGiga, ShareOfCeiling(cell, median, ceilings)});
    } else {
      row.insert(row.end(), {1e9 * median / static_cast<double>(cell.rows), kPageTokens / median});
    }
    table.AddRow(std::move(row));
  }
  return table;
}

Status RunKernel(const KernelArguments& arguments, Kernel kernel) {
  OSCAR_TRY(CheckPlot(arguments.plot));
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  engine::KernelRequest request;
  OSCAR_ASSIGN_OR_RETURN(request.methods, SetUpMethods("bench", *engine, arguments.methods));
  request.contexts = arguments.contexts;
  request.repeats = arguments.repeats;
  request.control = ProgressControl("bench", arguments.quiet);
  CatchInterrupts();
  OSCAR_ASSIGN_OR_RETURN(const Ceilings ceilings, MeasureCeilings(engine->model().executor()));
  OSCAR_ASSIGN_OR_RETURN(const std::vector<engine::KernelCell> cells,
                         kernel == Kernel::kAttend ? engine::MeasureAttention(*engine, request) : engine::MeasureDemotion(*engine, request));
  const engine::Table table = KernelTable(cells, kernel, ceilings);
  engine::JsonReport json(kernel == Kernel::kAttend ? "bench attend" : "bench demote");
  json.Set("model", engine->identity().name);
  json.Set("threads", int64_t{engine->threads()});
  json.Set("read_bytes_per_second", Median(ceilings.read_bytes));
  if (!ceilings.byte_dots.empty()) json.Set("byte_dots_per_second", Median(ceilings.byte_dots));
  json.Add("cells", table);
  OSCAR_TRY(DrawPlot(arguments.plot, json.ToText()));
  if (arguments.json) {
    fmt::print("{}", json.ToText());
    return {};
  }
  const KvShape& shape = engine->model().config().kv;
  fmt::print("{}: {} layers, {} query and {} KV heads of {}; {} threads; {}\nceilings of this run: {:.2f} GB/s read", engine->identity().name, shape.num_layers,
             shape.num_query_heads, shape.num_kv_heads, shape.head_dim, engine->threads(),
             kernel == Kernel::kAttend ? "attention of one decode step, all layers" : "64 tokens appended and a page demoted, all layers",
             Median(ceilings.read_bytes) / kGiga);
  if (!ceilings.byte_dots.empty()) fmt::print(", {:.1f}e9 multiply-adds of bytes per second", Median(ceilings.byte_dots) / kGiga);
  fmt::print("\n{}", table.ToText());
  return {};
}

void AddKernelCommand(CLI::App& bench, Kernel kernel, int& exit_code) {
  const bool attend = kernel == Kernel::kAttend;
  auto arguments = std::make_shared<KernelArguments>();
  arguments->contexts = attend ? std::vector<int>{1024, 8192} : std::vector<int>{1024};
  CLI::App* command = attend ? bench.add_subcommand("attend", "Attention of a decode step over the cache alone, against the machine's ceilings")
                             : bench.add_subcommand("demote", "Appending 64 tokens and encoding the page that leaves the window");
  AddModelOptions(*command, arguments->engine);
  AddMethodsOptions(*command, arguments->methods, arguments->engine, "taking turns in one run");
  AddWindowOptions(*command, arguments->engine);
  command->add_option("--contexts", arguments->contexts, "Tokens in the cache, ascending")->capture_default_str()->delimiter(',')->type_name("TOKENS,...");
  command->add_option("--repeats", arguments->repeats, "Times measured, of which the median counts")->capture_default_str()->type_name("N");
  AddPlotOptions(*command, arguments->plot);
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress");
  command->callback([arguments, kernel, &exit_code] {
    const Status status = RunKernel(*arguments, kernel);
    exit_code = status.ok() ? 0 : Fail("bench", status);
  });
}

}  // namespace

void AddBenchKernelCommands(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<KernelArguments>();
  CLI::App* command = bench.add_subcommand("ceiling", "What this machine does at best: memory reads and products of bytes");
  command->add_option("-t,--threads", arguments->engine.threads, "Threads (default: the cores this process may use)")->type_name("N");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments, &exit_code] {
    const Status status = RunCeiling(*arguments);
    exit_code = status.ok() ? 0 : Fail("bench", status);
  });
  AddKernelCommand(bench, Kernel::kAttend, exit_code);
  AddKernelCommand(bench, Kernel::kDemote, exit_code);
}

}  // namespace oscar::tools
