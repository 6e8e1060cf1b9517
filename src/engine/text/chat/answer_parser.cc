#include "src/engine/text/chat/answer_parser.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/engine/text/chat/call_head.h"
#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>", kCallEnd = "</tool_call>", kSpace = " \n\r\t";
constexpr size_t kLongestKey = 256;

// Length of the longest suffix of `text` that is a proper prefix of `marker`.
size_t PartialMatch(std::string_view text, std::string_view marker) {
  for (size_t length = std::min(text.size(), marker.size() - 1); length > 0; --length) {
    if (text.ends_with(marker.substr(0, length))) return length;
  }
  return 0;
}

size_t SkipSpace(std::string_view text, size_t from) { return std::min(text.find_first_not_of(kSpace, from), text.size()); }

std::string JsonString(const std::string& text) { return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

size_t FindWordEnd(std::string_view text, size_t from) {
  while (from < text.size() && std::isalpha(static_cast<unsigned char>(text[from]))) ++from;
  return from;
}

// What Python's words for JSON's are there.
std::string JsonWord(const std::string& word) { return word == "True" ? "true" : word == "False" ? "false" : word == "None" ? "null" : word; }

// A value as it stands between two markers: one line end on each side belongs to the markers.
std::string WithoutLineEnds(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text);
}

// What stands around a parameter. open_value is empty where the value begins behind close_key.
struct ParameterMarkers {
  std::string_view open_key, close_key, open_value, close_value, close_call;
};

ParameterMarkers MarkersOf(ToolFormat format) {
  if (format == ToolFormat::kQwenCoder) return {"<parameter=", ">", "", "</parameter>", "</function>"};
  return {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", kCallEnd};
}

}  // namespace

AnswerParser::AnswerParser(const Options& options)
    : options_(options), state_(options.reasoning_open ? State::kReasoning : options.reasoning || options.tools ? State::kStart : State::kText) {}

void AnswerParser::Add(AnswerPart::Kind kind, std::string text, std::vector<AnswerPart>* parts) {
  if (text.empty() && kind != AnswerPart::Kind::kCall) return;
  if (kind == AnswerPart::Kind::kContent) any_content_ = any_content_ || text.find_first_not_of(kSpace) != std::string::npos;
  if (!parts->empty() && parts->back().kind == kind && kind != AnswerPart::Kind::kCall) {
    parts->back().text += text;
  } else {
    parts->push_back({kind, std::move(text), std::max(0, num_calls_ - 1)});
  }
}

std::vector<AnswerPart> AnswerParser::Push(std::string_view text) {
  held_ += text;
  std::vector<AnswerPart> parts;
  while (Step(&parts)) {
  }
  return parts;
}

bool AnswerParser::Step(std::vector<AnswerPart>* parts) {
  switch (state_) {
    case State::kStart: return StepStart();
    case State::kReasoning: return StepReasoning(parts);
    case State::kBehindReasoning:
      held_.erase(0, SkipSpace(held_, 0));
      if (held_.empty()) return false;
      state_ = State::kText;
      return true;
    case State::kText: return StepText(parts);
    case State::kHead: return StepHead(parts);
    case State::kArguments: return StepArguments(parts);
    case State::kParameters: return StepParameters(parts);
    case State::kKeywords: return StepKeywords(parts);
    case State::kValue: return StepValue(parts);
    case State::kTail: return StepTail(parts);
  }
  return false;
}

// Until something other than white space tells whether reasoning or a call without a marker begins.
bool AnswerParser::StepStart() {
  const size_t first = SkipSpace(held_, 0);
  const std::string_view begin = std::string_view(held_).substr(first);
  if (begin.empty()) return false;
  if (options_.reasoning && begin.starts_with(kThink)) {
    held_.erase(0, first + kThink.size());
    state_ = State::kReasoning;
    return true;
  }
  if (options_.reasoning && kThink.starts_with(begin)) return false;
  state_ = State::kText;
  return true;
}

bool AnswerParser::StepReasoning(std::vector<AnswerPart>* parts) {
  if (const size_t end = held_.find(kThinkEnd); end != std::string::npos) {
    Add(AnswerPart::Kind::kReasoning, held_.substr(0, end), parts);
    held_.erase(0, end + kThinkEnd.size());
    state_ = State::kBehindReasoning;
    return true;
  }
  const size_t shown = held_.size() - PartialMatch(held_, kThinkEnd);
  Add(AnswerPart::Kind::kReasoning, held_.substr(0, shown), parts);
  held_.erase(0, shown);
  return false;
}

bool AnswerParser::StepText(std::vector<AnswerPart>* parts) {
  if (!options_.tools) {
    Add(AnswerPart::Kind::kContent, std::exchange(held_, {}), parts);
    return false;
  }
  if (const char begin = options_.format == ToolFormat::kLlama3 ? '{' : options_.format == ToolFormat::kPythonic ? '[' : '\0'; begin != '\0') {
    const size_t first = SkipSpace(held_, 0);
    if (first == held_.size()) return false;
    if (!any_content_ && num_calls_ == 0 && !bad_call_ && held_[first] == begin) {
      held_.erase(0, first);
      state_ = State::kHead;
      return true;
    }
    Add(AnswerPart::Kind::kContent, std::exchange(held_, {}), parts);
    return false;
  }
  const std::string_view marker = CallMarker(options_.format);
  size_t shown = held_.find(marker);
  const bool found = shown != std::string::npos;
  if (!found) shown = held_.size() - PartialMatch(held_, marker);
  // White space around calls belongs to them.
  const size_t last = held_.find_last_not_of(kSpace, shown == 0 ? 0 : shown - 1);
  const size_t end = shown == 0 || last == std::string::npos || last >= shown ? 0 : last + 1;
  std::string text = held_.substr(0, end);
  if (num_calls_ > 0 && !any_content_) text.erase(0, SkipSpace(text, 0));
  Add(AnswerPart::Kind::kContent, std::move(text), parts);
  held_.erase(0, end);
  if (found) state_ = State::kHead;
  return found;
}

// What was held for a call is content: the first `marker` bytes now, since what stands behind them may still hold a call.
bool AnswerParser::IsBad(size_t marker, std::vector<AnswerPart>* parts) {
  bad_call_ = true;
  in_list_ = false;
  Add(AnswerPart::Kind::kContent, held_.substr(0, std::max<size_t>(1, marker)), parts);
  held_.erase(0, std::max<size_t>(1, marker));
  state_ = State::kText;
  return true;
}

// held_ begins with the marker, perhaps behind white space, with what is the whole answer or with the next call of a list.
bool AnswerParser::StepHead(std::vector<AnswerPart>* parts) {
  const std::string_view marker = CallMarker(options_.format);
  const size_t begin = marker.empty() || in_list_ ? 0 : held_.find(marker) + marker.size();
  CallHead head;
  const Scan scan = ScanCallHead(options_.format, std::string_view(held_).substr(begin), in_list_, &head);
  if (scan == Scan::kNeedsMore) return false;
  if (scan == Scan::kBad) return IsBad(begin, parts);
  held_.erase(0, begin + head.end);
  ++num_calls_;
  in_list_ = head.in_list;
  name_ = head.name;
  num_parameters_ = 0;
  scanned_ = 0;
  Add(AnswerPart::Kind::kCall, std::move(head.name), parts);
  nesting_ = 0;
  in_string_ = escaped_ = false;
  switch (options_.format) {
    case ToolFormat::kQwenCoder:
    case ToolFormat::kGlm: state_ = State::kParameters; break;
    case ToolFormat::kPythonic: state_ = State::kKeywords; break;
    default: state_ = State::kArguments;
  }
  return true;
}

bool AnswerParser::StepArguments(std::vector<AnswerPart>* parts) {
  for (size_t i = 0; i < held_.size(); ++i) {
    const char c = held_[i];
    if (in_string_) {
      in_string_ = c != '"' || escaped_;
      escaped_ = c == '\\' && !escaped_;
      continue;
    }
    in_string_ = c == '"';
    nesting_ += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (nesting_ > 0) continue;
    Add(AnswerPart::Kind::kArguments, held_.substr(0, i + 1), parts);
    held_.erase(0, i + 1);
    state_ = State::kTail;
    if (options_.format == ToolFormat::kLlama3) ++num_complete_;
    return true;
  }
  Add(AnswerPart::Kind::kArguments, std::exchange(held_, {}), parts);
  return false;
}

bool AnswerParser::TakesText(const std::string& key) const {
  if (options_.text_parameters == nullptr) return false;
  const auto found = options_.text_parameters->find(name_);
  return found != options_.text_parameters->end() && found->second.contains(key);
}

void AnswerParser::AddParameter(const std::string& key, const std::string& value, std::vector<AnswerPart>* parts) {
  const std::string told = !TakesText(key) && io::ParseJson(value).ok() ? value : JsonString(value);
  Add(AnswerPart::Kind::kArguments, (num_parameters_++ == 0 ? "{" : ", ") + JsonString(key) + ": " + told, parts);
}

void AnswerParser::EndParameters(std::vector<AnswerPart>* parts) { Add(AnswerPart::Kind::kArguments, num_parameters_ == 0 ? "{}" : "}", parts); }

// An answer that ends within a value: as much of it as there is, as the beginning of a text or as it stands.
void AnswerParser::AddCutParameter(std::vector<AnswerPart>* parts) {
  const ParameterMarkers markers = MarkersOf(options_.format);
  size_t at = 0;
  std::string key;
  if (ScanBetween(held_, markers.open_key, markers.close_key, &at, &key) != Scan::kFits) return;
  const size_t open = held_.find(markers.open_value, at);
  if (open == std::string::npos) return;
  const std::string value = held_.substr(open + markers.open_value.size());
  const std::string told = TakesText(key) ? JsonString(value.starts_with('\n') ? value.substr(1) : value) : value;
  Add(AnswerPart::Kind::kArguments, (num_parameters_ == 0 ? "{" : ", ") + JsonString(key) + ": " + (TakesText(key) ? told.substr(0, told.size() - 1) : told), parts);
}

// Parameters between markers, one at a time: what stands in them is known at their end.
bool AnswerParser::StepParameters(std::vector<AnswerPart>* parts) {
  const ParameterMarkers markers = MarkersOf(options_.format);
  const size_t first = SkipSpace(held_, 0);
  const std::string_view rest = std::string_view(held_).substr(first);
  if (rest.starts_with(markers.close_call)) {
    EndParameters(parts);
    held_.erase(0, first + (markers.close_call == kCallEnd ? 0 : markers.close_call.size()));
    state_ = State::kTail;
    return true;
  }
  if (markers.close_call.starts_with(rest) || markers.open_key.starts_with(rest)) return false;
  const bool begins = rest.starts_with(markers.open_key);
  const size_t end = begins ? held_.find(markers.close_value, scanned_) : 0;
  if (end == std::string::npos) {
    scanned_ = held_.size() - std::min(held_.size(), markers.close_value.size() - 1);
    return false;
  }
  // What comes behind has no part in it, so that it does not matter how much of that is here.
  const std::string_view parameter = std::string_view(held_).substr(0, begins ? end + markers.close_value.size() : 0);
  size_t at = 0;
  std::string key, value;
  if (ScanBetween(parameter, markers.open_key, markers.close_key, &at, &key) != Scan::kFits ||
      ScanBetween(parameter, markers.open_value, markers.close_value, &at, &value) != Scan::kFits) {
    EndParameters(parts);
    return IsBad(1, parts);
  }
  AddParameter(key, options_.format == ToolFormat::kQwenCoder ? WithoutLineEnds(value) : value, parts);
  held_.erase(0, at);
  scanned_ = 0;
  return true;
}

// KEY= of a parameter as Python has them, or the end of the call.
bool AnswerParser::StepKeywords(std::vector<AnswerPart>* parts) {
  const size_t first = SkipSpace(held_, held_.starts_with(',') && num_parameters_ > 0 ? 1 : 0);
  if (first == held_.size()) return false;
  const size_t end = std::min(held_.find_first_of("=(),[]{}\"", first), held_.size());
  if (held_[first] == ')') {
    EndParameters(parts);
    ++num_complete_;
    held_.erase(0, first + 1);
    state_ = State::kTail;
    return true;
  }
  if (end == held_.size() && end - first <= kLongestKey) return false;
  if (end == first || end - first > kLongestKey || held_[end] != '=') {
    EndParameters(parts);
    return IsBad(1, parts);
  }
  std::string key = held_.substr(first, end - first);
  key.erase(key.find_last_not_of(kSpace) + 1);
  Add(AnswerPart::Kind::kArguments, (num_parameters_++ == 0 ? "{" : ", ") + JsonString(key) + ": ", parts);
  held_.erase(0, end + 1);
  nesting_ = 0;
  state_ = State::kValue;
  return true;
}

// A value of a parameter as Python writes it, which is JSON but for three words: the grammar has texts in double quotes only.
bool AnswerParser::StepValue(std::vector<AnswerPart>* parts) {
  std::string told;
  size_t at = 0;
  bool ends = false;
  while (at < held_.size() && !ends) {
    const char c = held_[at];
    if (in_string_) {
      in_string_ = c != '"' || escaped_;
      escaped_ = c == '\\' && !escaped_;
    } else if (std::isalpha(static_cast<unsigned char>(c))) {
      const size_t end = FindWordEnd(held_, at);
      if (end == held_.size()) break;  // there may be more of it
      told += JsonWord(held_.substr(at, end - at));
      at = end;
      continue;
    } else {
      in_string_ = c == '"';
      ends = nesting_ == 0 && (c == ',' || c == ')' || c == ']' || c == '}');
      nesting_ += (c == '{' || c == '[') - (c == '}' || c == ']');
      if (ends) break;
    }
    told += c;
    ++at;
  }
  Add(AnswerPart::Kind::kArguments, std::move(told), parts);
  held_.erase(0, at);
  if (ends) state_ = State::kKeywords;
  return ends;
}

bool AnswerParser::StepTail(std::vector<AnswerPart>* parts) {
  if (options_.format == ToolFormat::kPythonic) {
    const size_t next = SkipSpace(held_, 0);
    if (next == held_.size()) return false;
    const char c = held_[next];
    held_.erase(0, next + (c == ',' || c == ']' ? 1 : 0));
    in_list_ = c == ',';
    state_ = in_list_ ? State::kHead : State::kText;
    return in_list_ || c == ']' || IsBad(1, parts);
  }
  if (options_.format == ToolFormat::kLlama3) {  // the end of the object, and of the answer
    held_.clear();
    return false;
  }
  if (in_list_) return StepListTail(parts);
  if (CallMarker(options_.format) == "[TOOL_CALLS]") {  // nothing closes it
    ++num_complete_;
    state_ = State::kText;
    return true;
  }
  const size_t end = held_.find(kCallEnd);
  if (end == std::string::npos) {
    held_.erase(0, held_.size() - PartialMatch(held_, kCallEnd));
    return false;
  }
  ++num_complete_;
  held_.erase(0, end + kCallEnd.size());
  state_ = State::kText;
  return true;
}

// Behind the arguments of a call in a list: further members of its object ("id"), its end, and then the next one or the list's end.
bool AnswerParser::StepListTail(std::vector<AnswerPart>* parts) {
  size_t at = 0;
  for (bool in_string = false, escaped = false; at < held_.size() && (in_string || held_[at] != '}'); ++at) {
    const char c = held_[at];
    const bool quote = c == '"' && !escaped;
    escaped = in_string && c == '\\' && !escaped;
    in_string = in_string != quote;
  }
  const size_t next = at < held_.size() ? SkipSpace(held_, at + 1) : held_.size();
  if (next == held_.size()) return false;
  ++num_complete_;
  const char c = held_[next];
  held_.erase(0, next + (c == ',' || c == ']' ? 1 : 0));
  if (c == ',') {
    state_ = State::kHead;
    return true;
  }
  in_list_ = false;
  state_ = State::kText;
  return c == ']' || IsBad(1, parts);
}

std::vector<AnswerPart> AnswerParser::Finish() {
  std::vector<AnswerPart> parts;
  if (state_ == State::kReasoning) {
    Add(AnswerPart::Kind::kReasoning, std::exchange(held_, {}), &parts);
  } else if (state_ == State::kText && num_calls_ > 0 && SkipSpace(held_, 0) == held_.size()) {
    held_.clear();
  } else if (state_ == State::kTail && in_list_) {
    if (held_.find('}') != std::string::npos) ++num_complete_;  // the list is not closed, the call is
  } else if (state_ == State::kParameters) {
    AddCutParameter(&parts);
  } else if (state_ == State::kValue) {
    Add(AnswerPart::Kind::kArguments, JsonWord(std::exchange(held_, {})), &parts);  // what was held is a word
  } else if (state_ != State::kTail && state_ != State::kArguments && state_ != State::kKeywords) {
    bad_call_ = bad_call_ || state_ == State::kHead;
    Add(AnswerPart::Kind::kContent, std::exchange(held_, {}), &parts);
  }
  return parts;
}

}  // namespace oscar::engine
