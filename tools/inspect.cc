// `oscar inspect`: what is in a model or a profile, and what a cache of some length costs.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <map>
#include <memory>

#include "oscar/calibrate.h"
#include "src/base/status_macros.h"
#include "src/engine/hub/model_cache.h"
#include "src/engine/report/quantity.h"
#include "src/engine/report/table.h"
#include "src/engine/runtime/engine.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"

namespace oscar::tools {
namespace {

struct InspectArguments {
  engine::EngineOptions engine{.kv = ""};
  std::string profile;
  std::vector<int> lengths{2048, 4096, 8192, 32768, 131072};
};

void PrintField(const char* name, const std::string& value) { fmt::print("{:<20}{}\n", name, value.empty() ? "-" : value); }

Status InspectModel(const engine::EngineOptions& options) {
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(options));
  const engine::ModelConfig& config = engine->model().config();
  PrintField("file", engine->model_path().string());
  PrintField("name", engine->identity().name);
  PrintField("architecture", config.architecture);
  PrintField("layers", std::to_string(config.kv.num_layers));
  PrintField("heads", fmt::format("{} query, {} KV, head_dim {}", config.kv.num_query_heads, config.kv.num_kv_heads, config.kv.head_dim));
  PrintField("hidden, ffn", fmt::format("{}, {}", config.hidden_size, config.ffn_size));
  PrintField("vocabulary", fmt::format("{} ({} in the tokenizer)", config.vocab_size, engine->tokenizer().vocab_size()));
  PrintField("trained context", fmt::format("{} tokens", config.max_context));
  PrintField("rope", fmt::format("{}, base {}, {} of {} dimensions", config.rope_neox ? "halves" : "pairs", config.rope_base,
                                 config.rope_dims, config.kv.head_dim));
  PrintField("weights", engine::FormatBytes(static_cast<double>(engine->model().weight_bytes())));
  PrintField("chat template", engine->chat_template() != nullptr ? "yes" : "no");
  PrintField("fingerprint", engine->identity().fingerprint);
  PrintField("identity", engine->identity().identity);
  const auto profile = engine::ModelCache::ProfilePath(engine->model_path(), "int2:oscar");
  PrintField("int2:oscar profile", std::filesystem::exists(profile) ? profile.string() : "none (make it with oscar calibrate)");
  return {};
}

// The checks of method.md 2.7 per layer and side, of the first KV head where heads differ.
Status PrintRotations(const CodecProfile& profile) {
  using engine::NumberFormat;
  engine::Table table("", {{"layer", "layer", ""},
                           {"side", "side", ""},
                           {"clip", "clip", "rank", NumberFormat::kDecimal, 2},
                           {"lambda_0", "lambda_0", "", NumberFormat::kSignificant, 4},
                           {"lambda_max", "lambda_max", "", NumberFormat::kSignificant, 4},
                           {"top8_share", "top-8", "share", NumberFormat::kDecimal, 2},
                           {"orthogonality_error", "|R'R-I|", "max", NumberFormat::kSignificant, 2},
                           {"basis_error", "|U'U-I|", "max", NumberFormat::kSignificant, 2},
                           {"diagonal_spread", "diag R'CR", "max/min-1", NumberFormat::kSignificant, 2}});
  const std::map<std::string, Composition> compositions{
      {"r_h_pbr", Composition::kRHPbr}, {"r_h", Composition::kRH}, {"plain", Composition::kPlain}};
  const auto composition = compositions.find(profile.provenance().composition);
  for (int layer = 0; layer < profile.shape().num_layers; ++layer) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      const RowProfile row = profile.row(layer, 0, side);
      const std::span<const float> eigenvalues = profile.eigenvalues(layer, side);
      std::vector<engine::Cell> cells{int64_t{layer}, side == KvSide::kKey ? "K" : "V", double{row.clip_ratio}};
      if (eigenvalues.empty() || composition == compositions.end()) {
        cells.resize(table.columns().size());
      } else {
        OSCAR_ASSIGN_OR_RETURN(const RotationCheck check, CheckRotation(row.transform->matrix(), eigenvalues, composition->second));
        cells.insert(cells.end(), {double{eigenvalues.front()}, double{eigenvalues.back()}, check.top8_share,
                                   check.orthogonality_error, check.basis_error, check.diagonal_spread});
      }
      table.AddRow(std::move(cells));
    }
  }
  fmt::print("{}", table.ToText());
  return {};
}

Status InspectProfile(const std::string& path) {
  OSCAR_ASSIGN_OR_RETURN(const CodecProfile profile, CodecProfile::Load(path));
  const Provenance& from = profile.provenance();
  const KvShape& shape = profile.shape();
  PrintField("file", path);
  PrintField("method", profile.method());
  PrintField("shape", fmt::format("{} layers, {} query and {} KV heads, head_dim {}", shape.num_layers, shape.num_query_heads,
                                  shape.num_kv_heads, shape.head_dim));
  PrintField("model", from.model_name);
  PrintField("model fingerprint", from.model_sha256);
  PrintField("calibration", fmt::format("{} tokens in windows of {}, {}", from.num_tokens, from.window_tokens, from.text_name));
  PrintField("fit", fmt::format("scope {}, K metric {}, V metric {}, composition {}", from.scope, from.k_metric, from.v_metric,
                                from.composition));
  PrintField("made", fmt::format("{} by oscar {}", from.created_utc, from.oscar_version));
  return PrintRotations(profile);
}

// method.md 4: what a cache of T tokens stores, by segment and by every honest ledger.
Status InspectLedger(const InspectArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  OSCAR_ASSIGN_OR_RETURN(const KvMethod method, ParseKvMethod(arguments.engine.kv));
  const KvShape& shape = engine->model().config().kv;
  const int d = shape.head_dim;
  const double rows = 1.0 * shape.num_layers * shape.num_kv_heads;
  const double bf16_token = rows * 4 * d;
  const double encoded_token = method.is_bf16() ? bf16_token : rows * static_cast<double>(method.codec->page_bytes(d)) / kPageTokens;
  fmt::print("{} on {}: bytes per token {:.0f} encoded, {:.0f} in the BF16 windows (sink {}, recent {})\n", method.name(),
             engine->identity().name, encoded_token, bf16_token, arguments.engine.sink, arguments.engine.recent);
  engine::Table table({"tokens", "sink", "encoded", "recent", "bytes", "BF16 bytes", "ratio", "payload", "+ scales", "+ windows", "allocated"});
  for (const int length : arguments.lengths) {
    if (length < 1) return {StatusCode::kInvalidArgument, fmt::format("--tokens {}: must be positive", length)};
    const BitsLedger ledger = LedgerAt(method, d, length, arguments.engine.sink, arguments.engine.recent);
    const double bytes = ledger.at_length / 8 * rows * 2 * d * length;
    table.AddRow({std::to_string(length), std::to_string(ledger.tokens.sink), std::to_string(ledger.tokens.body),
                  std::to_string(ledger.tokens.recent), engine::FormatBytes(bytes), engine::FormatBytes(bf16_token * length),
                  fmt::format("{:.2f}", 16 / ledger.at_length), fmt::format("{:.2f}", ledger.payload),
                  fmt::format("{:.3f}", ledger.steady), fmt::format("{:.3f}", ledger.at_length), fmt::format("{:.3f}", ledger.allocated)});
  }
  fmt::print("{}last four columns: bits per element\n", table.ToText());
  return {};
}

Status InspectCache() {
  const engine::ModelCache cache;
  fmt::print("model cache {}\n", cache.root().string());
  for (const auto& path : cache.List()) fmt::print("  {}\n", path.filename().string());
  return {};
}

Status Inspect(const InspectArguments& arguments) {
  const bool has_model = !arguments.engine.model.empty();
  if (!arguments.profile.empty()) return InspectProfile(arguments.profile);
  if (!has_model) return InspectCache();
  return arguments.engine.kv.empty() ? InspectModel(arguments.engine) : InspectLedger(arguments);
}

}  // namespace

void AddInspectCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand("inspect", "Show a model, a profile, what a cache costs, or the model cache (no option)");
  auto* model = command->add_option("-m,--model", arguments->engine.model, "Model: a .gguf file, or its name in the model cache")->type_name("FILE|NAME");
  command->add_option("--profile", arguments->profile, "Show this profile")->excludes(model)->type_name("FILE");
  auto* kv = command->add_option("--kv", arguments->engine.kv, "With -m: bytes and bits per element of this method by length")
                 ->needs(model)
                 ->type_name("METHOD");
  command->add_option("--tokens", arguments->lengths, "With --kv: lengths of the cache")
      ->capture_default_str()
      ->delimiter(',')
      ->needs(kv)
      ->type_name("N,...");
  command->add_option("--sink", arguments->engine.sink, "With --kv: first tokens in BF16, a multiple of 64")
      ->capture_default_str()
      ->needs(kv)
      ->type_name("TOKENS");
  command->add_option("--recent", arguments->engine.recent, "With --kv: newest tokens in BF16, a multiple of 64")
      ->capture_default_str()
      ->needs(kv)
      ->type_name("TOKENS");
  command->callback([arguments, &exit_code] {
    const Status status = Inspect(*arguments);
    exit_code = status.ok() ? 0 : Fail("inspect", status);
  });
}

}  // namespace oscar::tools
