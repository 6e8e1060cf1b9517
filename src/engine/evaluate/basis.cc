#include "src/engine/evaluate/basis.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "oscar/calibrate.h"
#include "oscar/kv_cache.h"
#include "oscar/reference.h"
#include "oscar/spectrum.h"
#include "src/base/float_bits.h"
#include "src/base/status_macros.h"
#include "src/engine/evaluate/observed_pass.h"

namespace oscar::engine {
namespace {

constexpr int kErrorRows = 32;   // per head, spread over the rows: encoded by the slow judge
constexpr int kQueryStride = 4;  // every fourth token's queries
using Matrix = std::vector<double>;  // [d, d]

// sum += x^T x, lower triangle.
void AddOuterProduct(const double* x, size_t d, Matrix& sum) {
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j <= i; ++j) sum[i * d + j] += x[i] * x[j];
  }
}

void Mirror(size_t d, Matrix& lower) {
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j < i; ++j) lower[j * d + i] = lower[i * d + j];
  }
}

// a b, a [d, d], b [d, d] f32.
Matrix Times(const Matrix& a, std::span<const float> b, size_t d) {
  Matrix product(d * d, 0.0);
  for (size_t i = 0; i < d; ++i) {
    for (size_t k = 0; k < d; ++k) {
      for (size_t j = 0; j < d; ++j) product[i * d + j] += a[i * d + k] * static_cast<double>(b[k * d + j]);
    }
  }
  return product;
}

double Weigh(const std::vector<double>& e, const Matrix& metric) {
  const size_t d = e.size();
  double sum = 0;
  for (size_t i = 0; i < d; ++i) {
    double row = 0;
    for (size_t j = 0; j < d; ++j) row += metric[i * d + j] * e[j];
    sum += e[i] * row;
  }
  return sum;
}

double MaxOverMean(const std::vector<double>& values) {
  double sum = 0, most = 0;
  for (const double value : values) {
    sum += value;
    most = std::max(most, value);
  }
  return sum > 0 ? most * static_cast<double>(values.size()) / sum : 1;
}

// The rows of one layer.
struct LayerRows {
  std::vector<uint16_t> keys, values;  // bf16 [rows, Hkv, d]
  std::vector<int> positions;          // of each row, in its window
  std::vector<Matrix> queries;         // by KV head: sum of q^T q, lower
};

class RowKeeper final : public StepObserver {
 public:
  RowKeeper(const KvShape& shape, MomentAccumulator* moments) : shape_(shape), moments_(moments), layers_(static_cast<size_t>(shape.num_layers)) {
    const auto d = static_cast<size_t>(shape.head_dim);
    for (LayerRows& layer : layers_) layer.queries.assign(static_cast<size_t>(shape.num_kv_heads), Matrix(d * d, 0.0));
  }

  Status Observe(int layer, RowsView<const float> queries, RowsView<const float> keys, RowsView<const float> values) override {
    LayerRows& into = layers_[static_cast<size_t>(layer)];
    for (const auto& [rows, to] : {std::pair{keys, &into.keys}, std::pair{values, &into.values}}) {
      for (int token = 0; token < rows.num_tokens; ++token) {
        for (int head = 0; head < rows.num_heads; ++head) {
          for (int c = 0; c < rows.head_dim; ++c) to->push_back(base::Bf16FromF32(rows.Row(token, head)[c]));
        }
      }
    }
    std::vector<double> query(static_cast<size_t>(shape_.head_dim));
    for (int token = 0; token < queries.num_tokens; ++token) {
      into.positions.push_back(first_position() + token);
      if ((first_position() + token) % kQueryStride != 0) continue;
      for (int head = 0; head < shape_.num_query_heads; ++head) {
        std::copy_n(queries.Row(token, head), query.size(), query.begin());
        AddOuterProduct(query.data(), query.size(), into.queries[static_cast<size_t>(head / shape_.group())]);
      }
    }
    return moments_ != nullptr ? moments_->Add(layer, queries, keys, values) : Status();
  }
  Status ObserveAttention(int layer, RowsView<const float> attention) override {
    return moments_ != nullptr ? moments_->AddOutputs(layer, attention) : Status();
  }
  std::vector<LayerRows>& layers() { return layers_; }

 private:
  const KvShape& shape_;
  MomentAccumulator* moments_;
  std::vector<LayerRows> layers_;
};

struct Basis {
  std::string name;
  CodecProfile profile;
  int bits = 2;

  double BitsPerElement() const {
    const KvMethod method{FindCodec("int" + std::to_string(bits)), ""};
    return LedgerAt(method, profile.shape().head_dim, 0, 0, 0).steady;
  }
};

bool IsPowerOfTwo(int n) { return n > 0 && (n & (n - 1)) == 0; }

Result<std::vector<Basis>> MakeBases(const KvShape& shape, const MomentAccumulator* moments, std::span<const KvSetup> methods) {
  std::vector<Basis> bases;
  OSCAR_ASSIGN_OR_RETURN(CodecProfile raw, DataFreeProfile("int2:naive", shape));
  bases.push_back({"raw", std::move(raw), 2});
  if (moments != nullptr) {
    OscarFitOptions fit{.per_head = true, .v_metric = VMetric::kSoftmax, .composition = Composition::kPlain, .clip_k = 0, .clip_v = 0};
    OSCAR_ASSIGN_OR_RETURN(CodecProfile vectors, FitOscar(*moments, fit, {}, nullptr));
    bases.push_back({"U", std::move(vectors), 2});
    OSCAR_ASSIGN_OR_RETURN(CodecProfile hadamard, DataFreeProfile("int2:hadamard", shape));
    bases.push_back({"H", std::move(hadamard), 2});
    fit.composition = Composition::kRH;
    OSCAR_ASSIGN_OR_RETURN(CodecProfile mixed, FitOscar(*moments, fit, {}, nullptr));
    bases.push_back({"U H", std::move(mixed), 2});
  }
  for (const KvSetup& setup : methods) bases.push_back({setup.method.name(), setup.profile, static_cast<int>(setup.method.codec->bits)});
  return bases;
}

// One side of one KV head of one layer.
class HeadRows {
 public:
  HeadRows(const LayerRows& layer, const KvShape& shape, int head, KvSide side, const Matrix& metric)
      : layer_(layer), shape_(shape), head_(head), side_(side), metric_(metric), d_(static_cast<size_t>(shape.head_dim)) {}

  size_t num_rows() const { return layer_.positions.size(); }
  std::vector<float> Row(size_t index) const {
    const std::vector<uint16_t>& rows = side_ == KvSide::kKey ? layer_.keys : layer_.values;
    const size_t first = (index * static_cast<size_t>(shape_.num_kv_heads) + static_cast<size_t>(head_)) * d_;
    std::vector<float> row(d_);
    for (size_t c = 0; c < d_; ++c) row[c] = base::F32FromBf16(rows[first + c]);
    return row;
  }
  const Matrix& metric() const { return metric_; }

  // Adds the figures of one basis; gives the covariance of its transformed rows.
  Matrix AddFigures(const Basis& basis, int layer, BasisFigures& figures) const {
    const RowProfile row = basis.profile.row(layer, head_, side_);
    Matrix covariance(d_ * d_, 0.0);
    // Moments around the first row: around 0 a large mean would leave nothing of the spread.
    std::vector<double> y(d_), first, shifted(d_), sum(d_, 0.0), energy(d_, 0.0);
    double range = 0, largest = 0, squares = 0;
    std::vector<float> mean;
    int mean_page = -1;
    for (size_t i = 0; i < num_rows(); ++i) {
      const int page = layer_.positions[i] / kPageTokens;
      if (page != std::exchange(mean_page, page)) mean = reference::PageMean(row, basis.profile.rotary(), page);
      Transform(Row(i), *row.transform, mean, y);
      if (first.empty()) first = y;
      double low = y[0], high = y[0];
      for (size_t c = 0; c < d_; ++c) {
        low = std::min(low, y[c]);
        high = std::max(high, y[c]);
        shifted[c] = y[c] - first[c];
        sum[c] += shifted[c];
        energy[c] += y[c] * y[c];
        squares += y[c] * y[c];
      }
      range += high - low;
      largest = std::max({largest, high, -low});
      AddOuterProduct(shifted.data(), d_, covariance);
    }
    const double n = static_cast<double>(num_rows()), rms = std::sqrt(squares / (n * static_cast<double>(d_)));
    if (rms > 0) {
      figures.range += range / n / rms;
      figures.largest += largest / rms;
    }
    figures.energy_spread += MaxOverMean(energy);
    figures.importance_spread += MaxOverMean(Diagonal(Importance(*row.transform)));
    for (size_t i = 0; i < d_; ++i) {
      for (size_t j = 0; j <= i; ++j) covariance[i * d_ + j] = covariance[i * d_ + j] / n - sum[i] / n * (sum[j] / n);
    }
    Mirror(d_, covariance);
    return covariance;
  }

  // A^-1 M A^-T.
  Matrix Importance(const KvTransform& transform) const {
    const std::span<const float> inverse_transposed = transform.inverse_transposed();
    const Matrix right = Times(metric_, inverse_transposed, d_);  // M A^-T
    Matrix product(d_ * d_, 0.0);
    for (size_t i = 0; i < d_; ++i) {
      for (size_t k = 0; k < d_; ++k) {
        const double factor = static_cast<double>(transform.inverse()[i * d_ + k]);
        for (size_t j = 0; j < d_; ++j) product[i * d_ + j] += factor * right[k * d_ + j];
      }
    }
    return product;
  }

  // Sums of e M e^T over kErrorRows rows, and of the rows less their mean. A row that the method cannot encode is left out of the first.
  std::pair<double, double> Error(const Basis& basis, int layer) const {
    const RowProfile row = basis.profile.row(layer, head_, side_);
    const size_t stride = std::max<size_t>(1, num_rows() / kErrorRows);
    std::vector<double> mean_row(d_, 0.0);
    std::vector<std::vector<float>> rows;
    double error = 0, energy = 0;
    for (size_t i = stride / 2; i < num_rows(); i += stride) {
      const std::vector<float> x = Row(i);
      for (size_t c = 0; c < d_; ++c) mean_row[c] += static_cast<double>(x[c]);
      const std::vector<float> mean = reference::PageMean(row, basis.profile.rotary(), layer_.positions[i] / kPageTokens);
      const auto encoded = reference::EncodeRow(reference::TransformRow(x, *row.transform, mean, reference::RoundingOf(row.encoder)), basis.bits, row);
      rows.push_back(x);
      if (!encoded.ok()) continue;
      std::vector<double> e = reference::InverseTransformRow(reference::DecodeRow(*encoded), *row.transform, mean);
      for (size_t c = 0; c < d_; ++c) e[c] -= static_cast<double>(x[c]);
      error += Weigh(e, metric_);
    }
    for (const std::vector<float>& x : rows) {
      std::vector<double> centred(d_);
      for (size_t c = 0; c < d_; ++c) centred[c] = static_cast<double>(x[c]) - mean_row[c] / static_cast<double>(rows.size());
      energy += Weigh(centred, metric_);
    }
    return {error, energy};
  }

 private:
  static std::vector<double> Diagonal(const Matrix& matrix) {
    const auto d = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(matrix.size()))));
    std::vector<double> diagonal(d);
    for (size_t i = 0; i < d; ++i) diagonal[i] = matrix[i * d + i];
    return diagonal;
  }
  static void Transform(const std::vector<float>& x, const KvTransform& transform, const std::vector<float>& mean, std::vector<double>& y) {
    const size_t d = x.size();
    std::fill(y.begin(), y.end(), 0.0);
    for (size_t i = 0; i < d; ++i) {
      const double value = static_cast<double>(x[i]) - (mean.empty() ? 0.0 : static_cast<double>(mean[i]));
      if (transform.kind() == TransformKind::kIdentity) {
        y[i] = value;
        continue;
      }
      const float* row = transform.matrix().data() + i * d;
      for (size_t c = 0; c < d; ++c) y[c] += value * static_cast<double>(row[c]);
    }
  }

  const LayerRows& layer_;
  const KvShape& shape_;
  const int head_;
  const KvSide side_;
  const Matrix& metric_;
  const size_t d_;
};

// sum of W_h^T W_h over the query heads of each KV head.
Result<std::vector<Matrix>> OutputMetrics(const Model& model, int layer) {
  constexpr int kRowsAtOnce = 256;
  const KvShape& shape = model.config().kv;
  const auto d = static_cast<size_t>(shape.head_dim);
  std::vector<Matrix> metrics(static_cast<size_t>(shape.num_kv_heads), Matrix(d * d, 0.0));
  std::vector<double> row(d);
  for (int first = 0; first < model.config().hidden_size; first += kRowsAtOnce) {
    const int count = std::min(kRowsAtOnce, model.config().hidden_size - first);
    OSCAR_ASSIGN_OR_RETURN(const std::vector<float> rows, model.AttentionOutputRows(layer, first, count));
    for (size_t at = 0; at < rows.size(); at += d) {
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(at), d, row.begin());
      const size_t head = at / d % static_cast<size_t>(shape.num_query_heads);
      AddOuterProduct(row.data(), d, metrics[head / static_cast<size_t>(shape.group())]);
    }
  }
  for (Matrix& metric : metrics) Mirror(d, metric);
  return metrics;
}

class LayerBasis {
 public:
  LayerBasis(const Model& model, const LayerRows& rows, const std::vector<Basis>& bases, int layer)
      : model_(model), rows_(rows), bases_(bases), layer_(layer), heads_(static_cast<size_t>(model.config().kv.num_kv_heads)) {}

  Status Run() {
    const KvShape& shape = model_.config().kv;
    const auto d = static_cast<size_t>(shape.head_dim);
    std::vector<Matrix> query_metrics = rows_.queries;
    for (Matrix& metric : query_metrics) Mirror(d, metric);
    OSCAR_ASSIGN_OR_RETURN(const std::vector<Matrix> output_metrics, OutputMetrics(model_, layer_));
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      const bool is_key = side == KvSide::kKey;
      for (const Basis& basis : bases_) OSCAR_TRY(RunBasisOn(basis, side, is_key ? query_metrics : output_metrics));
    }
    return {};
  }
  std::vector<BasisFigures> figures;
  std::vector<BasisSpectrum> spectra;

 private:
  Status RunBasisOn(const Basis& basis, KvSide side, const std::vector<Matrix>& metrics) {
    BasisFigures made;
    made.layer = layer_;
    made.side = side;
    made.basis = basis.name;
    made.bits_per_element = basis.BitsPerElement();
    const bool shows_spectra = basis.name == "raw" || basis.profile.row(layer_, 0, side).transform->kind() == TransformKind::kInvertible;
    BasisSpectrum rows{layer_, side == KvSide::kKey ? "key" : "value", basis.name, 0, {}};
    BasisSpectrum metric{layer_, side == KvSide::kKey ? "query" : "output", basis.name, 0, {}};
    double error = 0, energy = 0;
    for (size_t head = 0; head < heads_; ++head) {
      const HeadRows head_rows(rows_, model_.config().kv, static_cast<int>(head), side, metrics[head]);
      const Matrix covariance = head_rows.AddFigures(basis, layer_, made);
      const auto [of_rows, of_energy] = head_rows.Error(basis, layer_);
      error += of_rows;
      energy += of_energy;
      if (!shows_spectra) continue;
      OSCAR_TRY(AddSpectrum(covariance, rows));
      OSCAR_TRY(AddSpectrum(head_rows.Importance(*basis.profile.row(layer_, static_cast<int>(head), side).transform), metric));
    }
    const double n = static_cast<double>(heads_);
    for (double* value : {&made.range, &made.largest, &made.energy_spread, &made.importance_spread}) *value /= n;
    made.error = energy > 0 ? error / energy : 0;
    figures.push_back(std::move(made));
    if (shows_spectra) {
      spectra.push_back(std::move(metric));
      spectra.push_back(std::move(rows));
    }
    return {};
  }

  Status AddSpectrum(const Matrix& matrix, BasisSpectrum& spectrum) const {
    auto values = SymmetricEigenvalues(matrix);
    if (!values.ok()) return values.status().WithContext("layer " + std::to_string(layer_) + ", spectrum of " + spectrum.of);
    double trace = 0, largest = 0;
    for (const double value : *values) trace += value;
    size_t index = 0, taken = 0;
    for (size_t count = 1; count < values->size(); count *= 2, ++index) {
      for (; taken < count; ++taken) largest += (*values)[values->size() - 1 - taken];
      if (spectrum.shares.size() <= index) spectrum.shares.push_back(0);
      spectrum.shares[index] += (trace > 0 ? largest / trace : 0) / static_cast<double>(heads_);
    }
    const double least = values->front(), most = values->back();
    const double condition = least > 0 ? most / least : most > 0 ? std::numeric_limits<double>::infinity() : 1;
    spectrum.condition = std::max(spectrum.condition, condition);
    return {};
  }

  const Model& model_;
  const LayerRows& rows_;
  const std::vector<Basis>& bases_;
  const int layer_;
  const size_t heads_;
};

Status CheckMethods(std::span<const KvSetup> methods) {
  for (const KvSetup& setup : methods) {
    const std::string_view codec = setup.method.codec->name;
    if (codec == "int1" || codec == "int2" || codec == "int4") continue;
    return {StatusCode::kUnsupported, "--kv " + setup.method.name() + ": the basis of a method is measured on rows of the affine layout (int1, int2, int4)"};
  }
  return {};
}

}  // namespace

Result<BasisReport> RunBasis(Engine& engine, std::span<const KvSetup> methods, std::span<const int32_t> tokens, const WindowPlan& plan,
                             const RunControl& control) {
  OSCAR_TRY(CheckMethods(methods));
  Model& model = engine.model();
  const KvShape& shape = model.config().kv;
  const int64_t num_tokens = static_cast<int64_t>(plan.starts.size()) * plan.window;
  if (num_tokens < int64_t{8} * shape.head_dim) {
    return {StatusCode::kInvalidArgument, std::to_string(num_tokens) + " tokens: at least " + std::to_string(8 * shape.head_dim) +
                                              " are needed for head_dim " + std::to_string(shape.head_dim)};
  }
  std::optional<MomentAccumulator> moments;
  if (IsPowerOfTwo(shape.head_dim)) moments.emplace(shape, OscarFitOptions{.v_metric = VMetric::kSoftmax});
  RowKeeper keeper(shape, moments ? &*moments : nullptr);
  // Half of the work is the pass, half the layers.
  RunControl half = control;
  half.progress = [&](int64_t done, int64_t total) { control.Report(done, 2 * total); };
  OSCAR_TRY(ObserveWindows(engine, tokens, plan, keeper, half));
  if (moments) moments->EndPass();
  OSCAR_ASSIGN_OR_RETURN(const std::vector<Basis> bases, MakeBases(shape, moments ? &*moments : nullptr, methods));

  std::vector<LayerBasis> layers;
  for (int layer = 0; layer < shape.num_layers; ++layer) layers.emplace_back(model, keeper.layers()[static_cast<size_t>(layer)], bases, layer);
  std::mutex mutex;
  Status failed;
  std::atomic<int> next{0};
  RunOn(model.executor(), [&](int thread, int /*num_threads*/) {
    for (int layer = next++; layer < shape.num_layers && control.CheckCancelled().ok(); layer = next++) {
      if (const Status status = layers[static_cast<size_t>(layer)].Run(); !status.ok()) {
        const std::lock_guard lock(mutex);
        failed = status;
      }
      if (thread == 0) control.Report(num_tokens + num_tokens * layer / shape.num_layers, 2 * num_tokens);
    }
  });
  OSCAR_TRY(control.CheckCancelled());
  OSCAR_TRY(failed);
  control.Report(2 * num_tokens, 2 * num_tokens);
  BasisReport report{engine.identity().name, static_cast<int>(num_tokens), {}, {}};
  for (LayerBasis& layer : layers) {
    std::move(layer.figures.begin(), layer.figures.end(), std::back_inserter(report.figures));
    std::move(layer.spectra.begin(), layer.spectra.end(), std::back_inserter(report.spectra));
  }
  return report;
}

}  // namespace oscar::engine
