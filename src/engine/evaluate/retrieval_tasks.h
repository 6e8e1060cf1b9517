// Retrieval tasks in the forms of RULER (arXiv 2404.06654): needles in a haystack (single, several keys, several values, several
// queries), variable tracking, common and frequent words, questions over documents. The wording is ours; the forms, counts and
// scores are the paper's (its tables 1 and 2, appendix B), so figures compare between KV methods, not with published ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"

namespace oscar::engine {

enum class RetrievalTask : uint8_t {
  kNiahSingle1,    // a number in repeated sentences
  kNiahSingle2,    // a number in prose
  kNiahSingle3,    // a UUID in prose
  kNiahMultikey1,  // four keys in prose, one asked for
  kNiahMultikey2,  // nothing but keys with numbers
  kNiahMultikey3,  // nothing but keys with values, both UUIDs
  kNiahMultivalue, // one key with four values
  kNiahMultiquery, // four keys asked for
  kVariableTracking,
  kCommonWords,
  kFrequentWords,
  kQuestions1,     // SQuAD layout, one document answers
  kQuestions2,     // HotpotQA layout, two documents answer together
};

// "niah_single_1", ..., "vt", "cwe", "fwe", "qa_1", "qa_2": RULER's names.
std::string_view RetrievalTaskName(RetrievalTask task);
std::span<const RetrievalTask> RetrievalTasks();
// kInvalidArgument naming the text and listing what exists.
Result<RetrievalTask> ParseRetrievalTask(std::string_view text);

// Documents and questions of a QA file.
struct QuestionSet {
  struct Question {
    std::string question;
    std::vector<std::string> answers;  // any one counts
    std::vector<int> documents;        // what answers it, indices into `documents`
  };
  std::vector<std::string> documents;
  std::vector<Question> questions;
};
// SQuAD 2.0's JSON (data, paragraphs, context, qas; unanswerable questions are left out), or HotpotQA's (a list of question,
// answer, context as pairs of title and sentences). Errors name the file and the field: kNotFound, kIoError, kCorruptData.
Result<QuestionSet> ReadSquad(const std::filesystem::path& path);
Result<QuestionSet> ReadHotpotQa(const std::filesystem::path& path);

// What items are made from: sentences of prose, and the question sets if given.
struct RetrievalSources {
  std::vector<std::string> sentences;
  QuestionSet questions1, questions2;
};
// Sentences of a text: cut behind '.', '!' or '?' and a space, or at a blank line; white space inside becomes one space.
std::vector<std::string> SplitSentences(std::string_view text);

struct RetrievalItem {
  std::string prompt;                 // the user's message
  std::string answer_start;           // what the answer begins with, given to the model
  std::vector<std::string> expected;
  bool any = false;                   // one expected text is enough (QA); otherwise the score is the share of them
  int max_new_tokens = 128;
};

// The item of a seed with `size` units of filling (sentences, keys, words or documents, by task): the same seed asks for the same
// thing at every size. kFailedPrecondition when the task needs a source that is empty.
Result<RetrievalItem> MakeRetrievalItem(RetrievalTask task, const RetrievalSources& sources, uint64_t seed, int size);

// Share of the expected texts found in the answer, letter case aside; 0 or 1 with `any`.
double ScoreAnswer(const RetrievalItem& item, std::string_view answer);

}  // namespace oscar::engine
