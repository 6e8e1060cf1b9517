#include "src/kv/codec/affine/device_convert.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/kv/codec/affine/device_layout.h"

namespace oscar::affine {
namespace {

using device::CodePlace;
using device::kTokens;

// A side of a block: where its codes begin, and its pairs.
struct SidePlace {
  int bits, d;
  bool is_key;

  int Codes() const { return is_key ? 0 : device::SideBytes(bits, d); }
  int Pair(int token) const { return is_key ? device::KeyPairOffset(bits, d, token) : device::ValuePairOffset(bits, d, token); }
  CodePlace Code(int token, int dim, int plane) const {
    const CodePlace place = device::PlanePlace(bits, is_key, d, token, dim, plane);
    return {Codes() + place.byte, place.shift};
  }
  int PlaneMask() const { return (1 << device::PlaneBits(bits)) - 1; }
};

template <class Side>
void CheckSizes(int d, const Side& side) {
  OSCAR_CHECK(side.codes.size() == static_cast<size_t>(kTokens) * d);
  OSCAR_CHECK(side.scales.size() == kTokens && side.offsets.size() == kTokens);
}

void StoreSide(const SidePlace& place, const ConstPageSide& side, std::span<uint8_t> block) {
  CheckSizes(place.d, side);
  for (int token = 0; token < kTokens; ++token) {
    for (int dim = 0; dim < place.d; ++dim) {
      const int code = side.codes[static_cast<size_t>(token) * place.d + dim];
      OSCAR_DCHECK(code < 1 << place.bits);
      for (int plane = 0; plane < device::NumPlanes(place.bits); ++plane) {
        const CodePlace at = place.Code(token, dim, plane);
        const int part = (code >> (device::PlaneBits(place.bits) * plane)) & place.PlaneMask();
        block[at.byte] = static_cast<uint8_t>(block[at.byte] | (part << at.shift));
      }
    }
    std::memcpy(&block[place.Pair(token)], &side.scales[token], 2);
    std::memcpy(&block[place.Pair(token) + 2], &side.offsets[token], 2);
  }
}

void LoadSide(const SidePlace& place, std::span<const uint8_t> block, const PageSide& side) {
  CheckSizes(place.d, side);
  for (int token = 0; token < kTokens; ++token) {
    for (int dim = 0; dim < place.d; ++dim) {
      int code = 0;
      for (int plane = 0; plane < device::NumPlanes(place.bits); ++plane) {
        const CodePlace at = place.Code(token, dim, plane);
        code |= ((block[at.byte] >> at.shift) & place.PlaneMask()) << (device::PlaneBits(place.bits) * plane);
      }
      side.codes[static_cast<size_t>(token) * place.d + dim] = static_cast<uint8_t>(code);
    }
    std::memcpy(&side.scales[token], &block[place.Pair(token)], 2);
    std::memcpy(&side.offsets[token], &block[place.Pair(token) + 2], 2);
  }
}

}  // namespace

void DeviceBlockFromRows(int d, const ConstPageSide& key, const ConstPageSide& value, std::span<uint8_t> block, int bits) {
  OSCAR_CHECK(device::IsHeadDim(d) && device::IsBits(bits));
  OSCAR_CHECK(block.size() == static_cast<size_t>(device::BlockBytes(bits, d)));
  std::fill(block.begin(), block.end(), uint8_t{0});
  StoreSide({bits, d, true}, key, block);
  StoreSide({bits, d, false}, value, block);
}

void RowsFromDeviceBlock(int d, std::span<const uint8_t> block, const PageSide& key, const PageSide& value, int bits) {
  OSCAR_CHECK(device::IsHeadDim(d) && device::IsBits(bits));
  OSCAR_CHECK(block.size() == static_cast<size_t>(device::BlockBytes(bits, d)));
  LoadSide({bits, d, true}, block, key);
  LoadSide({bits, d, false}, block, value);
}

}  // namespace oscar::affine
