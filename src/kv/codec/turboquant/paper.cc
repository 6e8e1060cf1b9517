// Page: 64 rows of K, then 64 rows of V, in the space of a random orthogonal matrix. Row of the least-squares form: bit string of
// indices, norm fp16; read back as n c / sqrt(d). Row of the inner-product form: bit string of 2-bit indices, d sign bits, norm
// fp16, gamma fp16; read back as n (c / sqrt(d) + sqrt(pi / 2) / d gamma S^T signs), S [d, d] N(0, 1) from a fixed seed.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <utility>

#include "src/base/status_macros.h"
#include "src/kv/codec/code_groups.h"
#include "src/kv/codec/row_kernels.h"
#include "src/kv/codec/turboquant/codebook.h"
#include "src/kv/codec/turboquant/random_matrix.h"
#include "src/kv/codec/turboquant/turboquant.h"

namespace oscar::turboquant {
namespace {

constexpr uint64_t kRotationSeed = 2504, kProjectionSeed = 19874;

double Norm(const float* y, std::size_t d) {
  double power = 0;
  for (std::size_t c = 0; c < d; ++c) power += static_cast<double>(y[c]) * static_cast<double>(y[c]);
  return std::sqrt(power);
}

// Indices of y / |y|, and the norm behind `norm_at`. False when the norm is beyond fp16.
template <int kBits>
bool EncodeIndices(const float* y, std::size_t d, std::byte* row, std::byte* norm_at) {
  const double norm = Norm(y, d);
  const double to_codebook = norm == 0 ? 0.0 : std::sqrt(static_cast<double>(d)) / norm;
  for (std::size_t c = 0; c < d; ++c) {
    codec::PutCode(kBits, c, NearestCentroid<kBits>(static_cast<float>(static_cast<double>(y[c]) * to_codebook)), row);
  }
  const uint16_t norm_f16 = base::F16FromF32(static_cast<float>(norm));
  codec::StoreF16(norm_f16, norm_at);
  return std::isfinite(base::F32FromF16(norm_f16));
}

std::size_t RowStart(KvSide side, int token, std::size_t row_bytes) {
  return static_cast<std::size_t>((side == KvSide::kKey ? 0 : kPageTokens) + token) * row_bytes;
}

template <int kBits>
struct MseRows {
  static std::size_t Bytes(std::size_t d) { return codec::CodeBytes(kBits, d) + 2; }

  static int Encode(KvSide side, int head_dim, const float* rows, const kernels::UnitPages<std::byte>& unit) {
    const auto d = static_cast<std::size_t>(head_dim);
    for (int t = 0; t < kPageTokens; ++t) {
      std::byte* row = unit.pages[0] + RowStart(side, t, Bytes(d));
      std::fill_n(row, Bytes(d), std::byte{0});
      if (!EncodeIndices<kBits>(rows + static_cast<std::size_t>(t) * d, d, row, row + codec::CodeBytes(kBits, d))) return t;
    }
    return -1;
  }

  static void ReadTile(KvSide side, int head_dim, const kernels::UnitPages<const std::byte>& unit, int token, float* rows) {
    const auto d = static_cast<std::size_t>(head_dim);
    for (int j = 0; j < kernels::kRowTileTokens; ++j, rows += d) {
      const std::byte* row = unit.pages[0] + RowStart(side, token + j, Bytes(d));
      const float factor = codec::LoadF16(row + codec::CodeBytes(kBits, d)) / std::sqrt(static_cast<float>(d));
      for (std::size_t c = 0; c < d; ++c) rows[c] = factor * Centroid<kBits>(codec::GetCode(kBits, c, row));
    }
  }
};

// S, made once per head dimension.
const std::vector<float>& Projection(int d) {
  static std::mutex mutex;
  static std::map<int, std::vector<float>> projections;
  const std::lock_guard lock(mutex);
  std::vector<float>& matrix = projections[d];
  if (matrix.empty()) {
    const std::vector<double> normal = NormalMatrix(d, kProjectionSeed);
    matrix.assign(normal.begin(), normal.end());
  }
  return matrix;
}

struct ProductRows {
  static constexpr int kIndexBits = 2;
  static std::size_t SignsAt(std::size_t d) { return codec::CodeBytes(kIndexBits, d); }
  static std::size_t NormAt(std::size_t d) { return SignsAt(d) + codec::CodeBytes(1, d); }
  static std::size_t Bytes(std::size_t d) { return NormAt(d) + 4; }

  static bool EncodeRow(const float* y, std::size_t d, const std::vector<float>& projection, std::byte* row) {
    std::fill_n(row, Bytes(d), std::byte{0});
    if (!EncodeIndices<kIndexBits>(y, d, row, row + NormAt(d))) return false;
    const double norm = Norm(y, d);
    std::vector<float> rest(d, 0.0f);  // of the unit vector
    for (std::size_t c = 0; c < d && norm > 0; ++c) {
      rest[c] = static_cast<float>(static_cast<double>(y[c]) / norm -
                                   static_cast<double>(Centroid<kIndexBits>(codec::GetCode(kIndexBits, c, row))) / std::sqrt(static_cast<double>(d)));
    }
    for (std::size_t i = 0; i < d; ++i) {
      double product = 0;
      for (std::size_t c = 0; c < d; ++c) product += static_cast<double>(projection[i * d + c]) * static_cast<double>(rest[c]);
      codec::PutCode(1, i, product >= 0 ? 1u : 0u, row + SignsAt(d));
    }
    codec::StoreF16(base::F16FromF32(static_cast<float>(Norm(rest.data(), d))), row + NormAt(d) + 2);
    return true;
  }

  static int Encode(KvSide side, int head_dim, const float* rows, const kernels::UnitPages<std::byte>& unit) {
    const auto d = static_cast<std::size_t>(head_dim);
    const std::vector<float>& projection = Projection(head_dim);
    for (int t = 0; t < kPageTokens; ++t) {
      std::byte* row = unit.pages[0] + RowStart(side, t, Bytes(d));
      if (!EncodeRow(rows + static_cast<std::size_t>(t) * d, d, projection, row)) return t;
    }
    return -1;
  }

  static void ReadTile(KvSide side, int head_dim, const kernels::UnitPages<const std::byte>& unit, int token, float* rows) {
    const auto d = static_cast<std::size_t>(head_dim);
    const std::vector<float>& projection = Projection(head_dim);
    for (int j = 0; j < kernels::kRowTileTokens; ++j, rows += d) {
      const std::byte* row = unit.pages[0] + RowStart(side, token + j, Bytes(d));
      const float norm = codec::LoadF16(row + NormAt(d)), gamma = codec::LoadF16(row + NormAt(d) + 2);
      std::fill_n(rows, d, 0.0f);
      for (std::size_t i = 0; i < d; ++i) {
        const float sign = codec::GetCode(1, i, row + SignsAt(d)) != 0 ? 1.0f : -1.0f;
        for (std::size_t c = 0; c < d; ++c) rows[c] += sign * projection[i * d + c];
      }
      const float rest_factor = std::sqrt(std::numbers::pi_v<float> / 2) / static_cast<float>(d) * gamma;
      const float root = std::sqrt(static_cast<float>(d));
      for (std::size_t c = 0; c < d; ++c) {
        rows[c] = norm * (Centroid<kIndexBits>(codec::GetCode(kIndexBits, c, row)) / root + rest_factor * rows[c]);
      }
    }
  }
};

template <int kBits>
constexpr kernels::RowCodec kMseCodec{.rounds_rows = false, .encode = MseRows<kBits>::Encode, .read_tile = MseRows<kBits>::ReadTile};
constexpr kernels::RowCodec kProductCodec{.rounds_rows = false, .encode = ProductRows::Encode, .read_tile = ProductRows::ReadTile};

}  // namespace

template <int kBits>
std::size_t MsePageBytes(int head_dim) {
  return 2 * kPageTokens * MseRows<kBits>::Bytes(static_cast<std::size_t>(head_dim));
}
template <int kBits>
const kernels::RowCodec& MseCodec() {
  return kMseCodec<kBits>;
}
template std::size_t MsePageBytes<2>(int);
template std::size_t MsePageBytes<3>(int);
template std::size_t MsePageBytes<4>(int);
template const kernels::RowCodec& MseCodec<2>();
template const kernels::RowCodec& MseCodec<3>();
template const kernels::RowCodec& MseCodec<4>();

std::size_t ProductPageBytes(int head_dim) { return 2 * kPageTokens * ProductRows::Bytes(static_cast<std::size_t>(head_dim)); }
const kernels::RowCodec& ProductCodec() { return kProductCodec; }

Result<CodecProfile> MakePaperProfile(const KvMethod& method, const KvShape& shape) {
  OSCAR_ASSIGN_OR_RETURN(const KvTransform rotation, KvTransform::Orthogonal(shape.head_dim, OrthogonalMatrix(shape.head_dim, kRotationSeed)));
  return codec::SharedTransformProfile(method, shape, rotation, rotation);
}

}  // namespace oscar::turboquant
