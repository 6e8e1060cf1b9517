// Any bytes as a chat template, parsed and rendered over a fixed conversation under tight limits.
#include <cstdint>
#include <string_view>

#include "src/engine/text/jinja/json_text.h"
#include "src/engine/text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using oscar::engine::jinja::ParseJson;
  using oscar::engine::jinja::Template;
  const auto parsed = Template::Parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  oscar::engine::jinja::RenderOptions options;
  options.now = 1'741'000'000;
  options.limits.max_steps = 20'000;
  options.limits.max_bytes = 4 << 20;
  options.limits.max_output_bytes = 1 << 20;
  static constexpr std::string_view kMessages =
      R"([{"role":"system","content":"Sé"},{"role":"user","content":"a\nb"},{"role":"assistant","content":null,
      "tool_calls":[{"function":{"name":"f","arguments":{"x":1.5,"y":[true,null]}}}]},{"role":"tool","content":"9"}])";
  static constexpr std::string_view kTools =
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  std::map<std::string, oscar::engine::jinja::Value, std::less<>> variables;
  variables["messages"] = ParseJson(kMessages).value();
  variables["tools"] = ParseJson(kTools).value();
  variables["add_generation_prompt"] = true;
  variables["n"] = int64_t{3};
  (void)parsed->Render(std::move(variables), options);
  return 0;
}
