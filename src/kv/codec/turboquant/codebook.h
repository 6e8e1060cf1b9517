// Lloyd-Max codebooks of N(0, 1) (baselines.md 6.2), for coordinates of a unit vector of d channels times sqrt(d).
#pragma once

#include <cmath>
#include <cstddef>

namespace oscar::turboquant {

// The positive half; the other half mirrors it.
template <int kBits>
inline constexpr float kPositiveCentroids[1 << (kBits - 1)] = {};
template <>
inline constexpr float kPositiveCentroids<1>[1] = {0.797884560803f};
template <>
inline constexpr float kPositiveCentroids<2>[2] = {0.452780034637f, 1.5104176085f};
template <>
inline constexpr float kPositiveCentroids<3>[4] = {0.245094178944f, 0.756005281206f, 1.3439092785f, 2.15194570454f};
template <>
inline constexpr float kPositiveCentroids<4>[8] = {0.128395029851f, 0.38804829949f, 0.656759118532f, 0.942340456487f,
                                                   1.25623119735f,  1.61804638602f, 2.06901722653f,  2.73258957099f};

template <int kBits>
constexpr float Centroid(unsigned code) {
  constexpr unsigned kHalf = 1u << (kBits - 1);
  return code >= kHalf ? kPositiveCentroids<kBits>[code - kHalf] : -kPositiveCentroids<kBits>[kHalf - 1 - code];
}

// The nearest centroid to `value`: the number of midpoints at or below it.
template <int kBits>
constexpr unsigned NearestCentroid(float value) {
  unsigned code = 0;
  for (unsigned next = 1; next < (1u << kBits); ++next) {
    if (value >= 0.5f * (Centroid<kBits>(next - 1) + Centroid<kBits>(next))) code = next;
  }
  return code;
}

}  // namespace oscar::turboquant
