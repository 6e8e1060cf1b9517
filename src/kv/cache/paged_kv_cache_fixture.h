// Fixture of the cache tests: a PagedKvCache over ScalarVerbs beside the shadow of every sequence.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/thread_pool.h"
#include "src/kv/cache/paged_kv_cache.h"
#include "src/kv/cache/shadow_sequence.h"
#include "src/kv/pool/invariants.h"
#include "src/testing/closeness.h"

namespace oscar::cache {

inline const KvShape kTestShape = {.num_layers = 2, .num_query_heads = 2, .num_kv_heads = 1, .head_dim = 4};
inline constexpr float kTestScale = 1.5f;  // scores of a few nats, so that every token counts

inline KvCacheConfig TestConfig(int sink = 64, int recent = 128) {
  KvCacheConfig config;
  config.shape = kTestShape;
  config.sink = sink;
  config.recent = recent;
  config.max_tokens = 2048;
  config.max_sequences = 4;
  config.max_step_tokens = 1024;
  return config;
}

inline KvMethod TestMethod(bool bf16) { return bf16 ? KvMethod{&kScalarBf16, ""} : KvMethod{&kScalarInt2, "naive"}; }

inline CodecProfile TestProfile(const KvMethod& method, const KvShape& shape) {
  std::vector<CodecProfile::Row> rows(static_cast<std::size_t>(shape.num_layers * shape.num_kv_heads * 2));
  std::vector<KvTransform> transforms;
  transforms.push_back(KvTransform::Identity(shape.head_dim));
  Result<CodecProfile> profile = CodecProfile::Create(method.name(), shape, std::move(transforms), std::move(rows), {});
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return std::move(profile).value();
}

class ShadowedCache {
 public:
  explicit ShadowedCache(const KvCacheConfig& config, bool bf16 = false) : executor_(1), method_(TestMethod(bf16)) {
    auto cache = PagedKvCache::Create(method_, TestProfile(method_, config.shape), config, executor_,
                                      std::make_unique<ScalarVerbs>());
    EXPECT_TRUE(cache.ok()) << cache.status().message();
    cache_ = std::move(cache).value();
    recent_ = bf16 ? pool::kEverythingRecent : config.recent;
  }
  PagedKvCache& operator*() { return *cache_; }
  PagedKvCache* operator->() { return cache_.get(); }

  SequenceId New() {
    Result<SequenceId> id = cache_->NewSequence();
    EXPECT_TRUE(id.ok()) << id.status().message();
    tokens_[*id] = {};
    return *id;
  }
  std::vector<uint64_t>& tokens(SequenceId id) { return tokens_[id]; }
  // `count` tokens that occur nowhere else.
  std::vector<uint64_t> FreshTokens(int count) {
    std::vector<uint64_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(next_token_++);
    return tokens;
  }
  const std::map<SequenceId, std::vector<uint64_t>>& sequences() const { return tokens_; }
  void Forget(SequenceId id) { tokens_.erase(id); }

  // Appends `tokens` to layer `layer` of the step in flight.
  Status AppendLayer(SequenceId id, int layer, const std::vector<uint64_t>& tokens) {
    const KvShape& shape = cache_->config().shape;
    const auto count = static_cast<int>(tokens.size());
    const std::vector<float> keys = ShadowRows(tokens, layer, shape.num_kv_heads, 0, shape.head_dim);
    const std::vector<float> values = ShadowRows(tokens, layer, shape.num_kv_heads, 1, shape.head_dim);
    return cache_->Append(id, layer, PackedRows(keys.data(), count, shape.num_kv_heads, shape.head_dim),
                          PackedRows(values.data(), count, shape.num_kv_heads, shape.head_dim));
  }
  // Attention of all queries of the step against the shadow, every `stride`-th query and the last.
  void ExpectAttention(SequenceId id, int layer, const std::vector<uint64_t>& step, int stride = 1) {
    const KvShape& shape = cache_->config().shape;
    const auto count = static_cast<int>(step.size());
    const std::vector<float> queries = ShadowRows(step, layer, shape.num_query_heads, 2, shape.head_dim);
    std::vector<float> out(queries.size(), -1.0f);
    const SequenceId ids[] = {id};
    const Status status =
        cache_->Attend(ids, layer, kTestScale, PackedRows(queries.data(), count, shape.num_query_heads, shape.head_dim),
                       PackedRows(out.data(), count, shape.num_query_heads, shape.head_dim));
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<uint64_t> all = tokens_[id];
    const auto first = static_cast<int>(all.size());
    all.insert(all.end(), step.begin(), step.end());
    const RowsView<float> rows = PackedRows(out.data(), count, shape.num_query_heads, shape.head_dim);
    for (int head = 0; head < shape.num_query_heads; ++head) {
      const ShadowAttention shadow(all, layer, head / shape.group(), shape);
      for (int query = 0; query < count; ++query) {
        if (query % stride != 0 && query != count - 1) continue;
        const std::vector<double> expected = shadow.At(first + query, head, cache_->config().sink, recent_, kTestScale);
        const std::span<const float> actual(rows.Row(query, head), static_cast<std::size_t>(shape.head_dim));
        ASSERT_LE(testing::RelativeL2(actual, std::span<const double>(expected)), 1e-6)
            << "position " << first + query << " layer " << layer << " head " << head;
      }
    }
  }
  // One whole step of fresh or given tokens. query_stride 0: without attention.
  void Step(SequenceId id, const std::vector<uint64_t>& step, int query_stride = 0) {
    Status status = cache_->Reserve(id, static_cast<int>(step.size()));
    ASSERT_TRUE(status.ok()) << status.message();
    for (int layer = 0; layer < cache_->config().shape.num_layers; ++layer) {
      status = AppendLayer(id, layer, step);
      ASSERT_TRUE(status.ok()) << status.message();
      if (query_stride > 0) ExpectAttention(id, layer, step, query_stride);
    }
    status = cache_->Commit(id, static_cast<int>(step.size()));
    ASSERT_TRUE(status.ok()) << status.message();
    tokens_[id].insert(tokens_[id].end(), step.begin(), step.end());
  }
  // Length, tier map and encoded bytes are those of the shadow.
  void ExpectState(SequenceId id) {
    const std::vector<uint64_t>& tokens = tokens_[id];
    const KvCacheConfig& config = cache_->config();
    const auto length = static_cast<int>(tokens.size());
    ASSERT_EQ(cache_->length(id), length);
    std::vector<std::byte> bytes(static_cast<std::size_t>(config.shape.num_kv_heads) *
                                 ScalarPageBytes(config.shape.head_dim));
    for (int page = 0; page <= length / kPageTokens; ++page) {
      const bool encoded = page * 64 >= config.sink && int64_t{page * 64 + 63} < int64_t{length} - recent_;
      for (int layer = 0; layer < config.shape.num_layers; ++layer) {
        const Status status = cache_->ReadEncodedPage(id, layer, page, bytes);
        ASSERT_EQ(status.code(), encoded ? StatusCode::kOk : StatusCode::kNotFound)
            << "length " << length << " page " << page << ": " << status.message();
        if (encoded) {
          ASSERT_EQ(bytes, ShadowEncodedPage(tokens, page, layer, config.shape))
              << "length " << length << " page " << page << " layer " << layer;
        }
      }
    }
  }
  void ExpectInvariants() const {
    const Status status = pool::ValidateInvariants(cache_->Snapshot());
    ASSERT_TRUE(status.ok()) << status.message();
  }

 private:
  base::ThreadPool executor_;
  KvMethod method_;
  std::unique_ptr<PagedKvCache> cache_;
  int recent_ = 0;
  std::map<SequenceId, std::vector<uint64_t>> tokens_;
  uint64_t next_token_ = 1;
};

}  // namespace oscar::cache
