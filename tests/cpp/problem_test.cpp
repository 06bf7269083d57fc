#include "solve/core/problem.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/error.h"

namespace stalloc {
namespace {

std::string complaint(const solve::Problem& problem) {
  try {
    problem.check();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

solve::Problem of(solve::Buffer buffer) { return {.buffers = {{.size = 1, .upper = 1}, buffer}}; }

TEST(Problem, AcceptsProblemsThatCanBePlanned) {
  EXPECT_EQ(complaint({}), "");
  EXPECT_EQ(complaint(of({.size = 0, .lower = 3, .upper = 3})), "");
  EXPECT_EQ(complaint(of({.size = 5, .lower = 3, .upper = 4, .fixed = 1024})), "");
  EXPECT_EQ(complaint({.buffers = {{.size = 1, .lower = 3, .upper = 8}}, .period = 5}), "");
}

TEST(Problem, NamesTheBufferThatIsWrong) {
  EXPECT_NE(complaint(of({.size = -1})).find("buffer 1 has the negative size"), std::string::npos);
  EXPECT_NE(complaint(of({.lower = 4, .upper = 3})).find("buffer 1 ends"), std::string::npos);
  EXPECT_NE(complaint(of({.lower = -4, .upper = 3})).find("buffer 1 begins"), std::string::npos);
  EXPECT_NE(complaint(of({.fixed = 7})).find("no multiple of 512"), std::string::npos);
  EXPECT_NE(complaint(of({.fixed = -512})).find("negative offset"), std::string::npos);
}

TEST(Problem, RefusesSettingsWithoutSense) {
  EXPECT_NE(complaint({.alignment = 0}), "");
  EXPECT_NE(complaint({.period = -1}), "");
  EXPECT_NE(complaint({.capacity = -1}), "");
}

TEST(Problem, KeepsLifetimesWithinOnePeriod) {
  solve::Problem problem{.buffers = {{.size = 1, .lower = 5, .upper = 6}}, .period = 5};
  EXPECT_NE(complaint(problem).find("outside the period"), std::string::npos);
  problem.buffers[0] = {.size = 1, .lower = 0, .upper = 6};
  EXPECT_NE(complaint(problem).find("more than the period"), std::string::npos);
}

TEST(Problem, CatchesOverflowOfTheSumOfRoundingAndOfFixedEnds) {
  constexpr Bytes kMost = std::numeric_limits<Bytes>::max();
  solve::Problem problem{.buffers = {{.size = Bytes{1} << 62}}, .alignment = 1};
  EXPECT_EQ(complaint(problem), "");
  problem.buffers.push_back({.size = Bytes{1} << 62});
  EXPECT_THROW(problem.check(), OverflowError);
  EXPECT_THROW(solve::Problem{.buffers = {{.size = kMost}}}.check(), OverflowError);
  problem.buffers = {{.size = 1024, .fixed = kMost - 511}};
  problem.alignment = 512;
  EXPECT_THROW(problem.check(), OverflowError);
}

}  // namespace
}  // namespace stalloc
