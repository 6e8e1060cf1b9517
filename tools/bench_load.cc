// `oscar bench serve` and `oscar bench prefix-sweep`: the server's scheduler under load, at the same memory for the cache of each method.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <memory>

#include "src/base/status_macros.h"
#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"
#include "src/engine/serve/measure_load.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

using engine::NumberFormat;

enum class Sweep { kClients, kHitRate };

struct LoadArguments {
  engine::EngineOptions engine;
  std::vector<std::string> methods{"bf16", "int2:balanced"};
  engine::LoadRequest load;
  std::vector<int> clients{1, 4, 16};
  std::vector<double> hit_rates{0, 0.25, 0.5, 0.75, 0.9};
  bool json = false, quiet = false;
};

engine::Table LoadTable(Sweep sweep) {
  std::vector<engine::Column> columns;
  columns.push_back(sweep == Sweep::kClients ? engine::Column{"clients", "clients", ""} : engine::Column{"hit_rate", "known", "share", NumberFormat::kDecimal, 2});
  for (engine::Column& column : std::vector<engine::Column>{{"kv", "kv", ""},
                                                            {"capacity_tokens", "capacity", "tokens", NumberFormat::kCount},
                                                            {"max_running", "at once", "requests"},
                                                            {"cached_share", "from the cache", "share", NumberFormat::kDecimal, 2},
                                                            {"answer_tokens_per_second", "answers", "tokens/s", NumberFormat::kDecimal, 2},
                                                            {"tokens_per_second", "all", "tokens/s", NumberFormat::kDecimal, 1},
                                                            {"first_token_seconds", "first token", "s, mean", NumberFormat::kDecimal, 2},
                                                            {"preemptions", "preemptions", ""},
                                                            {"ratio", "ratio", "to the first", NumberFormat::kDecimal, 2}}) {
    columns.push_back(std::move(column));
  }
  return engine::Table("", std::move(columns));
}

Status RunLoad(const LoadArguments& arguments, Sweep sweep) {
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  OSCAR_ASSIGN_OR_RETURN(const std::vector<engine::KvSetup> methods, SetUpMethods("bench", *engine, arguments.methods));
  CatchInterrupts();
  engine::LoadRequest load = arguments.load;
  engine::Table table = LoadTable(sweep);
  const size_t points = sweep == Sweep::kClients ? arguments.clients.size() : arguments.hit_rates.size();
  for (size_t point = 0; point < points; ++point) {
    if (sweep == Sweep::kClients) load.clients = arguments.clients[point];
    if (sweep == Sweep::kHitRate) load.hit_rate = arguments.hit_rates[point];
    double first = 0;
    for (const engine::KvSetup& method : methods) {
      load.control = ProgressControl("bench", arguments.quiet, "requests");
      OSCAR_ASSIGN_OR_RETURN(const engine::LoadResult result, engine::MeasureLoad(*engine, method, load));
      const double answers = static_cast<double>(result.answer_tokens) / result.seconds;
      const double all = static_cast<double>(result.answer_tokens + result.prompt_tokens) / result.seconds;
      if (&method == &methods.front()) first = answers;
      const engine::Cell setting = sweep == Sweep::kClients ? engine::Cell(int64_t{load.clients}) : engine::Cell(load.hit_rate);
      table.AddRow({setting, method.method.name(), result.capacity_tokens, int64_t{result.max_running},
                    static_cast<double>(result.cached_tokens) / static_cast<double>(result.prompt_tokens), answers, all, result.first_token_seconds,
                    result.preemptions, answers / first});
    }
  }
  if (arguments.json) {
    engine::JsonReport json(sweep == Sweep::kClients ? "bench serve" : "bench prefix-sweep");
    json.Set("model", engine->identity().name);
    json.Set("threads", int64_t{engine->threads()});
    json.Set("kv_bytes", load.kv_bytes);
    json.Set("prompt_tokens", int64_t{load.prompt_tokens});
    json.Set("answer_tokens", int64_t{load.answer_tokens});
    json.Set("requests", int64_t{load.requests});
    json.Add("cells", table);
    fmt::print("{}", json.ToText());
    return {};
  }
  fmt::print("{}: {} prompt and {} answer tokens, {} requests; {} bytes for the cache; {} threads\n{}", engine->identity().name, load.prompt_tokens, load.answer_tokens,
             load.requests, load.kv_bytes, engine->threads(), table.ToText());
  return {};
}

void AddLoadCommand(CLI::App& bench, Sweep sweep, int& exit_code) {
  auto arguments = std::make_shared<LoadArguments>();
  arguments->load.kv_bytes = uint64_t{256} << 20;
  if (sweep == Sweep::kHitRate) arguments->load.clients = 4;
  CLI::App* command = sweep == Sweep::kClients ? bench.add_subcommand("serve", "Throughput of the server's scheduler by number of clients, at the same memory for each cache")
                                               : bench.add_subcommand("prefix-sweep", "The same by how much of each prompt is in the prefix cache");
  AddModelOptions(*command, arguments->engine);
  AddDeviceOption(*command, arguments->engine);
  AddMethodsOptions(*command, arguments->methods, arguments->engine, "one after the other");
  AddWindowOptions(*command, arguments->engine);
  engine::LoadRequest& load = arguments->load;
  command->add_option("--kv-bytes", load.kv_bytes, "Memory for the cache")->capture_default_str()->type_name("N");
  if (sweep == Sweep::kClients) {
    command->add_option("--clients", arguments->clients, "Clients that ask at once")->capture_default_str()->delimiter(',')->type_name("N,...");
  } else {
    command->add_option("--clients", load.clients, "Clients that ask at once")->capture_default_str()->type_name("N");
    command->add_option("--hit-rates", arguments->hit_rates, "Shares of a prompt that are known")->capture_default_str()->delimiter(',')->type_name("SHARE,...");
  }
  command->add_option("--requests", load.requests, "Requests of all clients together")->capture_default_str()->type_name("N");
  command->add_option("--prompt-tokens", load.prompt_tokens, "Tokens of a prompt")->capture_default_str()->type_name("N");
  command->add_option("--answer-tokens", load.answer_tokens, "Tokens of an answer")->capture_default_str()->type_name("N");
  command->add_option("--step-tokens", load.step_tokens, "Tokens of a step")->capture_default_str()->type_name("N");
  command->add_option("--seed", load.seed, "Of the prompts")->capture_default_str()->type_name("N");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress");
  command->callback([arguments, sweep, &exit_code] {
    const Status status = RunLoad(*arguments, sweep);
    exit_code = status.ok() ? 0 : Fail("bench", status);
  });
}

}  // namespace

void AddBenchLoadCommands(CLI::App& bench, int& exit_code) {
  AddLoadCommand(bench, Sweep::kClients, exit_code);
  AddLoadCommand(bench, Sweep::kHitRate, exit_code);
}

}  // namespace oscar::tools
