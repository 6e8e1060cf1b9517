// StopMatcher: ends a text before one of some stop strings, across the borders of the pieces it comes in. Text that may be the
// beginning of a stop string is held back until the next piece decides.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oscar::engine {

class StopMatcher {
 public:
  // Empty stop strings are left out: they would end every answer at once.
  // include: the stop string stays part of the text.
  explicit StopMatcher(std::vector<std::string> stops, bool include = false);
  // The part of the text so far that can be shown; after a match nothing more. Of several matches the one that is
  // complete first counts, however the text is cut into pieces; of those that end together the longest.
  std::string Push(std::string_view text);
  // What was held back, at the end of the text.
  std::string Finish();
  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }  // the stop string; empty before

 private:
  std::vector<std::string> stops_;
  const bool include_;
  std::string held_, matched_;
  bool stopped_ = false;
};

}  // namespace oscar::engine
