// `oscar eval basis`: what transforms do to rows, and the spectra of K, V, queries and the output projection.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <memory>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/basis.h"
#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"
#include "tools/command_line.h"
#include "tools/eval_text.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

std::vector<engine::Column> FigureColumns(bool with_layer) {
  using engine::NumberFormat;
  std::vector<engine::Column> columns;
  if (with_layer) columns.push_back({"layer", "layer", ""});
  columns.insert(columns.end(), {{"side", "side", ""}, {"basis", "basis", ""}, {"bits_per_element", "row", "bits/element", NumberFormat::kDecimal, 2}});
  for (const auto& [key, heading, unit] : {std::array{"range", "range", "max - min, rms"}, std::array{"largest", "largest", "rms"},
                                           std::array{"energy_spread", "energy", "max/mean"}, std::array{"importance_spread", "importance", "max/mean"},
                                           std::array{"error", "error", "weighted, rel."}}) {
    columns.push_back({key, heading, unit, NumberFormat::kSignificant, 3});
  }
  return columns;
}

std::string SideName(KvSide side) { return side == KvSide::kKey ? "K" : "V"; }

engine::Table LayerTable(const engine::BasisReport& report) {
  engine::Table table("", FigureColumns(true));
  for (const engine::BasisFigures& row : report.figures) {
    table.AddRow({int64_t{row.layer}, SideName(row.side), row.basis, row.bits_per_element, row.range, row.largest, row.energy_spread, row.importance_spread, row.error});
  }
  return table;
}

// Means over the layers, in the order of the first layer.
engine::Table MeanTable(const engine::BasisReport& report) {
  engine::Table table("means over the layers", FigureColumns(false));
  double layers = 0;
  for (const engine::BasisFigures& row : report.figures) layers = std::max(layers, row.layer + 1.0);
  for (const engine::BasisFigures& first : report.figures) {
    if (first.layer != 0) continue;
    engine::BasisFigures mean;
    for (const engine::BasisFigures& row : report.figures) {
      if (row.side != first.side || row.basis != first.basis) continue;
      mean.range += row.range / layers;
      mean.largest += row.largest / layers;
      mean.energy_spread += row.energy_spread / layers;
      mean.importance_spread += row.importance_spread / layers;
      mean.error += row.error / layers;
    }
    table.AddRow({SideName(first.side), first.basis, first.bits_per_element, mean.range, mean.largest, mean.energy_spread, mean.importance_spread, mean.error});
  }
  return table;
}

engine::Table SpectrumTable(const engine::BasisReport& report) {
  using engine::NumberFormat;
  std::vector<engine::Column> columns{{"layer", "layer", ""}, {"of", "of", ""}, {"basis", "basis", ""}, {"condition", "condition", "", NumberFormat::kSignificant, 3}};
  for (size_t i = 0; i < report.spectra.front().shares.size(); ++i) {
    columns.push_back({fmt::format("share_of_{}", 1 << i), fmt::format("top {}", 1 << i), "share", NumberFormat::kDecimal, 3});
  }
  engine::Table table("eigenvalue spectra: share of the trace in the largest eigenvalues", columns);
  for (const engine::BasisSpectrum& spectrum : report.spectra) {
    std::vector<engine::Cell> cells{int64_t{spectrum.layer}, spectrum.of, spectrum.basis, spectrum.condition};
    cells.insert(cells.end(), spectrum.shares.begin(), spectrum.shares.end());
    table.AddRow(std::move(cells));
  }
  return table;
}

Status RunBasisCommand(const EvalTextArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const EvalText text, OpenEvalText(arguments, std::nullopt));
  OSCAR_ASSIGN_OR_RETURN(const std::vector<engine::KvSetup> setups, SetUpMethods("eval basis", *text.engine, arguments.methods));
  CatchInterrupts();
  OSCAR_ASSIGN_OR_RETURN(const engine::BasisReport report,
                         engine::RunBasis(*text.engine, setups, text.tokens, text.plan, ProgressControl("basis", arguments.quiet)));
  if (arguments.json) {
    engine::JsonReport json("eval basis");
    json.Set("model", report.model);
    json.Set("text", text.name);
    json.Set("tokens", int64_t{report.num_rows});
    json.Add("means", MeanTable(report));
    json.Add("layers", LayerTable(report));
    json.Add("spectra", SpectrumTable(report));
    fmt::print("{}", json.ToText());
    return {};
  }
  fmt::print("{}; {}: {} tokens\n{}\n{}\n{}", report.model, text.name, report.num_rows, LayerTable(report).ToText(), SpectrumTable(report).ToText(),
             MeanTable(report).ToText());
  return {};
}

}  // namespace

void AddEvalBasisCommand(CLI::App& eval, int& exit_code) {
  auto arguments = std::make_shared<EvalTextArguments>();
  arguments->methods = {"int2:oscar", "int2:balanced"};
  arguments->windows = 1;
  CLI::App* command = eval.add_subcommand("basis", "What transforms do to K and V rows: ranges, outliers, importance, spectra, weighted errors");
  AddMethodsOptions(*command, arguments->methods, arguments->engine, "that share one exact pass");
  AddEvalTextOptions(*command, *arguments, ScoreOption::kAbsent);
  command->callback([arguments, &exit_code] {
    const Status status = RunBasisCommand(*arguments);
    exit_code = status.ok() ? 0 : Fail("eval basis", status);
  });
}

}  // namespace oscar::tools
