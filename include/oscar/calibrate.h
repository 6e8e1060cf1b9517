// Calibration: second moments of Q, K and V rows accumulated in double, and the fit of a CodecProfile from them, for int2:oscar
// (method.md 2) and for the balanced methods (quality.md 2 and 3), and the channel order of rotatekv (baselines.md 6.6). Memory is O(d^2) per layer and KV head; nothing is kept per
// token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/codec_profile.h"
#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar {

enum class KMetric : uint8_t { kQuery, kPlain };
enum class VMetric : uint8_t { kScore, kPlain, kSoftmax };
enum class Composition : uint8_t { kPlain, kRH, kRHPbr, kHPbr, kHadamard };

// Spelling on the command line and in a profile: "query", "plain"; "score", "plain", "softmax"; "plain", "r_h", "r_h_pbr", "h_pbr",
// "hadamard". The parsers answer kInvalidArgument naming the text and listing what exists.
std::string_view KMetricName(KMetric metric);
std::string_view VMetricName(VMetric metric);
std::string_view CompositionName(Composition composition);
Result<KMetric> ParseKMetric(std::string_view text);
Result<VMetric> ParseVMetric(std::string_view text);
Result<Composition> ParseComposition(std::string_view text);

struct OscarFitOptions {
  bool per_head = false;              // --per-head: one pair per KV head instead of one per layer
  KMetric k_metric = KMetric::kQuery;
  VMetric v_metric = VMetric::kScore;
  Composition composition = Composition::kRHPbr;
  float clip_k = 0.96f;  // order statistic (method.md 3.2); <= 0: no clip
  float clip_v = 0.92f;
  bool lloyd_levels = false;   // --levels lloyd-affine: Lloyd-Max codes on a uniform grid instead of min-max (baselines.md 5.6)
  float lloyd_ratio = 1.16f;   // of its levels to those of a normal distribution, above 0
  // Tokens that the first pass will see per layer, when known: the query moments are kept as they stand after the first
  // three quarters of them, for FitReport::k_convergence. 0: unknown.
  int64_t expected_tokens = 0;
};

// Whether int2:oscar can be fitted at all, to be asked before minutes of calibration. kUnsupported naming the layer when
// head_dim is no power of two; kInvalidArgument for a clip ratio above 1 or not a number, or an impossible shape.
Status CheckOscarFit(const KvShape& shape, const OscarFitOptions& options);

// Moments of one model over the calibration tokens. Two passes over the same rows: pass 1 sums query and key moments, pass 2
// the score-weighted value moments, whose weights need the complete query moment (method.md 2.3). v_metric kPlain and kSoftmax need
// pass 1 only; kSoftmax takes the attention outputs besides. Rows count as the BF16 numbers of the cache (rounded to nearest even), widened to double. How the tokens are cut
// into calls does not matter beyond the last bits of a double.
class MomentAccumulator {
 public:
  // Precondition: CheckOscarFit(shape, options) is OK.
  MomentAccumulator(const KvShape& shape, const OscarFitOptions& options);
  ~MomentAccumulator();
  MomentAccumulator(MomentAccumulator&&) noexcept;
  MomentAccumulator& operator=(MomentAccumulator&&) noexcept;

  int num_passes() const;
  // Rows of some tokens of one layer as attention sees them: queries [n, Hq, d], keys and values [n, Hkv, d], K and Q after
  // QK norm and RoPE, q not scaled. Thread-safe across different layers. On an error nothing was added: kNonFinite names
  // layer, head, token and side; kInvalidArgument a view that lacks heads or tokens; kFailedPrecondition a pass too many.
  Status Add(int layer, RowsView<const float> queries, RowsView<const float> keys, RowsView<const float> values);
  // VMetric::kSoftmax only, for the tokens of Add: what exact attention makes of them before the output projection, [n, Hq, d]. Their
  // second moment is V^T A^T A V / (T g) (method.md 2.3). Not rounded: no cache stores them. Errors as Add.
  Status AddOutputs(int layer, RowsView<const float> outputs);
  // Ends a pass; the next Add belongs to the next one. Precondition: fewer than num_passes() have ended.
  void EndPass();
  int64_t num_tokens() const;  // of the first pass, layer 0

  // Joins the moments of tensor-parallel ranks, in rank order, each of which saw its own KV heads and their query heads of
  // the same tokens. Averages over heads are taken by the fit, so that the result is that of one process.
  // kInvalidArgument when there is no rank, or two differ in anything but heads.
  static Result<MomentAccumulator> JoinHeads(std::vector<MomentAccumulator> ranks);

  struct Impl;
  const Impl& impl() const { return *impl_; }
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// What a fit found per layer, for the report of `oscar calibrate` (method.md 2.5 to 2.7).
struct FitReport {
  struct Layer {
    double k_condition = 0, v_condition = 0;    // lambda_max / lambda_0, infinite for lambda_0 = 0; scope head: worst head
    double k_top8_share = 0, v_top8_share = 0;  // share of the trace in the 8 largest eigenvalues; scope head: worst head
    double orthogonality_error = 0;             // max |R^T R - I| of the float32 matrices, K and V
    double worst_head_spread = 0;               // max over KV heads of max/mean of diag(R^T C_Q(h) R), C_Q the query moment
    int worst_head = 0;
    std::vector<double> head_spread;            // the same for each KV head
  };
  std::vector<Layer> layers;
  // Relative Frobenius difference of the query moments of the first 3/4 and of all tokens, worst layer. Negative: not
  // measured, since expected_tokens was 0 or more than 7 % off.
  double k_convergence = -1;
  std::vector<std::string> warnings;
};

// Fits int2:oscar (method.md 2.2 to 2.5) and checks what it made (2.7). Scope, metrics, composition and num_tokens of the
// provenance are set from the options and moments. `report` may be null.
// kFailedPrecondition: fewer than 8 d tokens, a pass missing, passes or layers that saw different numbers of tokens, or
// moments made for another v_metric. kNonFinite: moments beyond float32. kInternal naming layer, head and side: a check of
// 2.7 failed. And the errors of CheckOscarFit.
Result<CodecProfile> FitOscar(const MomentAccumulator& moments, const OscarFitOptions& options, Provenance provenance,
                              FitReport* report);

// Figures of one stored rotation R [d, d] with the eigenvalues [d] of its fit (method.md 2.7), for `oscar inspect`.
struct RotationCheck {
  double orthogonality_error = 0;  // max |R^T R - I|
  double basis_error = 0;          // max |U^T U - I| with U recovered from R, for example U = R P^T H^T
  double diagonal_spread = 0;      // max/min - 1 of diag(R^T C R), C = U diag(lambda) U^T; flat for r_h and r_h_pbr
  double diagonal_mean_error = 0;  // |mean of that diagonal / mean lambda - 1|
  double condition = 0;            // lambda_max / lambda_0
  double top8_share = 0;
};
// kInvalidArgument when sizes are not d^2 and d, d is no power of two, or the composition is data-free (kHPbr, kHadamard).
Result<RotationCheck> CheckRotation(std::span<const float> rotation, std::span<const float> eigenvalues,
                                    Composition composition);

// --- int2:balanced and int1:balanced ------------------------------------------------------------------------------------

struct BalancedFitOptions {
  int bits = 2;          // 2: alpha = 0.3; 1: alpha = 0.25 (quality.md 2)
  double gamma = 1e-2;   // regularisation of the error metric, as a share of its mean eigenvalue
};

// kUnsupported when bits are neither 1 nor 2 or the head dimension is odd; kInvalidArgument for an impossible shape or a gamma
// outside (0, 1].
Status CheckBalancedFit(const KvShape& shape, const BalancedFitOptions& options);

// Moments of one model for a balanced fit, in two passes over the same rows: means and query moments; then second moments around the
// means (keys around that of their page, quality.md 3), all but the query moments weighted by the square of the attention that tokens
// receive. Rows count as the BF16 numbers of the cache.
class BalancedMoments {
 public:
  static constexpr int kNumPasses = 2;

  // `rotary` without angles: keys do not turn, and their mean is constant. Precondition: CheckBalancedFit is OK for the shape,
  // and there are at most head_dim / 2 angles. expected_tokens of a pass spreads the rows on which errors are measured.
  BalancedMoments(const KvShape& shape, RotaryEmbedding rotary, int64_t expected_tokens);
  ~BalancedMoments();
  BalancedMoments(BalancedMoments&&) noexcept;
  BalancedMoments& operator=(BalancedMoments&&) noexcept;

  // Some rows of the output projection W_o of a layer, [rows, Hq, d]: row r is what the attention outputs of all query heads
  // are multiplied with for one hidden channel. Every row once, in any pieces; they make the error metric of values.
  Status AddOutputProjection(int layer, RowsView<const float> rows);
  // As MomentAccumulator::Add; the rows are at positions first_position, first_position + 1, ... of their sequence.
  Status Add(int layer, int first_position, RowsView<const float> queries, RowsView<const float> keys,
             RowsView<const float> values);
  // Precondition: fewer than kNumPasses have ended.
  void EndPass();
  int64_t num_tokens() const;  // of the first pass, layer 0

  struct Impl;
  const Impl& impl() const { return *impl_; }
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// What a balanced fit found, for the report of `oscar calibrate`. Errors are e M e^T of decoded rows over (x - mu) M (x - mu)^T,
// summed over the heads of a layer, M the error metric with its mean eigenvalue 1: scores for keys, the attention block's output
// for values.
struct BalancedReport {
  struct Side {
    double condition = 0;          // of T, worst head
    double gamma = 0;              // largest of the heads
    double predicted = 0;          // for normal rows and plain rounding, mean of the heads
    double measured = 0;           // on rows of the second pass, as encoded
    double measured_oscar = -1;    // the same rows with an OSCAR rotation of the same data and its clip; -1: head_dim no power of two
    double measured_hadamard = -1;
  };
  struct Layer {
    Side key, value;
  };
  std::vector<Layer> layers;
  std::vector<std::string> warnings;
};

// Fits "int<bits>:balanced". Metrics, composition (the mixing matrix), scope and num_tokens of the provenance are set.
// `report` may be null: then no error is measured.
// kFailedPrecondition: fewer than 8 d tokens, a pass or an output projection missing, layers or passes that saw different
// numbers of tokens. kInternal naming layer, head and side: no regularisation gave an invertible transform.
Result<CodecProfile> FitBalanced(const BalancedMoments& moments, const BalancedFitOptions& options, Provenance provenance,
                                 BalancedReport* report);

// --- rotatekv ------------------------------------------------------------------------------------------------------------

// kUnsupported when rotatekv cannot serve the model: KV heads no multiple of 4, head_dim other than 64 and 128, no rotary angles.
Status CheckChannelOrderFit(const KvShape& shape, const RotaryEmbedding& rotary);

// Sums of the keys of one model as they were before RoPE, by channel, in one pass.
class ChannelSums {
 public:
  // Precondition: CheckChannelOrderFit is OK.
  ChannelSums(const KvShape& shape, RotaryEmbedding rotary);
  // keys [n, Hkv, d] of one layer after RoPE, at positions first_position, first_position + 1, ... of their sequence. Thread-safe
  // across different layers. On an error nothing was added: kNonFinite names layer, head and token; kInvalidArgument a view that lacks
  // heads.
  Status Add(int layer, int first_position, RowsView<const float> keys);
  const KvShape& shape() const { return shape_; }
  const RotaryEmbedding& rotary() const { return rotary_; }
  std::span<const double> sums(int layer) const { return sums_[static_cast<std::size_t>(layer)]; }  // [Hkv, d]
  int64_t num_tokens(int layer) const { return num_tokens_[static_cast<std::size_t>(layer)]; }

 private:
  KvShape shape_;
  RotaryEmbedding rotary_;
  std::vector<std::vector<double>> sums_;
  std::vector<int64_t> num_tokens_;
};

// The profile of rotatekv: the channels of four heads together, rotated, in ascending order of their means. Scope, metrics, composition
// and num_tokens of the provenance are set. kFailedPrecondition: fewer than 8 d tokens, or layers that saw different numbers of them.
Result<CodecProfile> FitChannelOrder(const ChannelSums& sums, Provenance provenance);

// Figures of one stored invertible transform, for `oscar inspect`: the condition number of A and max |A A^-1 - I|.
struct TransformCheck {
  double condition = 0, inverse_error = 0;
};
TransformCheck CheckTransform(const KvTransform& transform);

}  // namespace oscar
