// GET /: the chat page, with a policy that lets a browser run its own script and style and nothing else (serving.md 17).
#pragma once

#include <string>
#include <string_view>

#include "src/engine/serve/http_server.h"

namespace oscar::engine {

// Header fields for an HTML file with one <script> and one <style>: content type, and a Content-Security-Policy by their hashes.
HttpFields PageFields(std::string_view html);

}  // namespace oscar::engine
