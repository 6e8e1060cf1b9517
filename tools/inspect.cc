// `oscar inspect`: what is in a model or a profile, and what a cache of some length costs.

#include <algorithm>
#include <CLI/CLI.hpp>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>

#include "oscar/calibrate.h"
#include "oscar/rotation_file.h"
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
  std::string profile, rotations;
  std::vector<int> lengths{2048, 4096, 8192, 32768, 131072};
};

void PrintField(const char* name, const std::string& value) { fmt::print("{:<23}{}\n", name, value.empty() ? "-" : engine::SingleLine(value)); }

Status InspectModel(const engine::EngineOptions& options) {
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(options));
  const engine::ModelConfig& config = engine->model().config();
  PrintField("file", engine->model_path().string());
  PrintField("name", engine->identity().name);
  PrintField("architecture", config.architecture);
  PrintField("layers", std::to_string(config.kv.num_layers));
  PrintField("heads", fmt::format("{} query, {} KV, head_dim {}", config.kv.num_query_heads, config.kv.num_kv_heads, config.kv.head_dim));
  PrintField("hidden, ffn", fmt::format("{}, {}", config.hidden_size, config.ffn_size));
  if (config.num_experts > 0) PrintField("experts", fmt::format("{}, {} of them for a token", config.num_experts, config.num_used_experts));
  PrintField("vocabulary", fmt::format("{} ({} in the tokenizer)", config.vocab_size, engine->tokenizer().vocab_size()));
  PrintField("trained context", fmt::format("{} tokens", config.max_context));
  PrintField("rope", fmt::format("{}, base {}, {} of {} dimensions", config.rope_neox ? "halves" : "pairs", config.rope_base,
                                 config.rope_dims, config.kv.head_dim));
  PrintField("weights", engine::FormatBytes(static_cast<double>(engine->model().weight_bytes())));
  PrintField("chat template", engine->chat_template() != nullptr ? "yes" : "no");
  PrintField("fingerprint", engine->identity().fingerprint);
  PrintField("identity", engine->identity().identity);
  for (const char* method : {"int2:balanced", "int1:balanced", "int2:oscar"}) {
    const auto profile = engine::ModelCache::ProfilePath(engine->model_path(), method);
    PrintField(fmt::format("{} profile", method).c_str(),
               std::filesystem::exists(profile) ? profile.string() : fmt::format("none (make it with oscar calibrate --kv {})", method));
  }
  return {};
}

// The checks of method.md 2.7 per layer and side, of the first KV head where heads differ.
class RotationTable {
 public:
  explicit RotationTable(const std::string& composition) : composition_(composition) {}

  // Checks are left out where there are no eigenvalues, or nobody knows the composition.
  Status Add(int layer, const char* side, engine::Cell clip, std::span<const float> matrix, std::span<const float> eigenvalues) {
    static const std::map<std::string, Composition> compositions{
        {"r_h_pbr", Composition::kRHPbr}, {"r_h", Composition::kRH}, {"plain", Composition::kPlain}};
    const auto composition = compositions.find(composition_);
    std::vector<engine::Cell> cells{int64_t{layer}, side, std::move(clip)};
    if (eigenvalues.empty() || composition == compositions.end()) {
      cells.resize(table_.columns().size());
    } else {
      OSCAR_ASSIGN_OR_RETURN(const RotationCheck check, CheckRotation(matrix, eigenvalues, composition->second));
      cells.insert(cells.end(), {double{eigenvalues.front()}, double{eigenvalues.back()}, check.top8_share, check.orthogonality_error,
                                 check.basis_error, check.diagonal_spread});
    }
    table_.AddRow(std::move(cells));
    return {};
  }
  void Print() const { fmt::print("{}", table_.ToText()); }

 private:
  using NumberFormat = engine::NumberFormat;
  const std::string composition_;
  engine::Table table_{"", {{"layer", "layer", ""},
                            {"side", "side", ""},
                            {"clip", "clip", "rank", NumberFormat::kDecimal, 2},
                            {"lambda_0", "lambda_0", "", NumberFormat::kSignificant, 4},
                            {"lambda_max", "lambda_max", "", NumberFormat::kSignificant, 4},
                            {"top8_share", "top-8", "share", NumberFormat::kDecimal, 2},
                            {"orthogonality_error", "|R'R-I|", "max", NumberFormat::kSignificant, 2},
                            {"basis_error", "|U'U-I|", "max", NumberFormat::kSignificant, 2},
                            {"diagonal_spread", "diag R'CR", "max/min-1", NumberFormat::kSignificant, 2}}};
};

// Eigenvalues of the first KV head.
std::span<const float> FirstHead(std::span<const float> eigenvalues, int head_dim) {
  return eigenvalues.empty() ? eigenvalues : eigenvalues.first(static_cast<size_t>(head_dim));
}

Status PrintRotations(const CodecProfile& profile) {
  RotationTable table(profile.provenance().composition);
  for (int layer = 0; layer < profile.shape().num_layers; ++layer) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      const RowProfile row = profile.row(layer, 0, side);
      OSCAR_TRY(table.Add(layer, side == KvSide::kKey ? "K" : "V", double{row.clip_ratio}, row.transform->matrix(),
                          FirstHead(profile.eigenvalues(layer, side), profile.shape().head_dim)));
    }
  }
  table.Print();
  return {};
}

Status InspectRotations(const std::string& path) {
  OSCAR_ASSIGN_OR_RETURN(const RotationFile file, RotationFile::Load(path));
  PrintField("file", path);
  PrintField("objective", file.objective);
  const int heads = file.layers[0].num_heads;
  PrintField("shape", fmt::format("{} layers, {}, head_dim {}", file.layers.size(),
                                  heads == 0 ? "one rotation for all KV heads" : fmt::format("{} KV heads", heads), file.head_dim));
  const size_t metric = file.objective.find('_');
  RotationTable table(metric == std::string::npos ? file.objective : file.objective.substr(metric + 1));
  for (const RotationFile::Layer& layer : file.layers) {
    const size_t values = static_cast<size_t>(file.head_dim) * static_cast<size_t>(file.head_dim);
    const char* side = file.objective.starts_with("qqt") ? "K" : file.objective.starts_with("sst") ? "V" : "-";
    OSCAR_TRY(table.Add(layer.id, side, engine::Cell(), std::span(layer.rotation).first(values), FirstHead(layer.eigenvalues, file.head_dim)));
  }
  table.Print();
  return {};
}

// Per layer and side of a balanced profile, the worst KV head; quality.md 2 and 3.
Status PrintTransforms(const CodecProfile& profile) {
  using engine::NumberFormat;
  engine::Table table("", {{"layer", "layer", ""},
                           {"side", "side", ""},
                           {"condition", "cond T", "", NumberFormat::kSignificant, 3},
                           {"inverse_error", "|T T^-1 - I|", "max", NumberFormat::kSignificant, 2},
                           {"spectrum_spread", "w max/min", "", NumberFormat::kSignificant, 3},
                           {"mean_norm", "|mean|", "", NumberFormat::kSignificant, 3},
                           {"mean_kept", "of page 0", "share", NumberFormat::kDecimal, 2}});
  for (int layer = 0; layer < profile.shape().num_layers; ++layer) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      TransformCheck worst;
      double spread = 0, norm = 0, page_norm = 0;
      for (int head = 0; head < profile.shape().num_kv_heads; ++head) {
        const RowProfile row = profile.row(layer, head, side);
        const TransformCheck check = CheckTransform(*row.transform);
        worst.condition = std::max(worst.condition, check.condition);
        worst.inverse_error = std::max(worst.inverse_error, check.inverse_error);
        const auto squares = [](std::span<const float> values) {
          return std::transform_reduce(values.begin(), values.end(), 0.0, std::plus<>(), [](double value) { return value * value; });
        };
        norm = std::max(norm, std::sqrt(squares(row.mean)));
        page_norm = std::max(page_norm, std::sqrt(squares(row.page_mean.empty() ? row.mean : row.page_mean)));
        const auto d = static_cast<size_t>(profile.shape().head_dim);
        const std::span<const float> spectra = profile.eigenvalues(layer, side);
        if (spectra.size() < (static_cast<size_t>(head) + 1) * d) continue;
        const std::span<const float> spectrum = spectra.subspan(static_cast<size_t>(head) * d, d);
        if (spectrum.front() > 0) spread = std::max(spread, double{spectrum.back()} / spectrum.front());
      }
      table.AddRow({int64_t{layer}, side == KvSide::kKey ? "K" : "V", worst.condition, worst.inverse_error, spread, norm,
                    norm > 0 ? page_norm / norm : 1.0});
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
  PrintField("model fingerprint", from.model_digest);
  PrintField("calibration", fmt::format("{} tokens in windows of {}, {}", from.num_tokens, from.window_tokens, from.text_name));
  PrintField("fit", fmt::format("scope {}, K metric {}, V metric {}, composition {}", from.scope, from.k_metric, from.v_metric,
                                from.composition));
  PrintField("made", fmt::format("{} by oscar {}", from.created_utc, from.oscar_version));
  if (profile.row(0, 0, KvSide::kKey).encoder != EncoderKind::kErrorFeedback) return PrintRotations(profile);
  const RotaryEmbedding& rotary = profile.rotary();
  PrintField("key mean", rotary.angles.empty() ? "constant"
                                               : fmt::format("turns with RoPE: {} pairs ({})", rotary.angles.size(),
                                                             rotary.halves ? "halves" : "adjacent"));
  return PrintTransforms(profile);
}

// method.md 4: what a cache of T tokens stores, by segment and by every honest ledger.
Status InspectLedger(const InspectArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  constexpr int kMostTokens = 1 << 30;
  for (const int length : arguments.lengths) {
    if (length < 1 || length > kMostTokens) return {StatusCode::kInvalidArgument, fmt::format("--tokens {}: must be 1 to {}", length, kMostTokens)};
  }
  OSCAR_ASSIGN_OR_RETURN(const KvMethod method, ParseKvMethod(arguments.engine.kv));
  const KvShape& shape = engine->model().config().kv;
  const int d = shape.head_dim;
  const double rows = 1.0 * shape.num_layers * shape.num_kv_heads;
  const double bf16_token = rows * 4 * d;
  const double encoded_token = method.is_exact() ? bf16_token : rows * static_cast<double>(method.codec->page_bytes(d)) / kPageTokens;
  fmt::print("{} on {}: bytes per token {:.0f} encoded, {:.0f} in the BF16 windows (sink {}, recent {})\n", method.name(),
             engine->identity().name, encoded_token, bf16_token, arguments.engine.sink, arguments.engine.recent);
  engine::Table table({"tokens", "sink", "encoded", "recent", "bytes", "BF16 bytes", "ratio", "payload", "+ scales", "+ windows", "allocated"});
  for (const int length : arguments.lengths) {
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
  if (!arguments.rotations.empty()) return InspectRotations(arguments.rotations);
  if (!has_model) return InspectCache();
  return arguments.engine.kv.empty() ? InspectModel(arguments.engine) : InspectLedger(arguments);
}

}  // namespace

void AddInspectCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand("inspect", "Show a model, a profile, what a cache costs, or the model cache (no option)");
  auto* model = command->add_option("-m,--model", arguments->engine.model, "Model: a .gguf file, or its name in the model cache")->type_name("FILE|NAME");
  auto* profile = command->add_option("--profile", arguments->profile, "Show this profile")->excludes(model)->type_name("FILE");
  command->add_option("--rotations", arguments->rotations, "Show this rotation file (.pt)")->excludes(model)->excludes(profile)->type_name("FILE");
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
