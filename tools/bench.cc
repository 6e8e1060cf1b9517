// `oscar bench`: prefill and decode speed by context length and KV method.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <map>
#include <algorithm>
#include <memory>
#include <optional>

#include "src/base/status_macros.h"
#include "src/engine/bench/speed.h"
#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"
#include "src/engine/runtime/calibration_text.h"
#include "src/engine/runtime/text_source.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

struct BenchArguments {
  engine::EngineOptions engine;
  std::vector<std::string> methods{"bf16", "int2:balanced"};
  std::vector<int> contexts{512, 2048, 4096};
  int decode_tokens = 32, batch = 1;
  std::string against;
  std::vector<std::string> against_kv{"f16", "q8_0"};
  bool processor_time = false, json = false, quiet = false;
};

// The lowest times of any peer at a context.
std::optional<engine::SpeedCell> BestPeer(const engine::SpeedReport& report, int context) {
  std::optional<engine::SpeedCell> best;
  for (const engine::SpeedCell& cell : report.cells) {
    if (!cell.is_peer || cell.context != context) continue;
    if (!best) best = cell;
    best->decode.median = std::min(best->decode.median, cell.decode.median);
    best->prefill_seconds = std::min(best->prefill_seconds, cell.prefill_seconds);
  }
  return best;
}

engine::Table CellTable(const engine::SpeedReport& report) {
  using engine::NumberFormat;
  engine::Table table("", {{"context_tokens", "context", "tokens"},
                           {"kv", "kv", ""},
                           {"prefill_tokens_per_second", "prefill", "tokens/s", NumberFormat::kDecimal, 1},
                           {"decode_tokens_per_second", "decode median", "tokens/s", NumberFormat::kDecimal, 2},
                           {"decode_tokens_per_second_min", "min", "tokens/s", NumberFormat::kDecimal, 2},
                           {"decode_tokens_per_second_max", "max", "tokens/s", NumberFormat::kDecimal, 2},
                           {"decode_ratio", "ratio", "to the first", NumberFormat::kDecimal, 2},
                           {"decode_ratio_to_best_peer", "ratio", "to best peer", NumberFormat::kDecimal, 2},
                           {"prefill_ratio_to_best_peer", "prefill ratio", "to best peer", NumberFormat::kDecimal, 2},
                           {"cache_bytes", "cache", "", NumberFormat::kBytes}});
  double first_median = 0;
  for (const engine::SpeedCell& cell : report.cells) {
    if (cell.method == report.cells.front().method) first_median = cell.decode.median;
    engine::Cell decode_ratio, prefill_ratio, bytes;
    if (const auto peer = BestPeer(report, cell.context)) {
      decode_ratio = peer->decode.median / cell.decode.median;
      prefill_ratio = peer->prefill_seconds / cell.prefill_seconds;
    }
    if (!cell.is_peer) bytes = uint64_t{cell.used_bytes};
    table.AddRow({int64_t{cell.context}, cell.method, cell.prefill_tokens / cell.prefill_seconds, report.batch / cell.decode.median,
                  report.batch / cell.decode.max, report.batch / cell.decode.min, first_median / cell.decode.median, decode_ratio, prefill_ratio, bytes});
  }
  return table;
}

void PrintReport(const engine::SpeedReport& report, bool processor_time, bool as_json) {
  if (as_json) {
    engine::JsonReport json("bench");
    json.Set("model", report.model);
    json.Set("threads", int64_t{report.threads});
    json.Set("clock", processor_time ? "processor" : "wall");
    json.Set("batch", int64_t{report.batch});
    json.Add("cells", CellTable(report));
    fmt::print("{}", json.ToText());
    return;
  }
  fmt::print("{}, {} threads, batch {}, {} time; ratio: decode rate over that of the first method at the same context\n{}", report.model,
             report.threads, report.batch, processor_time ? "processor" : "wall", CellTable(report).ToText());
}

// One process per KV type, added to the request.
Result<std::vector<std::unique_ptr<engine::PeerProcess>>> StartPeers(const BenchArguments& arguments, const engine::Engine& engine,
                                                                     engine::SpeedRequest& request) {
  std::vector<std::unique_ptr<engine::PeerProcess>> peers;
  if (arguments.against.empty()) return peers;
  if (arguments.engine.load_format == engine::LoadFormat::kDummy) {
    return {StatusCode::kInvalidArgument, "--against needs a model file, not --load-format dummy"};
  }
  request.peers.resize(arguments.against_kv.size());
  const std::string context = std::to_string(engine::SpeedTokensNeeded(request));
  for (size_t i = 0; i < request.peers.size(); ++i) {
    const std::vector<std::string> command = {arguments.against, engine.model_path().string(), std::to_string(engine.threads()), context,
                                              arguments.against_kv[i]};
    OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<engine::PeerProcess> peer, engine::PeerProcess::Start(command));
    request.peers[i] = peer.get();
    peers.push_back(std::move(peer));
  }
  return peers;
}

Status Bench(const BenchArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  if (arguments.processor_time && engine->threads() > 1) {
    return {StatusCode::kInvalidArgument, "--processor-time: means something for one thread only; give -t 1"};
  }
  for (const int context : arguments.contexts) {
    if (context < 1) return {StatusCode::kInvalidArgument, fmt::format("--contexts {}: must be positive", context)};
  }
  engine::SpeedRequest request;
  OSCAR_ASSIGN_OR_RETURN(request.methods, SetUpMethods("bench", *engine, arguments.methods));
  request.contexts = arguments.contexts;
  request.decode_tokens = arguments.decode_tokens;
  if (arguments.processor_time) request.clock = engine::StepClock::kProcessor;
  request.batch = arguments.batch;
  request.control = ProgressControl("bench", arguments.quiet);
  OSCAR_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<engine::PeerProcess>> peers, StartPeers(arguments, *engine, request));
  // Speed does not depend on what the text says, so a short one is repeated.
  const int64_t needed = engine::SpeedTokensNeeded(request);
  std::vector<int32_t> tokens;
  if (arguments.engine.load_format == engine::LoadFormat::kDummy) {
    for (int64_t i = 0; i < 4096; ++i) tokens.push_back(static_cast<int32_t>(i * 7919 % engine->model().config().vocab_size));
  } else {
    const engine::TextSource source{"built-in text", std::string(engine::CalibrationText())};
    OSCAR_ASSIGN_OR_RETURN(tokens, engine::TokenizeSource(engine->tokenizer(), source, needed, 1));
  }
  for (size_t i = 0; static_cast<int64_t>(tokens.size()) < needed; ++i) tokens.push_back(tokens[i]);
  CatchInterrupts();
  OSCAR_ASSIGN_OR_RETURN(const engine::SpeedReport report, engine::MeasureSpeed(*engine, tokens, request));
  PrintReport(report, arguments.processor_time, arguments.json);
  return {};
}

// An option of the command itself that was given; null: none.
const CLI::Option* FirstGiven(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() > 0) return option;
  }
  return nullptr;
}

}  // namespace

void AddBenchCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "Prefill and decode speed by context length and KV method; below: parts of it alone");
  AddBenchKernelCommands(*command, exit_code);
  AddModelOptions(*command, arguments->engine);
  command->get_option("--model")->required(false);  // the commands below have their own
  AddDeviceOption(*command, arguments->engine);
  AddMethodsOptions(*command, arguments->methods, arguments->engine, "interleaved in one run");
  AddWindowOptions(*command, arguments->engine);
  command->add_option("--contexts", arguments->contexts, "Context lengths, ascending")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("TOKENS,...");
  command->add_option("--decode-tokens", arguments->decode_tokens, "Steps timed at each context")->capture_default_str()->type_name("N");
  command->add_option("--batch", arguments->batch, "Sequences decoded together")->capture_default_str()->type_name("N");
  const std::map<std::string, engine::LoadFormat> formats = {{"gguf", engine::LoadFormat::kGguf}, {"dummy", engine::LoadFormat::kDummy}};
  command
      ->add_option("--load-format", arguments->engine.load_format,
                   "gguf, or dummy: -m names a published shape (qwen3-8b, ...), its weights are random (default: gguf)")
      ->transform(CLI::CheckedTransformer(formats).description(""))
      ->type_name("gguf|dummy");
  CLI::Option* const against =
      command->add_option("--against", arguments->against,
                          "Another engine in the same run: the step server that bench/baselines/llamacpp/build_llamacpp builds");
  against->check([](const std::string& program) { return std::string(program.empty() ? "the name of the program is empty" : ""); })
      ->type_name("PROGRAM");
  command->add_option("--against-kv", arguments->against_kv, "KV types of the other engine")
      ->needs(against)
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("TYPE,...");
  command->add_flag("--processor-time", arguments->processor_time,
                    "Time of the processor instead of the wall: for one thread on a machine with other work");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress");
  command->callback([arguments, command, &exit_code] {
    if (!command->get_subcommands().empty()) {
      if (const CLI::Option* stray = FirstGiven(*command)) {
        exit_code = Fail("bench", {StatusCode::kInvalidArgument, stray->get_name() + ": bench " + command->get_subcommands().front()->get_name() + " takes its own options, behind its name"});
      }
      return;
    }
    const Status status = arguments->engine.model.empty() ? Status(StatusCode::kInvalidArgument, "-m,--model is required") : Bench(*arguments);
    exit_code = status.ok() ? 0 : Fail("bench", status);
  });
}

}  // namespace oscar::tools
