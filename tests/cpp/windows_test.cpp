#include "solve/search/windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "brute_force.h"
#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/core/order.h"
#include "solve/core/timeline.h"
#include "solve/greedy/greedy.h"
#include "solve/portfolio.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

// Buffers of any size that come and go, too many to be searched exactly.
solve::Problem busy(RandomProblems& random, int buffers) {
  solve::Problem problem{.alignment = 1};
  for (int k = 0; k < buffers; ++k) {
    const Tick lower = random.number(0, buffers);
    problem.buffers.push_back({.size = random.number(1, 1000),
                               .lower = lower,
                               .upper = lower + random.number(1, buffers / 2)});
  }
  return problem;
}

solve::Layout first_fit(const solve::Problem& problem, solve::Order order) {
  const solve::Timeline timeline(problem);
  return *solve::place_in_order(problem, timeline, solve::ordered(problem, timeline, order),
                                solve::Fit::kFirst, {});
}

TEST(Windows, LowerWhatAnOrderLeaves) {
  RandomProblems random(61);
  for (int k = 0; k < 6; ++k) {
    const solve::Problem problem = busy(random, 150);
    const solve::Layout start = first_fit(problem, solve::Order::kPeakRankSize);
    const solve::Minimum minimum =
        solve::search_windows(problem, start, 1000, {.target = solve::load_bound(problem)});
    EXPECT_NO_THROW(verify::validate(problem, minimum.layout)) << "problem " << k;
    EXPECT_LT(minimum.layout.height, start.height) << "problem " << k;
  }
}

TEST(Windows, MostlyFindTheOptimumOfAFewBuffers) {
  RandomProblems random(67);
  int optimal = 0;
  int greedy = 0;
  constexpr int kProblems = 200;
  for (int k = 0; k < kProblems; ++k) {
    const solve::Problem problem = k % 2 == 0 ? busy(random, 8) : random.next(8, k % 3 == 0);
    const Bytes optimum = testing::optimal_height(problem);
    const solve::Layout start = first_fit(problem, solve::Order::kStart);
    const solve::Layout layout =
        solve::search_windows(problem, start, 1000, {.target = optimum}).layout;
    EXPECT_NO_THROW(verify::validate(problem, layout)) << "problem " << k;
    EXPECT_GE(layout.height, optimum) << "problem " << k;
    greedy += start.height == optimum;
    optimal += layout.height == optimum;
  }
  EXPECT_LT(greedy, kProblems - 10);
  EXPECT_GE(optimal, kProblems - 10);
}

TEST(Windows, AreTheSameEachTimeAndEndWhenTold) {
  RandomProblems random(71);
  const solve::Problem problem = busy(random, 150);
  const solve::Layout start = first_fit(problem, solve::Order::kPeakRankSize);
  const solve::Layout once = solve::search_windows(problem, start, 1500, {}).layout;
  EXPECT_EQ(once.offsets, solve::search_windows(problem, start, 1500, {}).layout.offsets);
  EXPECT_EQ(start.offsets, solve::search_windows(problem, start, 0, {}).layout.offsets);
  const std::atomic<bool> cancel = true;
  constexpr std::int64_t kForEver = INT64_MAX;
  EXPECT_EQ(start.offsets,
            solve::search_windows(problem, start, kForEver, {.cancel = &cancel}).layout.offsets);
}

TEST(Windows, LeaveWhatIsFixedWhereItIs) {
  RandomProblems random(73);
  for (int k = 0; k < 20; ++k) {
    solve::Problem problem = busy(random, 60);
    const solve::Layout start = first_fit(problem, solve::Order::kStart);
    for (std::size_t i = 0; i < problem.buffers.size(); i += 3) {
      problem.buffers[i].fixed = start.offsets[i];
    }
    EXPECT_NO_THROW(
        verify::validate(problem, solve::search_windows(problem, start, 500, {}).layout));
  }
}

TEST(Windows, TakeTheLargestSizes) {
  RandomProblems random(79);
  const solve::Problem small = busy(random, 60);
  for (const int shift : {40, 47}) {
    solve::Problem problem = small;
    for (solve::Buffer& b : problem.buffers) b.size <<= shift;
    const solve::Layout start = first_fit(problem, solve::Order::kPeakRankSize);
    EXPECT_NO_THROW(
        verify::validate(problem, solve::search_windows(problem, start, 500, {}).layout));
  }
}

TEST(Windows, AreTheLastResortOfThePortfolio) {
  RandomProblems random(83);
  const solve::PortfolioResult result =
      solve::solve(busy(random, 600), {.threads = 1, .search_steps = 1000}, {});
  EXPECT_EQ(result.algorithm, "windows");
}

}  // namespace
}  // namespace stalloc
