#include "src/engine/evaluate/retrieval_tasks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/seeded_draw.h"

namespace oscar::engine {
namespace {

constexpr std::array<std::pair<RetrievalTask, std::string_view>, 13> kNames = {{
    {RetrievalTask::kNiahSingle1, "niah_single_1"},
    {RetrievalTask::kNiahSingle2, "niah_single_2"},
    {RetrievalTask::kNiahSingle3, "niah_single_3"},
    {RetrievalTask::kNiahMultikey1, "niah_multikey_1"},
    {RetrievalTask::kNiahMultikey2, "niah_multikey_2"},
    {RetrievalTask::kNiahMultikey3, "niah_multikey_3"},
    {RetrievalTask::kNiahMultivalue, "niah_multivalue"},
    {RetrievalTask::kNiahMultiquery, "niah_multiquery"},
    {RetrievalTask::kVariableTracking, "vt"},
    {RetrievalTask::kCommonWords, "cwe"},
    {RetrievalTask::kFrequentWords, "fwe"},
    {RetrievalTask::kQuestions1, "qa_1"},
    {RetrievalTask::kQuestions2, "qa_2"},
}};

constexpr std::string_view kNoise =
    "The river is wide and the road is long. Birds fly south before the snow. Morning comes, the lamps go out, and the day begins.";

std::string NewKey(SeededDraw& draw) {
  return draw.New([](SeededDraw& d) { return d.Key(); });
}
std::string NewNumber(SeededDraw& draw) {
  return draw.New([](SeededDraw& d) { return d.Digits(7); });
}
std::string NewUuid(SeededDraw& draw) {
  return draw.New([](SeededDraw& d) { return d.Uuid(); });
}

std::string Joined(const std::vector<std::string>& parts, std::string_view between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : std::string(between)) + part;
  return text;
}

// Fillers with the needles put between them, each at its own fraction of the length, drawn before the fillers.
std::string Hide(const std::vector<std::string>& fillers, const std::vector<std::string>& needles, const std::vector<double>& depths,
                 std::string_view between) {
  std::vector<std::pair<size_t, size_t>> places;  // (index of the filler behind it, needle)
  for (size_t i = 0; i < needles.size(); ++i) {
    places.emplace_back(static_cast<size_t>(depths[i] * static_cast<double>(fillers.size() + 1)), i);
  }
  std::sort(places.begin(), places.end());
  std::vector<std::string> parts;
  size_t next = 0;
  for (size_t i = 0; i <= fillers.size(); ++i) {
    while (next < places.size() && places[next].first == i) parts.push_back(needles[places[next++].second]);
    if (i < fillers.size()) parts.push_back(fillers[i]);
  }
  return Joined(parts, between);
}

std::vector<std::string> Prose(const RetrievalSources& sources, SeededDraw& draw, int size) {
  std::vector<std::string> fillers;
  const size_t count = sources.sentences.size();
  const size_t start = static_cast<size_t>(draw.Below(count));
  for (int i = 0; i < size; ++i) fillers.push_back(sources.sentences[(start + static_cast<size_t>(i)) % count]);
  return fillers;
}

struct NeedleForm {
  enum { kNoise, kProse, kNeedles } haystack = kProse;
  int num_keys = 1, num_values = 1, num_queries = 1;
  bool uuid_keys = false, uuid_values = false;
};

NeedleForm FormOf(RetrievalTask task) {
  switch (task) {
    case RetrievalTask::kNiahSingle1: return {.haystack = NeedleForm::kNoise};
    case RetrievalTask::kNiahSingle3: return {.uuid_values = true};
    case RetrievalTask::kNiahMultikey1: return {.num_keys = 4};
    case RetrievalTask::kNiahMultikey2: return {.haystack = NeedleForm::kNeedles};
    case RetrievalTask::kNiahMultikey3: return {.haystack = NeedleForm::kNeedles, .uuid_keys = true, .uuid_values = true};
    case RetrievalTask::kNiahMultivalue: return {.num_values = 4};
    case RetrievalTask::kNiahMultiquery: return {.num_keys = 4, .num_queries = 4};
    default: return {};
  }
}

RetrievalItem MakeNeedles(const NeedleForm& form, const RetrievalSources& sources, SeededDraw& draw, int size) {
  const std::string what = form.uuid_values ? "code" : "number";
  const auto new_key = form.uuid_keys ? NewUuid : NewKey;
  const auto new_value = form.uuid_values ? NewUuid : NewNumber;
  const auto sentence = [&](const std::string& key, const std::string& value) {
    return "One of the secret " + what + "s of " + key + " is " + value + ".";
  };
  RetrievalItem item;
  std::vector<std::string> needles, queries;
  std::vector<double> depths;
  for (int k = 0; k < form.num_keys; ++k) {
    const std::string key = new_key(draw);
    if (k < form.num_queries) queries.push_back(key);
    for (int v = 0; v < form.num_values; ++v) {
      const std::string value = new_value(draw);
      needles.push_back(sentence(key, value));
      depths.push_back(draw.Unit());
      if (k < form.num_queries) item.expected.push_back(value);
    }
  }
  std::vector<std::string> fillers;
  if (form.haystack == NeedleForm::kProse) fillers = Prose(sources, draw, size);
  if (form.haystack == NeedleForm::kNoise) fillers.assign(static_cast<size_t>(size), std::string(kNoise));
  if (form.haystack == NeedleForm::kNeedles) {
    // Two words have 625 keys; a digit behind them makes room for more.
    for (int i = 0; i < size; ++i) {
      const std::string key = form.uuid_keys ? NewUuid(draw) : draw.New([](SeededDraw& d) { return d.Key() + " " + d.Digits(3); });
      fillers.push_back(sentence(key, new_value(draw)));
    }
  }
  const std::string asked = Joined(queries, ", ");
  const bool one = item.expected.size() == 1;
  item.prompt = "Secret " + what + "s are hidden in the text below. Remember them; a question about them follows.\n\n" +
                Hide(fillers, needles, depths, form.haystack == NeedleForm::kProse ? " " : "\n") + "\n\nWhat " +
                (one ? "is the secret " + what : "are all the secret " + what + "s") + " of " + asked + " in the text?";
  item.answer_start = "The secret " + what + (one ? " of " : "s of ") + asked + " in the text " + (one ? "is" : "are");
  return item;
}

// One chain of five variables (RULER: 1 chain, 4 hops) in noise; every name on the chain has the value.
RetrievalItem MakeVariables(SeededDraw& draw, int size) {
  constexpr int kHops = 4;
  RetrievalItem item;
  const std::string value = draw.Digits(5);
  std::vector<std::string> needles;
  std::vector<double> depths;
  for (int i = 0; i <= kHops; ++i) {
    const std::string name = draw.New([](SeededDraw& d) { return d.Letters(5, 'A'); });
    needles.push_back("VAR " + name + " = " + (i == 0 ? value : "VAR " + item.expected.back()));
    item.expected.push_back(name);
    depths.push_back(draw.Unit());
  }
  std::sort(depths.begin(), depths.end());  // an assignment stands behind what it refers to
  const std::vector<std::string> fillers(static_cast<size_t>(size), std::string(kNoise));
  item.prompt = "Assignments of variables are hidden in the text below. Follow the chain of assignments.\n\n" +
                Hide(fillers, needles, depths, "\n") + "\n\nFind all variables that have the value " + value + " in the text above.";
  item.answer_start = "According to the chain of assignments, " + std::to_string(kHops + 1) + " variables have the value " + value +
                      ". They are:";
  item.max_new_tokens = 60;
  return item;
}

std::string NewWord(SeededDraw& draw) {
  return draw.New([](SeededDraw& d) {
    // Syllables, so that a word is a few tokens and can be said.
    std::string word;
    const int syllables = 2 + d.Below(2);
    for (int i = 0; i < syllables; ++i) word += {"bdfgklmnprstvz"[d.Below(14)], "aeiou"[d.Below(5)]};
    return word;
  });
}

std::string NumberedList(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : " ") + std::to_string(i + 1) + ". " + words[i];
  return text;
}

// Ten words 30 times each among others 3 times each (RULER's figures); `size` counts the others.
RetrievalItem MakeCommonWords(SeededDraw& draw, int size) {
  RetrievalItem item;
  std::vector<std::string> words;
  for (int i = 0; i < 10; ++i) {
    item.expected.push_back(NewWord(draw));
    words.insert(words.end(), 30, item.expected.back());
  }
  for (int i = 0; i < size; ++i) words.insert(words.end(), 3, NewWord(draw));
  draw.Shuffle(words);
  item.prompt = "Below is a numbered list of words. Some words stand in it much more often than the others.\n\n" + NumberedList(words) +
                "\n\nWhich 10 words are the most common in the list?";
  item.answer_start = "The 10 most common words in the list are:";
  item.max_new_tokens = 120;
  return item;
}

// Words with frequencies falling as rank^-2 (RULER's alpha of 2); the three most frequent are asked for. `size` counts words.
RetrievalItem MakeFrequentWords(SeededDraw& draw, int size) {
  RetrievalItem item;
  std::vector<std::string> vocabulary;
  for (int i = 0; i < 200; ++i) vocabulary.push_back(NewWord(draw));
  item.expected.assign(vocabulary.begin(), vocabulary.begin() + 3);
  double total = 0;
  for (int rank = 1; rank <= 200; ++rank) total += 1.0 / (rank * rank);
  std::vector<std::string> words;
  for (int rank = 1; rank <= 200 && static_cast<int>(words.size()) < size; ++rank) {
    const auto count = static_cast<size_t>(std::max(1.0, std::round(size / (total * rank * rank))));
    words.insert(words.end(), count, vocabulary[static_cast<size_t>(rank - 1)]);
  }
  draw.Shuffle(words);
  item.prompt = "Read the coded text below and count how often each word occurs.\n\n" + Joined(words, " ") +
                "\n\nWhat are the three most frequent words in the text above?";
  item.answer_start = "The three most frequent words are:";
  item.max_new_tokens = 50;
  return item;
}

RetrievalItem MakeQuestion(const QuestionSet& set, SeededDraw& draw, int size) {
  const QuestionSet::Question& question = set.questions[static_cast<size_t>(draw.Below(set.questions.size()))];
  std::vector<int> others;
  for (int i = 0; i < static_cast<int>(set.documents.size()); ++i) {
    if (std::find(question.documents.begin(), question.documents.end(), i) == question.documents.end()) others.push_back(i);
  }
  draw.Shuffle(others);
  others.resize(std::min(others.size(), static_cast<size_t>(size)));
  others.insert(others.end(), question.documents.begin(), question.documents.end());
  draw.Shuffle(others);
  std::string documents;
  for (size_t i = 0; i < others.size(); ++i) {
    documents += "Document " + std::to_string(i + 1) + ":\n" + set.documents[static_cast<size_t>(others[i])] + "\n\n";
  }
  RetrievalItem item;
  item.prompt = "Answer the question from the documents below. Give the answer alone, without other words.\n\n" + documents + "Question: " +
                question.question;
  item.answer_start = "Answer:";
  item.expected = question.answers;
  item.any = true;
  item.max_new_tokens = 32;
  return item;
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

}  // namespace

std::string_view RetrievalTaskName(RetrievalTask task) { return kNames[static_cast<size_t>(task)].second; }

std::span<const RetrievalTask> RetrievalTasks() {
  static constexpr auto kTasks = [] {
    std::array<RetrievalTask, kNames.size()> tasks{};
    for (size_t i = 0; i < kNames.size(); ++i) tasks[i] = kNames[i].first;
    return tasks;
  }();
  return kTasks;
}

Result<RetrievalTask> ParseRetrievalTask(std::string_view text) {
  std::string names;
  for (const auto& [task, name] : kNames) {
    if (name == text) return task;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return Status(StatusCode::kInvalidArgument, "no retrieval task \"" + std::string(text) + "\"; there are " + names);
}

std::vector<std::string> SplitSentences(std::string_view text) {
  std::vector<std::string> sentences;
  std::string current;
  int line_breaks = 0;
  const auto end = [&] {
    while (!current.empty() && current.back() == ' ') current.pop_back();
    if (!current.empty()) sentences.push_back(std::move(current));
    current.clear();
  };
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    line_breaks = c == '\n' ? line_breaks + 1 : space ? line_breaks : 0;
    if (!space) {
      current += c;
    } else if (line_breaks > 1 || (!current.empty() && std::string_view(".!?").find(current.back()) != std::string_view::npos)) {
      end();
    } else if (!current.empty() && current.back() != ' ') {
      current += ' ';
    }
  }
  end();
  return sentences;
}

Result<RetrievalItem> MakeRetrievalItem(RetrievalTask task, const RetrievalSources& sources, uint64_t seed, int size) {
  const auto missing = [&](const char* what) {
    return Status(StatusCode::kFailedPrecondition, std::string(RetrievalTaskName(task)) + " needs " + what);
  };
  SeededDraw draw(seed);
  switch (task) {
    case RetrievalTask::kVariableTracking: return MakeVariables(draw, size);
    case RetrievalTask::kCommonWords: return MakeCommonWords(draw, size);
    case RetrievalTask::kFrequentWords: return MakeFrequentWords(draw, size);
    case RetrievalTask::kQuestions1:
      if (sources.questions1.questions.empty()) return missing("a question file in SQuAD's layout (--squad FILE)");
      return MakeQuestion(sources.questions1, draw, size);
    case RetrievalTask::kQuestions2:
      if (sources.questions2.questions.empty()) return missing("a question file in HotpotQA's layout (--hotpotqa FILE)");
      return MakeQuestion(sources.questions2, draw, size);
    default: break;
  }
  const NeedleForm form = FormOf(task);
  if (form.haystack == NeedleForm::kProse && sources.sentences.empty()) return missing("a text with sentences (--text)");
  return MakeNeedles(form, sources, draw, size);
}

double ScoreAnswer(const RetrievalItem& item, std::string_view answer) {
  const std::string lower = LowerCase(answer);
  double found = 0;
  for (const std::string& expected : item.expected) found += lower.find(LowerCase(expected)) != std::string::npos;
  if (item.any) return found > 0 ? 1 : 0;
  return item.expected.empty() ? 0 : found / static_cast<double>(item.expected.size());
}

}  // namespace oscar::engine
