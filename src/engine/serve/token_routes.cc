#include "src/engine/serve/token_routes.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "src/engine/serve/chat_prompt.h"
#include "src/engine/serve/request_fields.h"
#include "src/engine/serve/token_scores_json.h"
#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

}  // namespace

std::variant<std::string, ApiError> TokenizeBody(std::string_view body, const ServedModel& model) {
  const Tokenizer& tokenizer = model.engine.tokenizer();
  const auto parsed = io::ParseJson(body);
  if (!parsed.ok() || !parsed->is_object()) return ApiError::Invalid("invalid_json", "", "the body must be a JSON object");
  RequestFields fields(*parsed);
  const auto prompt = fields.Text("prompt");
  const bool is_chat = fields.Array("messages") != nullptr;
  const auto special = fields.Bool("add_special_tokens");
  const bool strings = fields.Bool("return_token_strs").value_or(false);
  fields.Ignore({"model"});
  if (fields.ok() && is_chat == prompt.has_value()) {
    fields.Fail(ApiError::Invalid("missing_required_parameter", "prompt", "prompt: is required, or messages instead of it"));
  }
  std::vector<int32_t> tokens;
  if (is_chat) {
    const ordered_json ordered = ordered_json::parse(body);
    if (special.value_or(false)) fields.Refuse({"add_special_tokens"});  // the template writes them
    const ToolUse tools = ReadTools(fields, ordered);
    tokens = ReadChatPrompt(fields, ordered, model.engine, model.format, tools).tokens;
  } else if (fields.ok()) {
    auto encoded = tokenizer.Encode(*prompt, {.add_special = special.value_or(true), .parse_special = false});
    if (!encoded.ok()) return FromStatus(encoded.status());
    tokens = *std::move(encoded);
  }
  if (!fields.ok()) return fields.error();
  ordered_json answer = {{"count", tokens.size()}, {"max_model_len", model.context}, {"tokens", tokens}, {"token_strs", nullptr}};
  if (strings) {
    answer["token_strs"] = ordered_json::array();
    for (const int32_t token : tokens) answer["token_strs"].push_back(TokenText(tokenizer, token));
  }
  return JsonText(answer);
}

std::variant<std::string, ApiError> DetokenizeBody(std::string_view body, const Engine& engine) {
  const auto parsed = io::ParseJson(body);
  if (!parsed.ok() || !parsed->is_object()) return ApiError::Invalid("invalid_json", "", "the body must be a JSON object");
  RequestFields fields(*parsed);
  const json* list = fields.Array("tokens");
  fields.Ignore({"model"});
  if (fields.ok() && list == nullptr) fields.Fail(ApiError::Invalid("missing_required_parameter", "tokens", "tokens: is required"));
  if (!fields.ok()) return fields.error();
  std::vector<int32_t> tokens;
  for (const json& entry : *list) {
    const std::optional<int32_t> token = TokenId(entry, engine.tokenizer().vocab_size());
    if (!token) {
      return ApiError::Invalid("invalid_value", "tokens", "tokens: must be token ids from 0 to " + std::to_string(engine.tokenizer().vocab_size() - 1));
    }
    tokens.push_back(*token);
  }
  return JsonText({{"prompt", engine.tokenizer().Decode(tokens, /*render_special=*/true)}});
}

std::string TokenizerInfoBody(Engine& engine, int context) {
  const Tokenizer& tokenizer = engine.tokenizer();
  const auto text_of = [&](int32_t id) { return id < 0 ? ordered_json() : ordered_json(tokenizer.TokenBytes(id, /*render_special=*/true)); };
  const auto chat_template = engine.model().metadata().StringOr("tokenizer.chat_template", "");
  ordered_json answer = {{"tokenizer_class", "oscar"}, {"bos_token", text_of(tokenizer.bos_id())}, {"eos_token", text_of(tokenizer.eos_id())},
                         {"pad_token", nullptr}, {"chat_template", nullptr}, {"vocab_size", tokenizer.vocab_size()}, {"model_max_length", context}};
  if (chat_template.ok() && !chat_template->empty()) answer["chat_template"] = *chat_template;
  return JsonText(answer);
}

}  // namespace oscar::engine
