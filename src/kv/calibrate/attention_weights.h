// Which attention weights the balanced moments, on the CPU and on a CUDA device. No Eigen: device code includes it.
#pragma once

namespace oscar::calibrate {

// Means and covariances are weighted by the square of the attention that a token receives: an error e of its value moves an output by
// p e, one of its score by about p e as well, so its squared error counts p^2. It matters most for attention sinks, a few tokens in a
// thousand with nearly one key and a value near zero: with plain means a sink carries an error many times its own value. Prose,
// SmolLM2-135M, `oscar eval kl --weights f32 --windows 2`: KL 0.0068 with means weighted by p alone, 0.0057 with all by p^2.
inline constexpr int kBlockTokens = 512;
inline constexpr int kQueryStride = 8;     // every eighth query
inline constexpr int kLeastDistance = 64;  // tokens nearer than this to the query, which a cache keeps in BF16, do not count,
inline constexpr int kSinkTokens = 64;     // nor the first ones of a window
inline constexpr double kWeightFloor = 1e-4;  // p^2 per query: tokens that receive nothing still count

}  // namespace oscar::calibrate
