#include "src/engine/report/json_report.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "src/testing/temporary_folder.h"

namespace oscar::engine {
namespace {

TEST(JsonReport, KeysKeepTheirOrderAndNumbersTheirDigits) {
  JsonReport report("eval kl");
  report.Set("model", std::string("Smol"));
  report.Set("a_last", 0.1);
  Table table("", {{"method", "m", ""}, {"kl_nats", "KL", "nats", NumberFormat::kSignificant, 2}, {"bytes", "b", "", NumberFormat::kBytes}});
  table.AddRow({std::string("int2:oscar"), 0.031278912, uint64_t{1299227607}});
  report.Add("methods", table);
  report.Set("passed", true);
  EXPECT_EQ(report.ToText(),
            "{\n"
            "  \"command\": \"eval kl\",\n"
            "  \"model\": \"Smol\",\n"
            "  \"a_last\": 0.1,\n"
            "  \"methods\": [\n"
            "    {\n"
            "      \"method\": \"int2:oscar\",\n"
            "      \"kl_nats\": 0.031278912,\n"
            "      \"bytes\": 1299227607\n"
            "    }\n"
            "  ],\n"
            "  \"passed\": true\n"
            "}\n");
}

TEST(JsonReport, WhatJsonCannotSayIsSaidAsText) {
  JsonReport report("x");
  report.Set("nan", std::nan(""));
  report.Set("inf", -std::numeric_limits<double>::infinity());
  report.Set("absent", std::monostate());
  report.Set("bytes", std::string("\xff\"\n"));
  EXPECT_EQ(report.ToText(),
            "{\n  \"command\": \"x\",\n  \"nan\": \"nan\",\n  \"inf\": \"-inf\",\n  \"absent\": null,\n"
            "  \"bytes\": \"\xef\xbf\xbd\\\"\\n\"\n}\n");
}

TEST(JsonReport, WritingReplacesTheFileAtOnce) {
  const testing::TemporaryFolder folder;
  const auto path = folder.path() / "r.json";
  std::ofstream(path) << "old";
  const JsonReport report("x");
  ASSERT_TRUE(report.Write(path).ok());
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), report.ToText());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(JsonReport, AnImpossiblePathIsNamed) {
  const Status status = JsonReport("x").Write("/nonexistent/r.json");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/nonexistent/r.json"), std::string::npos);
}

TEST(JsonReportDeathTest, AKeyTwiceIsOurBug) { EXPECT_DEATH(JsonReport("x").Set("command", true), "command"); }

}  // namespace
}  // namespace oscar::engine
