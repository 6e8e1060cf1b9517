#include "src/engine/text/jinja/json_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/engine/text/jinja/unicode_text.h"

namespace oscar::engine::jinja {
namespace {

// Builds values while nlohmann reads, so that key order and the difference between 1 and 1.0 survive.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit ValueBuilder(Budget* budget) : budget_(budget) {}
  Value result() { return std::move(result_); }
  const std::string& message() const { return message_; }

  bool null() override { return Add(None{}); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return FailWith("an integer beyond 64 bits");
    return Add(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") == text.npos) return FailWith("an integer beyond 64 bits");
    return Add(value);
  }
  bool string(string_t& value) override { return Add(MakeText(std::move(value), *budget_)); }
  bool binary(binary_t&) override { return FailWith("binary data"); }
  bool start_object(std::size_t) override { return Open(); }
  bool start_array(std::size_t) override { return Open(); }
  bool key(string_t& name) override {
    open_.back().keys.push_back(MakeText(std::move(name), *budget_));
    return true;
  }
  bool end_array() override {
    std::vector<Value> items = std::move(open_.back().values);
    open_.pop_back();
    return Add(MakeSequence(SequenceKind::kList, std::move(items), *budget_));
  }
  bool end_object() override {
    Level level = std::move(open_.back());
    open_.pop_back();
    std::vector<std::pair<Value, Value>> entries;
    for (size_t i = 0; i < level.keys.size(); ++i) entries.emplace_back(level.keys[i], std::move(level.values[i]));
    return Add(MakeDict(std::move(entries), *budget_));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string_view reason = error.what();
    const size_t at = reason.rfind("; ");
    return FailWith("byte " + std::to_string(position) + ": " +
                    std::string(at != reason.npos ? reason.substr(at + 2) : reason));
  }

 private:
  struct Level {
    std::vector<Value> keys, values;
  };
  bool FailWith(std::string message) {
    message_ = std::move(message);
    return false;
  }
  bool Open() {
    if (open_.size() >= static_cast<size_t>(kMaxJsonDepth)) return FailWith("nested too deeply");
    open_.emplace_back();
    return true;
  }
  bool Add(Value value) {
    (open_.empty() ? result_ : open_.back().values.emplace_back()) = std::move(value);
    return true;
  }

  Budget* budget_;
  std::vector<Level> open_;
  Value result_;
  std::string message_;
};

void AppendQuoted(std::string_view text, bool ascii_only, std::string* output) {
  const auto append_unit = [&](unsigned unit) {
    char escaped[16];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", unit);
    *output += escaped;
  };
  *output += '"';
  for (char32_t c : DecodeUtf8(text)) {
    static constexpr std::u32string_view kSpecial = U"\"\\\b\f\n\r\t";
    if (const size_t place = kSpecial.find(c); place != kSpecial.npos) {
      *output += '\\';
      *output += "\"\\bfnrt"[place];
    } else if (c < 0x20 || (ascii_only && c >= 0x7F && c < 0x10000)) {
      append_unit(static_cast<unsigned>(c));
    } else if (ascii_only && c >= 0x10000) {
      append_unit(0xD800 + static_cast<unsigned>((c - 0x10000) >> 10));
      append_unit(0xDC00 + static_cast<unsigned>((c - 0x10000) & 0x3FF));
    } else {
      AppendUtf8(c, output);
    }
  }
  *output += '"';
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget* budget) : style_(style), budget_(budget) {}

  void Write(const Value& value) {
    budget_->Spend(1);
    if (const Sequence* sequence = value.sequence(); sequence != nullptr && sequence->kind <= SequenceKind::kTuple) {
      Open('[');
      for (size_t i = 0; i < sequence->items.size(); ++i) {
        StartItem(i);
        Write(sequence->items[i]);
      }
      Close(']', sequence->items.size());
    } else if (const Dict* dict = value.dict()) {
      WriteDict(*dict);
    } else {
      WriteScalar(value);
    }
  }
  std::string output;

 private:
  void WriteScalar(const Value& value) {
    const size_t size = output.size();
    if (const std::string* text = value.text()) {
      AppendQuoted(*text, style_.ascii_only, &output);
    } else if (value.Is<None>()) {
      output += "null";
    } else if (const bool* flag = value.If<bool>()) {
      output += *flag ? "true" : "false";
    } else if (const double* number = value.If<double>(); number != nullptr && !std::isfinite(*number)) {
      output += std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity";
    } else if (number != nullptr || value.Is<int64_t>()) {
      output += Repr(value, *budget_);
    } else {
      if (const Undefined* undefined = value.If<Undefined>()) FailUndefined(*undefined);
      Fail("a value of type '" + std::string(TypeName(value)) + "' has no JSON form");
    }
    budget_->SpendBytes(output.size() - size);
  }

  void WriteDict(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [this](const auto* a, const auto* b) { return Less(a->first, b->first, *budget_); });
    }
    Open('{');
    for (size_t i = 0; i < entries.size(); ++i) {
      StartItem(i);
      const Value& key = entries[i]->first;
      if (key.sequence() != nullptr || key.Is<Undefined>()) Fail("a key of JSON must be a text or a number");
      if (key.text() == nullptr) output += '"';
      WriteScalar(key);
      if (key.text() == nullptr) output += '"';
      output += style_.key_separator;
      Write(entries[i]->second);
    }
    Close('}', entries.size());
  }

  void Open(char bracket) {
    output += bracket;
    ++level_;
  }
  void StartItem(size_t index) {
    if (index > 0) output += style_.item_separator;
    NewLine();
  }
  void Close(char bracket, size_t size) {
    --level_;
    if (size > 0) NewLine();
    output += bracket;
  }
  void NewLine() {
    if (!style_.indent.has_value()) return;
    budget_->SpendBytes(style_.indent->size() * static_cast<size_t>(level_));
    output += '\n';
    for (int i = 0; i < level_; ++i) output += *style_.indent;
  }

  const JsonStyle& style_;
  Budget* budget_;
  int level_ = 0;
};

}  // namespace

Result<Value> ParseJson(std::string_view text) {
  // Its size bounds the work, so the limits of a rendering do not apply.
  Limits limits;
  limits.max_steps = limits.max_bytes = std::numeric_limits<int64_t>::max() / 2;
  Budget budget(limits);
  ValueBuilder builder(&budget);
  try {
    if (nlohmann::json::sax_parse(text, &builder)) return builder.result();
  } catch (const Error& error) {
    return Status(error.code, error.message);
  }
  return Status(StatusCode::kInvalidArgument, builder.message());
}

std::string DumpJson(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, &budget);
  writer.Write(value);
  return std::move(writer.output);
}

}  // namespace oscar::engine::jinja
