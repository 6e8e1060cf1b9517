// Test support: the encoded bytes of one KV head under a row codec, one encode unit at a time, filled with 0xFF before.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "src/kv/codec/registry.h"

namespace oscar::testing {

class RowCodecUnit {
 public:
  RowCodecUnit(const std::string& codec_name, int head_dim) : info_(*FindCodec(codec_name)), d_(head_dim) {
    codec_ = FindCpuKernels(info_)->kernels->row_codec;
    for (int k = 0; k < num_tokens() / kPageTokens; ++k) {
      pages_[k].assign(info_.page_bytes(head_dim), std::byte{0xFF});
      unit_.pages[k] = pages_[k].data();
    }
  }
  int num_tokens() const { return codec_->unit_tokens; }
  const kernels::RowCodec& codec() const { return *codec_; }
  const std::vector<std::byte>& page(int k) const { return pages_[k]; }

  // rows [num_tokens][d], in code space: as RowCodec::encode. Rows that are missing repeat from the start.
  int Encode(KvSide side, const std::vector<std::vector<float>>& rows) {
    std::vector<float> flat;
    for (int t = 0; t < num_tokens(); ++t) {
      const std::vector<float>& row = rows[static_cast<size_t>(t) % rows.size()];
      flat.insert(flat.end(), row.begin(), row.end());
    }
    return codec_->encode(side, d_, flat.data(), unit_);
  }
  std::vector<std::vector<double>> Decode(KvSide side) const {
    const kernels::UnitPages<const std::byte> unit{{unit_.pages[0], unit_.pages[1]}};
    std::vector<std::vector<double>> decoded;
    std::vector<float> tile(static_cast<size_t>(kernels::kRowTileTokens * d_));
    for (int t = 0; t < num_tokens(); t += kernels::kRowTileTokens) {
      codec_->read_tile(side, d_, unit, t, tile.data());
      for (int j = 0; j < kernels::kRowTileTokens; ++j) {
        const auto first = tile.begin() + j * d_;
        decoded.emplace_back(first, first + d_);
      }
    }
    return decoded;
  }

 private:
  const CodecInfo& info_;
  const int d_;
  const kernels::RowCodec* codec_;
  std::vector<std::byte> pages_[2];
  kernels::UnitPages<std::byte> unit_;
};

}  // namespace oscar::testing
