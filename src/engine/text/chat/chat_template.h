// ChatTemplate: the Jinja template of a model, rendered by our own subset of Jinja (src/engine/text/jinja).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "oscar/result.h"
#include "src/engine/text/chat/message.h"

namespace oscar::engine {

class ChatTemplate {
 public:
  // kUnsupported or kCorruptData naming line and construct. bos and eos: the texts of those tokens, or empty.
  static Result<ChatTemplate> Create(std::string_view jinja_source, std::string bos, std::string eos);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // The prompt. kInvalidArgument with the text that the template raised (raise_exception) or the place of an error. Rendering
  // is bounded in steps and output size (kResourceExhausted).
  Result<std::string> Render(const ChatRequest& request) const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar::engine
