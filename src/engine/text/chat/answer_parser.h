// AnswerParser: an answer's text, as it comes, into content, reasoning and tool calls. Linear in the text; however it is cut into pieces, the
// same parts come out. What is no call, or only the beginning of one, is content: nothing is lost.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/text/chat/answer_format.h"

namespace oscar::engine {

struct AnswerPart {
  enum class Kind { kContent, kReasoning, kCall, kArguments };
  Kind kind = Kind::kContent;
  std::string text;  // kCall: the name of the function; kArguments: more of its JSON text
  int call = 0;      // of the last two: which one, from 0 on
};

// Which parameters of which functions take a text, for formats that write a text as it is and all else as JSON.
using TextParameters = std::map<std::string, std::set<std::string, std::less<>>, std::less<>>;

class AnswerParser {
 public:
  struct Options {
    bool tools = false;             // look for calls, in the notation of `format`
    ToolFormat format = ToolFormat::kHermes;
    bool reasoning = false;         // the answer may begin with <think>
    bool reasoning_open = false;    // the prompt has written <think> already
    std::shared_ptr<const TextParameters> text_parameters = nullptr;  // kQwenCoder and kGlm; null: none is known to take a text
    bool call_ids = false;          // AnswerFormat
  };
  explicit AnswerParser(const Options& options);

  std::vector<AnswerPart> Push(std::string_view text);
  std::vector<AnswerPart> Finish();
  bool in_reasoning() const { return state_ == State::kReasoning; }
  int num_calls() const { return num_complete_; }  // complete ones
  bool found_bad_call() const { return bad_call_; }

 private:
  enum class State { kStart, kReasoning, kBehindReasoning, kText, kHead, kArguments, kParameters, kKeywords, kValue, kTail };
  // One transition; false when more text is needed.
  bool Step(std::vector<AnswerPart>* parts);
  bool StepStart();
  bool StepReasoning(std::vector<AnswerPart>* parts);
  bool StepText(std::vector<AnswerPart>* parts);
  bool StepHead(std::vector<AnswerPart>* parts);
  bool StepArguments(std::vector<AnswerPart>* parts);
  bool StepParameters(std::vector<AnswerPart>* parts);
  bool StepKeywords(std::vector<AnswerPart>* parts);
  bool StepValue(std::vector<AnswerPart>* parts);
  bool StepTail(std::vector<AnswerPart>* parts);
  bool StepListTail(std::vector<AnswerPart>* parts);
  bool IsBad(size_t marker, std::vector<AnswerPart>* parts);
  void AddParameter(const std::string& key, const std::string& value, std::vector<AnswerPart>* parts);
  void EndParameters(std::vector<AnswerPart>* parts);
  void AddCutParameter(std::vector<AnswerPart>* parts);
  bool TakesText(const std::string& key) const;
  void Add(AnswerPart::Kind kind, std::string text, std::vector<AnswerPart>* parts);

  const Options options_;
  State state_;
  std::string held_;         // not given out yet
  bool any_content_ = false; // more than white space was given out
  int num_calls_ = 0, num_complete_ = 0;
  int nesting_ = 0;          // of the arguments
  bool in_string_ = false, escaped_ = false;
  bool in_list_ = false;     // kMistral, kPythonic: inside of the list of calls
  std::string name_;         // of the call under way
  int num_parameters_ = 0;   // of it
  size_t scanned_ = 0;       // bytes of held_ in which no parameter ends
  bool bad_call_ = false;
};

}  // namespace oscar::engine
