// The sums of a MomentAccumulator on a CUDA device.
#include <utility>
#include <vector>

#include "src/base/status_macros.h"
#include "src/kv/calibrate/device_sums_cuda.h"
#include "src/kv/calibrate/moments.h"

namespace oscar::calibrate {
namespace {

using cuda::DeviceArray;
using cuda::FromCuda;

class DeviceMomentSums final : public MomentSums, private DeviceSums {
 public:
  DeviceMomentSums(const KvShape& shape, cudaStream_t stream)
      : DeviceSums(shape, stream), layers_(static_cast<std::size_t>(shape.num_layers)) {}

  Status CheckFinite(int layer, const LayerRows& rows, int64_t first_token) override { return CheckLayerRows(layer, rows, first_token); }

  Status Add(const MomentAccumulator::Impl& impl, int layer, const LayerRows& rows) override {
    OSCAR_TRY(Prepare(layer));
    Layer& sums = layers_[static_cast<std::size_t>(layer)];
    if (impl.pass == 1) return AddScored(rows, sums.metric.data(), sums.value.data(), sums.weight.data());
    OSCAR_TRY(AddRows(rows.queries, shape_.group(), true, sums.query.data()));
    OSCAR_TRY(AddRows(rows.keys, 1, true, sums.key.data()));
    if (impl.options.v_metric != VMetric::kPlain) return {};
    sums.count += rows.values.num_tokens;
    return AddRows(rows.values, 1, true, sums.value.data());
  }

  Status AddOutputs(int layer, RowsView<const float> outputs, int64_t first_token) override {
    OSCAR_TRY(CheckView(layer, "attention outputs", "query head", outputs, first_token));
    OSCAR_TRY(Prepare(layer));
    Layer& sums = layers_[static_cast<std::size_t>(layer)];
    sums.count += int64_t{outputs.num_tokens} * shape_.group();
    return AddRows(outputs, shape_.group(), false, sums.value.data());
  }

  Status KeepEarlyQueries(int layer) override {
    Layer& sums = layers_[static_cast<std::size_t>(layer)];
    OSCAR_TRY(sums.early_query.Grow(matrices()));
    return FromCuda(cudaMemcpyAsync(sums.early_query.data(), sums.query.data(), matrices() * sizeof(double), cudaMemcpyDeviceToDevice, stream_),
                    "moments");
  }

  Status Collect(MomentAccumulator::Impl& impl) override {
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      Layer& sums = layers_[static_cast<std::size_t>(layer)];
      std::vector<HeadMoments>& to = impl.layers[static_cast<std::size_t>(layer)].heads;
      if (sums.query.size() == 0) continue;  // no rows: the fit says so
      const bool is_first = impl.pass == 0;
      if (is_first) {
        OSCAR_TRY(ReadMatrices(sums.query, [&](std::size_t h) -> Matrix& { return to[h].query; }));
        OSCAR_TRY(ReadMatrices(sums.key, [&](std::size_t h) -> Matrix& { return to[h].key; }));
        if (sums.early_query.size() > 0) {
          OSCAR_TRY(ReadMatrices(sums.early_query, [&](std::size_t h) -> Matrix& { return to[h].early_query; }));
        }
        if (impl.options.v_metric == VMetric::kScore) continue;
      }
      OSCAR_TRY(ReadMatrices(sums.value, [&](std::size_t h) -> Matrix& { return to[h].value; }));
      std::vector<double> weights(heads());
      OSCAR_TRY(Read(sums.weight.data(), weights));
      for (std::size_t h = 0; h < to.size(); ++h) to[h].weight = is_first ? static_cast<double>(sums.count) : weights[h];
    }
    return {};
  }

  Status StartSecondPass(const MomentAccumulator::Impl& impl) override {
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      const std::vector<Matrix>& metrics = impl.layers[static_cast<std::size_t>(layer)].score_metric;
      OSCAR_TRY(UploadMatrices([&](std::size_t h) -> const Matrix& { return metrics[h]; }, layers_[static_cast<std::size_t>(layer)].metric));
    }
    return {};
  }

 private:
  struct Layer {
    DeviceArray<double> query, key, value, early_query, weight, metric;
    int64_t count = 0;  // rows in `value`, of a metric without weights
  };

  // Zero sums before the first rows.
  Status Prepare(int layer) {
    Layer& sums = layers_[static_cast<std::size_t>(layer)];
    if (sums.weight.size() > 0) return {};
    OSCAR_TRY(Clear(sums.query, matrices()));
    OSCAR_TRY(Clear(sums.key, matrices()));
    OSCAR_TRY(Clear(sums.value, matrices()));
    return Clear(sums.weight, heads());
  }

  std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<MomentSums> MakeDeviceMomentSums(const KvShape& shape, cudaStream_t stream) {
  return std::make_unique<DeviceMomentSums>(shape, stream);
}

}  // namespace oscar::calibrate
