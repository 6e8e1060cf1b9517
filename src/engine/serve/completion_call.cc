#include "src/engine/serve/completion_call.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "src/engine/serve/call_grammar.h"
#include "src/engine/serve/chat_prompt.h"
#include "src/engine/serve/request_fields.h"
#include "src/engine/serve/sampling_fields.h"
#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kMostChoices = 16;
constexpr size_t kMostPrompts = 64, kMostTokens = 4'194'304;
constexpr int kMaxDepth = 64;

// Levels of lists and objects of a JSON text.
int Depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false, escaped = false;
  for (const char c : text) {
    if (in_string) {
      in_string = c != '"' || escaped;
      escaped = c == '\\' && !escaped;
      continue;
    }
    in_string = c == '"';
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    deepest = std::max(deepest, depth);
  }
  return deepest;
}

using Prompts = std::vector<std::vector<int32_t>>;

Prompts TextPrompts(RequestFields& fields, const Engine& engine) {
  const json* given = fields.Any("prompt");
  const bool special = fields.Bool("add_special_tokens").value_or(true);
  const auto wrong = [&] {
    fields.Fail(ApiError::Invalid("invalid_value", "prompt", fmt::format("prompt: must be a text, a list of at most {} texts, or token ids from 0 to {}",
                                                                         kMostPrompts, engine.tokenizer().vocab_size() - 1)));
    return Prompts();
  };
  if (given == nullptr) {
    fields.Fail(ApiError::Invalid("missing_required_parameter", "prompt", "prompt: is required"));
    return {};
  }
  const bool many = given->is_array() && !given->empty() && !(*given)[0].is_number();
  const json list = many ? *given : json::array({*given});
  if (list.size() > kMostPrompts) return wrong();
  Prompts prompts;
  for (const json& one : list) {
    if (one.is_string()) {
      auto tokens = engine.tokenizer().Encode(one.get<std::string>(), {.add_special = special, .parse_special = false});
      if (!tokens.ok()) return fields.Fail(FromStatus(tokens.status())), Prompts();
      prompts.push_back(*std::move(tokens));
    } else if (one.is_array()) {
      std::vector<int32_t> tokens;
      for (const json& token : one) {
        const std::optional<int32_t> id = TokenId(token, engine.tokenizer().vocab_size());
        if (!id) return wrong();
        tokens.push_back(*id);
      }
      prompts.push_back(std::move(tokens));
    } else {
      return wrong();
    }
    if (prompts.back().empty()) {
      fields.Fail(ApiError::Invalid("invalid_value", "prompt", "prompt: has no tokens"));
      return {};
    }
  }
  return prompts;
}

// Chat: `logprobs` is a bool and `top_logprobs` a number. Elsewhere `logprobs` is the number; with `echo` the prompt counts too.
void ReadScores(RequestFields& fields, CompletionCall* call) {
  constexpr int64_t kMostScores = 20;
  const auto number = [&](const char* name) -> std::optional<int> {
    const auto count = fields.Integer(name, 0, kMostScores);
    return count ? std::optional<int>(static_cast<int>(*count)) : std::nullopt;
  };
  call->prompt_scores = number("prompt_logprobs");
  if (call->kind != CallKind::kChat) {
    call->scores = number("logprobs");
    if (call->kind == CallKind::kText) call->echo = fields.Bool("echo").value_or(false);
    return;
  }
  const bool wanted = fields.Bool("logprobs").value_or(false);
  const auto count = number("top_logprobs");
  if (count.value_or(0) > 0 && !wanted) {
    return fields.Fail(ApiError::Invalid("invalid_value", "top_logprobs", "top_logprobs: needs logprobs: true"));
  }
  if (wanted) call->scores = count.value_or(0);
}

// The longest answer to a prompt.
int ReadLength(RequestFields& fields, const CompletionCall& call, int context, int64_t prompt) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t least = call.echo ? 0 : 1;
  const auto newer = fields.Integer("max_completion_tokens", 1, kMost), older = fields.Integer("max_tokens", least, kMost);
  if (newer && older && *newer != *older) {
    fields.Fail(ApiError::Invalid("invalid_value", "max_tokens", "max_tokens and max_completion_tokens differ"));
  }
  if (!fields.ok()) return 0;
  const std::optional<int64_t> wanted = newer ? newer : older;
  const int64_t most = wanted ? *wanted : call.kind == CallKind::kChat ? context - prompt : std::min<int64_t>(16, context - prompt);
  if (most >= least && prompt + most <= context) return static_cast<int>(most);
  ApiError error = ApiError::Invalid("context_length_exceeded", call.kind == CallKind::kChat ? "messages" : call.kind == CallKind::kText ? "prompt" : "token_ids",
                                     fmt::format("the prompt has {} tokens and the answer {}; the context holds {}", prompt,
                                                 wanted ? fmt::format("up to {}", *wanted) : "needs at least one", context));
  error.extras = {{"n_prompt_tokens", prompt}, {"n_max_tokens", std::max<int64_t>(1, wanted.value_or(1))}, {"max_model_len", context}};
  fields.Fail(std::move(error));
  return 0;
}

void ReadStreaming(RequestFields& fields, CompletionCall* call) {
  call->stream = fields.Bool("stream").value_or(false);
  const json* options = fields.Object("stream_options");
  if (options == nullptr) return;
  if (!call->stream) {
    return fields.Fail(ApiError::Invalid("stream_options_requires_stream", "stream_options", "stream_options: needs stream: true"));
  }
  RequestFields inner(*options, "stream_options.");
  call->include_usage = inner.Bool("include_usage").value_or(false);
  call->continuous_usage = inner.Bool("continuous_usage_stats").value_or(false);
  inner.Ignore({"include_obfuscation"});
  fields.Join(inner);
  if (call->continuous_usage && !call->include_usage) {
    fields.Fail(ApiError::Invalid("invalid_value", "stream_options.continuous_usage_stats", "stream_options.continuous_usage_stats: needs include_usage: true"));
  }
}

// Before whom it goes, and with whom it shares prefixes.
void ReadPlace(RequestFields& fields, CompletionCall* call) {
  call->priority = static_cast<int>(fields.Integer("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()).value_or(0));
  call->cache_salt = fields.Text("cache_salt").value_or("");
}

// What is said of the answer beside it; and what is known and has no effect, or is not offered.
void ReadRest(RequestFields& fields, CompletionCall* call) {
  call->token_ids = fields.Bool("return_token_ids").value_or(false);
  if (const json* own = fields.Object("oscar")) {
    RequestFields inner(*own, "oscar.");
    call->cache_report = inner.Bool("cache").value_or(false);
    call->stats_report = inner.Bool("stats").value_or(false);
    call->deadline_seconds = static_cast<double>(inner.Integer("deadline_ms", 1, std::numeric_limits<int32_t>::max()).value_or(0)) / 1000;
    fields.Join(inner);
  }
  fields.Ignore({"user", "metadata", "service_tier", "safety_identifier", "verbosity", "prompt_cache_key", "prompt_cache_retention"});
  fields.Refuse({"store", "functions", "function_call", "audio", "prediction", "suffix", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
                 "thinking_token_budget", "return_progress", "web_search_options", "use_beam_search"});
  const json* modalities = fields.Array("modalities");
  if (modalities != nullptr && *modalities != json::array({"text"})) {
    fields.Fail(ApiError::Invalid("unsupported_parameter", "modalities", "modalities: only text is supported"));
  }
  if (const auto best_of = fields.Integer("best_of", 1, kMostChoices); best_of && *best_of != call->choices) {
    fields.Fail(ApiError::Invalid("unsupported_parameter", "best_of", "best_of: only the value of n is supported"));
  }
}

// Tools, structured output and the prompt of a chat.
Prompts ReadChat(RequestFields& fields, const ordered_json& body, const ServedModel& model, AnswerDemand* demand) {
  demand->tools = ReadTools(fields, body);
  demand->constraint = ReadConstraint(fields, body);
  const bool uses_tools = demand->tools.choice != ToolUse::Choice::kNone;
  if (fields.ok() && uses_tools && model.format.tools == ToolFormat::kUnknown) {
    fields.Fail(ApiError::Invalid("unsupported_parameter", "tools", "tools: the way in which this model writes calls is not known here"));
  }
  ChatPrompt prompt = ReadChatPrompt(fields, body, model.engine, model.format, demand->tools);
  demand->parser = {uses_tools, model.format.tools, model.format.reasoning && !prompt.reasoning_open, prompt.reasoning_open,
                    uses_tools ? TextParametersOf(demand->tools) : nullptr, model.format.call_ids};
  return {std::move(prompt.tokens)};
}

void AddRequests(RequestFields& fields, const Prompts& prompts, const AnswerParams& answer, int context, CompletionCall* call) {
  SamplingParams sampling = answer.sampling;
  if (!sampling.seed) {
    std::random_device device;
    sampling.seed = (uint64_t{device()} << 32) | device();
  }
  for (size_t p = 0; p < prompts.size() && fields.ok(); ++p) {
    GenerationRequest request;
    request.prompt = prompts[p];
    request.answer = answer;
    request.answer.sampling = sampling;
    request.answer.max_tokens = ReadLength(fields, *call, context, static_cast<int64_t>(prompts[p].size()));
    if (fields.ok() && answer.min_tokens > request.answer.max_tokens) {
      fields.Fail(ApiError::Invalid("invalid_value", "min_tokens", "min_tokens: more than the answer may have"));
    }
    request.score_prompt = (call->echo && call->scores) || call->prompt_scores || request.answer.max_tokens == 0;
    if (call->scores || call->prompt_scores) request.top_scores = std::max(call->scores.value_or(0), call->prompt_scores.value_or(0));
    request.priority = call->priority;
    request.space = call->cache_salt;
    request.deadline_seconds = call->deadline_seconds;
    for (int k = 0; k < call->choices; ++k) {
      request.is_further_choice = k > 0;
      request.answer.sampling.choice = static_cast<uint32_t>(call->first_choice) + static_cast<uint32_t>(call->requests.size());
      call->requests.push_back(request);
    }
  }
}

Prompts TokenPrompt(RequestFields& fields, int vocab_size) {
  const json* list = fields.Array("token_ids");
  if (fields.ok() && (list == nullptr || list->empty())) {
    fields.Fail(ApiError::Invalid("missing_required_parameter", "token_ids", "token_ids: is required, one id at least"));
  }
  return {fields.Tokens("token_ids", kMostTokens, vocab_size)};
}

// What a call is made of, on its way from body to requests.
struct Reading {
  RequestFields& fields;
  const ordered_json& body;  // schemas and tools keep the order in which their members were written
  const ServedModel& model;
  CompletionCall call;
  AnswerParams answer;
  AnswerDemand demand;
};

// token_ids and sampling_params, which has all that is said of the answer.
void ReadTokenCall(Reading& reading) {
  auto& [fields, body, model, call, answer, demand] = reading;
  const json nothing = json::object();
  const ordered_json ordered_nothing = ordered_json::object();
  const json* given = fields.Object("sampling_params");
  call.request_id = fields.Text("request_id").value_or("");
  if (!call.request_id.empty() && !IsHarmlessName(call.request_id)) {
    fields.Fail(ApiError::Invalid("invalid_value", "request_id", "request_id: must be 1 to 64 letters, digits, '_', '.' and '-'"));
  }
  ReadStreaming(fields, &call);
  ReadPlace(fields, &call);
  const Prompts prompts = TokenPrompt(fields, model.engine.tokenizer().vocab_size());
  if (!fields.ok()) return;
  RequestFields params(given == nullptr ? nothing : *given, "sampling_params.");
  ReadSampling(params, model.engine.tokenizer().vocab_size(), &answer);
  ReadScores(params, &call);
  call.choices = static_cast<int>(params.Integer("n", 1, kMostChoices).value_or(1));
  call.first_choice = static_cast<int>(params.Integer("choice", 0, kMostChoices * static_cast<int64_t>(kMostPrompts)).value_or(0));
  demand.constraint = ReadConstraint(params, given == nullptr ? ordered_nothing : body["sampling_params"]);
  if (params.ok()) AddRequests(params, prompts, answer, model.context, &call);
  fields.Join(params);
  call.ignored_fields = fields.Unknown();
}

void ReadTextCall(Reading& reading) {
  auto& [fields, body, model, call, answer, demand] = reading;
  ReadStreaming(fields, &call);
  ReadSampling(fields, model.engine.tokenizer().vocab_size(), &answer);
  ReadScores(fields, &call);
  call.choices = static_cast<int>(fields.Integer("n", 1, kMostChoices).value_or(1));
  ReadPlace(fields, &call);
  ReadRest(fields, &call);
  if (!fields.ok()) return;
  Prompts prompts;
  if (call.kind == CallKind::kChat) {
    prompts = ReadChat(fields, body, model, &demand);
  } else {
    demand.constraint = ReadConstraint(fields, body);
    prompts = TextPrompts(fields, model.engine);
  }
  AddRequests(fields, prompts, answer, model.context, &call);
  call.ignored_fields = fields.Unknown();
}

}  // namespace

std::variant<CompletionCall, ApiError> ParseCompletionCall(CallKind kind, std::string_view body, const ServedModel& model, AnswerGrammars& grammars) {
  if (Depth(body) > kMaxDepth) return ApiError::Invalid("invalid_json", "", fmt::format("the body is nested more than {} deep", kMaxDepth));
  const auto parsed = io::ParseJson(body);
  if (!parsed.ok()) return ApiError::Invalid("invalid_json", "", "the body is no JSON: " + parsed.status().message());
  if (!parsed->is_object()) return ApiError::Invalid("invalid_type", "", "the body must be a JSON object");
  RequestFields fields(*parsed);
  const std::string name = fields.Text("model").value_or("");
  if (fields.ok() && !name.empty() && name != model.id) {
    return ApiError{404, "invalid_request_error", "model_not_found", "model", "no model \"" + Quoted(name) + "\"; there is " + model.id, {}};
  }
  const ordered_json ordered = ordered_json::parse(body);
  Reading reading{fields, ordered, model, {}, {}, {}};
  reading.call.kind = kind;
  kind == CallKind::kTokens ? ReadTokenCall(reading) : ReadTextCall(reading);
  CompletionCall& call = reading.call;
  const AnswerDemand& demand = reading.demand;
  if (fields.ok() && model.strict_fields && !call.ignored_fields.empty()) {
    fields.Fail(ApiError::Invalid("unknown_parameter", call.ignored_fields[0], call.ignored_fields[0] + ": is not known"));
  }
  if (!fields.ok()) return fields.error();
  call.parser = demand.parser;
  if (demand.parser.tools || demand.parser.reasoning || demand.parser.reasoning_open) {
    for (GenerationRequest& request : call.requests) request.answer.shown_tokens = model.marker_tokens;
  } else {
    call.structured_outputs = ConstraintJson(demand.constraint);
  }
  if (!demand.demands_nothing()) {
    auto made = grammars.For(demand);
    if (const auto* error = std::get_if<ApiError>(&made)) return *error;
    auto& grammar = std::get<AnswerGrammar>(made);
    for (GenerationRequest& request : call.requests) request.answer.grammar = grammar.grammar;
    for (std::string& keyword : grammar.ignored) {
      if (call.ignored_fields.size() < 16 && IsHarmlessName(keyword)) call.ignored_fields.push_back(std::move(keyword));
    }
  }
  return std::move(call);
}

}  // namespace oscar::engine
