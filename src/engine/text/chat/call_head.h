// Where a tool call in a model's answer begins: the name of the function, up to where its arguments begin (answer_format.h has the formats).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "src/engine/text/chat/answer_format.h"

namespace oscar::engine {

enum class Scan { kFits, kNeedsMore, kBad };

struct CallHead {
  std::string name;
  size_t end = 0;        // behind it: where the arguments begin
  bool in_list = false;  // kMistral, kPythonic: it is one of a list, which began here unless `in_list` was true before
};

// `text` stands behind the marker, or, with in_list, behind the comma of a list of calls.
Scan ScanCallHead(ToolFormat format, std::string_view text, bool in_list, CallHead* head);

// A piece of text between two markers, perhaps with white space before the first: <parameter=KEY> has open "<parameter=" and close ">".
// An empty `open`: it begins at `at`. `at` goes behind it.
Scan ScanBetween(std::string_view text, std::string_view open, std::string_view close, size_t* at, std::string* between);

}  // namespace oscar::engine
