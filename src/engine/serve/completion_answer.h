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

namespace oscar::engine {

class CompletionAnswer {
 public:
  // fields: header fields of the answer, content type excluded. created: seconds since 1970.
  CompletionAnswer(const CompletionCall& call, std::string id, std::string model, int64_t created, HttpFields fields,
                   std::shared_ptr<HttpResponder> responder);
  // What the scheduler says of a choice. The first failure of any choice ends the answer: as an HTTP error while nothing was
  // sent, else as an error event.
  void Add(int choice, const GenerationEvent& event);
  // Ends the answer with an error, as above; later events are dropped.
  void Fail(const ApiError& error);

 private:
  struct Choice {
    std::string text;
    bool begun = false, ended = false;
    std::string finish_reason;
    int prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  };
  void FailLocked(const ApiError& error);
  void AddToStream(int index, Choice& choice, const GenerationEvent& event);
  void EndStream();
  void SendWhole();
  // One event of the stream with this choice, or with none when it is null.
  std::string StreamEvent(const nlohmann::ordered_json& choice, const nlohmann::ordered_json& usage) const;
  nlohmann::ordered_json Usage() const;

  const bool chat_, stream_, include_usage_;
  const std::string id_, model_;
  const int64_t created_;
  const HttpFields fields_;
  std::mutex mutex_;
  std::shared_ptr<HttpResponder> responder_;  // null once the answer is complete
  std::vector<Choice> choices_;
  bool head_sent_ = false;
};

}  // namespace oscar::engine
