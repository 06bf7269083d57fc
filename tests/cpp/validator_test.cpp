#include "verify/validator.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace stalloc {
namespace {

solve::Problem two(solve::Buffer a, solve::Buffer b) { return {.buffers = {a, b}, .alignment = 4}; }

std::string complaint(const solve::Problem& problem, const solve::Layout& layout) {
  try {
    verify::validate(problem, layout);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

TEST(Validator, AcceptsNeighboursInTimeAndInAddress) {
  const solve::Problem problem =
      two({.size = 8, .lower = 0, .upper = 5}, {.size = 8, .lower = 5, .upper = 9});
  EXPECT_EQ(complaint(problem, {{0, 0}, 8}), "");
  const solve::Problem together =
      two({.size = 8, .lower = 0, .upper = 5}, {.size = 8, .lower = 4, .upper = 9});
  EXPECT_EQ(complaint(together, {{0, 8}, 16}), "");
}

TEST(Validator, FindsOverlapOfEveryShape) {
  const solve::Problem problem =
      two({.size = 8, .lower = 0, .upper = 5}, {.size = 8, .lower = 4, .upper = 9});
  for (const Offset other : {0, 4, 8}) {
    EXPECT_NE(complaint(problem, {{4, other}, 16}).find("overlap"), std::string::npos) << other;
  }
  const solve::Problem inside =
      two({.size = 32, .lower = 0, .upper = 9}, {.size = 4, .lower = 2, .upper = 3});
  EXPECT_NE(complaint(inside, {{0, 16}, 32}), "");
}

TEST(Validator, RoundsSizesUp) {
  const solve::Problem problem =
      two({.size = 5, .lower = 0, .upper = 5}, {.size = 4, .lower = 0, .upper = 5});
  EXPECT_NE(complaint(problem, {{0, 4}, 8}), "");
  EXPECT_EQ(complaint(problem, {{0, 8}, 12}), "");
}

TEST(Validator, FollowsTimeRoundTheCircle) {
  solve::Problem problem =
      two({.size = 8, .lower = 8, .upper = 12}, {.size = 8, .lower = 1, .upper = 3});
  problem.period = 10;
  EXPECT_NE(complaint(problem, {{0, 0}, 8}), "");
  EXPECT_EQ(complaint(problem, {{0, 8}, 16}), "");
  problem.buffers[1] = {.size = 8, .lower = 2, .upper = 8};
  EXPECT_EQ(complaint(problem, {{0, 0}, 8}), "");
}

TEST(Validator, KeepsStreamsApartWheneverTheyLive) {
  const solve::Problem problem =
      two({.size = 8, .lower = 0, .upper = 5}, {.size = 8, .lower = 6, .upper = 9, .stream = 1});
  EXPECT_NE(complaint(problem, {{0, 4}, 12}), "");
  EXPECT_EQ(complaint(problem, {{0, 8}, 16}), "");
}

TEST(Validator, FindsAForeignBlockBelowATallerOneOfItsOwnStream) {
  solve::Problem problem;
  problem.alignment = 1;
  problem.buffers = {{.size = 10, .lower = 0, .upper = 1, .stream = 1},
                     {.size = 90, .lower = 0, .upper = 1, .stream = 0},
                     {.size = 5, .lower = 2, .upper = 3, .stream = 0}};
  EXPECT_NE(complaint(problem, {{0, 10, 5}, 100}), "");
  EXPECT_EQ(complaint(problem, {{0, 10, 50}, 100}), "");
}

TEST(Validator, ChecksPlacesHeightsAndCapacity) {
  solve::Problem problem = two({.size = 8, .lower = 0, .upper = 5, .fixed = 8}, {.size = 4});
  EXPECT_EQ(complaint(problem, {{8, 0}, 16}), "");
  EXPECT_NE(complaint(problem, {{0, 0}, 16}).find("fixed"), std::string::npos);
  EXPECT_NE(complaint(problem, {{8, 0}, 12}).find("above the height"), std::string::npos);
  EXPECT_NE(complaint(problem, {{8, kUnplaced}, 16}).find("not placed"), std::string::npos);
  EXPECT_NE(complaint(problem, {{8, 2}, 16}).find("not aligned"), std::string::npos);
  EXPECT_NE(complaint(problem, {{8}, 16}), "");
  problem.capacity = 12;
  EXPECT_NE(complaint(problem, {{8, 0}, 16}).find("capacity"), std::string::npos);
}

TEST(Validator, AcceptsEmptyBuffersAnywhere) {
  const solve::Problem problem = {.buffers = {{.size = 8, .lower = 0, .upper = 5},
                                              {.size = 0, .lower = 0, .upper = 5},
                                              {.size = 8, .lower = 2, .upper = 2}},
                                  .alignment = 4};
  EXPECT_EQ(complaint(problem, {{0, 4, 0}, 8}), "");
}

}  // namespace
}  // namespace stalloc
