#include "src/engine/serve/completion_call.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/engine/serve/request_fields.h"
#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

using nlohmann::json;

constexpr int kMostChoices = 16;
constexpr size_t kMostMessages = 4096;

void ReadSampling(RequestFields& fields, AnswerParams* answer) {
  SamplingParams& sampling = answer->sampling;
  const auto set = [](float& to, std::optional<double> value) {
    if (value) to = static_cast<float>(*value);
  };
  set(sampling.temperature, fields.Number("temperature", 0, 2));
  if (sampling.temperature < 1e-4f) sampling.temperature = 0;
  set(sampling.top_p, fields.Number("top_p", 0, 1));
  if (sampling.top_p == 0) {  // keeps the best token only
    sampling.top_p = 1;
    sampling.temperature = 0;
  }
  set(sampling.min_p, fields.Number("min_p", 0, 1));
  set(sampling.presence_penalty, fields.Number("presence_penalty", -2, 2));
  set(sampling.frequency_penalty, fields.Number("frequency_penalty", -2, 2));
  set(sampling.repetition_penalty, fields.Number("repetition_penalty", 1e-6, 10));
  if (const auto top_k = fields.Integer("top_k", -1, std::numeric_limits<int32_t>::max())) sampling.top_k = std::max<int>(0, static_cast<int>(*top_k));
  if (const auto seed = fields.Integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())) {
    sampling.seed = static_cast<uint64_t>(*seed);
  }
  if (auto stop = fields.Texts("stop", 16, 256)) answer->stop = *std::move(stop);
  answer->ignore_end = fields.Bool("ignore_eos").value_or(false);
}

// The text of a message: a string, or parts of type text.
std::optional<std::string> ContentText(const json& content, const std::string& path, RequestFields& fields) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    fields.Fail(ApiError::Invalid("invalid_type", path, path + ": must be a string or a list of parts"));
    return std::nullopt;
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text") || !part["text"].is_string()) {
      fields.Fail(ApiError::Invalid("unsupported_content", at, at + ": only parts {\"type\": \"text\", \"text\": ...} are supported"));
      return std::nullopt;
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

std::vector<ChatMessage> ReadMessages(RequestFields& fields) {
  const json* list = fields.Array("messages");
  std::vector<ChatMessage> messages;
  if (!fields.ok()) return messages;
  if (list == nullptr) {
    fields.Fail(ApiError::Invalid("missing_required_parameter", "messages", "messages: is required"));
    return messages;
  }
  if (list->empty() || list->size() > kMostMessages) {
    fields.Fail(ApiError::Invalid("invalid_value", "messages", fmt::format("messages: must have 1 to {} entries", kMostMessages)));
  }
  for (size_t i = 0; fields.ok() && i < list->size(); ++i) {
    const json& entry = (*list)[i];
    const std::string path = fmt::format("messages[{}]", i);
    if (!entry.is_object()) {
      fields.Fail(ApiError::Invalid("invalid_type", path, path + ": must be an object"));
      break;
    }
    RequestFields message(entry, path + ".");
    ChatMessage read;
    read.role = message.Text("role").value_or("");
    message.Ignore({"name", "refusal", "annotations", "reasoning_content", "reasoning"});
    message.Refuse({"tool_calls", "function_call", "audio"});
    if (read.role == "developer") read.role = "system";  // the older word, which every template knows
    const json* content = message.Any("content");
    if (!message.ok()) {
      fields.Fail(message.error());
    } else if (read.role != "system" && read.role != "user" && read.role != "assistant") {
      fields.Fail(ApiError::Invalid("invalid_value", path + ".role", path + ".role: must be system, developer, user or assistant, not \"" +
                                                                         Quoted(read.role) + "\""));
    } else if (content == nullptr) {
      fields.Fail(ApiError::Invalid("missing_required_parameter", path + ".content", path + ".content: is required"));
    } else if (auto text = ContentText(*content, path + ".content", fields)) {
      read.content = *std::move(text);
      messages.push_back(std::move(read));
    }
  }
  return messages;
}

// Tokens of the chat so far. The template's errors are the caller's: a role that it does not allow, say.
std::vector<int32_t> ChatPrompt(RequestFields& fields, const Engine& engine) {
  ChatRequest chat;
  chat.messages = ReadMessages(fields);
  chat.add_generation_prompt = fields.Bool("add_generation_prompt").value_or(true);
  if (const json* variables = fields.Object("chat_template_kwargs")) chat.extra_json = variables->dump();
  if (!fields.ok()) return {};
  if (engine.chat_template() == nullptr) {
    fields.Fail(ApiError::Invalid("template_error", "messages", "this model has no chat template: use /v1/completions"));
    return {};
  }
  const auto prompt = engine.chat_template()->Render(chat);
  if (!prompt.ok()) {
    fields.Fail(ApiError::Invalid("template_error", "messages", prompt.status().message()));
    return {};
  }
  auto tokens = engine.tokenizer().Encode(*prompt, {.add_special = false, .parse_special = true});
  if (!tokens.ok()) fields.Fail(FromStatus(tokens.status()));
  return tokens.ok() ? *std::move(tokens) : std::vector<int32_t>();
}

std::vector<int32_t> TextPrompt(RequestFields& fields, const Engine& engine) {
  const json* prompt = fields.Any("prompt");
  const bool special = fields.Bool("add_special_tokens").value_or(true);
  if (prompt == nullptr) {
    fields.Fail(ApiError::Invalid("missing_required_parameter", "prompt", "prompt: is required"));
    return {};
  }
  const json one = prompt->is_array() && prompt->size() == 1 && !(*prompt)[0].is_number() ? (*prompt)[0] : *prompt;
  if (one.is_string()) {
    auto tokens = engine.tokenizer().Encode(one.get<std::string>(), {.add_special = special, .parse_special = false});
    if (!tokens.ok()) fields.Fail(FromStatus(tokens.status()));
    return tokens.ok() ? *std::move(tokens) : std::vector<int32_t>();
  }
  std::vector<int32_t> tokens;
  for (size_t i = 0; one.is_array() && i < one.size(); ++i) {
    if (!one[i].is_number_integer() || one[i] < 0 || one[i] >= engine.tokenizer().vocab_size()) break;
    tokens.push_back(one[i].get<int32_t>());
  }
  if (!one.is_array() || one.empty() || tokens.size() != one.size()) {
    fields.Fail(ApiError::Invalid("invalid_value", "prompt", fmt::format("prompt: must be one string, or one list of token ids from 0 to {}",
                                                                         engine.tokenizer().vocab_size() - 1)));
  }
  return tokens;
}

// Chat: `logprobs` is a bool and `top_logprobs` a number. Completions: `logprobs` is the number; with `echo` the prompt counts too.
void ReadScores(RequestFields& fields, CompletionCall* call) {
  constexpr int64_t kMostScores = 20;
  if (!call->chat) {
    if (const auto count = fields.Integer("logprobs", 0, kMostScores)) call->request.top_scores = static_cast<int>(*count);
    call->echo = fields.Bool("echo").value_or(false);
    call->request.score_prompt = call->echo && call->request.top_scores.has_value();
    return;
  }
  const bool wanted = fields.Bool("logprobs").value_or(false);
  const auto count = fields.Integer("top_logprobs", 0, kMostScores);
  if (count.value_or(0) > 0 && !wanted) {
    return fields.Fail(ApiError::Invalid("invalid_value", "top_logprobs", "top_logprobs: needs logprobs: true"));
  }
  if (wanted) call->request.top_scores = static_cast<int>(count.value_or(0));
}

void ReadLength(RequestFields& fields, bool chat, int context, GenerationRequest* request) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t least = request->score_prompt ? 0 : 1;
  const auto newer = fields.Integer("max_completion_tokens", 1, kMost), older = fields.Integer("max_tokens", least, kMost);
  if (newer && older && *newer != *older) {
    fields.Fail(ApiError::Invalid("invalid_value", "max_tokens", "max_tokens and max_completion_tokens differ"));
  }
  if (!fields.ok()) return;
  const auto prompt = static_cast<int64_t>(request->prompt.size());
  const std::optional<int64_t> wanted = newer ? newer : older;
  const int64_t most = wanted ? *wanted : chat ? context - prompt : std::min<int64_t>(16, context - prompt);
  if (most < least || prompt + most > context) {
    ApiError error = ApiError::Invalid("context_length_exceeded", chat ? "messages" : "prompt",
                                       fmt::format("the prompt has {} tokens and the answer {}; the context holds {}", prompt,
                                                   wanted ? fmt::format("up to {}", *wanted) : "needs at least one", context));
    error.extras = {{"n_prompt_tokens", prompt}, {"n_max_tokens", std::max<int64_t>(1, wanted.value_or(1))}, {"max_model_len", context}};
    return fields.Fail(std::move(error));
  }
  request->answer.max_tokens = static_cast<int>(most);
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
  inner.Refuse({"continuous_usage_stats"});
  if (!inner.ok()) fields.Fail(inner.error());
}

}  // namespace

std::variant<CompletionCall, ApiError> ParseCompletionCall(bool chat, std::string_view body, const Engine& engine,
                                                           const std::string& model_id, int context) {
  const auto parsed = io::ParseJson(body);
  if (!parsed.ok()) return ApiError::Invalid("invalid_json", "", "the body is no JSON: " + parsed.status().message());
  if (!parsed->is_object()) return ApiError::Invalid("invalid_type", "", "the body must be a JSON object");
  RequestFields fields(*parsed);
  CompletionCall call;
  call.chat = chat;
  const std::string model = fields.Text("model").value_or("");
  if (fields.ok() && !model.empty() && model != model_id) {
    return ApiError{404, "invalid_request_error", "model_not_found", "model", "no model \"" + Quoted(model) + "\"; there is " + model_id, {}};
  }
  ReadStreaming(fields, &call);
  ReadSampling(fields, &call.request.answer);
  ReadScores(fields, &call);
  call.choices = static_cast<int>(fields.Integer("n", 1, kMostChoices).value_or(1));
  fields.Ignore({"user", "metadata", "service_tier", "safety_identifier", "verbosity", "prompt_cache_key", "prompt_cache_retention"});
  fields.Refuse({"store", "prompt_logprobs", "logit_bias", "tools", "functions", "audio", "prediction",
                 "suffix", "structured_outputs", "guided_json", "guided_regex", "continue_final_message", "return_token_ids"});
  if (const json* format = fields.Object("response_format"); format != nullptr && format->value("type", json()) != "text") {
    fields.Fail(ApiError::Invalid("unsupported_parameter", "response_format", "response_format: only {\"type\": \"text\"} is supported"));
  }
  if (const json* choice = fields.Any("tool_choice"); choice != nullptr && *choice != "none" && *choice != "auto") {
    fields.Fail(ApiError::Invalid("unsupported_parameter", "tool_choice", "tool_choice: tools are not supported"));
  }
  if (!fields.ok()) return fields.error();
  call.request.prompt = chat ? ChatPrompt(fields, engine) : TextPrompt(fields, engine);
  if (fields.ok() && call.request.prompt.empty()) fields.Fail(ApiError::Invalid("invalid_value", "prompt", "the prompt has no tokens"));
  if (fields.ok()) ReadLength(fields, chat, context, &call.request);
  if (!fields.ok()) return fields.error();
  call.ignored_fields = fields.Unknown();
  return call;
}

}  // namespace oscar::engine
