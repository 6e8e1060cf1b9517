#include "src/kv/codec/affine/device_convert.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/kv/codec/affine/device_layout.h"

namespace oscar::affine {
namespace {

using device::CodePlace;
using device::kTokens;
using CodePlaceFn = CodePlace (*)(int d, int token, int dim);
using PairOffsetFn = int (*)(int d, int token);

template <class Side>
void CheckSizes(int d, const Side& side) {
  OSCAR_CHECK(side.codes.size() == static_cast<size_t>(kTokens) * d);
  OSCAR_CHECK(side.scales.size() == kTokens && side.offsets.size() == kTokens);
}

void StoreSide(int d, const ConstPageSide& side, CodePlaceFn place_of, PairOffsetFn pair_of, std::span<uint8_t> block) {
  CheckSizes(d, side);
  for (int token = 0; token < kTokens; ++token) {
    for (int dim = 0; dim < d; ++dim) {
      const CodePlace place = place_of(d, token, dim);
      const uint8_t code = side.codes[static_cast<size_t>(token) * d + dim];
      OSCAR_DCHECK(code < 4);
      block[place.byte] = static_cast<uint8_t>(block[place.byte] | (code << place.shift));
    }
    std::memcpy(&block[pair_of(d, token)], &side.scales[token], 2);
    std::memcpy(&block[pair_of(d, token) + 2], &side.offsets[token], 2);
  }
}

void LoadSide(int d, std::span<const uint8_t> block, CodePlaceFn place_of, PairOffsetFn pair_of, const PageSide& side) {
  CheckSizes(d, side);
  for (int token = 0; token < kTokens; ++token) {
    for (int dim = 0; dim < d; ++dim) {
      const CodePlace place = place_of(d, token, dim);
      side.codes[static_cast<size_t>(token) * d + dim] = (block[place.byte] >> place.shift) & 3;
    }
    std::memcpy(&side.scales[token], &block[pair_of(d, token)], 2);
    std::memcpy(&side.offsets[token], &block[pair_of(d, token) + 2], 2);
  }
}

}  // namespace

void DeviceBlockFromRows(int d, const ConstPageSide& key, const ConstPageSide& value, std::span<uint8_t> block) {
  OSCAR_CHECK(device::IsHeadDim(d));
  OSCAR_CHECK(block.size() == static_cast<size_t>(device::BlockBytes(d)));
  std::fill(block.begin(), block.end(), uint8_t{0});
  StoreSide(d, key, device::KeyCodePlace, device::KeyPairOffset, block);
  StoreSide(d, value, device::ValueCodePlace, device::ValuePairOffset, block);
}

void RowsFromDeviceBlock(int d, std::span<const uint8_t> block, const PageSide& key, const PageSide& value) {
  OSCAR_CHECK(device::IsHeadDim(d));
  OSCAR_CHECK(block.size() == static_cast<size_t>(device::BlockBytes(d)));
  LoadSide(d, block, device::KeyCodePlace, device::KeyPairOffset, key);
  LoadSide(d, block, device::ValueCodePlace, device::ValuePairOffset, value);
}

}  // namespace oscar::affine
