// The answer to a completion call: events of its choices in, an OpenAI body or a stream of server-sent events out (serving.md 4, 5).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/engine/serve/completion_call.h"
#include "src/engine/serve/http_server.h"
#include "src/engine/serve/token_scores_json.h"

namespace oscar::engine {

class CompletionAnswer {
 public:
  // Who answers, and when: the members that all bodies and chunks repeat. created: seconds since 1970.
  struct Identity {
    std::string id, model;
    int64_t created = 0;
  };
  // fields: header fields of the answer, content type excluded. The tokenizer must outlive it.
  CompletionAnswer(const CompletionCall& call, const Tokenizer& tokenizer, Identity identity, HttpFields fields,
                   std::shared_ptr<HttpResponder> responder);
  // What the scheduler says of a choice. The first failure of any choice ends the answer: as an HTTP error while nothing was
  // sent, else as an error event.
  void Add(int choice, const GenerationEvent& event);
  // Ends the answer with an error, as above; later events are dropped.
  void Fail(const ApiError& error);

 private:
  struct Choice {
    explicit Choice(const Tokenizer& tokenizer) : scores(tokenizer) {}
    std::string text;
    std::vector<TokenScore> held_scores;  // of tokens whose text is held back (chat)
    std::vector<TokenScore> chat_scores;  // of tokens whose text was given out (chat)
    CompletionScores scores;              // text completions
    size_t sent_scores = 0;               // how many of either were streamed
    bool begun = false, ended = false;
    std::string finish_reason;
    int prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  };
  void FailLocked(const ApiError& error);
  void AddScores(Choice& choice, const GenerationEvent& event);
  void AddToStream(int index, Choice& choice, const std::string& text);
  // The scores of a choice that were not given out yet, or null when none are wanted.
  nlohmann::ordered_json NewScores(Choice& choice) const;
  void EndStream();
  void SendWhole();
  // One event of the stream with this choice, or with none when it is null.
  std::string StreamEvent(const nlohmann::ordered_json& choice, const nlohmann::ordered_json& usage) const;
  nlohmann::ordered_json Usage() const;

  const bool chat_, stream_, include_usage_, scored_;
  const std::vector<int32_t> echoed_;  // the prompt, with echo
  const Tokenizer& tokenizer_;
  const Identity identity_;
  const HttpFields fields_;
  std::mutex mutex_;
  std::shared_ptr<HttpResponder> responder_;  // null once the answer is complete
  std::vector<Choice> choices_;
  bool head_sent_ = false;
};

}  // namespace oscar::engine
