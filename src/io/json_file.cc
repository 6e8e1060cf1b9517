#include "src/io/json_file.h"

#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"
#include "src/io/atomic_file.h"
#include "src/io/mapped_file.h"

namespace oscar::io {
namespace {

using nlohmann::json;

// Builds the value and stops at the first fault. nlohmann's own builder keeps the last of two equal keys without a word
// and knows no limit of depth.
class ValueBuilder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return Place(nullptr); }
  bool boolean(bool value) override { return Place(value); }
  bool number_integer(number_integer_t value) override { return Place(value); }
  bool number_unsigned(number_unsigned_t value) override { return Place(value); }
  bool number_float(number_float_t value, const string_t&) override { return Place(value); }
  bool string(string_t& value) override { return Place(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary values do not belong to JSON"); }
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    json& object = *open_.back();
    if (object.contains(name)) return Fail("the key \"" + name.substr(0, 80) + "\" occurs twice in one object");
    key_target_ = &object[name];
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Fail("not valid JSON at byte " + std::to_string(position));
  }

  const std::string& fault() const { return fault_; }
  json TakeValue() { return std::move(root_); }

 private:
  bool Fail(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
    return false;
  }
  // Puts a value where the grammar stands and returns its address.
  json* Put(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *key_target_ = std::move(value);
    return key_target_;
  }
  bool Place(json value) {
    Put(std::move(value));
    return true;
  }
  bool Open(json container) {
    if (open_.size() >= kMaxJsonDepth) return Fail("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    open_.push_back(Put(std::move(container)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;  // a container does not move while one inside it is open
  json* key_target_ = nullptr;
  std::string fault_;
};

}  // namespace

Result<json> ParseJson(std::string_view text) {
  // nlohmann's lexer takes NUL for the end of the input and would not look at what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return Status(StatusCode::kCorruptData, "not valid JSON: a NUL byte at byte " + std::to_string(nul));
  }
  ValueBuilder builder;
  if (!json::sax_parse(text.begin(), text.end(), &builder)) return Status(StatusCode::kCorruptData, builder.fault());
  return builder.TakeValue();
}

Result<json> ReadJsonFile(const std::filesystem::path& path) {
  OSCAR_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file.bytes();
  Result<json> value = ParseJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!value.ok()) return value.status().WithContext(path.string());
  return value;
}

Status WriteJsonFile(const std::filesystem::path& path, const json& value) {
  const std::string text = value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  return WriteFileAtomically(path, std::as_bytes(std::span(text)));
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  const std::string quoted = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  return json::parse(quoted, nullptr, /*allow_exceptions=*/false).get<std::string>();
}

}  // namespace oscar::io
