// What the user names on `oscar pull`, turned into a URL and the name of the file that it becomes. Nothing here touches the
// network or the disk.
#pragma once

#include <string>
#include <string_view>

#include "oscar/result.h"

namespace oscar::engine {

struct PullSource {
  std::string url;        // normalised http(s) URL
  std::string file_name;  // a plain name: no separators, not hidden, ends in .gguf, .safetensors or .json
};

// `source` is "hf:OWNER/REPO/PATH/FILE[@REVISION]", which becomes ENDPOINT/OWNER/REPO/resolve/REVISION/PATH/FILE (REVISION
// defaults to "main"; the last '@' separates it), or an http(s) URL, whose last path segment names the file.
// kInvalidArgument says which part is wrong: another scheme, user names in the URL, a name with separators, ".." or
// characters outside letters, digits and "._-+=,@", another extension, or a name of more than 200 characters.
Result<PullSource> ParsePullSource(std::string_view source, std::string_view hub_endpoint);

// What a redirect is judged by. `origin` is "scheme://host:port" with the port always given; `is_loopback` is true for
// localhost, 127.x.y.z and [::1].
struct UrlOrigin {
  std::string scheme;
  std::string origin;
  bool is_loopback = false;
};
// kInvalidArgument unless `url` is an absolute http or https URL without a user name.
Result<UrlOrigin> ParseOrigin(std::string_view url);

// May a server at `from` send us on to `to`? An https transfer stays https; nothing but http and https is followed.
Status CheckRedirect(std::string_view from, std::string_view to);

// The URL without query and fragment: what errors show and what a part file remembers, as queries may hold signatures.
std::string UrlWithoutQuery(std::string_view url);

}  // namespace oscar::engine
