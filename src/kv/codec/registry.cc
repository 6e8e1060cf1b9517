// The list of codecs: one entry each.
#include "src/kv/codec/registry.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "src/kv/codec/affine/cpu.h"
#include "src/kv/codec/affine/layout.h"
#include "src/kv/codec/affine/methods.h"
#include "src/kv/codec/affine/read_rows.h"
#include "src/kv/codec/bf16/cpu.h"
#include "src/kv/codec/kitty/kitty.h"
#include "src/kv/codec/kivi/kivi.h"
#include "src/kv/codec/q4_0/q4_0.h"
#include "src/kv/codec/q8_0/q8_0.h"
#include "src/kv/codec/rotatekv/rotatekv.h"
#include "src/kv/codec/row_kernels.h"
#include "src/kv/codec/saw_int4/saw_int4.h"
#include "src/kv/codec/turboquant/turboquant.h"

namespace oscar {
namespace {

template <int kBits>
std::size_t AffinePageBytes(int head_dim) {
  return affine::PageLayout<kBits>::PageBytes(head_dim);
}

template <int kBits>
Status CheckAffineRow(const RowProfile& row) {
  return affine::CheckRowProfile(row, kBits);
}

constexpr CodecInfo kCodecs[] = {
    {.name = "bf16", .bits = 16},
    {.name = "f16", .bits = 16},  // kept by the engine (ggml), not by liboscar's pages
    {.name = "int1", .bits = 1, .page_bytes = AffinePageBytes<1>, .methods = affine::kInt1MethodNames},
    {.name = "int2", .bits = 2, .page_bytes = AffinePageBytes<2>, .methods = affine::kInt2MethodNames},
    {.name = "int4", .bits = 4, .page_bytes = AffinePageBytes<4>, .methods = affine::kInt4MethodNames},
    // Compared methods (baselines.md), in plain C++.
    {.name = "q8_0", .bits = 8, .page_bytes = q8_0::PageBytes},
    {.name = "q4_0", .bits = 4, .page_bytes = q4_0::PageBytes},
    {.name = "saw_int4", .bits = 4, .page_bytes = saw_int4::PageBytes, .methods = saw_int4::kMethodNames},
    {.name = "turboquant3", .bits = 3, .page_bytes = turboquant::VllmPageBytes<3, 3>},
    {.name = "turboquant4", .bits = 4, .page_bytes = turboquant::VllmPageBytes<4, 4>},
    {.name = "turboquant3v4", .bits = 3.5, .page_bytes = turboquant::VllmPageBytes<3, 4>},
    {.name = "turboquant_mse2", .bits = 2, .page_bytes = turboquant::MsePageBytes<2>},
    {.name = "turboquant_mse3", .bits = 3, .page_bytes = turboquant::MsePageBytes<3>},
    {.name = "turboquant_mse4", .bits = 4, .page_bytes = turboquant::MsePageBytes<4>},
    {.name = "turboquant_product3", .bits = 3, .page_bytes = turboquant::ProductPageBytes},
    {.name = "kivi", .bits = 2, .page_bytes = kivi::PageBytes<64>},
    {.name = "kivi_g32", .bits = 2, .page_bytes = kivi::PageBytes<32>},
    {.name = "kivi_g128", .bits = 2, .encode_tokens = 128, .page_bytes = kivi::PageBytes<128>},
    // (2 + 2 / 8 + 2) / 2 and (2 + 2 / 4 + 2) / 2: every head dimension is a multiple of 8.
    {.name = "kitty", .bits = 2.125, .encode_tokens = 128, .page_bytes = kitty::PageBytes<kitty::Boost::kEighth>},
    {.name = "kitty_pro", .bits = 2.25, .encode_tokens = 128, .page_bytes = kitty::PageBytes<kitty::Boost::kQuarter>},
    {.name = "rotatekv", .bits = 2, .page_bytes = rotatekv::PageBytes},
    {.name = "rotatekv_unordered", .bits = 2, .page_bytes = rotatekv::PageBytes},
};

// What belongs to a compared method: its codec in plain C++, and its profile.
struct RowMethod {
  std::string_view name;
  const kernels::RowCodec& (*codec)();
  Result<CodecProfile> (*make_profile)(const KvMethod& method, const KvShape& shape, const RotaryEmbedding& rotary);
  Status (*check_row)(const RowProfile& row) = codec::CheckPlainRow;
};

template <auto kMakeProfile>
Result<CodecProfile> WithoutRotary(const KvMethod& method, const KvShape& shape, const RotaryEmbedding& /*rotary*/) {
  return kMakeProfile(method, shape);
}

constexpr RowMethod kRowMethods[] = {
    {"q8_0", q8_0::Codec, WithoutRotary<q8_0::MakeProfile>},
    {"q4_0", q4_0::Codec, WithoutRotary<q4_0::MakeProfile>},
    {"saw_int4", saw_int4::Codec, WithoutRotary<saw_int4::MakeProfile>},
    {"turboquant3", turboquant::VllmCodec<3, 3>, WithoutRotary<turboquant::MakeVllmProfile>},
    {"turboquant4", turboquant::VllmCodec<4, 4>, WithoutRotary<turboquant::MakeVllmProfile>},
    {"turboquant3v4", turboquant::VllmCodec<3, 4>, WithoutRotary<turboquant::MakeVllmProfile>},
    {"turboquant_mse2", turboquant::MseCodec<2>, WithoutRotary<turboquant::MakePaperProfile>},
    {"turboquant_mse3", turboquant::MseCodec<3>, WithoutRotary<turboquant::MakePaperProfile>},
    {"turboquant_mse4", turboquant::MseCodec<4>, WithoutRotary<turboquant::MakePaperProfile>},
    {"turboquant_product3", turboquant::ProductCodec, WithoutRotary<turboquant::MakePaperProfile>},
    {"kivi", kivi::Codec<64>, WithoutRotary<kivi::MakeProfile>},
    {"kivi_g32", kivi::Codec<32>, WithoutRotary<kivi::MakeProfile>},
    {"kivi_g128", kivi::Codec<128>, WithoutRotary<kivi::MakeProfile>},
    {"kitty", kitty::Codec<kitty::Boost::kEighth>, WithoutRotary<kitty::MakeProfile>},
    {"kitty_pro", kitty::Codec<kitty::Boost::kQuarter>, WithoutRotary<kitty::MakeProfile>},
    {"rotatekv", rotatekv::Codec, rotatekv::MakeProfile, rotatekv::CheckRow},
    {"rotatekv_unordered", rotatekv::Codec, rotatekv::MakeProfile, rotatekv::CheckRow},
};

struct RowMethodKernels {
  std::array<kernels::CodecKernels, std::size(kRowMethods)> kernels;
  std::array<CodecKernelEntry, std::size(kRowMethods)> entries;
  RowMethodKernels() {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      kernels[i] = codec::RowKernels(kRowMethods[i].codec());
      entries[i] = {&kernels[i], kRowMethods[i].check_row, kRowMethods[i].make_profile, nullptr};
    }
  }
};

// Names that other projects give to the same method (baselines.md 10.2).
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"turboquant_3bit_nc", "turboquant3"}, {"turboquant_4bit_nc", "turboquant4"}, {"turboquant_k3v4_nc", "turboquant3v4"}};

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
  static const CodecKernelEntry kInt1{&affine::Int1CpuKernels(), CheckAffineRow<1>, nullptr, affine::ReadRows<1>};
  static const CodecKernelEntry kInt2{&affine::Int2CpuKernels(), CheckAffineRow<2>, nullptr, affine::ReadRows<2>};
  static const CodecKernelEntry kInt4{&affine::Int4CpuKernels(), CheckAffineRow<4>, nullptr, affine::ReadRows<4>};
  if (codec.name == "int1") return &kInt1;
  if (codec.name == "int2") return &kInt2;
  if (codec.name == "int4") return &kInt4;
  static const RowMethodKernels kRowKernels;
  for (std::size_t i = 0; i < std::size(kRowMethods); ++i) {
    if (kRowMethods[i].name == codec.name) return &kRowKernels.entries[i];
  }
  return nullptr;
}

const kernels::CodecKernels& Bf16CpuKernels() { return bf16::CpuKernels(); }

Result<KvMethod> ParseKvMethod(std::string_view text) {
  const auto invalid = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, "KV method \"" + std::string(text) + "\": " + why);
  };
  const size_t colon = text.find(':');
  std::string_view codec_name = text.substr(0, colon);
  for (const auto& [alias, name] : kAliases) {
    if (codec_name == alias) codec_name = name;
  }
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
