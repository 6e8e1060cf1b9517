// Local question files in the published layouts of SQuAD 2.0 and HotpotQA.

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/retrieval_tasks.h"
#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

using nlohmann::json;

Status Malformed(const std::filesystem::path& path, const std::string& what) {
  return {StatusCode::kCorruptData, path.string() + ": " + what};
}

const json* Member(const json& object, const char* name, json::value_t type) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found != object.end() && found->type() == type ? &*found : nullptr;
}

Status AddSquadParagraph(const std::filesystem::path& path, const std::string& place, const json& paragraph, QuestionSet* set) {
  const json* context = Member(paragraph, "context", json::value_t::string);
  const json* questions = Member(paragraph, "qas", json::value_t::array);
  if (context == nullptr || questions == nullptr) return Malformed(path, place + " lacks \"context\" or \"qas\"");
  const int document = static_cast<int>(set->documents.size());
  set->documents.push_back(context->get<std::string>());
  for (const json& entry : *questions) {
    const json* question = Member(entry, "question", json::value_t::string);
    const json* answers = Member(entry, "answers", json::value_t::array);
    if (question == nullptr || answers == nullptr) return Malformed(path, place + ": a question lacks \"question\" or \"answers\"");
    QuestionSet::Question made{question->get<std::string>(), {}, {document}};
    for (const json& answer : *answers) {
      const json* text = Member(answer, "text", json::value_t::string);
      if (text == nullptr) return Malformed(path, place + ": an answer lacks \"text\"");
      made.answers.push_back(text->get<std::string>());
    }
    if (!made.answers.empty()) set->questions.push_back(std::move(made));
  }
  return {};
}

// Title and sentences as one document.
std::string HotpotDocument(const json& entry) {
  if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_array()) return "";
  std::string text = entry[0].get<std::string>() + "\n";
  for (const json& sentence : entry[1]) {
    if (!sentence.is_string()) return "";
    text += sentence.get<std::string>();
  }
  return text;
}

}  // namespace

Result<QuestionSet> ReadSquad(const std::filesystem::path& path) {
  OSCAR_ASSIGN_OR_RETURN(const json root, io::ReadJsonFile(path));
  const json* data = Member(root, "data", json::value_t::array);
  if (data == nullptr) return Malformed(path, "no array \"data\" (SQuAD layout)");
  QuestionSet set;
  for (size_t i = 0; i < data->size(); ++i) {
    const std::string place = "data[" + std::to_string(i) + "]";
    const json* paragraphs = Member((*data)[i], "paragraphs", json::value_t::array);
    if (paragraphs == nullptr) return Malformed(path, place + " lacks \"paragraphs\"");
    for (size_t j = 0; j < paragraphs->size(); ++j) {
      OSCAR_TRY(AddSquadParagraph(path, place + ".paragraphs[" + std::to_string(j) + "]", (*paragraphs)[j], &set));
    }
  }
  if (set.questions.empty()) return Malformed(path, "no question with an answer");
  return set;
}

Result<QuestionSet> ReadHotpotQa(const std::filesystem::path& path) {
  OSCAR_ASSIGN_OR_RETURN(const json root, io::ReadJsonFile(path));
  if (!root.is_array()) return Malformed(path, "not a list (HotpotQA layout)");
  QuestionSet set;
  std::map<std::string, int> known;
  for (size_t i = 0; i < root.size(); ++i) {
    const std::string place = "[" + std::to_string(i) + "]";
    const json* question = Member(root[i], "question", json::value_t::string);
    const json* answer = Member(root[i], "answer", json::value_t::string);
    const json* context = Member(root[i], "context", json::value_t::array);
    if (question == nullptr || answer == nullptr || context == nullptr) {
      return Malformed(path, place + " lacks \"question\", \"answer\" or \"context\"");
    }
    QuestionSet::Question made{question->get<std::string>(), {answer->get<std::string>()}, {}};
    for (const json& entry : *context) {
      const std::string text = HotpotDocument(entry);
      if (text.empty()) return Malformed(path, place + ".context: an entry is no pair of title and sentences");
      const auto [at, is_new] = known.emplace(text, static_cast<int>(set.documents.size()));
      if (is_new) set.documents.push_back(text);
      made.documents.push_back(at->second);
    }
    set.questions.push_back(std::move(made));
  }
  if (set.questions.empty()) return Malformed(path, "no question");
  return set;
}

}  // namespace oscar::engine
