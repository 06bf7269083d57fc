#include "solve/exact/peak_core.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <random>
#include <string>

#include "brute_force.h"
#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/greedy/greedy.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

using testing::optimal_height;
using testing::stacked;

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

TEST(PeakCore, IsNeverBelowTheOptimumAndProvesNothingFalse) {
  int optimal = 0;
  for (std::uint32_t seed = 0; seed < 800; ++seed) {
    Shape shape = {.buffers = 8, .ticks = 5 + seed % 13, .largest = 12, .circular = seed % 3 == 0};
    if (seed % 7 == 1) shape.lifetimes = Shape::Lifetimes::kNested;
    const solve::Problem problem = random_problem(shape, seed);
    const Bytes optimum = optimal_height(problem);
    const solve::Minimum minimum =
        solve::solve_peak_core(problem, stacked(problem), kUnlimited, {});
    EXPECT_NO_THROW(verify::validate(problem, minimum.layout)) << seed;
    ASSERT_GE(minimum.layout.height, optimum) << seed;
    ASSERT_LE(minimum.bound, optimum) << seed;
    optimal += minimum.layout.height <= minimum.bound;
  }
  EXPECT_GT(optimal, 790);
}

TEST(PeakCore, KeepsFixedBuffersWhereTheyAre) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    solve::Problem problem = random_problem({.buffers = 8, .circular = seed % 2 == 1}, seed);
    problem.buffers[seed % 8].fixed = seed % 5;
    const solve::Layout start = stacked(problem);
    const solve::Minimum minimum = solve::solve_peak_core(problem, start, kUnlimited, {});
    EXPECT_NO_THROW(verify::validate(problem, minimum.layout)) << seed;
    EXPECT_GE(minimum.layout.height, optimal_height(problem)) << seed;
    EXPECT_LE(minimum.bound, optimal_height(problem)) << seed;
  }
}

// Two peaks, and a thousand small buffers around them. The few large buffers decide the height.
solve::Problem two_peaks() {
  solve::Problem problem;
  problem.alignment = 1;
  std::mt19937 random(1);
  const auto draw = [&](std::uint32_t n) { return static_cast<std::int64_t>(random() % n); };
  const auto peak = [&](Tick at) {
    for (int left = 24; left > 0; --left) {
      const Bytes size = 100 + draw(900);
      problem.buffers.push_back({.size = size, .lower = at - 10 - draw(40), .upper = at + 1});
      problem.buffers.push_back({.size = size, .lower = at + 1, .upper = at + 12 + draw(40)});
      problem.buffers.push_back({.size = 50 + draw(300), .lower = at - draw(5), .upper = at + 5});
    }
  };
  peak(100);
  peak(140);
  for (int k = 0; k < 1000; ++k) {
    const Tick lower = draw(200);
    problem.buffers.push_back(
        {.size = 1 + draw(100), .lower = lower, .upper = lower + 1 + draw(20)});
  }
  return problem;
}

TEST(PeakCore, MeetsTheBoundWhereGreedyOrdersDoNot) {
  const solve::Problem problem = two_peaks();
  Bytes greedy = std::numeric_limits<Bytes>::max();
  for (const solve::GreedyPlanner& planner : solve::greedy_planners()) {
    greedy = std::min(greedy, planner.plan(problem, {}).height);
  }
  EXPECT_GT(greedy, solve::load_bound(problem));
  const solve::Minimum minimum = solve::solve_peak_core(problem, stacked(problem), 1'000'000, {});
  EXPECT_EQ(minimum.layout.height, solve::load_bound(problem));
  EXPECT_NO_THROW(verify::validate(problem, minimum.layout));
  const solve::Minimum again = solve::solve_peak_core(problem, stacked(problem), 1'000'000, {});
  EXPECT_EQ(minimum.layout.offsets, again.layout.offsets);
}

TEST(PeakCore, KeepsTheStartWhenItMayNotSearch) {
  const solve::Problem problem = two_peaks();
  const std::atomic<bool> cancelled = true;
  solve::Budget none;
  none.cancel = &cancelled;
  const solve::Minimum idle = solve::solve_peak_core(problem, stacked(problem), kUnlimited, none);
  EXPECT_EQ(idle.layout.offsets, stacked(problem).offsets);
  EXPECT_EQ(idle.bound, solve::load_bound(problem));
}

TEST(PeakCore, PlansNothingAtHeightZero) {
  EXPECT_EQ(solve::PeakCorePlanner().plan({}, {}).height, 0);
  const solve::Problem unborn = {.buffers = {{.size = 600, .lower = 3, .upper = 3}}};
  EXPECT_EQ(solve::PeakCorePlanner().plan(unborn, {}).height, 1024);
}

}  // namespace
}  // namespace stalloc
