// How CudaOps finds the tokens of rows whose logits stay on the device.
#include <algorithm>
#include <string>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/ops/cuda/cuda_ops.h"
#include "src/engine/ops/cuda/dense_kernels.h"
#include "src/engine/ops/cuda/token_draw.h"

namespace oscar::engine {

using cuda::FromCuda;

namespace {
constexpr size_t kRowsDrawnAtOnce = 64;  // bounds the scratch of keys
constexpr size_t kChangesStep = 4096;
}  // namespace

Status CudaOps::ReadDrawn(std::span<uint64_t> drawn) {
  OSCAR_TRY(staged_drawn_.Grow(drawn.size()));
  OSCAR_TRY(FromCuda(cudaMemcpyAsync(staged_drawn_.data(), drawn_.data(), drawn.size_bytes(), cudaMemcpyDeviceToHost, stream_), "tokens"));
  OSCAR_TRY(FromCuda(cudaStreamSynchronize(stream_), "a step"));
  std::copy_n(staged_drawn_.data(), drawn.size(), drawn.begin());
  return {};
}

Status CudaOps::BestTokens(std::span<DrawnToken> tokens) {
  OSCAR_CHECK(tokens.size() * static_cast<size_t>(logits_width_) <= logits_.size());
  OSCAR_TRY(drawn_.Grow(tokens.size()));
  OSCAR_TRY(FromCuda(cudaMemsetAsync(drawn_.data(), 0, tokens.size() * sizeof(uint64_t), stream_), "best logits"));
  OSCAR_TRY(FromCuda(LaunchBestLogits({logits_.data(), drawn_.data(), static_cast<int32_t>(tokens.size()), logits_width_}, stream_),
                     "best logits"));
  std::vector<uint64_t> keys(tokens.size());
  OSCAR_TRY(ReadDrawn(keys));
  std::ranges::transform(keys, tokens.begin(), [](uint64_t key) {
    return DrawnToken{static_cast<int32_t>(~static_cast<uint32_t>(key)), key >> 32 != kNotFiniteLogit};
  });
  return {};
}

Status CudaOps::DrawTokens(std::span<const TokenDraw> draws, std::span<DrawnToken> tokens) {
  OSCAR_CHECK(draws.size() == tokens.size() && tokens.size() * static_cast<size_t>(logits_width_) <= logits_.size());
  if (logits_width_ > kMostDrawWidth) {
    return {StatusCode::kUnsupported, "tokens are drawn on the device from at most " + std::to_string(kMostDrawWidth) + " logits, not " +
                                          std::to_string(logits_width_)};
  }
  const auto [rows, changes] = DrawRows(draws);
  const auto width = static_cast<size_t>(logits_width_);
  OSCAR_TRY(draw_rows_.Upload(rows, stream_));
  // In steps: penalties change one logit more with each new token, and an allocation waits for the whole device.
  OSCAR_TRY(logit_changes_.Grow((changes.size() + kChangesStep - 1) / kChangesStep * kChangesStep));
  OSCAR_TRY(logit_changes_.Upload(changes, stream_));
  OSCAR_TRY(drawn_.Grow(tokens.size()));
  OSCAR_TRY(draw_keys_.Grow(kRowsDrawnAtOnce * width));
  for (size_t first = 0; first < rows.size(); first += kRowsDrawnAtOnce) {
    const TokenDrawParams params = {logits_.data() + first * width, draw_rows_.data() + first, logit_changes_.data(), draw_keys_.data(),
                                    drawn_.data() + first, static_cast<int32_t>(std::min(kRowsDrawnAtOnce, rows.size() - first)), logits_width_};
    OSCAR_TRY(FromCuda(LaunchTokenDraw(params, stream_), "draw"));
  }
  std::vector<uint64_t> drawn(tokens.size());
  OSCAR_TRY(ReadDrawn(drawn));
  std::ranges::transform(drawn, tokens.begin(), [](uint64_t found) { return DrawnToken{static_cast<int32_t>(found), found >> 32 == 0}; });
  return {};
}

}  // namespace oscar::engine
