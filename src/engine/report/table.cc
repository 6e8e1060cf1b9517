#include "src/engine/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>
#include <utility>

#include "src/base/check.h"
#include "src/engine/report/quantity.h"

namespace oscar::engine {
namespace {

constexpr std::string_view kGap = "  ";

// Characters, taking every byte that does not continue a UTF-8 sequence as one.
size_t Width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string DoubleText(double value, const Column& column) {
  switch (column.format) {
    case NumberFormat::kDecimal: return FormatDecimal(value, column.digits);
    case NumberFormat::kSignificant: return FormatSignificant(value, column.digits);
    case NumberFormat::kPlain:
    case NumberFormat::kCount:
    case NumberFormat::kBytes: break;
  }
  return fmt::format("{}", value);
}

template <class Integer>
std::string IntegerText(Integer value, const Column& column) {
  switch (column.format) {
    case NumberFormat::kPlain: break;
    case NumberFormat::kCount: return FormatCount(static_cast<int64_t>(value));
    case NumberFormat::kBytes: return FormatBytes(static_cast<double>(value));
    case NumberFormat::kDecimal:
    case NumberFormat::kSignificant: return DoubleText(static_cast<double>(value), column);
  }
  return fmt::format("{}", value);
}

// A text that does not read as a number with a unit, and so stands on the left.
bool IsWord(const Cell& cell) {
  const auto* text = std::get_if<std::string>(&cell);
  if (text == nullptr || *text == "-") return false;
  const size_t first = text->starts_with('-') || text->starts_with('+') ? 1 : 0;
  return first >= text->size() || (*text)[first] < '0' || (*text)[first] > '9';
}

std::vector<Column> ColumnsOf(const std::vector<std::string>& headings) {
  std::vector<Column> columns;
  for (const std::string& heading : headings) columns.push_back({heading, heading, ""});
  return columns;
}

// One printed column: its texts from heading to last row, and the side they stand on.
struct TextColumn {
  std::vector<std::string> texts;
  size_t width = 0;
  bool is_left = false;
};

}  // namespace

std::string SingleLine(std::string_view text) {
  std::string plain(text);
  for (char& c : plain) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return plain;
}

std::string CellText(const Cell& cell, const Column& column) {
  struct Visitor {
    const Column& column;
    std::string operator()(std::monostate) const { return "-"; }
    std::string operator()(bool value) const { return value ? "yes" : "no"; }
    std::string operator()(int64_t value) const {
      // A negative number of bytes is a difference: shown as it is.
      return column.format == NumberFormat::kBytes && value < 0 ? fmt::format("{} B", value) : IntegerText(value, column);
    }
    std::string operator()(uint64_t value) const {
      const bool fits = value <= static_cast<uint64_t>(INT64_MAX);
      return fits || column.format != NumberFormat::kCount ? IntegerText(value, column) : fmt::format("{}", value);
    }
    std::string operator()(double value) const { return DoubleText(value, column); }
    std::string operator()(const std::string& value) const { return SingleLine(value); }
  };
  return std::visit(Visitor{column}, cell);
}

Table::Table(std::string title, std::vector<Column> columns) : title_(std::move(title)), columns_(std::move(columns)) {
  OSCAR_CHECK(!columns_.empty());
  std::set<std::string_view> keys;
  for (const Column& column : columns_) OSCAR_CHECK_MSG(!column.key.empty() && keys.insert(column.key).second, column.key);
}

Table::Table(const std::vector<std::string>& headings) : Table("", ColumnsOf(headings)) {}

void Table::AddRow(std::vector<Cell> cells) {
  OSCAR_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::ToText() const {
  const bool has_units = std::any_of(columns_.begin(), columns_.end(), [](const Column& c) { return !c.unit.empty(); });
  const size_t num_head_lines = has_units ? 2 : 1;
  std::vector<TextColumn> printed;
  for (size_t i = 0; i < columns_.size(); ++i) {
    TextColumn column;
    column.texts.push_back(SingleLine(columns_[i].heading));
    if (has_units) column.texts.push_back(SingleLine(columns_[i].unit));
    column.is_left = std::any_of(rows_.begin(), rows_.end(), [i](const auto& row) { return IsWord(row[i]); });
    for (const auto& row : rows_) column.texts.push_back(CellText(row[i], columns_[i]));
    for (const std::string& text : column.texts) column.width = std::max(column.width, Width(text));
    printed.push_back(std::move(column));
  }
  std::string out = title_.empty() ? std::string() : SingleLine(title_) + "\n";
  size_t total_width = kGap.size() * (printed.size() - 1);
  for (const TextColumn& column : printed) total_width += column.width;
  for (size_t line = 0; line < num_head_lines + rows_.size(); ++line) {
    if (line == num_head_lines) out += std::string(total_width, '-') + "\n";
    std::string text;
    for (const TextColumn& column : printed) {
      const std::string padding(column.width - Width(column.texts[line]), ' ');
      if (&column != &printed.front()) text += kGap;
      text += column.is_left ? column.texts[line] + padding : padding + column.texts[line];
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
  if (rows_.empty()) out += std::string(total_width, '-') + "\n";
  return out;
}

}  // namespace oscar::engine
