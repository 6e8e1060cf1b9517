// Files that the program carries: chat_page.html and openapi.json of this folder.
#pragma once

#include <string_view>

namespace oscar::engine {

std::string_view ChatPage();
std::string_view OpenApiDescription();

}  // namespace oscar::engine
