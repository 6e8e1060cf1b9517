#include "src/engine/runtime/calibration_text.h"

#include <gtest/gtest.h>

#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

TEST(CalibrationText, IsLongEnoughForACalibrationAndNotLonger) {
  EXPECT_GT(CalibrationText().size(), 300'000u);  // 30,000 tokens are about 110,000 bytes
  EXPECT_LT(CalibrationText().size(), 640'000u);
}

TEST(CalibrationText, IsUtf8WithoutNulBytes) {
  EXPECT_EQ(CalibrationText().find('\0'), std::string_view::npos);
  EXPECT_EQ(io::ReplaceInvalidUtf8(CalibrationText()), CalibrationText());
}

TEST(CalibrationText, HoldsProseAndCodeInItsFirstParts) {
  EXPECT_EQ(CalibrationText().substr(0, 2), "# ");  // a Markdown title
  const std::string_view start = CalibrationText().substr(0, 16384);
  EXPECT_NE(start.find("#pragma once"), std::string_view::npos);
  EXPECT_NE(start.find(". "), std::string_view::npos);
}

}  // namespace
}  // namespace oscar::engine
