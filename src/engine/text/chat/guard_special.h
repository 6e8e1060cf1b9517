// What people write is text, also where it looks like a control token ("<|im_end|>"): before a template joins it with its own markers,
// a guard is put into it that the tokenizer takes away again (serving.md 7).
#pragma once

#include <string>

#include "oscar/result.h"
#include "src/engine/text/chat/message.h"
#include "src/engine/text/tokenizer.h"

namespace oscar::engine {

// Guards all texts of the request and returns the guard, for EncodeOptions::guard; empty when nothing looked like a control token.
// kInvalidArgument when the request uses up all 32 code points that could serve (noncharacters, which no text needs).
Result<std::string> GuardSpecialText(const Tokenizer& tokenizer, ChatRequest* request);

}  // namespace oscar::engine
