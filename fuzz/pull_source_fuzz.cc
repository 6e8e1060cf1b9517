// Sources, URLs and header values that `oscar pull` reads: whatever comes in, a file name that comes out is a plain name in
// the cache folder, and numbers are consistent.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "src/base/check.h"
#include "src/engine/hub/http_fields.h"
#include "src/engine/hub/pull_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oscar::engine;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto source = ParsePullSource(text, "https://hub.example");
  if (source.ok()) {
    const std::filesystem::path name(source->file_name);
    OSCAR_CHECK(name.filename() == name && !source->file_name.starts_with('.'));
    OSCAR_CHECK(source->file_name.find_first_of("/\\") == std::string::npos);
    OSCAR_CHECK(ParseOrigin(source->url).ok());
  }
  const size_t half = size / 2;
  const oscar::Status redirect = CheckRedirect(text.substr(0, half), text.substr(half));
  if (redirect.ok() && text.starts_with("https:")) {
    OSCAR_CHECK(ParseOrigin(text.substr(half))->scheme == "https");
  }
  if (const auto range = ParseContentRange(text)) {
    OSCAR_CHECK(range->first <= range->last && (!range->total || range->last < *range->total));
  }
  const std::string etag = StrongEtag(text);
  OSCAR_CHECK(etag.empty() || etag == text);
  OSCAR_CHECK(Sha256FromEtag(text).size() % 64 == 0);
  return 0;
}
