// The list of codecs: one entry each.
#include "src/kv/codec/registry.h"

#include <algorithm>
#include <string>

#include "src/kv/codec/affine/cpu.h"
#include "src/kv/codec/affine/layout.h"
#include "src/kv/codec/affine/methods.h"
#include "src/kv/codec/bf16/cpu.h"

namespace oscar {
namespace {

std::size_t Int2PageBytes(int head_dim) { return affine::PageLayout<2>::PageBytes(head_dim); }

constexpr CodecInfo kCodecs[] = {
    {.name = "bf16", .bits = 16},
    {.name = "int2", .bits = 2, .page_bytes = Int2PageBytes, .methods = affine::kInt2MethodNames},
};

std::string ListOfMethods(const CodecInfo& codec) {
  std::string list;
  for (std::string_view method : codec.methods) {
    list += (list.empty() ? "" : ", ") + std::string(codec.name) + ":" + std::string(method);
  }
  return list.empty() ? std::string(codec.name) : list;
}

std::string ListOfAll() {
  std::string list;
  for (const CodecInfo& codec : kCodecs) list += (list.empty() ? "" : ", ") + ListOfMethods(codec);
  return list;
}

}  // namespace

std::span<const CodecInfo> ListCodecs() { return kCodecs; }

const CodecInfo* FindCodec(std::string_view name) {
  for (const CodecInfo& codec : kCodecs) {
    if (codec.name == name) return &codec;
  }
  return nullptr;
}

const CodecKernelEntry* FindCpuKernels(const CodecInfo& codec) {
  static const CodecKernelEntry kInt2{&affine::Int2CpuKernels(), affine::CheckRowProfile};
  return codec.name == "int2" ? &kInt2 : nullptr;
}

const kernels::CodecKernels& Bf16CpuKernels() { return bf16::CpuKernels(); }

Result<KvMethod> ParseKvMethod(std::string_view text) {
  const auto invalid = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, "KV method \"" + std::string(text) + "\": " + why);
  };
  const size_t colon = text.find(':');
  const std::string_view codec_name = text.substr(0, colon);
  const CodecInfo* codec = FindCodec(codec_name);
  if (codec == nullptr) return invalid("no such codec; there are " + ListOfAll());
  KvMethod method{.codec = codec};
  if (codec->methods.empty()) {
    if (colon != std::string_view::npos) return invalid(std::string(codec->name) + " has no methods; write " + std::string(codec->name));
    return method;
  }
  if (colon == std::string_view::npos) return invalid("name a method too: " + ListOfMethods(*codec));
  method.method = text.substr(colon + 1);
  if (std::find(codec->methods.begin(), codec->methods.end(), method.method) == codec->methods.end()) {
    return invalid("no such method; there are " + ListOfMethods(*codec));
  }
  return method;
}

}  // namespace oscar
