// DecodePages of oscar/decode_pages.h: the codec's rows, then A^-1, the mean, and RoPE where keys are kept as before it.
#include "oscar/decode_pages.h"

#include <string>
#include <vector>

#include "oscar/reference.h"
#include "src/base/status_macros.h"
#include "src/kv/codec/registry.h"
#include "src/kv/transform/turn_rows.h"

namespace oscar {
namespace {

Status Invalid(std::string why) { return {StatusCode::kInvalidArgument, "DecodePages: " + std::move(why)}; }

Status CheckOutput(const char* name, const RowsView<float>& rows, const KvShape& shape, int num_tokens) {
  if (rows.data != nullptr && rows.num_tokens == num_tokens && rows.num_heads == shape.num_kv_heads && rows.head_dim == shape.head_dim) return {};
  return Invalid(std::string(name) + " must be [" + std::to_string(num_tokens) + ", " + std::to_string(shape.num_kv_heads) + ", " +
                 std::to_string(shape.head_dim) + "]");
}

Status Check(const DecodePagesParams& params) {
  if (params.codec == nullptr || params.profile == nullptr) return Invalid("codec or profile is missing");
  if (params.codec->page_bytes == nullptr) return Invalid(std::string(params.codec->name) + " encodes no pages");
  if (FindCpuKernels(*params.codec) == nullptr) return {StatusCode::kUnsupported, "DecodePages: " + std::string(params.codec->name) + " has no CPU kernels"};
  const KvShape& shape = params.profile->shape();
  if (params.layer < 0 || params.layer >= shape.num_layers || params.first_page_index < 0) {
    return Invalid("layer " + std::to_string(params.layer) + ", page " + std::to_string(params.first_page_index));
  }
  const auto pages = static_cast<std::size_t>(params.codec->encode_tokens / kPageTokens);
  const std::size_t page_bytes = static_cast<std::size_t>(shape.num_kv_heads) * params.codec->page_bytes(shape.head_dim);
  if (params.pages.size() % pages != 0 || params.pages.size() / pages < page_bytes) {
    return Invalid(std::to_string(params.pages.size()) + " bytes are not " + std::to_string(pages) + " pages of " + std::to_string(page_bytes));
  }
  OSCAR_TRY(CheckOutput("keys", params.keys, shape, params.codec->encode_tokens));
  return CheckOutput("values", params.values, shape, params.codec->encode_tokens);
}

// One side of one KV head of a unit.
class UnitReader {
 public:
  UnitReader(const DecodePagesParams& params, const CodecKernelEntry& entry, int head, KvSide side)
      : params_(params), entry_(entry), head_(head), side_(side), head_dim_(params.profile->shape().head_dim) {}

  // [encode_tokens, d], in code space.
  std::vector<float> RowsInCodeSpace() const {
    std::vector<float> rows(static_cast<std::size_t>(params_.codec->encode_tokens) * static_cast<std::size_t>(head_dim_));
    const kernels::RowCodec* codec = entry_.kernels->row_codec;
    if (codec == nullptr) {
      entry_.read_rows(side_, head_dim_, PageOf(0, head_), rows.data());
      return rows;
    }
    kernels::UnitPages<const std::byte> unit;
    unit.head = head_ % codec->heads_together;
    unit.channel_order = params_.profile->row(params_.layer, head_ - unit.head, side_).channel_order;
    for (int k = 0; k < params_.codec->encode_tokens / kPageTokens; ++k) unit.pages[k] = PageOf(k, head_ - unit.head);
    for (int t = 0; t < codec->unit_tokens; t += kernels::kRowTileTokens) {
      codec->read_tile(side_, head_dim_, unit, t, rows.data() + static_cast<std::size_t>(t) * static_cast<std::size_t>(head_dim_));
    }
    return rows;
  }

  void Read(RowsView<float> out) const {
    std::vector<float> coded = RowsInCodeSpace();
    const RowProfile row = params_.profile->row(params_.layer, head_, side_);
    const kernels::RowCodec* codec = entry_.kernels->row_codec;
    const bool turns = codec != nullptr && codec->turns_keys_back && side_ == KvSide::kKey;
    const auto d = static_cast<std::size_t>(head_dim_);
    std::vector<float> mean;
    std::vector<double> sum(d);
    for (int t = 0; t < params_.codec->encode_tokens; ++t) {
      const int position = params_.first_page_index * kPageTokens + t;
      if (t % kPageTokens == 0) mean = reference::PageMean(row, params_.profile->rotary(), position / kPageTokens);
      float* y = coded.data() + static_cast<std::size_t>(t) * d;
      if (turns) transform::TurnRow(params_.profile->rotary(), position, {y, d});
      MultiplyByInverse(*row.transform, y, sum);
      for (std::size_t c = 0; c < d; ++c) out.Row(t, head_)[c] = static_cast<float>(sum[c] + (mean.empty() ? 0.0 : static_cast<double>(mean[c])));
    }
  }

 private:
  const std::byte* PageOf(int page, int head) const {
    const std::size_t stride = params_.pages.size() / static_cast<std::size_t>(params_.codec->encode_tokens / kPageTokens);
    return params_.pages.data() + static_cast<std::size_t>(page) * stride + static_cast<std::size_t>(head) * params_.codec->page_bytes(head_dim_);
  }

  static void MultiplyByInverse(const KvTransform& transform, const float* y, std::vector<double>& sum) {
    const std::size_t d = sum.size();
    if (transform.kind() == TransformKind::kIdentity) {
      for (std::size_t c = 0; c < d; ++c) sum[c] = static_cast<double>(y[c]);
      return;
    }
    sum.assign(d, 0.0);
    for (std::size_t i = 0; i < d; ++i) {
      const double factor = static_cast<double>(y[i]);
      const float* inverse = transform.inverse().data() + i * d;
      for (std::size_t c = 0; c < d; ++c) sum[c] += factor * static_cast<double>(inverse[c]);
    }
  }

  const DecodePagesParams& params_;
  const CodecKernelEntry& entry_;
  const int head_;
  const KvSide side_;
  const int head_dim_;
};

}  // namespace

Status DecodePages(const DecodePagesParams& params) {
  OSCAR_TRY(Check(params));
  const CodecKernelEntry& entry = *FindCpuKernels(*params.codec);
  for (int head = 0; head < params.profile->shape().num_kv_heads; ++head) {
    UnitReader(params, entry, head, KvSide::kKey).Read(params.keys);
    UnitReader(params, entry, head, KvSide::kValue).Read(params.values);
  }
  return {};
}

}  // namespace oscar
