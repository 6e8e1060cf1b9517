#include "src/engine/serve/chat_page.h"

#include "src/base/check.h"
#include "src/base/digest.h"

namespace oscar::engine {
namespace {

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](size_t at) { return at < bytes.size() ? static_cast<uint32_t>(static_cast<uint8_t>(bytes[at])) : 0; };
    const uint32_t group = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? kAlphabet[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

// What a browser hashes: the text between the tags.
std::string HashOf(std::string_view html, const std::string& element) {
  const size_t begin = html.find("<" + element + ">") + element.size() + 2, end = html.find("</" + element + ">");
  OSCAR_CHECK(begin < end && end != std::string_view::npos);
  base::Sha256 hash;
  hash.Update(html.substr(begin, end - begin));
  const base::Sha256Digest digest = hash.Finish();
  return "'sha256-" + Base64({reinterpret_cast<const char*>(digest.data()), digest.size()}) + "'";
}

}  // namespace

HttpFields PageFields(std::string_view html) {
  return {{"Content-Type", "text/html; charset=utf-8"},
          {"Referrer-Policy", "no-referrer"},
          {"Content-Security-Policy", "default-src 'none'; script-src " + HashOf(html, "script") + "; style-src " + HashOf(html, "style") +
                                          "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}};
}

}  // namespace oscar::engine
