// Attention over stored bytes against the double-precision judge, through the public verbs.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/base/thread_pool.h"
#include "src/testing/closeness.h"
#include "src/testing/random_channel_order.h"
#include "src/testing/random_rotation.h"
#include "src/testing/seeds.h"
#include "src/testing/shadow_cache.h"
#include "src/testing/simd_targets.h"

namespace oscar {
namespace {

using testing::ShadowCache;
using testing::ShadowSequence;

struct Fixture {
  Fixture(const std::string& method, const KvShape& shape, int threads = 2) : pool(threads) {
    auto made = method == "int2:oscar"            ? testing::RandomRotationProfile(shape, 7)
                : method == "rotatekv"          ? testing::RandomOrderProfile(shape, testing::PowersOfTenRotary(shape.head_dim, true), 7)
                : method.ends_with(":balanced") ? testing::RandomBalancedProfile(method, shape, 7, shape.head_dim % 3 != 0, shape.head_dim == 128)
                                                : DataFreeProfile(method, shape, testing::PowersOfTenRotary(shape.head_dim, true));
    EXPECT_TRUE(made.ok()) << made.status().message();
    profile.emplace(std::move(made).value());
    phases = PagePhases(*profile, 128);
    context.page_phases = phases;
    context.codec = ParseKvMethod(method)->codec;
    context.profile = &*profile;
    context.shape = shape;
    context.executor = &pool;
  }
  base::ThreadPool pool;
  std::optional<CodecProfile> profile;
  std::vector<float> phases;
  KernelContext context;
};

// Queries of all sequences, their outputs, and the call.
struct Call {
  Call(const Fixture& fixture, const ShadowCache& cache, std::span<const ShadowSequence> sequences, std::span<const int> counts, uint64_t seed) {
    const KvShape& shape = fixture.context.shape;
    int total = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      items.push_back({sequences[i].num_tokens - counts[i], counts[i], sequences[i].bf16_table, sequences[i].encoded_table});
      total += counts[i];
    }
    std::mt19937_64 rng(seed);
    queries = testing::NormalVector(rng, static_cast<size_t>(total * shape.num_query_heads * shape.head_dim));
    out.assign(queries.size(), std::nanf(""));
    params.storage = cache.storage();
    params.sink = cache.sink();
    params.recent = cache.recent();
    params.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    params.sequences = items;
    params.queries = PackedRows<const float>(queries.data(), total, shape.num_query_heads, shape.head_dim);
    params.out = PackedRows(out.data(), total, shape.num_query_heads, shape.head_dim);
    workspace.resize(AttendWorkspaceBytes(fixture.context, params), std::byte{0xFF});
    params.workspace = workspace;
  }
  std::vector<AttendSequence> items;
  std::vector<float> queries, out;
  std::vector<std::byte> workspace;
  AttendParams params;
};

// Largest relative L2 error over (query head, token) of a call.
double WorstError(const Call& call, const ShadowCache& cache, std::span<const ShadowSequence> sequences) {
  double worst = 0;
  int first = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const AttendSequence& item = call.items[s];
    const auto expected = cache.Judge(sequences[s], item.first_position, call.params.queries.Slice(first, item.num_queries), call.params.scale);
    for (int i = 0; i < item.num_queries; ++i) {
      for (int h = 0; h < call.params.queries.num_heads; ++h) {
        const std::span<const float> actual(call.params.out.Row(first + i, h), static_cast<size_t>(call.params.out.head_dim));
        const std::span<const double> judge(expected[static_cast<size_t>(i)][static_cast<size_t>(h)]);
        const double error = testing::RelativeL2(actual, judge);
        worst = error <= worst ? worst : error;  // NaN wins
      }
    }
    first += item.num_queries;
  }
  return worst;
}

// The affine codecs take their products in whole numbers, all others in f32.
double Bound(std::string_view method) {
  return method.starts_with("int") ? testing::kCpuWholeNumberAttentionRelativeL2 : testing::kCpuAttentionRelativeL2;
}

KvShape Shape(int d, int group, int kv_heads = 2) { return {2, group * kv_heads, kv_heads, d}; }

// A sequence of `length` tokens whose last `num_queries` are the queries of one call.
double ErrorOf(const std::string& method, const KvShape& shape, int length, int num_queries, int sink, int recent) {
  Fixture fixture(method, shape);
  ShadowCache cache(fixture.context, 0, sink, recent, length / kPageTokens + 4, testing::TestSeed(3));
  ShadowSequence sequence;
  EXPECT_TRUE(cache.AppendRandom(sequence, length).ok());
  const Status demoted = cache.DemoteFor(sequence, length - 1, length - num_queries);
  EXPECT_TRUE(demoted.ok()) << demoted.message();
  const int counts[] = {num_queries};
  Call call(fixture, cache, {&sequence, 1}, counts, 5);
  const Status status = Attend(fixture.context, call.params);
  EXPECT_TRUE(status.ok()) << status.message();
  return WorstError(call, cache, {&sequence, 1});
}

TEST(Attend, DecodeAgreesWithTheJudgeForEveryHeadDimensionAndMethod) {
  testing::OnEverySimdTarget([](const char* target) {
    for (int d : {64, 80, 96, 112, 128, 192, 256}) {
      for (const std::string method : {"bf16", "int2:naive", "int2:clip", "int2:hadamard", "int2:quarot", "int2:oscar", "int2:balanced",
                                       "int1:balanced", "int4:hadamard"}) {
        if ((d & (d - 1)) != 0 && (method.ends_with("hadamard") || method == "int2:quarot")) continue;
        if (d % 32 != 0 && method == "int1:balanced") continue;
        EXPECT_LE(ErrorOf(method, Shape(d, 3), 300, 1, 64, 64), Bound(method)) << target << " " << method << " d " << d;
      }
    }
  });
}

TEST(Attend, PrefillAgreesWithTheJudgeForEveryHeadDimensionAndMethod) {
  testing::OnEverySimdTarget([](const char* target) {
    for (int d : {64, 80, 96, 112, 128, 192, 256}) {
      for (const std::string method : {"bf16", "int2:clip", "int2:oscar", "int2:balanced", "int1:balanced", "int4:hadamard"}) {
        if ((d & (d - 1)) != 0 && method.ends_with("hadamard")) continue;
        if (d % 32 != 0 && method == "int1:balanced") continue;
        EXPECT_LE(ErrorOf(method, Shape(d, 2), 230, 150, 64, 64), Bound(method)) << target << " " << method << " d " << d;
      }
    }
  });
}

// The compared methods read whole rows; one call of few queries and one of many, with units of one page and of two.
TEST(Attend, RowCodecsAgreeWithTheJudge) {
  const char* methods[] = {"q8_0", "q4_0", "saw_int4:h16", "turboquant3", "turboquant3v4", "turboquant_mse3", "turboquant_product3",
                           "kivi", "kivi_g32", "kivi_g128", "kitty", "kitty_pro"};
  testing::OnEverySimdTarget([&](const char* target) {
    for (const char* method : methods) {
      for (int d : {64, 96, 128}) {
        if (!DataFreeProfile(method, Shape(d, 3)).ok()) continue;
        if (d > 64 && std::string(method) == "turboquant_product3") continue;  // d^2 work per row
        EXPECT_LE(ErrorOf(method, Shape(d, 3, 1), 450, 1, 64, 64), testing::kCpuAttentionRelativeL2) << target << " " << method << " d " << d;
        EXPECT_LE(ErrorOf(method, Shape(d, 2, 1), 230, 70, 0, 64), testing::kCpuAttentionRelativeL2) << target << " " << method << " d " << d;
      }
    }
  });
}

// Keys are turned back before they are encoded and turned again when they are read, at positions beyond the first pages too.
TEST(Attend, RotateKvAgreesWithTheJudge) {
  testing::OnEverySimdTarget([](const char* target) {
    for (int d : {64, 128}) {
      for (int kv_heads : {4, 8}) {
        EXPECT_LE(ErrorOf("rotatekv", Shape(d, 1, kv_heads), 500, 1, 64, 64), testing::kCpuAttentionRelativeL2) << target << " d " << d;
        EXPECT_LE(ErrorOf("rotatekv", Shape(d, 1, kv_heads), 230, 70, 0, 64), testing::kCpuAttentionRelativeL2) << target << " d " << d;
      }
    }
  });
}

TEST(Attend, UnitsOfTwoPagesAgreeWithTheJudgeAtEveryEdge) {
  for (int length : {64, 128, 129, 191, 192, 193, 255, 256, 257, 320, 321, 383, 384, 385, 449}) {
    for (const auto& [sink, recent] : {std::pair{64, 64}, std::pair{0, 64}, std::pair{64, 128}, std::pair{0, 0}}) {
      for (int num_queries : {1, std::min(length, 20), length}) {
        EXPECT_LE(ErrorOf("kivi_g128", Shape(64, 3, 1), length, num_queries, sink, recent), testing::kCpuAttentionRelativeL2)
            << "length " << length << " queries " << num_queries << " sink " << sink << " recent " << recent;
      }
    }
  }
}

TEST(Attend, EveryGroupSizeAgreesWithTheJudge) {
  testing::OnEverySimdTarget([](const char* target) {
    for (int group = 1; group <= 16; ++group) {
      for (int num_queries : {1, 2, 3, 5, 70}) {
        EXPECT_LE(ErrorOf("int2:oscar", Shape(64, group), 260, num_queries, 64, 64), Bound("int2:oscar"))
            << target << " group " << group << " queries " << num_queries;
      }
    }
  });
}

TEST(Attend, EveryLengthAroundTheEdgesOfPagesAndWindowsAgreesWithTheJudge) {
  for (int length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 319, 320, 321, 383, 384, 385}) {
    for (const char* method : {"bf16", "int2:oscar"}) {
      for (const auto& [sink, recent] : {std::pair{64, 64}, std::pair{0, 64}, std::pair{128, 128}, std::pair{0, 0}}) {
        for (int num_queries : {1, std::min(length, 20), length}) {
          EXPECT_LE(ErrorOf(method, Shape(64, 3, 1), length, num_queries, sink, recent), Bound(method))
              << method << " length " << length << " queries " << num_queries << " sink " << sink << " recent " << recent;
        }
      }
    }
  }
}

// method.md 11, test 22: group sizes by batch, ragged lengths.
TEST(Attend, RaggedBatchesAgreeWithTheJudge) {
  for (int group : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16}) {
    for (int batch : {1, 3, 4, 8, 16, 17, 64}) {
      Fixture fixture("int2:oscar", Shape(64, group, 1));
      ShadowCache cache(fixture.context, 1, 0, 64, 6 * batch, testing::TestSeed(11));
      std::vector<ShadowSequence> sequences(static_cast<size_t>(batch));
      std::vector<int> counts(static_cast<size_t>(batch), 1);
      for (int i = 0; i < batch; ++i) {
        ShadowSequence& sequence = sequences[static_cast<size_t>(i)];
        ASSERT_TRUE(cache.AppendRandom(sequence, 1 + (i * 37) % 200).ok());
        ASSERT_TRUE(cache.DemoteFor(sequence, sequence.num_tokens - 1, sequence.num_tokens - 1).ok());
      }
      Call call(fixture, cache, sequences, counts, 13);
      call.params.layer = 1;
      ASSERT_TRUE(Attend(fixture.context, call.params).ok());
      EXPECT_LE(WorstError(call, cache, sequences), Bound("int2:oscar")) << "group " << group << " batch " << batch;
    }
  }
}

// method.md 11, test 31: no growth of the error with the length.
TEST(Attend, LongDecodeIsAsExactAsShortDecode) {
  for (const char* method : {"bf16", "int2:hadamard"}) {
    EXPECT_LE(ErrorOf(method, Shape(64, 2, 1), 9000, 1, 64, 256), Bound(method)) << method;
    EXPECT_LE(ErrorOf(method, Shape(64, 2, 1), 4200, 70, 64, 256), Bound(method)) << method;
  }
}

// method.md 11, test 34.
TEST(Attend, NothingToAttendIsNoError) {
  Fixture fixture("int2:naive", Shape(64, 2));
  ShadowCache cache(fixture.context, 0, 64, 64, 4, 1);
  ShadowSequence empty;
  const int counts[] = {0};
  Call call(fixture, cache, {&empty, 1}, counts, 1);
  EXPECT_TRUE(Attend(fixture.context, call.params).ok());
  Call none(fixture, cache, {}, {}, 1);
  EXPECT_TRUE(Attend(fixture.context, none.params).ok());
}

// method.md 11, test 6: the same encoded tokens, read by the decode kernel and by the prefill kernel.
TEST(Attend, DecodeAndPrefillReadTheSameRows) {
  for (const char* method : {"bf16", "int2:oscar"}) {
    Fixture fixture(method, Shape(128, 4));
    ShadowCache cache(fixture.context, 0, 64, 64, 12, 21);
    ShadowSequence sequence;
    ASSERT_TRUE(cache.AppendRandom(sequence, 500).ok());
    ASSERT_TRUE(cache.DemoteFor(sequence, 499, 400).ok());
    const int many[] = {100}, one[] = {1};
    Call prefill(fixture, cache, {&sequence, 1}, many, 23);
    ASSERT_TRUE(Attend(fixture.context, prefill.params).ok());
    for (int i = 0; i < 100; i += 9) {
      Call decode(fixture, cache, {&sequence, 1}, one, 23);
      decode.items[0].first_position = 400 + i;
      decode.params.queries = prefill.params.queries.Slice(i, 1);
      ASSERT_TRUE(Attend(fixture.context, decode.params).ok());
      EXPECT_LE(testing::RelativeL2(std::span<const float>(decode.out), std::span<const float>(prefill.out).subspan(static_cast<size_t>(i) * 1024, 1024)),
                2 * Bound(method));
    }
  }
}

TEST(Attend, BatchInvariantQueriesHaveTheBitsThatEachHasAlone) {
  for (const char* method : {"bf16", "int2:oscar", "int4:hadamard", "kivi"}) {
    Fixture fixture(method, Shape(64, 3), 2);
    ShadowCache cache(fixture.context, 0, 64, 64, 30, 25);
    ShadowSequence sequence;
    ASSERT_TRUE(cache.AppendRandom(sequence, 1300).ok());
    ASSERT_TRUE(cache.DemoteFor(sequence, 1299, 1130).ok());
    const int many[] = {170}, one[] = {1};
    Call together(fixture, cache, {&sequence, 1}, many, 27);
    together.params.batch_invariant = true;
    together.workspace.resize(AttendWorkspaceBytes(fixture.context, together.params), std::byte{0xFF});
    together.params.workspace = together.workspace;
    ASSERT_TRUE(Attend(fixture.context, together.params).ok());
    const size_t width = together.out.size() / 170;
    for (int i = 0; i < 170; i += i < 4 ? 1 : 13) {
      Call alone(fixture, cache, {&sequence, 1}, one, 27);
      alone.items[0].first_position = 1130 + i;
      alone.params.queries = together.params.queries.Slice(i, 1);
      alone.params.batch_invariant = i % 2 == 0;  // one query is one pass in any case
      ASSERT_TRUE(Attend(fixture.context, alone.params).ok());
      const auto first = together.out.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(i) * width);
      EXPECT_EQ(alone.out, std::vector<float>(first, first + static_cast<std::ptrdiff_t>(width))) << method << " query " << i;
    }
  }
}

TEST(Attend, NeitherThreadsNorTheRestOfTheBatchChangeABit) {
  std::vector<float> first;
  for (int threads : {1, 2, 5}) {
    Fixture fixture("int2:oscar", Shape(64, 7), threads);
    ShadowCache cache(fixture.context, 0, 64, 64, 60, 31);
    std::vector<ShadowSequence> sequences(2);
    ASSERT_TRUE(cache.AppendRandom(sequences[0], 1500).ok());
    ASSERT_TRUE(cache.AppendRandom(sequences[1], 700).ok());
    for (ShadowSequence& sequence : sequences) ASSERT_TRUE(cache.DemoteFor(sequence, sequence.num_tokens - 1, sequence.num_tokens - 40).ok());
    for (int count : {1, 40}) {
      const int both[] = {count, 3}, alone[] = {count};
      Call together(fixture, cache, sequences, both, 33);
      Call single(fixture, cache, {sequences.data(), 1}, alone, 33);
      ASSERT_TRUE(Attend(fixture.context, together.params).ok());
      ASSERT_TRUE(Attend(fixture.context, single.params).ok());
      together.out.resize(single.out.size());
      EXPECT_EQ(together.out, single.out) << threads << " threads, " << count << " queries";
      if (count == 1 && first.empty()) first = single.out;
      if (count == 1) {
        EXPECT_EQ(single.out, first) << threads << " threads";
      }
    }
  }
}

// A transform that is not orthogonal, with means: q' = q A^-T, and both mean terms.
TEST(Attend, InvertibleTransformsWithMeansAgreeWithTheJudge) {
  const KvShape shape = Shape(64, 3);
  Fixture fixture("int2:oscar", shape);
  fixture.profile.emplace(testing::RandomInvertibleProfile(shape, 41).value());
  fixture.context.profile = &*fixture.profile;
  ShadowCache cache(fixture.context, 0, 64, 64, 8, 43);
  ShadowSequence sequence;
  ASSERT_TRUE(cache.AppendRandom(sequence, 400).ok());
  ASSERT_TRUE(cache.DemoteFor(sequence, 399, 330).ok());
  for (int count : {1, 70}) {
    const int counts[] = {count};
    Call call(fixture, cache, {&sequence, 1}, counts, 45);
    ASSERT_TRUE(Attend(fixture.context, call.params).ok());
    EXPECT_LE(WorstError(call, cache, {&sequence, 1}), Bound("int2:oscar")) << count;
  }
}

TEST(Attend, StridedQueriesAndOutputsAreHonoured) {
  Fixture fixture("int2:hadamard", Shape(64, 3));
  ShadowCache cache(fixture.context, 0, 64, 64, 8, 51);
  ShadowSequence sequence;
  ASSERT_TRUE(cache.AppendRandom(sequence, 300).ok());
  ASSERT_TRUE(cache.DemoteFor(sequence, 299, 270).ok());
  const int counts[] = {30};
  Call packed(fixture, cache, {&sequence, 1}, counts, 53);
  ASSERT_TRUE(Attend(fixture.context, packed.params).ok());
  // [head, token, d] with gaps instead of [token, head, d].
  Call strided(fixture, cache, {&sequence, 1}, counts, 53);
  std::vector<float> queries(6 * 30 * 70), out(6 * 30 * 70, 0.0f);
  for (int t = 0; t < 30; ++t) {
    for (int h = 0; h < 6; ++h) std::copy_n(packed.params.queries.Row(t, h), 64, queries.data() + (h * 30 + t) * 70);
  }
  strided.params.queries = {queries.data(), 30, 6, 64, 70, 30 * 70};
  strided.params.out = {out.data(), 30, 6, 64, 70, 30 * 70};
  ASSERT_TRUE(Attend(fixture.context, strided.params).ok());
  for (int t = 0; t < 30; ++t) {
    for (int h = 0; h < 6; ++h) {
      const float* expected = packed.params.out.Row(t, h);
      EXPECT_EQ(std::vector<float>(expected, expected + 64), std::vector<float>(strided.params.out.Row(t, h), strided.params.out.Row(t, h) + 64));
    }
  }
}

TEST(Attend, BadArgumentsAreRefusedWithTheReason) {
  Fixture fixture("int2:hadamard", Shape(64, 2));
  ShadowCache cache(fixture.context, 0, 64, 64, 8, 61);
  ShadowSequence sequence;
  ASSERT_TRUE(cache.AppendRandom(sequence, 300).ok());
  ASSERT_TRUE(cache.DemoteFor(sequence, 299, 299).ok());
  const int counts[] = {1};
  const auto refused = [&](auto&& spoil) {
    Call call(fixture, cache, {&sequence, 1}, counts, 63);
    KernelContext context = fixture.context;
    spoil(context, call);
    const Status status = Attend(context, call.params);
    EXPECT_FALSE(status.message().empty());
    return status.code();
  };
  EXPECT_EQ(refused([](KernelContext&, Call& call) { call.params.layer = 2; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext&, Call& call) { call.params.sink = 32; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext&, Call& call) { call.params.recent = -64; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext&, Call& call) { call.params.scale = std::nanf(""); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext&, Call& call) { call.params.workspace = call.params.workspace.first(100); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext&, Call& call) { call.items[0].encoded_table = {}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext&, Call& call) { call.items[0].bf16_table = call.items[0].bf16_table.first(3); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext&, Call& call) { call.items[0].num_queries = 2; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext&, Call& call) { call.params.out.head_dim = 32; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext&, Call& call) { call.params.storage.encoded_pages = nullptr; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext& context, Call&) { context.codec = FindCodec("bf16"); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext& context, Call&) { context.shape.num_kv_heads = 3; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](KernelContext& context, Call&) { context.shape.head_dim = 72; }), StatusCode::kUnsupported);
  EXPECT_EQ(refused([](KernelContext& context, Call&) { context.executor = nullptr; }), StatusCode::kInvalidArgument);
}

TEST(MergeStates, PartsJoinAsOneSoftmaxWould) {
  const std::vector<float> a = {1, 2}, b = {5, -2}, zero = {0, 0};
  const float empty = -std::numeric_limits<float>::infinity();
  std::vector<float> out(2);
  const PartialState parts[] = {{a, std::log(1.0f)}, {zero, empty}, {b, std::log(3.0f)}};
  EXPECT_NEAR(MergeStates(parts, out), std::log(4.0), 1e-6);
  EXPECT_NEAR(out[0], 4.0, 1e-6);
  EXPECT_NEAR(out[1], -1.0, 1e-6);
  const PartialState far[] = {{a, 1000.0f}, {b, -1000.0f}};
  EXPECT_EQ(MergeStates(far, out), 1000.0f);
  EXPECT_EQ(out, a);
  const PartialState nothing[] = {{a, empty}};
  EXPECT_EQ(MergeStates(nothing, out), empty);
  EXPECT_EQ(out, zero);
  EXPECT_EQ(MergeStates({}, out), empty);
}

}  // namespace
}  // namespace oscar
