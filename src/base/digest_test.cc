#include "src/base/digest.h"

#include "gtest/gtest.h"

namespace oscar::base {
namespace {

TEST(Sha256, MatchesTheVectorOfFips180) {
  Sha256 sha;
  sha.Update("ab");
  sha.Update("c");
  EXPECT_EQ(HexFromDigest(sha.Finish()), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, AMissingFileIsNamed) {
  const auto result = Sha256OfFile("/nonexistent/file");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kNotFound);
  EXPECT_NE(result.status().message().find("/nonexistent/file"), std::string::npos);
}

}  // namespace
}  // namespace oscar::base
