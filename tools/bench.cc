// `oscar bench`, `bench prefill` and `bench decode`: speed of a model by context length and KV method.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <optional>

#include "src/base/status_macros.h"
#include "src/engine/bench/speed.h"
#include "src/engine/runtime/calibration_text.h"
#include "src/engine/runtime/text_source.h"
#include "tools/bench_ceilings.h"
#include "tools/bench_peer.h"
#include "tools/bench_plot.h"
#include "tools/bench_table.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"
#include "tools/validators.h"

namespace oscar::tools {
namespace {

using engine::SpeedPart;

struct BenchArguments {
  engine::EngineOptions engine;
  std::vector<std::string> methods{"bf16", "int2:balanced"};
  engine::SpeedRequest request{.contexts = {512, 2048, 4096}};
  PeerOptions peers;
  PlotOptions plot;
  bool processor_time = false, json = false, quiet = false;
};

// Speed does not depend on what the text says, so a short one is repeated.
Result<std::vector<int32_t>> BenchTokens(const engine::Engine& engine, int64_t needed) {
  std::vector<int32_t> tokens;
  if (engine.options().load_format == engine::LoadFormat::kDummy) {
    for (int64_t i = 0; i < 4096; ++i) tokens.push_back(static_cast<int32_t>(i * 7919 % engine.model().config().vocab_size));
  } else {
    const engine::TextSource source{"built-in text", std::string(engine::CalibrationText())};
    OSCAR_ASSIGN_OR_RETURN(tokens, engine::TokenizeSource(engine.tokenizer(), source, needed, 1));
  }
  for (size_t i = 0; static_cast<int64_t>(tokens.size()) < needed; ++i) tokens.push_back(tokens[i]);
  return tokens;
}

Status Bench(BenchArguments& arguments) {
  OSCAR_TRY(CheckPlot(arguments.plot));
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  if (arguments.processor_time && engine->threads() > 1) {
    return {StatusCode::kInvalidArgument, "--processor-time: means something for one thread only; give -t 1"};
  }
  engine::SpeedRequest& request = arguments.request;
  for (const int context : request.contexts) {
    if (context < 1) return {StatusCode::kInvalidArgument, fmt::format("--contexts {}: must be positive", context)};
  }
  OSCAR_ASSIGN_OR_RETURN(request.methods, SetUpMethods("bench", *engine, arguments.methods));
  if (arguments.processor_time) request.clock = engine::StepClock::kProcessor;
  request.control = ProgressControl("bench", arguments.quiet);
  CatchInterrupts();
  OSCAR_ASSIGN_OR_RETURN(const Peers peers, StartPeers(arguments.peers, *engine, request));
  OSCAR_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, BenchTokens(*engine, engine::SpeedTokensNeeded(request)));
  BenchTableInputs inputs{request.part, arguments.processor_time, {}, engine->model().config(), engine->model().step_weight_bytes()};
  if (request.part != SpeedPart::kBoth && arguments.engine.device == engine::Device::kCpu) {
    OSCAR_ASSIGN_OR_RETURN(inputs.ceilings, MeasureCeilings(engine->model().executor()));
  }
  OSCAR_ASSIGN_OR_RETURN(const engine::SpeedReport report, engine::MeasureSpeed(*engine, tokens, request));
  const std::string json = BenchJson(report, inputs);
  OSCAR_TRY(DrawPlot(arguments.plot, json));
  fmt::print("{}", arguments.json ? json : BenchText(report, inputs));
  return {};
}

// An option of the command itself that was given; null: none.
const CLI::Option* FirstGiven(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() > 0) return option;
  }
  return nullptr;
}

void AddOptions(CLI::App& command, BenchArguments& arguments) {
  const SpeedPart part = arguments.request.part;
  AddModelOptions(command, arguments.engine);
  AddDeviceOption(command, arguments.engine);
  AddMethodsOptions(command, arguments.methods, arguments.engine, "interleaved in one run");
  AddWindowOptions(command, arguments.engine);
  command.add_option("--contexts", arguments.request.contexts, part == SpeedPart::kPrefill ? "Lengths of prompts, ascending" : "Context lengths, ascending")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("TOKENS,...");
  if (part != SpeedPart::kPrefill) {
    command.add_option("--decode-tokens", arguments.request.decode_tokens, "Steps timed at each context")->capture_default_str()->type_name("N");
    command.add_option("--batch", arguments.request.batch, "Sequences decoded together")->capture_default_str()->type_name("N");
  } else {
    command.add_option("--repeats", arguments.request.repeats, "Prompts timed at each length, of which the median counts")->capture_default_str()->type_name("N");
  }
  const std::map<std::string, engine::LoadFormat> formats = {{"gguf", engine::LoadFormat::kGguf}, {"dummy", engine::LoadFormat::kDummy}};
  command
      .add_option("--load-format", arguments.engine.load_format,
                  "gguf, or dummy: -m names a published shape (qwen3-8b, ...), its weights are random (default: gguf)")
      ->transform(OneOf(formats))
      ->type_name("gguf|dummy");
  command.add_flag("--deterministic", arguments.engine.deterministic, "As for serve: a row's bits do not depend on its batch; slower");
  AddPeerOptions(command, arguments.peers);
  command.add_flag("--processor-time", arguments.processor_time,
                   "Time of the processor instead of the wall: for one thread on a machine with other work");
  AddPlotOptions(command, arguments.plot);
  command.add_flag("--json", arguments.json, "Print JSON");
  command.add_flag("-q,--quiet", arguments.quiet, "No progress");
}

void AddPartCommand(CLI::App& bench, SpeedPart part, int& exit_code) {
  auto arguments = std::make_shared<BenchArguments>();
  arguments->request.part = part;
  CLI::App* command = part == SpeedPart::kPrefill
                          ? bench.add_subcommand("prefill", "Whole prompts by length, each from an empty cache, several times")
                          : bench.add_subcommand("decode", "Decode steps by context length, over a cache that is filled, not computed: long contexts in seconds");
  AddOptions(*command, *arguments);
  command->callback([arguments, &exit_code] {
    const Status status = Bench(*arguments);
    exit_code = status.ok() ? 0 : Fail("bench", status);
  });
}

}  // namespace

void AddBenchCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "Prefill and decode speed by context length and KV method; below: parts of it alone");
  AddPartCommand(*command, SpeedPart::kPrefill, exit_code);
  AddPartCommand(*command, SpeedPart::kDecode, exit_code);
  AddBenchKernelCommands(*command, exit_code);
  AddBenchLoadCommands(*command, exit_code);
  AddOptions(*command, *arguments);
  command->get_option("--model")->required(false);  // the commands below have their own
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
