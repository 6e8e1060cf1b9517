// Calibration: second moments of Q, K and V rows accumulated in double, and the fit of a CodecProfile from them.
// method.md 2 (OSCAR). Memory is O(d^2) per layer and KV head; nothing is kept per token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oscar/codec_profile.h"
#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar {

enum class KMetric : uint8_t { kQuery, kPlain };
enum class VMetric : uint8_t { kScore, kPlain };
enum class Composition : uint8_t { kPlain, kRH, kRHPbr, kHPbr, kHadamard };

struct OscarFitOptions {
  bool per_head = false;              // --per-head: one pair per KV head instead of one per layer
  KMetric k_metric = KMetric::kQuery;
  VMetric v_metric = VMetric::kScore;
  Composition composition = Composition::kRHPbr;
  float clip_k = 0.96f;
  float clip_v = 0.92f;
};

// Moments of one model over the calibration tokens. Two passes over the same rows: pass 1 sums query (and key) moments, pass
// 2 the score-weighted value moments, whose weights need the complete query moment (method.md 2.3). v_metric kPlain needs
// pass 1 only.
class MomentAccumulator {
 public:
  MomentAccumulator(const KvShape& shape, const OscarFitOptions& options);
  ~MomentAccumulator();
  MomentAccumulator(MomentAccumulator&&) noexcept;
  MomentAccumulator& operator=(MomentAccumulator&&) noexcept;

  int num_passes() const;
  // Rows of some tokens of one layer as attention sees them: queries [n, Hq, d], keys and values [n, Hkv, d], K and Q after
  // QK norm and RoPE, q not scaled. Thread-safe across different layers. kNonFinite names layer, head, token and side.
  Status Add(int layer, RowsView<const float> queries, RowsView<const float> keys, RowsView<const float> values);
  // Ends a pass; the next Add belongs to the next one.
  void EndPass();
  int64_t num_tokens() const;  // of the first pass, layer 0

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// What a fit found per layer, for the report of `oscar calibrate` (method.md 2.5 to 2.7).
struct FitReport {
  struct Layer {
    double k_condition = 0, v_condition = 0;       // lambda_max / lambda_0
    double k_top8_share = 0, v_top8_share = 0;     // share of the trace in the 8 largest eigenvalues
    double orthogonality_error = 0;                // max |R^T R - I| of the float32 matrices, K and V
    double worst_head_spread = 0;                  // max over KV heads of max/mean of diag(R^T C_K(h) R)
    int worst_head = 0;
  };
  std::vector<Layer> layers;
  double k_convergence = 0;  // relative Frobenius difference of the moments of the first 3/4 and of all tokens, worst layer
  std::vector<std::string> warnings;
};

// Fits int2:oscar. kFailedPrecondition: fewer than 8 d rows, or a pass missing. kUnsupported: head_dim not a power of two.
Result<CodecProfile> FitOscar(const MomentAccumulator& moments, const OscarFitOptions& options, Provenance provenance,
                              FitReport* report);

}  // namespace oscar
