// Tables of results: one list of columns and cells, rendered as aligned ASCII text for people, or added to a JsonReport for
// programs, so that both always say the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace oscar::engine {

// An absent value is monostate: "-" in text, null in JSON.
using Cell = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string>;

enum class NumberFormat {
  kPlain,        // integers as they are, doubles with the shortest digits that read back equal
  kCount,        // "1,234,567"
  kBytes,        // "1.21 GiB"; JSON keeps the number of bytes
  kDecimal,      // `digits` behind the point
  kSignificant,  // `digits` significant digits
};

struct Column {
  std::string key;      // JSON key, snake_case with the unit: "pool_bytes", "kl_mean_nats"
  std::string heading;  // of the text table
  std::string unit;     // second line of the heading; may be empty
  NumberFormat format = NumberFormat::kPlain;
  int digits = 3;
};

class Table {
 public:
  // `title` may be empty. Precondition: at least one column, keys distinct and not empty.
  Table(std::string title, std::vector<Column> columns);
  // A table without title or units whose cells come as they are to be read; the headings are the keys.
  explicit Table(const std::vector<std::string>& headings);
  // Precondition: one cell per column, in their order.
  void AddRow(std::vector<Cell> cells);

  const std::string& title() const { return title_; }
  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<std::vector<Cell>>& rows() const { return rows_; }

  // Title, headings, units (when a column has one), a rule, the rows; numbers to the right, columns with other text to the
  // left, two spaces between, no trailing spaces, a newline at the end. A text that begins with a digit or a sign and a digit
  // ("1.21 GiB") stands like a number. Line breaks and control characters in texts become '?', so a model's
  // name cannot break the layout. Widths count characters of UTF-8, not bytes.
  std::string ToText() const;

 private:
  std::string title_;
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// The text with '?' for line breaks and control characters, so that a name from a file can neither break a line nor drive a terminal.
std::string SingleLine(std::string_view text);

// The text of one cell in its column.
std::string CellText(const Cell& cell, const Column& column);

}  // namespace oscar::engine
