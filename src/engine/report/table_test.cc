#include "src/engine/report/table.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

TEST(Table, NumbersStandRightAndTextLeft) {
  Table table("KL against the exact cache", {{"method", "method", ""},
                                             {"kl_nats", "KL", "nats", NumberFormat::kSignificant, 3},
                                             {"pool_bytes", "pool", "", NumberFormat::kBytes},
                                             {"tokens", "tokens", "", NumberFormat::kCount}});
  table.AddRow({std::string("int2:oscar"), 0.03127, uint64_t{1299227607}, int64_t{8192}});
  table.AddRow({std::string("bf16"), 0.0, uint64_t{512}, std::monostate()});
  EXPECT_EQ(table.ToText(),
            "KL against the exact cache\n"
            "method          KL      pool  tokens\n"
            "              nats\n"
            "------------------------------------\n"
            "int2:oscar  0.0313  1.21 GiB   8,192\n"
            "bf16             0     512 B       -\n");
}

TEST(Table, WithoutUnitsTitleAndRowsOnlyTheHeadingIsLeft) {
  const Table table("", {{"a", "first", ""}, {"b", "b", ""}});
  EXPECT_EQ(table.ToText(), "first  b\n--------\n");
}

TEST(Table, ReadyTextsThatReadAsNumbersStandRight) {
  Table table({"method", "size", "change"});
  table.AddRow({"int2:oscar", "1.21 GiB", "-3 %"});
  table.AddRow({"bf16", "9 B", "-"});
  EXPECT_EQ(table.ToText(),
            "method          size  change\n"
            "----------------------------\n"
            "int2:oscar  1.21 GiB    -3 %\n"
            "bf16             9 B       -\n");
}

TEST(Table, ForeignTextCannotBreakTheLayout) {
  Table table("", {{"name", "name", ""}, {"n", "n", ""}});
  table.AddRow({std::string("a\nb\x1b[31m"), int64_t{1}});
  table.AddRow({std::string("na\xc3\xafve"), int64_t{22}});
  EXPECT_EQ(table.ToText(),
            "name       n\n"
            "------------\n"
            "a?b?[31m   1\n"
            "na\xc3\xafve     22\n");
}

TEST(Table, EveryKindOfCellHasAText) {
  const Column plain{"k", "k", ""};
  EXPECT_EQ(CellText(Cell(), plain), "-");
  EXPECT_EQ(CellText(true, plain), "yes");
  EXPECT_EQ(CellText(int64_t{-3}, plain), "-3");
  EXPECT_EQ(CellText(std::numeric_limits<uint64_t>::max(), plain), "18446744073709551615");
  EXPECT_EQ(CellText(0.1, plain), "0.1");
  EXPECT_EQ(CellText(int64_t{-3}, Column{"k", "k", "", NumberFormat::kBytes}), "-3 B");
  EXPECT_EQ(CellText(int64_t{3}, Column{"k", "k", "", NumberFormat::kDecimal, 2}), "3.00");
  EXPECT_EQ(CellText(std::numeric_limits<uint64_t>::max(), Column{"k", "k", "", NumberFormat::kCount}), "18446744073709551615");
  EXPECT_EQ(CellText(std::numeric_limits<double>::quiet_NaN(), Column{"k", "k", "", NumberFormat::kDecimal, 2}), "nan");
}

TEST(TableDeathTest, ARowOfAnotherLengthAndAKeyTwiceAreOurBugs) {
  Table table("", {{"a", "a", ""}});
  EXPECT_DEATH(table.AddRow({int64_t{1}, int64_t{2}}), "cells.size");
  EXPECT_DEATH(Table("", {{"a", "a", ""}, {"a", "b", ""}}), "keys.insert");
}

}  // namespace
}  // namespace oscar::engine
