#include "src/engine/report/json_report.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "src/base/check.h"
#include "src/io/atomic_file.h"

namespace oscar::engine {
namespace {

nlohmann::ordered_json JsonFromCell(const Cell& cell) {
  struct Visitor {
    nlohmann::ordered_json operator()(std::monostate) const { return nullptr; }
    nlohmann::ordered_json operator()(double value) const {
      if (std::isfinite(value)) return value;
      return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    }
    nlohmann::ordered_json operator()(bool value) const { return value; }
    nlohmann::ordered_json operator()(int64_t value) const { return value; }
    nlohmann::ordered_json operator()(uint64_t value) const { return value; }
    nlohmann::ordered_json operator()(const std::string& value) const { return value; }
  };
  return std::visit(Visitor{}, cell);
}

}  // namespace

JsonReport::JsonReport(std::string_view command)
    : document_(std::make_unique<nlohmann::ordered_json>(nlohmann::ordered_json::object())) {
  Set("command", std::string(command));
}
JsonReport::~JsonReport() = default;

void JsonReport::Set(std::string_view key, const Cell& value) {
  const std::string name(key);
  OSCAR_CHECK_MSG(!document_->contains(name), key);
  (*document_)[name] = JsonFromCell(value);
}

void JsonReport::Add(std::string_view key, const Table& table) {
  const std::string name(key);
  OSCAR_CHECK_MSG(!document_->contains(name), key);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& cells : table.rows()) {
    nlohmann::ordered_json row = nlohmann::ordered_json::object();
    for (size_t i = 0; i < cells.size(); ++i) row[table.columns()[i].key] = JsonFromCell(cells[i]);
    rows.push_back(std::move(row));
  }
  (*document_)[name] = std::move(rows);
}

std::string JsonReport::ToText() const {
  return document_->dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Status JsonReport::Write(const std::filesystem::path& path) const {
  const std::string text = ToText();
  return io::WriteFileAtomically(path, std::as_bytes(std::span(text)));
}

}  // namespace oscar::engine
