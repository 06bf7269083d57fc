#include "solve/exact/exact_search.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "brute_force.h"
#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/exact/exact_planner.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

using testing::optimal_height;
using testing::stacked;

constexpr std::int64_t kUnlimited = std::int64_t{1} << 40;

void expect_optimal(const solve::Problem& problem, const std::string& what) {
  problem.check();
  const Bytes optimum = optimal_height(problem);
  const solve::Minimum minimum = solve::minimise_height(problem, stacked(problem), kUnlimited, {});
  ASSERT_EQ(minimum.layout.height, optimum) << what;
  EXPECT_EQ(minimum.bound, optimum) << what;
  EXPECT_NO_THROW(verify::validate(problem, minimum.layout)) << what;

  // The search proves that nothing is lower, for any order of the heights it is asked for.
  const solve::ExactModel model(problem);
  ASSERT_TRUE(model.fits());
  solve::ExactSearch search(model);
  if (model.buffers() == 0) return;
  if (model.lower_bound() > model.load * model.unit) return;  // a buffer that is never live
  const solve::Minimum fitted =
      solve::fit_target(problem, stacked(problem), kUnlimited, {.target = optimum});
  EXPECT_EQ(fitted.layout.height, optimum) << what;
  EXPECT_NO_THROW(verify::validate(problem, fitted.layout)) << what;
  const solve::Minimum unfitted =
      solve::fit_target(problem, stacked(problem), kUnlimited, {.target = optimum - model.unit});
  EXPECT_EQ(unfitted.layout.height, stacked(problem).height) << what;
  EXPECT_EQ(unfitted.bound, optimum) << what;
  const solve::Units lowest = optimum / model.unit;
  for (solve::Units height = std::max<solve::Units>(0, lowest - 3); height <= lowest; ++height) {
    EXPECT_EQ(search.run(height - model.base, kUnlimited, {}),
              height < lowest ? solve::Verdict::kInfeasible : solve::Verdict::kFound)
        << what;
  }
}

TEST(ExactSearch, FindsAndProvesTheOptimumOfEveryShape) {
  const Shape shapes[] = {
      {.buffers = 8, .ticks = 12, .largest = 9},
      {.buffers = 8, .ticks = 6, .largest = 3},
      {.buffers = 8, .ticks = 24, .largest = 40},
      {.buffers = 7, .ticks = 10, .largest = 7, .circular = true},
      {.buffers = 8, .ticks = 4, .largest = 4, .circular = true},
      {.buffers = 8, .ticks = 12, .largest = 9, .lifetimes = Shape::Lifetimes::kNested},
      {.buffers = 7, .ticks = 1, .largest = 9},
      {.buffers = 8, .ticks = 9, .largest = 9, .unit = 512, .alignment = 512},
      {.buffers = 6,
       .ticks = 10,
       .largest = 9,
       .unit = Bytes{1} << 55,
       .alignment = Bytes{1} << 55},
  };
  for (std::size_t s = 0; s < std::size(shapes); ++s) {
    for (std::uint32_t seed = 0; seed < 150; ++seed) {
      expect_optimal(random_problem(shapes[s], seed),
                     "shape " + std::to_string(s) + ", seed " + std::to_string(seed));
    }
  }
}

TEST(ExactSearch, KeepsFixedBuffersWhereTheyAre) {
  int solvable = 0;
  for (std::uint32_t seed = 0; seed < 600; ++seed) {
    solve::Problem problem =
        random_problem({.buffers = 7, .ticks = 10, .largest = 6, .circular = seed % 2 == 1}, seed);
    problem.buffers[0].fixed = seed % 5;
    problem.buffers[1].fixed = 6 + seed % 3;
    problem.buffers[2].fixed = seed % 11;
    const Bytes optimum = optimal_height(problem);
    const solve::ExactModel model(problem);
    solve::ExactSearch search(model);
    if (optimum < 0) {
      EXPECT_EQ(search.run(100, kUnlimited, {}), solve::Verdict::kInfeasible) << seed;
      continue;
    }
    ++solvable;
    const solve::Minimum minimum =
        solve::minimise_height(problem, stacked(problem), kUnlimited, {});
    ASSERT_EQ(minimum.layout.height, optimum) << seed;
    EXPECT_EQ(minimum.bound, optimum) << seed;
    EXPECT_NO_THROW(verify::validate(problem, minimum.layout)) << seed;
  }
  EXPECT_GT(solvable, 100);
}

TEST(ExactSearch, AddsUpHugeSizesWithoutOverflow) {
  constexpr Bytes kHuge = Bytes{1} << 62;
  const solve::Problem pair = {.buffers = {{.size = kHuge - 1, .lower = 0, .upper = 2},
                                           {.size = kHuge - 2, .lower = 1, .upper = 3},
                                           {.size = 1, .lower = 2, .upper = 4}},
                               .alignment = 1};
  expect_optimal(pair, "two halves of everything");
  const solve::Problem one = {.buffers = {{.size = kHuge, .lower = 0, .upper = 2}},
                              .alignment = kHuge};
  expect_optimal(one, "one");
}

// A block of `height` over `ticks`, cut into rectangles along the two axes in alternation.
// Shuffled, they still have a layout without holes.
solve::Problem cut_block(Tick ticks, Bytes height, int cuts, std::uint32_t seed) {
  solve::Problem problem;
  problem.alignment = 1;
  std::mt19937 random(seed);
  const auto inside = [&](std::int64_t n) {  // 1 to n - 1
    return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n - 1));
  };
  const auto cut = [&](const auto& self, const solve::Buffer& b, int left) -> void {
    solve::Buffer one = b;
    solve::Buffer other = b;
    if (left % 2 == 0 && b.size >= 2) {
      one.size = inside(b.size);
      other.size -= one.size;
    } else if (b.upper - b.lower >= 2) {
      one.upper = other.lower = b.lower + inside(b.upper - b.lower);
    } else {
      left = 0;
    }
    if (left == 0) {
      problem.buffers.push_back(b);
      return;
    }
    self(self, one, left - 1);
    self(self, other, left - 1);
  };
  cut(cut, {.size = height, .lower = 0, .upper = ticks}, cuts);
  std::shuffle(problem.buffers.begin(), problem.buffers.end(), random);
  return problem;
}

TEST(ExactSearch, SolvesProblemsThatNeedASearch) {
  const solve::Problem problem = cut_block(200, 1000, 5, 7);
  ASSERT_EQ(solve::load_bound(problem), 1000);
  const solve::Minimum minimum = solve::minimise_height(problem, stacked(problem), 1'000'000, {});
  EXPECT_EQ(minimum.layout.height, 1000);
  EXPECT_NO_THROW(verify::validate(problem, minimum.layout));
}

// The problems have a layout by construction. The search may miss it but never claims there is
// none.
TEST(ExactSearch, NeverDisprovesAnExistingLayout) {
  int found = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const solve::Problem problem = cut_block(20, 1000, 6, seed);
    const solve::ExactModel model(problem);
    solve::ExactSearch search(model);
    const solve::Units height = 1000 / model.unit - model.base;
    const solve::Verdict verdict = search.run(height, 20'000, {});
    ASSERT_NE(verdict, solve::Verdict::kInfeasible) << seed;
    found += verdict == solve::Verdict::kFound;
  }
  EXPECT_GT(found, 100);
  EXPECT_LT(found, 200);  // else they are too easy to tell anything
}

TEST(ExactSearch, FitsOneHeightInFewNodes) {
  std::int64_t nodes = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const solve::Problem problem = cut_block(32, 1000, 6, seed);
    const solve::ExactModel model(problem);
    solve::ExactSearch search(model);
    const solve::Units height = 1000 / model.unit - model.base;
    EXPECT_EQ(search.run(height, 100'000, {}, solve::ExactSearch::Focus::kHard),
              solve::Verdict::kFound)
        << seed;
    nodes += search.nodes();
  }
  EXPECT_LT(nodes, 20'000);  // runs that double in length take 26,000
}

TEST(ExactSearch, GivesTheSameLayoutEveryTime) {
  const solve::Problem problem = random_problem({.buffers = 40, .ticks = 60, .largest = 50}, 3);
  const solve::Minimum first = solve::minimise_height(problem, stacked(problem), 20'000, {});
  const solve::Minimum second = solve::minimise_height(problem, stacked(problem), 20'000, {});
  EXPECT_EQ(first.layout.offsets, second.layout.offsets);
  EXPECT_EQ(first.bound, second.bound);
}

TEST(ExactSearch, KeepsTheStartWhenItMayNotSearch) {
  const solve::Problem problem = random_problem({.buffers = 40, .ticks = 60, .largest = 50}, 4);
  const std::atomic<bool> cancelled = true;
  solve::Budget none;
  none.cancel = &cancelled;
  const solve::Minimum idle = solve::minimise_height(problem, stacked(problem), kUnlimited, none);
  EXPECT_EQ(idle.layout.offsets, stacked(problem).offsets);
  EXPECT_EQ(idle.bound, solve::load_bound(problem));
  const solve::Minimum few = solve::minimise_height(problem, stacked(problem), 3, {});
  EXPECT_NO_THROW(verify::validate(problem, few.layout));
  EXPECT_GT(few.layout.height, few.bound);
}

// A node may bar many buffers, and look at hundreds of others each time.
TEST(ExactSearch, PaysForTheWorkBesideItsNodes) {
  const solve::Problem problem =
      random_problem({.buffers = 600, .ticks = 1200, .largest = 1000}, 0);
  const solve::ExactModel model(problem);
  solve::ExactSearch search(model);
  solve::Work work{.limit = 100'000};
  solve::Budget budget;
  budget.work = &work;
  ASSERT_EQ(search.run(model.load, kUnlimited, budget), solve::Verdict::kUnknown);
  EXPECT_LT(work.done, work.limit + work.limit / 100);
  const std::int64_t by_nodes = search.nodes() * (1 + model.buffers() / 4);
  EXPECT_LT(by_nodes, work.limit / 2);
}

TEST(ExactPlanner, StopsAtTheCapacityAndProvesWhenThereIsNone) {
  solve::Problem problem = random_problem({.buffers = 8, .ticks = 6, .largest = 9}, 11);
  const solve::ExactPlanner planner;
  const Bytes optimum = optimal_height(problem);
  EXPECT_EQ(planner.plan(problem, {}).height, optimum);
  problem.capacity = optimum;
  EXPECT_NO_THROW(verify::validate(problem, planner.plan(problem, {})));
  problem.capacity = optimum - 1;
  EXPECT_THROW(planner.plan(problem, {}), PlanError);
}

TEST(ExactPlanner, PlansNothingAtHeightZero) {
  const solve::ExactPlanner planner;
  EXPECT_EQ(planner.plan({}, {}).height, 0);
  const solve::Problem unborn = {.buffers = {{.size = 600, .lower = 3, .upper = 3}}};
  EXPECT_EQ(planner.plan(unborn, {}).height, 1024);
}

}  // namespace
}  // namespace stalloc
