// `oscar run`: answers one prompt, or chats.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <optional>

#include "src/base/status_macros.h"
#include "src/engine/report/quantity.h"
#include "src/engine/runtime/generate.h"
#include "src/engine/runtime/text_source.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

struct RunArguments {
  engine::EngineOptions engine;
  engine::SamplingParams sampling{.temperature = 0.7f, .top_p = 0.95f, .min_p = 0.05f};
  std::optional<std::string> prompt;
  std::string prompt_file, system;
  std::vector<std::string> stop;
  int max_tokens = 0;
  bool raw = false, quiet = false;
};

void PrintStatistics(engine::Engine& engine, const KvCache& cache, const engine::Conversation& conversation,
                     const engine::GenerateResult& result) {
  const KvShape& shape = engine.model().config().kv;
  const auto rate = [](size_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0.0; };
  const int prefilled = result.prompt_tokens - result.cached_tokens;
  fmt::print(stderr, "\n[prompt {} tokens ({} cached), {:.1f} tokens/s; answer {} tokens, {:.1f} tokens/s; ended by {}; seed {}]\n",
             result.prompt_tokens, result.cached_tokens, rate(prefilled, result.prefill_seconds), result.tokens.size(),
             rate(result.tokens.size(), result.decode_seconds), engine::FinishReasonName(result.finish), result.seed);
  const int tokens = conversation.num_tokens();
  const SegmentTokens segments = cache.segments(conversation.sequence());
  const double bf16_bytes = 4.0 * shape.num_layers * shape.num_kv_heads * shape.head_dim * tokens;
  const double used = static_cast<double>(cache.stats().used_bytes());
  const BitsLedger ledger = LedgerAt(cache.method(), shape.head_dim, tokens, cache.config().sink, cache.config().recent);
  fmt::print(stderr, "[kv {}: {} tokens in {} ({} sink + {} encoded + {} recent); BF16 rows alone: {} ({:.2f}x); {:.2f} bits/element]\n",
             cache.method().name(), tokens, engine::FormatBytes(used), segments.sink, segments.body, segments.recent,
             engine::FormatBytes(bf16_bytes), bf16_bytes / used, ledger.at_length);
}

Status CheckText(const char* where, const std::string& text) {
  if (engine::ValidUtf8Prefix(text) == text.size()) return {};
  return {StatusCode::kInvalidArgument, fmt::format("{}: {}", where, engine::InvalidTextReason(text))};
}

class RunSession {
 public:
  RunSession(const RunArguments& arguments, engine::Engine& engine, KvCache& cache, engine::Conversation conversation)
      : arguments_(arguments), engine_(engine), cache_(cache), conversation_(std::move(conversation)) {}

  Result<engine::GenerateResult> Answer(std::vector<int32_t> prompt) {
    engine::GenerateRequest request;
    request.prompt = std::move(prompt);
    request.answer = {.sampling = arguments_.sampling, .max_tokens = arguments_.max_tokens, .stop = arguments_.stop};
    request.cancelled = &Interrupted();
    request.on_text = [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    };
    OSCAR_ASSIGN_OR_RETURN(engine::GenerateResult result, conversation_.Generate(request));
    std::fputc('\n', stdout);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return {StatusCode::kIoError, "the answer could not be written to standard output"};
    }
    if (!arguments_.quiet) PrintStatistics(engine_, cache_, conversation_, result);
    return result;
  }

  Status OneShot(const std::string& text) {
    std::vector<int32_t> prompt;
    if (arguments_.raw) {
      OSCAR_ASSIGN_OR_RETURN(prompt, engine_.tokenizer().Encode(text, {.add_special = true, .parse_special = false}));
    } else {
      StartChat();
      messages_.push_back({.role = "user", .content = text});
      OSCAR_ASSIGN_OR_RETURN(prompt, engine_.EncodeChat({.messages = messages_}));
    }
    OSCAR_ASSIGN_OR_RETURN(const engine::GenerateResult result, Answer(std::move(prompt)));
    if (result.finish == engine::FinishReason::kCancelled) return {StatusCode::kCancelled, "interrupted"};
    return {};
  }

  Status Chat() {
    fmt::print(stderr, "{} with {}. Ctrl-C stops an answer, /reset starts anew, Ctrl-D ends.\n", engine_.identity().name,
               cache_.method().name());
    StartChat();
    while (const auto line = ReadLine("> ")) {
      if (line->empty()) continue;
      if (const Status status = CheckText("this line", *line); !status.ok()) {
        Fail("run", status);
        continue;
      }
      if (*line == "/reset") {
        StartChat();
        continue;
      }
      messages_.push_back({.role = "user", .content = *line});
      auto prompt = engine_.EncodeChat({.messages = messages_});
      auto answer = prompt.ok() ? Answer(*std::move(prompt)) : Result<engine::GenerateResult>(prompt.status());
      ClearInterrupt();
      if (!answer.ok()) {
        // The chat goes on without this turn: nothing that was said before is lost.
        Fail("run", answer.status());
        messages_.pop_back();
        continue;
      }
      messages_.push_back({.role = "assistant", .content = answer->text});
    }
    if (Interrupted()) return {StatusCode::kCancelled, "interrupted"};
    return {};
  }

 private:
  void StartChat() {
    messages_.clear();
    if (!arguments_.system.empty()) messages_.push_back({.role = "system", .content = arguments_.system});
  }

  const RunArguments& arguments_;
  engine::Engine& engine_;
  KvCache& cache_;
  engine::Conversation conversation_;
  std::vector<engine::ChatMessage> messages_;
};

// No context holds more, and a longer text would only be refused after minutes in the tokenizer.
constexpr uint64_t kMaxPromptBytes = uint64_t{16} << 20;

Result<std::string> ReadPrompt(const RunArguments& arguments) {
  if (!arguments.prompt_file.empty()) {
    if (std::filesystem::is_directory(arguments.prompt_file)) {
      return {StatusCode::kInvalidArgument, "--file " + arguments.prompt_file + ": is a folder"};
    }
    OSCAR_ASSIGN_OR_RETURN(engine::TextSource source, engine::ReadTextSource(arguments.prompt_file, kMaxPromptBytes));
    if (source.text.size() >= kMaxPromptBytes - 4) {
      return {StatusCode::kInvalidArgument, "--file " + arguments.prompt_file + ": longer than 16 MiB"};
    }
    return std::move(source.text);
  }
  std::string text = arguments.prompt ? *arguments.prompt : ReadAllStdin();
  const char* const where = arguments.prompt ? "--prompt" : "standard input";
  if (text.empty()) return {StatusCode::kInvalidArgument, fmt::format("no prompt: {} is empty", where)};
  if (text.size() > kMaxPromptBytes) return {StatusCode::kInvalidArgument, fmt::format("{}: longer than 16 MiB", where)};
  OSCAR_TRY(CheckText(where, text));
  return text;
}

Status Run(const RunArguments& arguments) {
  OSCAR_TRY(CheckSamplingOptions(arguments.sampling));
  OSCAR_TRY(CheckText("--system", arguments.system));
  if (arguments.max_tokens < 0) {
    return {StatusCode::kInvalidArgument, fmt::format("--max-tokens {}: must be 0 (no limit) or positive", arguments.max_tokens)};
  }
  for (const std::string& stop : arguments.stop) {
    if (stop.empty()) return {StatusCode::kInvalidArgument, "--stop: an empty text would end every answer at once"};
    OSCAR_TRY(CheckText("--stop", stop));
  }
  if (arguments.raw && !arguments.system.empty()) {
    return {StatusCode::kInvalidArgument, "--system needs the chat template, --raw leaves it out: give one of them"};
  }
  const bool given = arguments.prompt.has_value() || !arguments.prompt_file.empty();
  const bool interactive = !given && StdinIsTerminal();
  std::string text;
  if (!interactive) {
    OSCAR_ASSIGN_OR_RETURN(text, ReadPrompt(arguments));
  }
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::Open(arguments.engine));
  if (engine->chat_template() == nullptr && !arguments.raw) {
    return {StatusCode::kFailedPrecondition, engine->model_path().string() + " has no chat template: use --raw"};
  }
  if (interactive && arguments.raw) return {StatusCode::kInvalidArgument, "--raw needs a prompt"};
  Warn("run", engine->kv()->warning);
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> cache, engine->NewCache(*engine->kv(), engine->context()));
  OSCAR_ASSIGN_OR_RETURN(engine::Conversation conversation, engine::Conversation::Start(*engine, *cache));
  CatchInterrupts();
  RunSession session(arguments, *engine, *cache, std::move(conversation));
  return interactive ? session.Chat() : session.OneShot(text);
}

}  // namespace

void AddRunCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand("run", "Answer a prompt, or chat (without -p, -f or piped text)");
  AddModelOptions(*command, arguments->engine);
  AddDeviceOption(*command, arguments->engine);
  AddContextOption(*command, arguments->engine);
  AddKvOptions(*command, arguments->engine);
  AddWindowOptions(*command, arguments->engine);
  auto* prompt = command->add_option("-p,--prompt", arguments->prompt, "The user's message")->type_name("TEXT");
  command->add_option("-f,--file", arguments->prompt_file, "Take the message from a file")->excludes(prompt)->type_name("FILE");
  command->add_option("--system", arguments->system, "System message")->type_name("TEXT");
  command->add_option("-n,--max-tokens", arguments->max_tokens, "Longest answer; 0: until the context is full")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--stop", arguments->stop, "End the answer before this text (repeatable)")->type_name("TEXT");
  command->add_flag("--raw", arguments->raw, "Continue the text as it is, without the chat template");
  command->add_flag("-q,--quiet", arguments->quiet, "Print the answer only");
  AddSamplingOptions(*command, arguments->sampling);
  command->callback([arguments, &exit_code] {
    const Status status = Run(*arguments);
    exit_code = status.ok() ? 0 : Fail("run", status);
  });
}

}  // namespace oscar::tools
