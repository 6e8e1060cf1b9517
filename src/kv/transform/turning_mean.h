// Means of keys that turn with RoPE (quality.md 3). A mean m before RoPE makes the mean of page n
//   mu_j(n) = m_j s_j exp(i theta_j 64 n),   s_j = (1/64) sum_{r=0..63} exp(i theta_j r)
// with pair j of a row as a complex number. Channels that do not turn are paired in order with theta = 0.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "oscar/codec_profile.h"

namespace oscar::transform {

// The two channels of pair j, 0 <= j < head_dim / 2.
std::pair<int, int> PairChannels(const RotaryEmbedding& rotary, int pair);
// theta_j.
double PairAngle(const RotaryEmbedding& rotary, int pair);

// mu(0) [d] of a mean m [d], d even.
std::vector<float> MeanOfPageZero(const RotaryEmbedding& rotary, std::span<const float> mean);

// One row of PagePhases of oscar/kernels.h: cos(64 n theta_j), then sin(64 n theta_j), d / 2 of each.
void FillPagePhases(const RotaryEmbedding& rotary, int page_index, std::span<float> phases);

// mu(n) [d] from mu(0) and the phases of page n.
void TurnMean(const RotaryEmbedding& rotary, std::span<const float> page_zero_mean, std::span<const float> phases,
              std::span<float> mean);

// What a query q [d] makes of mu(n): terms [d] with factor * (q . mu(n)) = terms . phases(n).
void MeanTerms(const RotaryEmbedding& rotary, std::span<const float> page_zero_mean, const float* query, float factor,
               float* terms);

}  // namespace oscar::transform
