#include "data/tables/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "mentions.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Cells = std::vector<std::string>;

std::vector<CsvRow> rows_of(std::string_view text, char separator = ',') {
  std::vector<CsvRow> rows;
  CsvReader reader(text, separator);
  for (CsvRow row; reader.next(row);) rows.push_back(row);
  return rows;
}

std::vector<Cells> cells_of(std::string_view text, char separator = ',') {
  std::vector<Cells> all;
  for (const auto& row : rows_of(text, separator)) {
    EXPECT_EQ(row.problem, "");
    all.push_back(row.cells);
  }
  return all;
}

TEST(Csv, HasCellsAndLines) {
  EXPECT_THAT(cells_of("a,b\n1,2\n"), ElementsAre(Cells{"a", "b"}, Cells{"1", "2"}));
  EXPECT_THAT(cells_of("a,b\r\n1,\r\n"), ElementsAre(Cells{"a", "b"}, Cells{"1", ""}));
  EXPECT_THAT(cells_of(",\n\n\na"), ElementsAre(Cells{"", ""}, Cells{"a"})) << "empty lines are none";
  EXPECT_THAT(cells_of("\xef\xbb\xbf"
                       "a\n"),
              ElementsAre(Cells{"a"}));
  EXPECT_THAT(cells_of(""), ElementsAre());
  EXPECT_THAT(cells_of("a,b\tc\n", '\t'), ElementsAre(Cells{"a,b", "c"}));
  EXPECT_THAT(cells_of("a\rb\n"), ElementsAre(Cells{"a\rb"}));
}

TEST(Csv, QuotesHoldAnything) {
  EXPECT_THAT(cells_of("\"a,\nb\",\"\"\"q\"\"\",\"\"\nx,y,z"),
              ElementsAre(Cells{"a,\nb", "\"q\"", ""}, Cells{"x", "y", "z"}));
  EXPECT_THAT(cells_of("a\"b,c\n"), ElementsAre(Cells{"a\"b", "c"})) << "within a cell it is a character";
}

TEST(Csv, SaysWhereRowsBegin) {
  const auto rows = rows_of("a\n\"x\ny\"\n\nb\n");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].line, 2);
  EXPECT_EQ(rows[1].byte, 2);
  EXPECT_EQ(rows[2].line, 5);
  EXPECT_EQ(rows[2].byte, 9);
}

TEST(Csv, NamesDamageAndGoesOn) {
  auto rows = rows_of("\"a\"b,c\nd,e\n");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[0].problem, Mentions("byte 0 ... byte 2"));
  EXPECT_THAT(rows[1].cells, ElementsAre("d", "e"));
  rows = rows_of("a,\"b\nc");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[0].problem, HasSubstr("byte 2"));
  EXPECT_THAT(rows[1].cells, ElementsAre("c"));
  rows = rows_of("1,\"a\n2,b\n3,c\"d\n4,e\n");  // costs its line, not those up to the next quote
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_THAT(rows[0].problem, Mentions("byte 2 ... byte 12"));
  for (const size_t row : {1u, 2u, 3u}) EXPECT_EQ(rows[row].problem, "");
  EXPECT_EQ(rows[3].line, 4);
  rows = rows_of("a,b\xff\nc,d\n");
  EXPECT_THAT(rows[0].problem, Mentions("cell 2 ... 0xff ... byte 1"));
  EXPECT_EQ(rows[1].problem, "");
}

TEST(Csv, ARowHasSoManyCells) {
  const auto rows = rows_of(std::string(1'048'577, ',') + "\nc,d\n");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[0].problem, HasSubstr("1048576"));
  EXPECT_EQ(rows[0].cells.size(), 1'048'576u);
  EXPECT_THAT(rows[1].cells, ElementsAre("c", "d"));
}

TEST(Csv, SurvivesAnything) {
  std::mt19937 random(4);
  for (int round = 0; round < 3000; ++round) {
    std::string text(random() % 60, ' ');
    for (char& c : text) c = "a,\"\n\r\xff\xc3"[random() % 7];
    size_t bytes = 0;
    for (const auto& row : rows_of(text)) {
      EXPECT_GE(row.byte, 0);
      for (const auto& cell : row.cells) bytes += cell.size();
    }
    EXPECT_LE(bytes, text.size());
  }
}

}  // namespace
}  // namespace lockstep::data
