// The machine-readable output of a subcommand: facts and tables in the order in which they were added. The keys are part of
// the command line's interface, so a Table's columns name them once for text and JSON.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "oscar/result.h"
#include "src/engine/report/table.h"

namespace oscar::engine {

class JsonReport {
 public:
  // The document begins with "command": `command` ("eval kl").
  explicit JsonReport(std::string_view command);
  ~JsonReport();

  // A fact at the top level. NaN and infinities, which JSON lacks, become the strings "nan", "inf" and "-inf"; an absent value
  // is null. Precondition: the key is new.
  void Set(std::string_view key, const Cell& value);
  // An array with one object per row, the columns' keys in the columns' order. Precondition: the key is new.
  void Add(std::string_view key, const Table& table);

  // Indented by two spaces, newline at the end. Bytes that are not UTF-8 become U+FFFD.
  std::string ToText() const;
  // Writes ToText() atomically (io/atomic_file.h). kIoError or kNotFound, naming the path.
  Status Write(const std::filesystem::path& path) const;

 private:
  std::unique_ptr<nlohmann::ordered_json> document_;
};

}  // namespace oscar::engine
