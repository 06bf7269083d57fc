#include "solve/csv.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace stalloc {
namespace {

std::string complaint(std::string_view text) {
  try {
    solve::read_csv(text);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

TEST(Csv, ReadsColumnsInAnyOrderAndOtherDialects) {
  const solve::CsvProblem csv =
      solve::read_csv("size, id,upper,lower,comment\r\n8, a ,5,1,x\r\n\n9,b,7,0,y");
  ASSERT_EQ(csv.ids, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(csv.problem.buffers[0].size, 8);
  EXPECT_EQ(csv.problem.buffers[0].lower, 1);
  EXPECT_EQ(csv.problem.buffers[0].upper, 5);
  EXPECT_EQ(csv.problem.buffers[1].size, 9);
  EXPECT_EQ(csv.problem.alignment, 1);
  EXPECT_FALSE(csv.has_offsets);
}

TEST(Csv, ReadsBackItsOutput) {
  const solve::CsvProblem csv = solve::read_csv("id,lower,upper,size\nx,0,5,8\ny,3,9,4\n");
  const std::string text = solve::write_csv(csv.ids, csv.problem, {{16, 0}, 24});
  EXPECT_EQ(text, "id,lower,upper,size,offset\nx,0,5,8,16\ny,3,9,4,0\n");
  const solve::CsvProblem again = solve::read_csv(text);
  EXPECT_TRUE(again.has_offsets);
  EXPECT_EQ(again.offsets, (std::vector<Offset>{16, 0}));
}

TEST(Csv, NamesTheLineThatIsWrong) {
  const std::string header = "id,lower,upper,size\n0,0,5,8\n";
  const auto line3 = [&](const std::string& line) { return complaint(header + line); };
  EXPECT_EQ(line3("1,0,5,8"), "");
  EXPECT_EQ(line3("1,0,5"), "line 3: 3 fields where the header names 4");
  EXPECT_EQ(line3("1,0,5,8,9"), "line 3: 5 fields where the header names 4");
  EXPECT_EQ(line3("0,0,5,8"), "line 3: the id \"0\" appears twice");
  EXPECT_EQ(line3("1,0,5,x"), "line 3: the size \"x\" is no whole number");
  EXPECT_EQ(line3("1,0,5,"), "line 3: the size \"\" is no whole number");
  EXPECT_EQ(line3("1,0,5,8.5"), "line 3: the size \"8.5\" is no whole number");
  EXPECT_EQ(line3("1,0,5,9223372036854775808"),
            "line 3: the size 9223372036854775808 does not fit in 63 bits");
  EXPECT_NE(line3("1,0,5,-8").find("line 3: a negative size"), std::string::npos);
  EXPECT_NE(line3("1,6,5,8").find("line 3: a lifetime that ends"), std::string::npos);
  EXPECT_NE(line3("1,-6,5,8").find("line 3: a lifetime that begins"), std::string::npos);
}

TEST(Csv, NamesTheColumnThatIsMissing) {
  EXPECT_NE(complaint("id,lower,upper\n").find("line 1: the column \"size\" is missing"),
            std::string::npos);
  EXPECT_NE(complaint("0,0,5,8\n").find("\"id\" is missing"), std::string::npos);
  EXPECT_NE(complaint("id,id,lower,upper,size\n").find("twice"), std::string::npos);
  EXPECT_NE(complaint("").find("empty"), std::string::npos);
}

TEST(Csv, RefusesAmbiguousText) {
  EXPECT_NE(complaint("id,lower,upper,size,alignment\n0,0,5,8,64\n").find("alignment"),
            std::string::npos);
  EXPECT_EQ(complaint("id,lower,upper,size,alignment,gaps\n0,0,5,8,1,\n"), "");
}

TEST(Csv, ReadsAndWritesGaps) {
  const solve::CsvProblem csv =
      solve::read_csv("id,gaps,lower,upper,size\na,2-3 5-9,0,9,8\nb,,0,9,4\nc,4-5,4,5,4\n");
  ASSERT_EQ(csv.problem.idle.size(), 3u);
  EXPECT_EQ(csv.problem.idle[1].buffer, 0);
  EXPECT_EQ(csv.problem.idle[1].lower, 5);
  EXPECT_EQ(csv.problem.idle[1].upper, 9);
  EXPECT_EQ(csv.problem.idle[2].buffer, 2);
  csv.problem.check();
  EXPECT_EQ(solve::write_csv(csv.ids, csv.problem, {{4, 0, 0}, 12}),
            "id,lower,upper,size,gaps,offset\na,0,9,8,2-3 5-9,4\nb,0,9,4,,0\nc,4,5,4,4-5,0\n");
  for (const std::string gaps : {"2", "2-", "-3", "x-3", "3-2", "3-3", "0-3", "4-9", "2-4 3-5",
                                 "4-5 2-3", "2-3@0:4", "2-3,4-5"}) {
    const std::string text =
        complaint("id,lower,upper,size,gaps\n0,1,8,8,\n1,1,8,8," + gaps + "\n");
    EXPECT_NE(text.find("line 3"), std::string::npos) << gaps << ": " << text;
  }
}

}  // namespace
}  // namespace stalloc
