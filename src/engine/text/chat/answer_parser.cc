#include "src/engine/text/chat/answer_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace oscar::engine {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>", kCall = "<tool_call>", kCallEnd = "</tool_call>", kSpace = " \n\r\t";

// Length of the longest suffix of `text` that is a proper prefix of `marker`.
size_t PartialMatch(std::string_view text, std::string_view marker) {
  for (size_t length = std::min(text.size(), marker.size() - 1); length > 0; --length) {
    if (text.ends_with(marker.substr(0, length))) return length;
  }
  return 0;
}

size_t SkipSpace(std::string_view text, size_t from) { return std::min(text.find_first_not_of(kSpace, from), text.size()); }

enum class Scan { kFits, kNeedsMore, kBad };

// {"name": "...", "arguments": up to the value. `end`: behind it.
Scan ScanHead(std::string_view text, std::string* name, size_t* end) {
  size_t at = 0;
  const auto take = [&](std::string_view token) {
    at = SkipSpace(text, at);
    const std::string_view there = text.substr(at, token.size());
    if (!token.starts_with(there)) return Scan::kBad;
    if (there.size() < token.size()) return Scan::kNeedsMore;
    at += token.size();
    return Scan::kFits;
  };
  for (const std::string_view token : {"{", "\"name\"", ":", "\""}) {
    if (const Scan scan = take(token); scan != Scan::kFits) return scan;
  }
  const size_t begin = at - 1;
  for (bool escaped = false;; ++at) {
    if (at >= text.size()) return Scan::kNeedsMore;
    if (text[at] == '"' && !escaped) break;
    escaped = text[at] == '\\' && !escaped;
  }
  const auto parsed = nlohmann::json::parse(text.substr(begin, ++at - begin), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_string()) return Scan::kBad;
  *name = parsed.get<std::string>();
  if (const Scan scan = take(","); scan != Scan::kFits) return scan;
  const size_t key = at;
  Scan scan = take("\"arguments\"");
  if (scan == Scan::kBad) {
    at = key;
    scan = take("\"parameters\"");
  }
  if (scan != Scan::kFits) return scan;
  if (scan = take(":"); scan != Scan::kFits) return scan;
  at = SkipSpace(text, at);
  if (at >= text.size()) return Scan::kNeedsMore;
  *end = at;
  return text[at] == '{' ? Scan::kFits : Scan::kBad;
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
    case State::kReasoning: {
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
    case State::kBehindReasoning:
      held_.erase(0, SkipSpace(held_, 0));
      if (held_.empty()) return false;
      state_ = State::kText;
      return true;
    case State::kText: return StepText(parts);
    case State::kHead: return StepHead(parts);
    case State::kArguments: return StepArguments(parts);
    case State::kTail: return StepTail();
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

bool AnswerParser::StepText(std::vector<AnswerPart>* parts) {
  if (!options_.tools) {
    Add(AnswerPart::Kind::kContent, std::exchange(held_, {}), parts);
    return false;
  }
  if (options_.format == ToolFormat::kLlama3) {
    const size_t first = SkipSpace(held_, 0);
    if (first == held_.size()) return false;
    if (!any_content_ && num_calls_ == 0 && !bad_call_ && held_[first] == '{') {
      held_.erase(0, first);
      state_ = State::kHead;
      return true;
    }
    Add(AnswerPart::Kind::kContent, std::exchange(held_, {}), parts);
    return false;
  }
  size_t shown = held_.find(kCall);
  const bool found = shown != std::string::npos;
  if (!found) shown = held_.size() - PartialMatch(held_, kCall);
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

// held_ begins with the marker, perhaps behind white space (kHermes), or the object (kLlama3).
bool AnswerParser::StepHead(std::vector<AnswerPart>* parts) {
  const size_t marker = options_.format == ToolFormat::kHermes ? held_.find(kCall) + kCall.size() : 0;
  std::string name;
  size_t end = 0;
  const Scan scan = ScanHead(std::string_view(held_).substr(marker), &name, &end);
  if (scan == Scan::kNeedsMore) return false;
  if (scan == Scan::kBad) {
    bad_call_ = true;
    // What stands behind the marker may still hold a call.
    Add(AnswerPart::Kind::kContent, held_.substr(0, std::max<size_t>(1, marker)), parts);
    held_.erase(0, std::max<size_t>(1, marker));
    state_ = State::kText;
    return true;
  }
  held_.erase(0, marker + end);
  ++num_calls_;
  Add(AnswerPart::Kind::kCall, std::move(name), parts);
  nesting_ = 0;
  in_string_ = escaped_ = false;
  state_ = State::kArguments;
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

bool AnswerParser::StepTail() {
  if (options_.format == ToolFormat::kLlama3) {  // the end of the object, and of the answer
    held_.clear();
    return false;
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

std::vector<AnswerPart> AnswerParser::Finish() {
  std::vector<AnswerPart> parts;
  if (state_ == State::kReasoning) {
    Add(AnswerPart::Kind::kReasoning, std::exchange(held_, {}), &parts);
  } else if (state_ == State::kText && num_calls_ > 0 && SkipSpace(held_, 0) == held_.size()) {
    held_.clear();
  } else if (state_ != State::kTail && state_ != State::kArguments) {
    bad_call_ = bad_call_ || state_ == State::kHead;
    Add(AnswerPart::Kind::kContent, std::exchange(held_, {}), &parts);
  }
  return parts;
}

}  // namespace oscar::engine
