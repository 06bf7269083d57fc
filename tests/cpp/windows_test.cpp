#include "plan/windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "brute_force.h"
#include "plan/bound.h"
#include "plan/greedy.h"
#include "plan/order.h"
#include "plan/portfolio.h"
#include "plan/timeline.h"
#include "plan/validator.h"
#include "random_problems.h"

namespace stalloc {
namespace {

// Buffers of any size that come and go, too many to be searched exactly.
Problem busy(RandomProblems& random, int buffers) {
  Problem problem{.alignment = 1};
  for (int k = 0; k < buffers; ++k) {
    const Tick lower = random.number(0, buffers);
    problem.buffers.push_back({.size = random.number(1, 1000),
                               .lower = lower,
                               .upper = lower + random.number(1, buffers / 2)});
  }
  return problem;
}

Layout first_fit(const Problem& problem, Order order) {
  const Timeline timeline(problem);
  return *place_in_order(problem, timeline, ordered(problem, timeline, order), Fit::kFirst, {});
}

TEST(Windows, LowerWhatAnOrderLeaves) {
  RandomProblems random(61);
  for (int k = 0; k < 6; ++k) {
    const Problem problem = busy(random, 150);
    const Layout start = first_fit(problem, Order::kPeakRankSize);
    const Minimum minimum = search_windows(problem, start, 1000, {.target = load_bound(problem)});
    EXPECT_NO_THROW(validate(problem, minimum.layout)) << "problem " << k;
    EXPECT_LT(minimum.layout.height, start.height) << "problem " << k;
  }
}

TEST(Windows, MostlyFindTheOptimumOfAFewBuffers) {
  RandomProblems random(67);
  int optimal = 0;
  int greedy = 0;
  constexpr int kProblems = 200;
  for (int k = 0; k < kProblems; ++k) {
    const Problem problem = k % 2 == 0 ? busy(random, 8) : random.next(8, k % 3 == 0);
    const Bytes optimum = testing::optimal_height(problem);
    const Layout start = first_fit(problem, Order::kStart);
    const Layout layout = search_windows(problem, start, 1000, {.target = optimum}).layout;
    EXPECT_NO_THROW(validate(problem, layout)) << "problem " << k;
    EXPECT_GE(layout.height, optimum) << "problem " << k;
    greedy += start.height == optimum;
    optimal += layout.height == optimum;
  }
  EXPECT_LT(greedy, kProblems - 10);
  EXPECT_GE(optimal, kProblems - 10);
}

TEST(Windows, AreTheSameEachTimeAndEndWhenTold) {
  RandomProblems random(71);
  const Problem problem = busy(random, 150);
  const Layout start = first_fit(problem, Order::kPeakRankSize);
  const Layout once = search_windows(problem, start, 1500, {}).layout;
  EXPECT_EQ(once.offsets, search_windows(problem, start, 1500, {}).layout.offsets);
  EXPECT_EQ(start.offsets, search_windows(problem, start, 0, {}).layout.offsets);
  const std::atomic<bool> cancel = true;
  constexpr std::int64_t kForEver = INT64_MAX;
  EXPECT_EQ(start.offsets,
            search_windows(problem, start, kForEver, {.cancel = &cancel}).layout.offsets);
}

TEST(Windows, LeaveWhatIsFixedWhereItIs) {
  RandomProblems random(73);
  for (int k = 0; k < 20; ++k) {
    Problem problem = busy(random, 60);
    const Layout start = first_fit(problem, Order::kStart);
    for (std::size_t i = 0; i < problem.buffers.size(); i += 3) {
      problem.buffers[i].fixed = start.offsets[i];
    }
    EXPECT_NO_THROW(validate(problem, search_windows(problem, start, 500, {}).layout));
  }
}

TEST(Windows, TakeTheLargestSizes) {
  RandomProblems random(79);
  const Problem small = busy(random, 60);
  for (const int shift : {40, 47}) {
    Problem problem = small;
    for (Buffer& b : problem.buffers) b.size <<= shift;
    const Layout start = first_fit(problem, Order::kPeakRankSize);
    EXPECT_NO_THROW(validate(problem, search_windows(problem, start, 500, {}).layout));
  }
}

TEST(Windows, AreTheLastResortOfThePortfolio) {
  RandomProblems random(83);
  const PortfolioResult result = solve(busy(random, 600), {.threads = 1, .search_steps = 1000}, {});
  EXPECT_EQ(result.algorithm, "windows");
}

}  // namespace
}  // namespace stalloc
