#include "tools/bench_table.h"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"

namespace oscar::tools {
namespace {

using engine::Cell;
using engine::Column;
using engine::NumberFormat;
using engine::SpeedCell;
using engine::SpeedPart;
using engine::SpeedReport;

// The lowest times of any peer at a context.
std::optional<SpeedCell> BestPeer(const SpeedReport& report, int context) {
  std::optional<SpeedCell> best;
  for (const SpeedCell& cell : report.cells) {
    if (!cell.is_peer || cell.context != context) continue;
    if (!best) best = cell;
    best->decode.median = std::min(best->decode.median, cell.decode.median);
    best->prefill.median = std::min(best->prefill.median, cell.prefill.median);
  }
  return best;
}

const SpeedCell& FirstMethodAt(const SpeedReport& report, int context) {
  return *std::find_if(report.cells.begin(), report.cells.end(), [&](const SpeedCell& cell) { return cell.context == context; });
}

Cell Ratio(double reference, double value) { return value > 0 ? Cell(reference / value) : Cell(); }

// Of a prompt: every matrix but the output's once per token, the output's once per step, and attention of each token to those before it.
double PromptMultiplyAdds(const engine::ModelConfig& config, double context) {
  const KvShape& kv = config.kv;
  const double hidden = config.hidden_size, query = double{1} * kv.num_query_heads * kv.head_dim, keys = double{1} * kv.num_kv_heads * kv.head_dim;
  const double layer = hidden * (2 * query + 2 * keys) + 3 * hidden * config.step_ffn_size();
  const double steps = (context + engine::kMaxStepTokens - 1) / engine::kMaxStepTokens;
  return kv.num_layers * (context * layer + query * context * (context + 1)) + steps * hidden * config.vocab_size;
}

void AddPrefillColumns(std::vector<Column>& columns, SpeedPart part) {
  columns.push_back({"prefill_tokens_per_second", part == SpeedPart::kBoth ? "prefill" : "median", "tokens/s", NumberFormat::kDecimal, 1});
  if (part == SpeedPart::kPrefill) {
    columns.push_back({"prefill_tokens_per_second_min", "min", "tokens/s", NumberFormat::kDecimal, 1});
    columns.push_back({"prefill_tokens_per_second_max", "max", "tokens/s", NumberFormat::kDecimal, 1});
    columns.push_back({"prefill_ratio", "ratio", "to the first", NumberFormat::kDecimal, 2});
  }
}

std::vector<Column> Columns(SpeedPart part) {
  std::vector<Column> columns{{"context_tokens", "context", "tokens"}, {"kv", "kv", ""}};
  if (part != SpeedPart::kDecode) AddPrefillColumns(columns, part);
  if (part != SpeedPart::kPrefill) {
    columns.push_back({"decode_tokens_per_second", part == SpeedPart::kBoth ? "decode median" : "median", "tokens/s", NumberFormat::kDecimal, 2});
    columns.push_back({"decode_tokens_per_second_min", "min", "tokens/s", NumberFormat::kDecimal, 2});
    columns.push_back({"decode_tokens_per_second_max", "max", "tokens/s", NumberFormat::kDecimal, 2});
    columns.push_back({"decode_ratio", "ratio", "to the first", NumberFormat::kDecimal, 2});
    columns.push_back({"decode_ratio_to_best_peer", "ratio", "to best peer", NumberFormat::kDecimal, 2});
  }
  if (part != SpeedPart::kDecode) columns.push_back({"prefill_ratio_to_best_peer", "prefill ratio", "to best peer", NumberFormat::kDecimal, 2});
  if (part == SpeedPart::kPrefill) {
    columns.push_back({"giga_multiply_adds_per_second", "rate", "1e9 madd/s", NumberFormat::kDecimal, 1});
    columns.push_back({"share_of_ceiling", "of byte products", "share", NumberFormat::kDecimal, 2});
  }
  if (part == SpeedPart::kDecode) {
    columns.push_back({"gigabytes_per_second", "rate", "GB/s", NumberFormat::kDecimal, 2});
    columns.push_back({"share_of_ceiling", "of memory reads", "share", NumberFormat::kDecimal, 2});
  }
  if (part != SpeedPart::kPrefill) columns.push_back({"cache_bytes", "cache", "", NumberFormat::kBytes});
  if (part == SpeedPart::kDecode) columns.push_back({"resident_bytes", "memory added", "", NumberFormat::kBytes});
  return columns;
}

// Multiply-adds per second, and their share of the ceiling.
void AddPrefillRates(const SpeedReport& report, const SpeedCell& cell, const BenchTableInputs& inputs, std::vector<Cell>& row) {
  const double rate = report.batch * PromptMultiplyAdds(inputs.config, cell.context) / cell.prefill.median;
  row.emplace_back(rate / kGiga);
  row.push_back(inputs.ceilings && !inputs.ceilings->byte_dots.empty() ? Cell(rate / Median(inputs.ceilings->byte_dots)) : Cell());
}

// Bytes of weights and cache pages that a step reads per second, and their share of the ceiling; a peer does not say what it reads.
void AddDecodeRates(const SpeedCell& cell, const BenchTableInputs& inputs, std::vector<Cell>& row) {
  if (cell.is_peer) {
    row.insert(row.end(), {Cell(), Cell()});
    return;
  }
  const double rate = static_cast<double>(inputs.step_weight_bytes + cell.used_bytes) / cell.decode.median;
  row.emplace_back(rate / kGiga);
  row.push_back(inputs.ceilings ? Cell(rate / Median(inputs.ceilings->read_bytes)) : Cell());
}

engine::Table CellTable(const SpeedReport& report, const BenchTableInputs& inputs) {
  const SpeedPart part = inputs.part;
  engine::Table table("", Columns(part));
  for (const SpeedCell& cell : report.cells) {
    const SpeedCell& first = FirstMethodAt(report, cell.context);
    const auto peer = BestPeer(report, cell.context);
    std::vector<Cell> row{int64_t{cell.context}, cell.method};
    if (part != SpeedPart::kDecode) row.emplace_back(cell.prefill_tokens / cell.prefill.median);
    if (part == SpeedPart::kPrefill) {
      row.insert(row.end(), {cell.prefill_tokens / cell.prefill.max, cell.prefill_tokens / cell.prefill.min, Ratio(first.prefill.median, cell.prefill.median)});
    }
    if (part != SpeedPart::kPrefill) {
      row.insert(row.end(), {report.batch / cell.decode.median, report.batch / cell.decode.max, report.batch / cell.decode.min,
                             Ratio(first.decode.median, cell.decode.median), peer ? Ratio(peer->decode.median, cell.decode.median) : Cell()});
    }
    if (part != SpeedPart::kDecode) row.push_back(peer ? Ratio(peer->prefill.median, cell.prefill.median) : Cell());
    if (part == SpeedPart::kPrefill) AddPrefillRates(report, cell, inputs, row);
    if (part == SpeedPart::kDecode) AddDecodeRates(cell, inputs, row);
    if (part != SpeedPart::kPrefill) row.push_back(cell.is_peer ? Cell() : Cell(uint64_t{cell.used_bytes}));
    if (part == SpeedPart::kDecode) row.push_back(cell.resident_bytes ? Cell(*cell.resident_bytes) : Cell());
    table.AddRow(std::move(row));
  }
  return table;
}

const char* CommandName(SpeedPart part) {
  switch (part) {
    case SpeedPart::kPrefill: return "bench prefill";
    case SpeedPart::kDecode: return "bench decode";
    case SpeedPart::kBoth: break;
  }
  return "bench";
}

}  // namespace

std::string BenchJson(const SpeedReport& report, const BenchTableInputs& inputs) {
  engine::JsonReport json(CommandName(inputs.part));
  json.Set("model", report.model);
  json.Set("threads", int64_t{report.threads});
  json.Set("clock", inputs.processor_time ? "processor" : "wall");
  json.Set("batch", int64_t{report.batch});
  if (inputs.ceilings) {
    json.Set("read_bytes_per_second", Median(inputs.ceilings->read_bytes));
    if (!inputs.ceilings->byte_dots.empty()) json.Set("byte_dots_per_second", Median(inputs.ceilings->byte_dots));
  }
  json.Add("cells", CellTable(report, inputs));
  return json.ToText();
}

std::string BenchText(const SpeedReport& report, const BenchTableInputs& inputs) {
  std::string text = fmt::format("{}, {} threads, batch {}, {} time; ratio: rate over that of the first method at the same context\n", report.model,
                                 report.threads, report.batch, inputs.processor_time ? "processor" : "wall");
  if (inputs.ceilings) {
    text += fmt::format("ceilings of this run: {:.2f} GB/s read", Median(inputs.ceilings->read_bytes) / kGiga);
    if (!inputs.ceilings->byte_dots.empty()) text += fmt::format(", {:.1f}e9 multiply-adds of bytes per second", Median(inputs.ceilings->byte_dots) / kGiga);
    text += '\n';
  }
  return text + CellTable(report, inputs).ToText();
}

}  // namespace oscar::tools
