#include "solve/search/ejection.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>

#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/greedy/greedy.h"
#include "solve/portfolio.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

constexpr std::int64_t kPuts = 200;

solve::Layout first_fit(const solve::Problem& problem) {
  return solve::greedy_planners().front().plan(problem, {});
}

// Buffers of few sizes, of which some live long.
solve::Problem few_sizes(std::uint32_t seed, int buffers) {
  RandomProblems random(seed);
  solve::Problem problem;
  problem.alignment = 1;
  for (int k = 0; k < buffers; ++k) {
    const Tick lifetime = random.number(0, 9) == 0 ? random.number(100, 400) : random.number(1, 40);
    const Bytes size = Bytes{1} << random.number(3, 9);
    problem.buffers.push_back({.size = size, .lower = k, .upper = k + lifetime});
  }
  return problem;
}

TEST(Ejection, LowersWhatFirstFitLeaves) {
  int lower = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const solve::Problem problem = few_sizes(seed, 400);
    const solve::Layout start = first_fit(problem);
    const solve::Layout layout = solve::search_ejections(problem, start, kPuts, {}).layout;
    EXPECT_NO_THROW(verify::validate(problem, layout)) << "seed " << seed;
    EXPECT_LE(layout.height, start.height) << "seed " << seed;
    const Bytes bound = solve::load_bound(problem);
    if (layout.height - bound <= (start.height - bound) / 2) ++lower;
  }
  EXPECT_GE(lower, 15);
}

// Sizes and lifetimes without any pattern, too many buffers for the exact search.
solve::Problem unstructured(std::uint32_t seed, int buffers) {
  RandomProblems random(seed);
  solve::Problem problem;
  problem.alignment = 1;
  for (int k = 0; k < buffers; ++k) {
    const Bytes size = random.number(1, 1000);
    problem.buffers.push_back({.size = size, .lower = k, .upper = k + random.number(1, 150)});
  }
  return problem;
}

TEST(Ejection, WinsInThePortfolioWhereOrdersFail) {
  const solve::Problem problem = unstructured(3, 2'100);
  const solve::PortfolioResult result = solve::solve(problem, {.threads = 1}, {});
  EXPECT_EQ(result.algorithm, "ejection");
  EXPECT_NO_THROW(verify::validate(problem, result.layout));
}

TEST(Ejection, FitsACapacityThatItReachesWithoutOne) {
  solve::Problem problem = unstructured(0, 2'100);
  const Bytes height = solve::solve(problem, {.threads = 1}, {}).layout.height;
  problem.capacity = height;
  EXPECT_LE(solve::solve(problem, {.threads = 1}, {}).layout.height, height);
}

TEST(Ejection, IsValidOnEveryShape) {
  RandomProblems random(43);
  int lower = 0;
  for (int k = 0; k < 1000; ++k) {
    solve::Problem problem = random.next(40, k % 2 == 0);
    const solve::Layout start = first_fit(problem);
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      if (random.number(0, 9) == 0) problem.buffers[i].fixed = start.offsets[i];
    }
    const solve::Layout layout = solve::search_ejections(problem, start, kPuts, {}).layout;
    EXPECT_NO_THROW(verify::validate(problem, layout)) << "problem " << k;
    EXPECT_LE(layout.height, start.height) << "problem " << k;
    if (layout.height < start.height) ++lower;
  }
  EXPECT_GT(lower, 0);
}

TEST(Ejection, RepeatsItsResultAndEndsWhenTold) {
  const solve::Problem problem = few_sizes(3, 400);
  const solve::Layout start = first_fit(problem);
  const solve::Layout once = solve::search_ejections(problem, start, kPuts, {}).layout;
  EXPECT_LT(once.height, start.height);
  EXPECT_EQ(once.offsets, solve::search_ejections(problem, start, kPuts, {}).layout.offsets);
  EXPECT_EQ(start.offsets, solve::search_ejections(problem, start, 0, {}).layout.offsets);
  const solve::Budget met = {.target = start.height};
  EXPECT_EQ(start.offsets, solve::search_ejections(problem, start, kPuts, met).layout.offsets);
  const std::atomic<bool> cancel = true;
  constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();
  const solve::Budget cancelled = {.cancel = &cancel};
  const solve::Layout left = solve::search_ejections(problem, start, kForEver, cancelled).layout;
  EXPECT_NO_THROW(verify::validate(problem, left));
  solve::Work work{.limit = 0};
  const solve::Budget spent = {.work = &work};
  EXPECT_EQ(start.offsets, solve::search_ejections(problem, start, kForEver, spent).layout.offsets);
}

}  // namespace
}  // namespace stalloc
