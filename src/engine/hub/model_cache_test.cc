#include "src/engine/hub/model_cache.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "src/testing/temporary_folder.h"

namespace oscar::engine {
namespace {

class ModelCacheTest : public ::testing::Test {
 protected:
  void Touch(const std::string& name) const { std::ofstream(folder_.path() / name) << "x"; }
  std::string Resolved(const std::string& name) const {
    const auto path = ModelCache(folder_.path()).Resolve(name);
    return path.ok() ? path->filename().string() : std::string(StatusCodeName(path.status().code()));
  }

  testing::TemporaryFolder folder_;
};

TEST_F(ModelCacheTest, AModelIsFoundByAnyUnambiguousSpelling) {
  for (const char* name : {"SmolLM2-135M-Instruct.Q4_1.gguf", "Qwen-0.5B.gguf", "Qwen-1.5B.gguf", "notes.txt"}) Touch(name);
  EXPECT_EQ(Resolved("SmolLM2-135M-Instruct.Q4_1.gguf"), "SmolLM2-135M-Instruct.Q4_1.gguf");
  EXPECT_EQ(Resolved("SmolLM2-135M-Instruct.Q4_1"), "SmolLM2-135M-Instruct.Q4_1.gguf");
  EXPECT_EQ(Resolved("smollm2-135m-instruct.q4_1.GGUF"), "SmolLM2-135M-Instruct.Q4_1.gguf");
  EXPECT_EQ(Resolved("smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf");
  EXPECT_EQ(Resolved("qwen-1"), "Qwen-1.5B.gguf");
  EXPECT_EQ(Resolved("qwen"), "invalid argument");
  EXPECT_EQ(Resolved("llama"), "not found");
  EXPECT_EQ(Resolved("notes.txt"), "not found");
  EXPECT_EQ(Resolved(""), "invalid argument");
}

TEST_F(ModelCacheTest, AnExactNameWinsOverLongerOnesAndOtherCases) {
  for (const char* name : {"a.gguf", "A.gguf", "ab.gguf"}) Touch(name);
  EXPECT_EQ(Resolved("a"), "a.gguf");
  EXPECT_EQ(Resolved("A"), "A.gguf");
  EXPECT_EQ(Resolved("AB"), "ab.gguf");
}

TEST_F(ModelCacheTest, APathIsItselfAndAMissingPathIsNotLookedUpInTheCache) {
  Touch("m.gguf");
  const std::string path = (folder_.path() / "m.gguf").string();
  EXPECT_EQ(ModelCache("/nonexistent").Resolve(path)->string(), path);
  const auto missing = ModelCache(folder_.path()).Resolve("./m");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
}

TEST_F(ModelCacheTest, TheErrorListsWhatIsThere) {
  Touch("one.gguf");
  Touch("two.gguf");
  const auto missing = ModelCache(folder_.path()).Resolve("three");
  EXPECT_NE(missing.status().message().find("one.gguf, two.gguf"), std::string::npos) << missing.status().message();
  const auto empty = ModelCache(folder_.path() / "none").Resolve("three");
  EXPECT_EQ(empty.status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(ModelCache(folder_.path() / "none").List().empty());
}

TEST_F(ModelCacheTest, TheDefaultFollowsTheUsersEnvironment) {
  ASSERT_EQ(setenv("XDG_CACHE_HOME", "/xdg", 1), 0);
  ASSERT_EQ(setenv("HOME", "/home/someone", 1), 0);
  EXPECT_EQ(ModelCache().root(), "/xdg/oscar/models");
  ASSERT_EQ(setenv("XDG_CACHE_HOME", "relative", 1), 0);
  EXPECT_EQ(ModelCache().root(), "/home/someone/.cache/oscar/models");
  ASSERT_EQ(unsetenv("XDG_CACHE_HOME"), 0);
  EXPECT_EQ(ModelCache().root(), "/home/someone/.cache/oscar/models");
}

TEST(ModelCache, AProfileStandsBesideItsModel) {
  EXPECT_EQ(ModelCache::ProfilePath("/m/Smol.Q4_1.gguf", "int2:oscar"), "/m/Smol.Q4_1.int2-oscar.profile.safetensors");
  EXPECT_EQ(ModelCache::ProfilePath("model", "../x"), "model...-x.profile.safetensors");
}

}  // namespace
}  // namespace oscar::engine
