#include "src/engine/serve/token_routes.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "src/engine/serve/request_fields.h"
#include "src/engine/serve/token_scores_json.h"
#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

}  // namespace

std::variant<std::string, ApiError> TokenizeBody(std::string_view body, const Engine& engine, int context) {
  const auto parsed = io::ParseJson(body);
  if (!parsed.ok() || !parsed->is_object()) return ApiError::Invalid("invalid_json", "", "the body must be a JSON object");
  RequestFields fields(*parsed);
  const auto prompt = fields.Text("prompt");
  const bool special = fields.Bool("add_special_tokens").value_or(true), strings = fields.Bool("return_token_strs").value_or(false);
  fields.Ignore({"model"});
  fields.Refuse({"messages"});
  if (fields.ok() && !prompt) fields.Fail(ApiError::Invalid("missing_required_parameter", "prompt", "prompt: is required"));
  if (!fields.ok()) return fields.error();
  const auto tokens = engine.tokenizer().Encode(*prompt, {.add_special = special, .parse_special = false});
  if (!tokens.ok()) return FromStatus(tokens.status());
  ordered_json answer = {{"count", tokens->size()}, {"max_model_len", context}, {"tokens", *tokens}, {"token_strs", nullptr}};
  if (strings) {
    answer["token_strs"] = ordered_json::array();
    for (const int32_t token : *tokens) answer["token_strs"].push_back(TokenText(engine.tokenizer(), token));
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
    if (!entry.is_number_integer() || entry < 0 || entry >= engine.tokenizer().vocab_size()) {
      return ApiError::Invalid("invalid_value", "tokens", "tokens: must be token ids from 0 to " + std::to_string(engine.tokenizer().vocab_size() - 1));
    }
    tokens.push_back(entry.get<int32_t>());
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
