// RotateKV's calibration: how the rotated channels of keys before RoPE are ordered (baselines.md 6.6).

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "oscar/calibrate.h"
#include "src/base/status_macros.h"
#include "src/kv/calibrate/captured_rows.h"
#include "src/kv/codec/rotatekv/rotatekv.h"
#include "src/kv/transform/hadamard.h"
#include "src/kv/transform/turn_rows.h"

namespace oscar {

Status CheckChannelOrderFit(const KvShape& shape, const RotaryEmbedding& rotary) { return rotatekv::CheckShape("rotatekv", shape, rotary); }

ChannelSums::ChannelSums(const KvShape& shape, RotaryEmbedding rotary)
    : shape_(shape),
      rotary_(std::move(rotary)),
      sums_(static_cast<std::size_t>(shape.num_layers), std::vector<double>(static_cast<std::size_t>(shape.num_kv_heads) * static_cast<std::size_t>(shape.head_dim))),
      num_tokens_(static_cast<std::size_t>(shape.num_layers)) {}

Status ChannelSums::Add(int layer, int first_position, RowsView<const float> keys) {
  const auto index = static_cast<std::size_t>(layer);
  OSCAR_TRY(calibrate::CheckView(layer, "keys", keys, keys.num_tokens, shape_.num_kv_heads, shape_.head_dim));
  OSCAR_TRY(calibrate::CheckFinite(layer, "keys", "KV head", keys, num_tokens_[index]));
  const auto d = static_cast<std::size_t>(shape_.head_dim);
  std::vector<float> row(d);
  for (int token = 0; token < keys.num_tokens; ++token) {
    for (int head = 0; head < keys.num_heads; ++head) {
      std::copy_n(keys.Row(token, head), d, row.begin());
      transform::TurnRow(rotary_, -(first_position + token), row);
      double* sum = sums_[index].data() + static_cast<std::size_t>(head) * d;
      for (std::size_t c = 0; c < d; ++c) sum[c] += double{row[c]};
    }
  }
  num_tokens_[index] += keys.num_tokens;
  return {};
}

Result<CodecProfile> FitChannelOrder(const ChannelSums& sums, Provenance provenance) {
  const KvShape& shape = sums.shape();
  OSCAR_TRY(CheckChannelOrderFit(shape, sums.rotary()));
  const int64_t needed = int64_t{8} * shape.head_dim;
  std::vector<std::vector<uint16_t>> orders;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    if (sums.num_tokens(layer) < needed || sums.num_tokens(layer) != sums.num_tokens(0)) {
      return Status(StatusCode::kFailedPrecondition, "calibration: layer " + std::to_string(layer) + " saw " + std::to_string(sums.num_tokens(layer)) +
                                                         " tokens; layer 0 saw " + std::to_string(sums.num_tokens(0)) + ", and at least " +
                                                         std::to_string(needed) + " are needed");
    }
    const std::size_t channels = static_cast<std::size_t>(rotatekv::kHeadsTogether) * static_cast<std::size_t>(shape.head_dim);
    for (std::span<const double> rest = sums.sums(layer); !rest.empty(); rest = rest.subspan(channels)) {
      // The transform is linear: that of the sum is the sum of the transformed rows.
      std::vector<float> rotated(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(channels));
      for (float& value : rotated) value /= static_cast<float>(sums.num_tokens(layer));
      transform::ApplyHadamard(std::span(rotated));
      std::vector<uint16_t>& order = orders.emplace_back(channels);
      std::iota(order.begin(), order.end(), uint16_t{0});
      std::stable_sort(order.begin(), order.end(), [&](uint16_t a, uint16_t b) { return rotated[a] < rotated[b]; });
    }
  }
  provenance.scope = "head";
  provenance.k_metric = provenance.v_metric = "plain";
  provenance.composition = "hadamard" + std::to_string(rotatekv::kHeadsTogether * shape.head_dim);
  provenance.num_tokens = sums.num_tokens(0);
  return rotatekv::MakeProfileWithOrders("rotatekv", shape, sums.rotary(), std::move(orders), std::move(provenance));
}

}  // namespace oscar
