// One direction each between a page as plain rows and its block in device order (device_layout.h). Host code, obvious
// and slow: for tests, files and uploads of few pages.
#pragma once

#include <cstdint>
#include <span>

namespace oscar::affine {

// One side (K or V) of a page of one KV head: codes [64][d], one per byte; scales and offsets [64], fp16 bits.
struct PageSide {
  std::span<uint8_t> codes;
  std::span<uint16_t> scales;
  std::span<uint16_t> offsets;
};
struct ConstPageSide {
  std::span<const uint8_t> codes;
  std::span<const uint16_t> scales;
  std::span<const uint16_t> offsets;
};

// block: device::BlockBytes(bits, d) bytes, all of which are written. Preconditions: sizes fit, codes < 2^bits.
void DeviceBlockFromRows(int d, const ConstPageSide& key, const ConstPageSide& value, std::span<uint8_t> block, int bits = 2);
void RowsFromDeviceBlock(int d, std::span<const uint8_t> block, const PageSide& key, const PageSide& value, int bits = 2);

}  // namespace oscar::affine
