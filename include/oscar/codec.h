// Codecs: a storage layout each, and the methods that use it. The list is src/kv/codec/registry.cc.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "oscar/result.h"

namespace oscar {

struct CodecInfo {
  std::string_view name;         // "int2"
  double bits = 0;               // payload bits per element, mean of K and V; 16 for bf16 and f16
  int encode_tokens = 64;        // tokens encoded together: one page, or two (128)
  // Bytes of one (64-token page, KV head), K and V. nullptr for bf16, whose rows stay in BF16 pages, and f16, which has no pages.
  std::size_t (*page_bytes)(int head_dim) = nullptr;
  std::span<const std::string_view> methods;  // "naive", "oscar", ...; empty when the codec has one method
};

// A --kv argument taken apart: codec and method ("int2:oscar"; "bf16" has no method).
struct KvMethod {
  const CodecInfo* codec = nullptr;
  std::string method;
  std::string name() const { return method.empty() ? std::string(codec->name) : std::string(codec->name) + ":" + method; }
  bool is_exact() const { return codec->page_bytes == nullptr; }
};

std::span<const CodecInfo> ListCodecs();
const CodecInfo* FindCodec(std::string_view name);
// Also takes the names that other projects give to the same method (turboquant_3bit_nc). kInvalidArgument naming the text and
// listing what exists.
Result<KvMethod> ParseKvMethod(std::string_view text);

}  // namespace oscar
