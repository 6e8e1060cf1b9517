// Bytes of four KV heads together, d channels each: 64 rows of K, then the 64 rows of V of each head.
//   K row  d bytes of 2-bit codes of the 4 d transformed channels in the order of the profile, then scale and offset fp16 of each group of 128
//   V row  d / 4 bytes of codes, scale fp16, offset fp16
// Quantiser: QuaRot's integer zero point (baselines.md 5.3) with range factor 0.8.
#include "src/kv/codec/rotatekv/rotatekv.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"
#include "src/kv/codec/code_groups.h"
#include "src/kv/profile/profile_fields.h"
#include "src/kv/transform/hadamard.h"

namespace oscar::rotatekv {
namespace {

constexpr int kBits = 2;
static_assert(kHeadsTogether == profile::kHeadsOfOrder);
constexpr std::size_t kGroup = 128, kMaxChannels = 512;

std::size_t KeyRowBytes(std::size_t d) { return d + 4 * (kHeadsTogether * d / kGroup); }
std::size_t ValueRowBytes(std::size_t d) { return codec::CodeBytes(kBits, d) + 4; }
std::size_t ValueRowStart(std::size_t head, std::size_t token, std::size_t d) {
  return kPageTokens * KeyRowBytes(d) + (head * kPageTokens + token) * ValueRowBytes(d);
}

// Codes of a group from bit position `first` of a string; the pair behind them at `metadata`.
bool EncodeGroup(const float* y, std::size_t count, std::size_t first, std::byte* string, std::byte* metadata) {
  const codec::GroupGrid grid = codec::EncodeIntegerZero({y, count, 1}, (1 << kBits) - 1, kRangeFactor,
                                                         [&](std::size_t i, unsigned code) { codec::PutCode(kBits, first + i, code, string); });
  codec::StoreF16(grid.scale_f16, metadata);
  codec::StoreF16(grid.offset_f16, metadata + 2);
  return grid.fits();
}

int EncodeKeys(std::size_t d, const float* rows, const kernels::UnitPages<std::byte>& unit) {
  const std::size_t channels = kHeadsTogether * d;
  std::array<float, kMaxChannels> y, ordered;
  for (std::size_t t = 0; t < kPageTokens; ++t) {
    for (std::size_t head = 0; head < kHeadsTogether; ++head) std::copy_n(rows + (head * kPageTokens + t) * d, d, y.data() + head * d);
    transform::ApplyHadamard(std::span(y).first(channels));
    for (std::size_t i = 0; i < channels; ++i) ordered[i] = y[unit.channel_order.empty() ? i : unit.channel_order[i]];
    std::byte* row = unit.pages[0] + t * KeyRowBytes(d);
    std::fill_n(row, d, std::byte{0});
    for (std::size_t first = 0; first < channels; first += kGroup) {
      if (!EncodeGroup(ordered.data() + first, kGroup, first, row, row + d + 4 * (first / kGroup))) return static_cast<int>(t);
    }
  }
  return -1;
}

int EncodeValues(std::size_t d, const float* rows, std::byte* pages) {
  for (std::size_t head = 0; head < kHeadsTogether; ++head) {
    for (std::size_t t = 0; t < kPageTokens; ++t) {
      std::byte* row = pages + ValueRowStart(head, t, d);
      std::fill_n(row, codec::CodeBytes(kBits, d), std::byte{0});
      if (!EncodeGroup(rows + (head * kPageTokens + t) * d, d, 0, row, row + codec::CodeBytes(kBits, d))) return static_cast<int>(t);
    }
  }
  return -1;
}

int Encode(KvSide side, int head_dim, const float* rows, const kernels::UnitPages<std::byte>& unit) {
  const auto d = static_cast<std::size_t>(head_dim);
  return side == KvSide::kKey ? EncodeKeys(d, rows, unit) : EncodeValues(d, rows, unit.pages[0]);
}

void ReadGroup(const std::byte* string, std::size_t first, std::size_t count, const std::byte* metadata, float* y) {
  const float scale = codec::LoadF16(metadata), offset = codec::LoadF16(metadata + 2);
  for (std::size_t i = 0; i < count; ++i) y[i] = offset + scale * static_cast<float>(codec::GetCode(kBits, first + i, string));
}

void ReadTile(KvSide side, int head_dim, const kernels::UnitPages<const std::byte>& unit, int token, float* rows) {
  const auto d = static_cast<std::size_t>(head_dim), head = static_cast<std::size_t>(unit.head);
  std::array<float, kMaxChannels> y, ordered;
  for (std::size_t j = 0; j < kernels::kRowTileTokens; ++j, rows += d) {
    const std::size_t t = static_cast<std::size_t>(token) + j;
    if (side == KvSide::kValue) {
      const std::byte* row = unit.pages[0] + ValueRowStart(head, t, d);
      ReadGroup(row, 0, d, row + codec::CodeBytes(kBits, d), rows);
      continue;
    }
    const std::byte* row = unit.pages[0] + t * KeyRowBytes(d);
    for (std::size_t first = 0; first < kHeadsTogether * d; first += kGroup) {
      ReadGroup(row, first, kGroup, row + d + 4 * (first / kGroup), ordered.data() + first);
    }
    for (std::size_t i = 0; i < kHeadsTogether * d; ++i) y[unit.channel_order.empty() ? i : unit.channel_order[i]] = ordered[i];
    transform::ApplyHadamard(std::span(y).first(kHeadsTogether * d));  // its own inverse
    std::copy_n(y.data() + head * d, d, rows);
  }
}

constexpr kernels::RowCodec kCodec{
    .heads_together = kHeadsTogether, .turns_keys_back = true, .rounds_rows = false, .encode = Encode, .read_tile = ReadTile};

}  // namespace

std::size_t PageBytes(int head_dim) {
  const auto d = static_cast<std::size_t>(head_dim);
  return kPageTokens * (KeyRowBytes(d) / kHeadsTogether + ValueRowBytes(d));
}
const kernels::RowCodec& Codec() { return kCodec; }

Status CheckShape(const std::string& method, const KvShape& shape, const RotaryEmbedding& rotary) {
  const auto unsupported = [&](const std::string& why) { return Status(StatusCode::kUnsupported, method + " " + why); };
  if (shape.num_kv_heads % kHeadsTogether != 0) {
    return unsupported("rotates four KV heads together; the model has " + std::to_string(shape.num_kv_heads));
  }
  if (shape.head_dim != 64 && shape.head_dim != 128) {
    return unsupported("is implemented for head dimensions 64 and 128, not " + std::to_string(shape.head_dim));
  }
  if (rotary.angles.empty()) return unsupported("needs the rotary embedding of the model");
  return {};
}

Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape, const RotaryEmbedding& rotary) {
  OSCAR_TRY(CheckShape(method.name(), shape, rotary));
  if (method.codec->name == "rotatekv") {
    return Status(StatusCode::kFailedPrecondition, "rotatekv is a calibrated method and needs a profile file; rotatekv_unordered needs none");
  }
  return MakeProfileWithOrders(method.name(), shape, rotary, {}, Provenance{});
}

Result<CodecProfile> MakeProfileWithOrders(const std::string& method, const KvShape& shape, const RotaryEmbedding& rotary,
                                           std::vector<std::vector<uint16_t>> orders, Provenance provenance) {
  OSCAR_TRY(CheckShape(method, shape, rotary));
  OSCAR_ASSIGN_OR_RETURN(KvTransform hadamard, KvTransform::Hadamard(shape.head_dim));
  std::vector<KvTransform> transforms;
  transforms.push_back(KvTransform::Identity(shape.head_dim));
  transforms.push_back(std::move(hadamard));
  std::vector<CodecProfile::Row> rows(static_cast<std::size_t>(shape.num_layers) * static_cast<std::size_t>(shape.num_kv_heads) * 2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].transform = static_cast<int>(i % 2);
    if (i % 2 == 1) continue;
    // A profile holds a rotary embedding for means that turn; this one is zero.
    rows[i].mean.assign(static_cast<std::size_t>(shape.head_dim), 0.0f);
    rows[i].mean_kind = MeanKind::kRotating;
    if (!orders.empty() && i / 2 % kHeadsTogether == 0) rows[i].channel_order = std::move(orders[i / 2 / kHeadsTogether]);
  }
  return CodecProfile::Create(method, shape, std::move(transforms), std::move(rows), std::move(provenance), rotary);
}

Status CheckRow(const RowProfile& row) {
  const bool zero_mean = std::all_of(row.mean.begin(), row.mean.end(), [](float value) { return value == 0.0f; });
  // Keys carry the mean, values none; the transforms are those of MakeProfile, the same for all heads.
  const bool fits = row.transform->kind() == (row.mean.empty() ? TransformKind::kHadamard : TransformKind::kIdentity) &&
                    (row.transform->head_dim() == 64 || row.transform->head_dim() == 128);
  if (row.encoder == EncoderKind::kMinMax && row.clip_ratio <= 0.0f && row.range_factor == 1.0f && zero_mean && fits) return {};
  return {StatusCode::kUnsupported, "rotatekv has its own quantiser, no clip and no mean"};
}

}  // namespace oscar::rotatekv
