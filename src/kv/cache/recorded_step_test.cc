// The bookkeeping of recorded steps, over verbs that record nothing but keep to the contract.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "src/kv/cache/paged_kv_cache_fixture.h"

namespace oscar::cache {
namespace {

constexpr uint64_t kKey = 7;

class StepVerbs final : public KvVerbs {
 public:
  Status Append(const KernelContext& context, const AppendParams& params) override { return scalar_.Append(context, params); }
  Status Demote(const KernelContext& context, const DemoteParams& params) override { return scalar_.Demote(context, params); }
  Status Attend(const KernelContext& context, const AttendParams& params) override { return scalar_.Attend(context, params); }
  std::size_t AttendWorkspaceBytes(const KernelContext& context, const AttendParams& params) override {
    return scalar_.AttendWorkspaceBytes(context, params);
  }
  Result<uint64_t> PrepareStep(const KernelContext& /*context*/, const AttendParams& params) override {
    sequences_.assign(params.sequences.begin(), params.sequences.end());
    return kKey;
  }
  Status AttendStep(const KernelContext& context, const AppendParams& append, const AttendParams& attend, const HeadTurn& turn) override {
    EXPECT_EQ(turn.turns, nullptr);
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      AppendParams one = append;
      one.first_position = sequences_[i].first_position;
      one.bf16_table = sequences_[i].bf16_table;
      one.keys = append.keys.Slice(static_cast<int>(i), 1);
      one.values = append.values.Slice(static_cast<int>(i), 1);
      if (const Status status = scalar_.Append(context, one); !status.ok()) return status;
    }
    return scalar_.Attend(context, attend);
  }
  void NoteReplay() override { ++num_replays; }

  int num_replays = 0;

 private:
  ScalarVerbs scalar_;
  std::vector<AttendSequence> sequences_;
};

struct RecordedCache {
  RecordedCache() {
    auto made = std::make_unique<StepVerbs>();
    verbs = made.get();
    const KvMethod method = TestMethod(false);
    cache = std::move(PagedKvCache::Create(method, TestProfile(method, kTestShape), TestConfig(), executor, std::move(made))).value();
  }
  // A first step, as ever.
  SequenceId New(int length) {
    const SequenceId id = *cache->NewSequence();
    std::vector<uint64_t> tokens;
    for (int i = 0; i < length; ++i) tokens.push_back(next_token++);
    EXPECT_TRUE(cache->Reserve(id, length).ok());
    for (int layer = 0; layer < kTestShape.num_layers; ++layer) {
      const std::vector<float> keys = ShadowRows(tokens, layer, 1, 0, 4), values = ShadowRows(tokens, layer, 1, 1, 4);
      EXPECT_TRUE(cache->Append(id, layer, PackedRows(keys.data(), length, 1, 4), PackedRows(values.data(), length, 1, 4)).ok());
    }
    EXPECT_TRUE(cache->Commit(id, length).ok());
    return id;
  }
  base::ThreadPool executor{1};
  StepVerbs* verbs = nullptr;
  std::unique_ptr<PagedKvCache> cache;
  uint64_t next_token = 1;
};

TEST(RecordedStep, LeavesWhatAppendsOfEachSequenceLeave) {
  RecordedCache recorded, plain;
  const std::vector<SequenceId> ids = {recorded.New(200), recorded.New(331)};
  ASSERT_EQ(ids, (std::vector<SequenceId>{plain.New(200), plain.New(331)}));
  int num_recorded = 0;
  for (int step = 0; step < 150; ++step) {
    const std::vector<uint64_t> tokens = {recorded.next_token++, recorded.next_token++};
    for (RecordedCache* side : {&recorded, &plain}) {
      for (const SequenceId id : ids) ASSERT_TRUE(side->cache->Reserve(id, 1).ok());
    }
    const uint64_t key = *recorded.cache->PrepareRecordedStep(ids);
    num_recorded += key == kKey ? 1 : 0;
    for (int layer = 0; layer < kTestShape.num_layers; ++layer) {
      const std::vector<float> keys = ShadowRows(tokens, layer, 1, 0, 4), values = ShadowRows(tokens, layer, 1, 1, 4);
      const std::vector<float> queries = ShadowRows(tokens, layer, 2, 2, 4);
      const RowsView<const float> k = PackedRows(keys.data(), 2, 1, 4), v = PackedRows(values.data(), 2, 1, 4);
      std::vector<float> outputs[2] = {std::vector<float>(16), std::vector<float>(16)};
      for (RecordedCache* side : {&recorded, &plain}) {
        const RowsView<const float> q = PackedRows(queries.data(), 2, 2, 4);
        const RowsView<float> out = PackedRows(outputs[side == &plain].data(), 2, 2, 4);
        if (side == &recorded && key != 0) {
          ASSERT_TRUE(side->cache->AttendRecorded(layer, kTestScale, {q, k, v, {}}, out).ok());
          continue;
        }
        for (int i = 0; i < 2; ++i) {
          ASSERT_TRUE(side->cache->Append(ids[static_cast<std::size_t>(i)], layer, k.Slice(i, 1), v.Slice(i, 1)).ok());
        }
        ASSERT_TRUE(side->cache->Attend(ids, layer, kTestScale, q, out).ok());
      }
      ASSERT_EQ(outputs[0], outputs[1]) << "step " << step << " layer " << layer;
    }
    for (RecordedCache* side : {&recorded, &plain}) {
      for (const SequenceId id : ids) ASSERT_TRUE(side->cache->Commit(id, 1).ok());
    }
    const Status valid = pool::ValidateInvariants(recorded.cache->Snapshot());
    ASSERT_TRUE(valid.ok()) << valid.message();
  }
  // Each sequence demotes one page in 64 steps.
  EXPECT_GE(num_recorded, 144);
  EXPECT_LT(num_recorded, 150);
}

TEST(RecordedStep, IsForSingleTokensOnlyAndForTheStepPrepared) {
  RecordedCache side;
  const SequenceId id = side.New(10);
  const std::vector<float> row(8, 1.0f);
  std::vector<float> result(8);
  const RowsView<const float> rows = PackedRows(row.data(), 1, 1, 4), queries = PackedRows(row.data(), 1, 2, 4);
  const RowsView<float> out = PackedRows(result.data(), 1, 2, 4);
  EXPECT_EQ(side.cache->PrepareRecordedStep({&id, 1}).status().code(), StatusCode::kFailedPrecondition);  // nothing reserved
  ASSERT_TRUE(side.cache->Reserve(id, 2).ok());
  EXPECT_EQ(*side.cache->PrepareRecordedStep({&id, 1}), uint64_t{0});
  EXPECT_EQ(side.cache->AttendRecorded(0, kTestScale, {queries, rows, rows, {}}, out).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(side.cache->NoteReplay().code(), StatusCode::kFailedPrecondition);
  side.cache->Abandon(id);

  ASSERT_TRUE(side.cache->Reserve(id, 1).ok());
  ASSERT_EQ(*side.cache->PrepareRecordedStep({&id, 1}), kKey);
  EXPECT_EQ(side.cache->AttendRecorded(0, kTestScale, {queries, PackedRows(row.data(), 2, 1, 4), rows, {}}, out).code(),
            StatusCode::kInvalidArgument);
  const HeadTurn wide = {nullptr, nullptr, 0, row.data(), 3, false};
  EXPECT_EQ(side.cache->AttendRecorded(0, kTestScale, {queries, rows, rows, wide}, out).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(side.cache->AttendRecorded(0, kTestScale, {queries, rows, rows, {}}, out).ok());
  EXPECT_EQ(side.cache->Commit(id, 1).code(), StatusCode::kFailedPrecondition);  // layer 1 is missing
  ASSERT_TRUE(side.cache->NoteReplay().ok());                                    // all layers
  EXPECT_EQ(side.verbs->num_replays, 1);
  EXPECT_TRUE(side.cache->Commit(id, 1).ok());
  EXPECT_EQ(side.cache->length(id), 11);
  EXPECT_EQ(side.cache->NoteReplay().code(), StatusCode::kFailedPrecondition);
}

TEST(RecordedStep, VerbsWithoutRecordingsSaySo) {
  ShadowedCache cache(TestConfig());
  const SequenceId id = cache.New();
  ASSERT_TRUE(cache->Reserve(id, 1).ok());
  EXPECT_EQ(*cache->PrepareRecordedStep({&id, 1}), uint64_t{0});
}

}  // namespace
}  // namespace oscar::cache
