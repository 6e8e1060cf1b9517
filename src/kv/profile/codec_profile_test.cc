#include "oscar/codec_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "src/base/digest.h"

namespace oscar {
namespace {

constexpr KvShape kShape = {2, 4, 2, 8};

std::vector<CodecProfile::Row> Rows(const KvShape& shape, int transform = 0) {
  CodecProfile::Row row;
  row.transform = transform;
  row.clip_ratio = 0.96f;
  return std::vector<CodecProfile::Row>(static_cast<size_t>(shape.num_layers * shape.num_kv_heads * 2), row);
}

std::vector<KvTransform> Transforms() {
  std::vector<KvTransform> transforms;
  transforms.push_back(KvTransform::Identity(8));
  transforms.push_back(KvTransform::Hadamard(8).value());
  return transforms;
}

// The Hadamard matrix as calibrated data: the smallest profile that CheckProfileFits takes for calibrated.
CodecProfile Calibrated(Provenance provenance) {
  const KvTransform hadamard = KvTransform::Hadamard(8).value();
  std::vector<KvTransform> transforms;
  transforms.push_back(KvTransform::Orthogonal(8, {hadamard.matrix().begin(), hadamard.matrix().end()}).value());
  return CodecProfile::Create("int2:oscar", kShape, std::move(transforms), Rows(kShape), std::move(provenance)).value();
}

TEST(CodecProfile, RowsAreFoundByLayerHeadAndSide) {
  std::vector<CodecProfile::Row> rows = Rows(kShape);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].transform = static_cast<int>(i % 2);
    rows[i].mean.assign(8, static_cast<float>(i));
  }
  const CodecProfile profile = CodecProfile::Create("m", kShape, Transforms(), rows, {}).value();
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 2; ++head) {
      for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
        const int index = (layer * 2 + head) * 2 + (side == KvSide::kValue);
        const RowProfile row = profile.row(layer, head, side);
        EXPECT_EQ(row.mean[7], static_cast<float>(index));
        EXPECT_EQ(row.transform->kind(), index % 2 == 0 ? TransformKind::kIdentity : TransformKind::kHadamard);
        EXPECT_EQ(row.clip_ratio, 0.96f);
      }
    }
  }
}

TEST(CodecProfile, RowsStayValidWhenTheProfileMoves) {
  std::vector<CodecProfile::Row> rows = Rows(kShape);
  rows[3].mean.assign(8, 2.0f);
  CodecProfile first = CodecProfile::Create("m", kShape, Transforms(), rows, {}).value();
  const RowProfile row = first.row(0, 1, KvSide::kValue);
  const CodecProfile second = std::move(first);
  EXPECT_EQ(row.mean.data(), second.row(0, 1, KvSide::kValue).mean.data());
  EXPECT_EQ(row.transform, second.row(0, 1, KvSide::kValue).transform);
}

TEST(CodecProfile, RefusesPartsThatDoNotFit) {
  using Change = std::function<void(KvShape&, std::vector<KvTransform>&, std::vector<CodecProfile::Row>&)>;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<std::string, Change>> cases = {
      {"impossible attention shape", [](auto& shape, auto&, auto&) { shape.num_layers = 0; }},
      {"impossible attention shape", [](auto& shape, auto&, auto&) { shape.num_query_heads = 5; }},
      {"impossible attention shape", [](auto& shape, auto&, auto&) { shape.head_dim = 1 << 30; }},
      {"7 rows", [](auto&, auto&, auto& rows) { rows.pop_back(); }},
      {"head_dim 4", [](auto&, auto& transforms, auto&) { transforms.push_back(KvTransform::Identity(4)); }},
      {"transform 2 of 2", [](auto&, auto&, auto& rows) { rows[0].transform = 2; }},
      {"layer 1, KV head 0, values", [](auto&, auto&, auto& rows) { rows[5].transform = -1; }},
      {"mean has 7", [](auto&, auto&, auto& rows) { rows[0].mean.assign(7, 0.0f); }},
      {"mean holds", [&](auto&, auto&, auto& rows) { rows[0].mean.assign(8, nan); }},
      {"needs rotary angles", [](auto&, auto&, auto& rows) { rows[0].mean_kind = MeanKind::kRotating; }},
      {"span more than 1e10",
       [](auto&, auto&, auto& rows) {
         rows[0].encoder = EncoderKind::kErrorFeedback;
         rows[0].metric.assign(8, 1.0f);
         rows[0].metric[3] = 1e11f;
       }},
      {"metric has 8", [](auto&, auto&, auto& rows) { rows[0].metric.assign(8, 1.0f); }},
      {"metric has 0", [](auto&, auto&, auto& rows) { rows[0].encoder = EncoderKind::kErrorFeedback; }},
      {"positive number",
       [](auto&, auto&, auto& rows) {
         rows[0].encoder = EncoderKind::kErrorFeedback;
         rows[0].metric.assign(8, 0.0f);
       }},
      {"clip ratio", [](auto&, auto&, auto& rows) { rows[0].clip_ratio = 1.5f; }},
      {"clip ratio", [&](auto&, auto&, auto& rows) { rows[0].clip_ratio = nan; }},
      {"range factor", [](auto&, auto&, auto& rows) { rows[0].range_factor = 0.0f; }},
      {"unknown encoder", [](auto&, auto&, auto& rows) { rows[0].encoder = static_cast<EncoderKind>(9); }},
  };
  for (const auto& [expected, change] : cases) {
    KvShape shape = kShape;
    std::vector<KvTransform> transforms = Transforms();
    std::vector<CodecProfile::Row> rows = Rows(kShape);
    change(shape, transforms, rows);
    const auto result = CodecProfile::Create("m", shape, std::move(transforms), std::move(rows), {});
    ASSERT_FALSE(result.ok()) << expected;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find(expected), std::string::npos) << result.status().message();
  }
}

TEST(CodecProfile, TheDigestChangesWithAllThatChangesBytesAndWithNothingElse) {
  const auto digest = [](std::string method, std::function<void(std::vector<CodecProfile::Row>&)> change,
                         Provenance provenance = {}) {
    std::vector<CodecProfile::Row> rows = Rows(kShape);
    change(rows);
    return CodecProfile::Create(std::move(method), kShape, Transforms(), rows, std::move(provenance)).value().digest();
  };
  const auto keep = [](auto&) {};
  const Digest base = digest("int2:clip", keep);
  EXPECT_EQ(base::HexFromDigest(base),
            base::HexFromDigest(digest("int2:clip", keep, {.model_name = "other", .num_tokens = 7})));
  EXPECT_NE(base, digest("int2:naive", keep));
  EXPECT_NE(base, digest("int2:clip", [](auto& rows) { rows[7].clip_ratio = 0.92f; }));
  EXPECT_NE(base, digest("int2:clip", [](auto& rows) { rows[7].transform = 1; }));
  EXPECT_NE(base, digest("int2:clip", [](auto& rows) { rows[7].mean.assign(8, 0.0f); }));
  EXPECT_NE(base, digest("int2:clip", [](auto& rows) { rows[7].range_factor = 2.0f; }));
  EXPECT_NE(base, digest("int2:clip", [](auto& rows) { rows[7].encoder = EncoderKind::kLloydAffine; }));
}

// A balanced profile of one head: keys whose mean turns, error feedback on both sides.
Result<CodecProfile> Turning(RotaryEmbedding rotary, std::function<void(std::vector<CodecProfile::Row>&)> change = {}) {
  std::vector<CodecProfile::Row> rows = Rows({1, 1, 1, 8});
  for (CodecProfile::Row& row : rows) {
    row.mean.assign(8, 1.0f);
    row.encoder = EncoderKind::kErrorFeedback;
    row.metric = {1, 2, 3, 4, 5, 6, 7, 8};
  }
  rows[0].mean_kind = MeanKind::kRotating;
  if (change) change(rows);
  return CodecProfile::Create("m", {1, 1, 1, 8}, Transforms(), rows, {}, std::move(rotary));
}

TEST(CodecProfile, AMeanTurnsOnlyForKeysThatHaveOneAndWithAnglesThatFit) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(Turning({{1.0f, 0.1f, 0.01f}, true}).ok());
  const auto fault = [](const Result<CodecProfile>& profile) { return profile.status().message(); };
  EXPECT_NE(fault(Turning({})).find("needs rotary angles"), std::string::npos);
  EXPECT_NE(fault(Turning({{1, 1, 1, 1, 1}, false})).find("5 rotary pairs in head_dim 8"), std::string::npos);
  EXPECT_NE(fault(Turning({{1, nan}, false})).find("angle is not finite"), std::string::npos);
  EXPECT_NE(fault(Turning({{1}, false}, [](auto& rows) { rows[0].mean.clear(); })).find("rotating mean"), std::string::npos);
  EXPECT_NE(fault(Turning({{1}, false}, [](auto& rows) { rows[1].mean_kind = MeanKind::kRotating; })).find("keys only"), std::string::npos);
  EXPECT_NE(fault(Turning({{1}, false}, [](auto& rows) { rows[0].mean_kind = MeanKind::kConstant; })).find("without a mean"), std::string::npos);
}

TEST(CodecProfile, AnglesPairingAndEffortArePartOfTheDigest) {
  const CodecProfile base = Turning({{1.0f, 0.1f}, true}).value();
  EXPECT_NE(base.digest(), Turning({{1.0f, 0.2f}, true})->digest());
  EXPECT_NE(base.digest(), Turning({{1.0f, 0.1f}, false})->digest());
  CodecProfile quick = Turning({{1.0f, 0.1f}, true}).value();
  EXPECT_EQ(quick.row(0, 0, KvSide::kKey).encode_effort, 2);
  ASSERT_TRUE(quick.SetEncodeEffort(0).ok());
  EXPECT_EQ(quick.row(0, 0, KvSide::kKey).encode_effort, 0);
  EXPECT_NE(base.digest(), quick.digest());
  ASSERT_TRUE(quick.SetEncodeEffort(2).ok());
  EXPECT_EQ(base.digest(), quick.digest());
  for (const int effort : {-1, 3}) EXPECT_EQ(quick.SetEncodeEffort(effort).code(), StatusCode::kInvalidArgument);
  CodecProfile plain = CodecProfile::Create("m", kShape, Transforms(), Rows(kShape), {}).value();
  EXPECT_EQ(plain.SetEncodeEffort(1).code(), StatusCode::kUnsupported);
}

TEST(CodecProfile, TheDigestDoesNotDependOnHowHeadsShareMatrices) {
  std::vector<KvTransform> twice = Transforms();
  twice.push_back(KvTransform::Identity(8));
  std::vector<CodecProfile::Row> rows = Rows(kShape);
  rows[2].transform = 2;
  const CodecProfile shared = CodecProfile::Create("m", kShape, Transforms(), Rows(kShape), {}).value();
  const CodecProfile separate = CodecProfile::Create("m", kShape, std::move(twice), rows, {}).value();
  EXPECT_EQ(shared.digest(), separate.digest());
}

TEST(CodecProfile, EigenvaluesAreKeptPerLayerAndSide) {
  CodecProfile profile = Calibrated({});
  const Digest before = profile.digest();
  EXPECT_TRUE(profile.eigenvalues(1, KvSide::kValue).empty());
  profile.set_eigenvalues(1, KvSide::kValue, std::vector<float>(8, 3.0f));
  EXPECT_EQ(profile.eigenvalues(1, KvSide::kValue).size(), 8u);
  EXPECT_TRUE(profile.eigenvalues(1, KvSide::kKey).empty());
  EXPECT_EQ(profile.digest(), before);
}

TEST(CheckProfileFits, AnotherShapeOrIdentityIsRefusedWithTheReason) {
  const CodecProfile profile = Calibrated({.model_name = "tiny", .model_digest = "aa", .model_identity = "llama/1"});
  std::string warning;
  EXPECT_TRUE(CheckProfileFits(profile, {kShape, "aa", "llama/1", {}}, &warning).ok());
  EXPECT_EQ(warning, "");

  KvShape wider = kShape;
  wider.head_dim = 16;
  Status status = CheckProfileFits(profile, {wider, "aa", "llama/1", {}}, &warning);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("head_dim 8"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("head_dim 16"), std::string::npos) << status.message();

  status = CheckProfileFits(profile, {kShape, "bb", "qwen2/1", {}}, &warning);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("qwen2/1"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("\"tiny\""), std::string::npos) << status.message();
}

TEST(CheckProfileFits, AnotherFileOfTheSameModelIsAWarning) {
  const CodecProfile profile = Calibrated({.model_name = "tiny", .model_digest = "aa", .model_identity = "llama/1"});
  std::string warning;
  EXPECT_TRUE(CheckProfileFits(profile, {kShape, "bb", "llama/1", {}}, &warning).ok());
  EXPECT_NE(warning.find("another quantisation"), std::string::npos) << warning;
  EXPECT_TRUE(CheckProfileFits(profile, {kShape, "bb", "llama/1", {}}, nullptr).ok());
}

TEST(CheckProfileFits, ACalibratedProfileWithoutIdentityIsAWarningAndADataFreeOneIsNot) {
  std::string warning;
  EXPECT_TRUE(CheckProfileFits(Calibrated({}), {kShape, "bb", "llama/1", {}}, &warning).ok());
  EXPECT_NE(warning.find("no identity"), std::string::npos) << warning;
  const CodecProfile data_free =
      CodecProfile::Create("int2:hadamard", kShape, Transforms(), Rows(kShape, 1), {}).value();
  EXPECT_TRUE(CheckProfileFits(data_free, {kShape, "bb", "llama/1", {}}, &warning).ok());
  EXPECT_EQ(warning, "");
}

TEST(CheckProfileFits, MeansThatTurnByOtherAnglesThanTheModelsAreRefused) {
  const CodecProfile profile = Turning({{1.0f, 0.1f, 0.01f}, true}).value();
  const auto check = [&](RotaryEmbedding rotary) { return CheckProfileFits(profile, {{1, 1, 1, 8}, "aa", "llama/1", std::move(rotary)}, nullptr); };
  EXPECT_TRUE(check({{1.0f, std::nextafter(0.1f, 1.0f), 0.01f}, true}).ok());
  for (const RotaryEmbedding& other : {RotaryEmbedding{{1.0f, 0.1f, 0.011f}, true}, {{1.0f, 0.1f, 0.01f}, false}, {{1.0f, 0.1f}, true}, {}}) {
    EXPECT_EQ(check(other).code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(check(other).message().find("rotary angles"), std::string::npos);
  }
}

}  // namespace
}  // namespace oscar
