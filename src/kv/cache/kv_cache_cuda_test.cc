// The cache on a CUDA device against the cache on the CPU: the same rows give the same pages and nearly the same attention,
// however they come in.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "oscar/cuda.h"
#include "src/base/cuda_memory.h"
#include "src/base/thread_pool.h"
#include "src/testing/random_rotation.h"
#include "src/testing/seeds.h"

namespace oscar {
namespace {

CodecProfile ProfileOf(const std::string& method, const KvShape& shape) {
  auto made = method == "int2:oscar"            ? testing::RandomRotationProfile(shape, 7)
              : method.ends_with(":balanced") ? testing::RandomBalancedProfile(method, shape, 7)
                                              : DataFreeProfile(method, shape, testing::PowersOfTenRotary(shape.head_dim, true));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

bool HasDevice() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

// Both caches, fed with the same rows.
class Pair {
 public:
  Pair(const std::string& method, const KvShape& shape, int max_sequences) : shape_(shape), rng_(testing::TestSeed(5)) {
    KvCacheConfig config;
    config.shape = shape;
    config.max_tokens = 4096;
    config.max_sequences = max_sequences;
    const KvMethod parsed = *ParseKvMethod(method);
    cpu_ = std::move(KvCache::Create(parsed, ProfileOf(method, shape), config, pool_)).value();
    auto device = CreateCudaKvCache(parsed, ProfileOf(method, shape), config, pool_, nullptr);
    EXPECT_TRUE(device.ok()) << device.status().message();
    device_ = std::move(device).value();
  }

  SequenceId NewSequence() {
    const SequenceId id = *cpu_->NewSequence();
    EXPECT_EQ(*device_->NewSequence(), id);
    return id;
  }
  SequenceId Fork(SequenceId sequence) {
    const SequenceId id = *cpu_->Fork(sequence);
    EXPECT_EQ(*device_->Fork(sequence), id);
    return id;
  }

  // num_tokens[i] new tokens of sequences[i]. Returns the relative L2 distance of the attention outputs, of all layers.
  double Step(const std::vector<SequenceId>& sequences, const std::vector<int>& num_tokens) {
    int total = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      total += num_tokens[i];
      EXPECT_TRUE(cpu_->Reserve(sequences[i], num_tokens[i]).ok());
      EXPECT_TRUE(device_->Reserve(sequences[i], num_tokens[i]).ok());
    }
    // Every other step of single tokens goes in as a recorded one would, where it may.
    const bool is_single = total == static_cast<int>(sequences.size());
    const bool is_recorded = is_single && !poison_ && num_steps_++ % 2 == 1 && *device_->PrepareRecordedStep(sequences) != 0;
    num_recorded_ += is_recorded ? 1 : 0;
    double difference = 0, norm = 0;
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      const auto kv_values = static_cast<size_t>(total * shape_.num_kv_heads * shape_.head_dim);
      const auto q_values = static_cast<size_t>(total * shape_.num_query_heads * shape_.head_dim);
      std::vector<float> keys = testing::NormalVector(rng_, kv_values), values = testing::NormalVector(rng_, kv_values);
      const std::vector<float> queries = testing::NormalVector(rng_, q_values);
      if (poison_ && layer == 1) values.back() = std::numeric_limits<float>::infinity();
      std::vector<float> expected(q_values), actual(q_values);
      EXPECT_TRUE(keys_.Upload(keys, nullptr).ok() && values_.Upload(values, nullptr).ok());
      EXPECT_TRUE(queries_.Upload(queries, nullptr).ok() && outputs_.Grow(q_values).ok());
      int first = 0;
      for (size_t i = 0; i < sequences.size(); ++i) {
        const auto part = [&](const float* data) {
          return PackedRows(data, total, shape_.num_kv_heads, shape_.head_dim).Slice(first, num_tokens[i]);
        };
        if (!poison_) {
          EXPECT_TRUE(cpu_->Append(sequences[i], layer, part(keys.data()), part(values.data())).ok());
        }
        if (!is_recorded) {
          EXPECT_TRUE(device_->Append(sequences[i], layer, part(keys_.data()), part(values_.data())).ok());
        }
        first += num_tokens[i];
      }
      const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
      const auto rows = [&](auto* data) { return PackedRows(data, total, shape_.num_query_heads, shape_.head_dim); };
      const RowsView<const float> all_queries = rows(static_cast<const float*>(queries_.data()));
      if (is_recorded) {
        const auto all = [&](const float* data) { return PackedRows(data, total, shape_.num_kv_heads, shape_.head_dim); };
        EXPECT_TRUE(device_->AttendRecorded(layer, scale, {all_queries, all(keys_.data()), all(values_.data()), {}}, rows(outputs_.data())).ok());
      } else {
        EXPECT_TRUE(device_->Attend(sequences, layer, scale, all_queries, rows(outputs_.data())).ok());
      }
      if (poison_) continue;
      EXPECT_TRUE(cpu_->Attend(sequences, layer, scale, rows(queries.data()), rows(expected.data())).ok());
      EXPECT_EQ(cudaMemcpy(actual.data(), outputs_.data(), q_values * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
      for (size_t i = 0; i < q_values; ++i) {
        difference += std::pow(static_cast<double>(actual[i]) - static_cast<double>(expected[i]), 2);
        norm += std::pow(static_cast<double>(expected[i]), 2);
      }
    }
    for (size_t i = 0; i < sequences.size() && !poison_; ++i) {
      EXPECT_TRUE(cpu_->Commit(sequences[i], num_tokens[i]).ok());
      EXPECT_TRUE(device_->Commit(sequences[i], num_tokens[i]).ok());
    }
    return std::sqrt(difference / norm);
  }

  // Bytes that differ, and all bytes, of the encoded pages.
  std::pair<size_t, size_t> Compare(SequenceId sequence) const {
    std::vector<std::byte> expected(cpu_->stats().encoded_page_bytes / static_cast<size_t>(shape_.num_layers)), actual(expected.size());
    std::pair<size_t, size_t> result;
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      for (int page = 1; cpu_->ReadEncodedPage(sequence, layer, page, expected).ok(); ++page) {
        EXPECT_TRUE(device_->ReadEncodedPage(sequence, layer, page, actual).ok());
        for (size_t i = 0; i < expected.size(); ++i) result.first += expected[i] != actual[i] ? 1 : 0;
        result.second += expected.size();
      }
    }
    return result;
  }
  void ReserveAndAbandon(SequenceId sequence) {
    EXPECT_TRUE(cpu_->Reserve(sequence, 1).ok() && device_->Reserve(sequence, 1).ok());
    cpu_->Abandon(sequence);
    device_->Abandon(sequence);
  }
  void Poison() { poison_ = true; }
  KvCache& device() { return *device_; }
  int num_recorded() const { return num_recorded_; }

 private:
  const KvShape shape_;
  std::mt19937_64 rng_;
  bool poison_ = false;
  int num_steps_ = 0, num_recorded_ = 0;
  base::ThreadPool pool_{2};
  cuda::DeviceArray<float> keys_, values_, queries_, outputs_;
  std::unique_ptr<KvCache> cpu_, device_;
};

struct Case {
  const char* method;
  KvShape shape;
  double share_of_bytes;  // that may differ
};

// The Hadamard matrix is a product on the device and butterflies on the CPU: sums round otherwise.
const Case kCases[] = {
    {"bf16", {2, 6, 2, 64}, 0},           {"int2:naive", {2, 9, 3, 64}, 0},   {"int2:clip", {2, 8, 2, 128}, 0},
    {"int2:hadamard", {2, 4, 2, 128}, 2e-3}, {"int2:oscar", {2, 14, 2, 64}, 0}, {"int2:oscar", {2, 8, 2, 128}, 0},
    {"int2:balanced", {2, 14, 2, 64}, 0}, {"int2:balanced", {2, 8, 2, 128}, 0}, {"int2:balanced", {2, 4, 2, 256}, 0},
    {"int1:balanced", {2, 14, 2, 64}, 0}, {"int1:balanced", {2, 8, 2, 128}, 0}, {"int1:balanced", {1, 12, 1, 256}, 0},
    {"int4:hadamard", {2, 6, 2, 64}, 5e-3}, {"int4:hadamard", {2, 8, 2, 128}, 5e-3}, {"int4:hadamard", {1, 12, 1, 256}, 5e-3},
};

TEST(CudaKvCache, PagesAreThoseOfTheCpuAndAttentionIsClose) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  for (const Case& test : kCases) {
    SCOPED_TRACE(std::string(test.method) + " d " + std::to_string(test.shape.head_dim) + " group " + std::to_string(test.shape.group()));
    Pair pair(test.method, test.shape, 3);
    const SequenceId first = pair.NewSequence(), second = pair.NewSequence();
    double worst = 0;
    for (const int tokens : {300, 212, 1, 77, 512}) worst = std::max(worst, pair.Step({first}, {tokens}));
    worst = std::max(worst, pair.Step({first, second}, {1, 130}));
    for (int i = 0; i < 70; ++i) {
      if (i % 7 == 6) pair.ReserveAndAbandon(first);  // at i = 48 while a page is encoded ahead
      worst = std::max(worst, pair.Step({first, second}, {1, 1}));
    }
    const SequenceId third = pair.Fork(first);
    for (int i = 0; i < 3; ++i) worst = std::max(worst, pair.Step({second, third, first}, {1, 1, 40 * i + 1}));
    EXPECT_EQ(pair.num_recorded(), 36);  // the one that demotes a page, too
    // Queries are bf16 on the device.
    EXPECT_LE(worst, 6e-3);
    for (const SequenceId sequence : {first, second, third}) {
      const auto [differing, all] = pair.Compare(sequence);
      EXPECT_LE(static_cast<double>(differing), test.share_of_bytes * static_cast<double>(all)) << "of " << all;
    }
  }
}

// Small enough for compute-sanitizer.
TEST(CudaKvCache, AFewStepsOfASmallShape) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  for (const char* const method : {"bf16", "int2:hadamard", "int2:balanced", "int1:balanced", "int4:hadamard"}) {
    SCOPED_TRACE(method);
    Pair pair(method, {1, 4, 2, 64}, 2);
    const SequenceId first = pair.NewSequence(), second = pair.NewSequence();
    double worst = pair.Step({first}, {508});  // a page is encoded ahead in the fourth step
    for (int i = 0; i < 6; ++i) worst = std::max(worst, pair.Step({first, second}, {1, 1}));
    EXPECT_GT(pair.num_recorded(), 1);
    EXPECT_LE(worst, 6e-3);
  }
}

TEST(CudaKvCache, ANonFiniteRowFailsTheCommitAndNothingElse) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  Pair pair("int2:oscar", {2, 4, 2, 64}, 1);
  const SequenceId sequence = pair.NewSequence();
  pair.Step({sequence}, {70});
  pair.Poison();
  pair.Step({sequence}, {5});
  const Status failed = pair.device().Commit(sequence, 5);
  EXPECT_EQ(failed.code(), StatusCode::kNonFinite);
  EXPECT_NE(failed.message().find("V of layer 1"), std::string::npos) << failed.message();
  pair.device().Abandon(sequence);
  EXPECT_EQ(pair.device().length(sequence), 70);
}

TEST(CudaKvCache, WhatHasNoKernelsIsRefused) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  base::ThreadPool pool(1);
  KvCacheConfig config;
  config.shape = {1, 2, 1, 64};
  for (const char* method : {"q4_0", "q8_0", "int2:quarot"}) {
    const auto cache = CreateCudaKvCache(*ParseKvMethod(method), ProfileOf(method, config.shape), config, pool, nullptr);
    EXPECT_EQ(cache.status().code(), StatusCode::kUnsupported) << method;
  }
  config.shape = {1, 2, 1, 96};
  EXPECT_EQ(CreateCudaKvCache(*ParseKvMethod("bf16"), ProfileOf("bf16", config.shape), config, pool, nullptr).status().code(),
            StatusCode::kUnsupported);
}

}  // namespace
}  // namespace oscar
