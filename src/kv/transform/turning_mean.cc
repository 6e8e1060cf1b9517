#include "src/kv/transform/turning_mean.h"

#include <cmath>
#include <complex>
#include <cstddef>

#include "oscar/types.h"
#include "src/base/check.h"

namespace oscar::transform {
namespace {

template <class Visit>
void ForEachPair(const RotaryEmbedding& rotary, std::size_t head_dim, Visit visit) {
  OSCAR_DCHECK(head_dim % 2 == 0 && rotary.angles.size() * 2 <= head_dim);
  for (std::size_t pair = 0; pair < head_dim / 2; ++pair) {
    const auto [a, b] = PairChannels(rotary, static_cast<int>(pair));
    visit(pair, static_cast<std::size_t>(a), static_cast<std::size_t>(b));
  }
}

}  // namespace

std::pair<int, int> PairChannels(const RotaryEmbedding& rotary, int pair) {
  const int num_turning = static_cast<int>(rotary.angles.size());
  if (rotary.halves && pair < num_turning) return {pair, pair + num_turning};
  return {2 * pair, 2 * pair + 1};
}

double PairAngle(const RotaryEmbedding& rotary, int pair) {
  const auto index = static_cast<std::size_t>(pair);
  return index < rotary.angles.size() ? static_cast<double>(rotary.angles[index]) : 0.0;
}

std::vector<float> MeanOfPageZero(const RotaryEmbedding& rotary, std::span<const float> mean) {
  std::vector<float> turned(mean.size());
  ForEachPair(rotary, mean.size(), [&](std::size_t pair, std::size_t a, std::size_t b) {
    std::complex<double> share = 0;
    for (int r = 0; r < kPageTokens; ++r) share += std::polar(1.0, PairAngle(rotary, static_cast<int>(pair)) * r);
    share *= std::complex<double>(static_cast<double>(mean[a]), static_cast<double>(mean[b])) / static_cast<double>(kPageTokens);
    turned[a] = static_cast<float>(share.real());
    turned[b] = static_cast<float>(share.imag());
  });
  return turned;
}

void FillPagePhases(const RotaryEmbedding& rotary, int page_index, std::span<float> phases) {
  const std::size_t pairs = phases.size() / 2;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const double turn = static_cast<double>(page_index) * kPageTokens * PairAngle(rotary, static_cast<int>(pair));
    phases[pair] = static_cast<float>(std::cos(turn));
    phases[pairs + pair] = static_cast<float>(std::sin(turn));
  }
}

void TurnMean(const RotaryEmbedding& rotary, std::span<const float> page_zero_mean, std::span<const float> phases,
              std::span<float> mean) {
  const std::size_t pairs = phases.size() / 2;
  ForEachPair(rotary, mean.size(), [&](std::size_t pair, std::size_t a, std::size_t b) {
    const double cosine = phases[pair], sine = phases[pairs + pair];
    mean[a] = static_cast<float>(page_zero_mean[a] * cosine - page_zero_mean[b] * sine);
    mean[b] = static_cast<float>(page_zero_mean[a] * sine + page_zero_mean[b] * cosine);
  });
}

void MeanTerms(const RotaryEmbedding& rotary, std::span<const float> page_zero_mean, const float* query, float factor,
               float* terms) {
  const std::size_t d = page_zero_mean.size();
  ForEachPair(rotary, d, [&](std::size_t pair, std::size_t a, std::size_t b) {
    terms[pair] = factor * (query[a] * page_zero_mean[a] + query[b] * page_zero_mean[b]);
    terms[d / 2 + pair] = factor * (query[b] * page_zero_mean[a] - query[a] * page_zero_mean[b]);
  });
}

}  // namespace oscar::transform
