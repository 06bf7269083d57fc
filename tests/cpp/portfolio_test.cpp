#include "solve/portfolio.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "brute_force.h"
#include "busy_processors.h"
#include "random_problems.h"
#include "solve/attempts.h"
#include "solve/core/bound.h"
#include "solve/decompose.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

std::string complaint(const solve::Problem& problem, const solve::PortfolioOptions& options = {}) {
  try {
    solve::solve(problem, options, {});
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

TEST(Portfolio, FindsAndProvesTheOptimumOfSmallProblems) {
  RandomProblems random(10);
  for (int k = 0; k < 150; ++k) {
    const solve::Problem problem = random.next(7, k % 2 == 0);
    const solve::PortfolioResult result = solve::solve(problem, {.threads = 1}, {});
    EXPECT_NO_THROW(verify::validate(problem, result.layout));
    EXPECT_GE(result.bound, solve::load_bound(problem));
    EXPECT_EQ(result.layout.height, testing::optimal_height(problem)) << "problem " << k;
    EXPECT_TRUE(result.optimal) << "problem " << k;
  }
}

TEST(Portfolio, IsTheSameWithAnyNumberOfThreads) {
  RandomProblems random(11);
  for (int k = 0; k < 40; ++k) {
    const solve::Problem problem = random.next(60, k % 2 == 0);
    const solve::PortfolioResult one =
        solve::solve(problem, {.threads = 1, .search_steps = 2000}, {});
    const solve::PortfolioResult four =
        solve::solve(problem, {.threads = 4, .search_steps = 2000}, {});
    EXPECT_EQ(one.layout.offsets, four.layout.offsets) << "problem " << k;
    EXPECT_EQ(one.algorithm, four.algorithm);
  }
}

TEST(Portfolio, IsTheSameWithAnyWorkUnderAnyLoad) {
  RandomProblems random(14);
  for (int k = 0; k < 2; ++k) {
    const solve::Problem problem = random.next({.buffers = 400,
                                                .ticks = 300,
                                                .largest = 4000,
                                                .circular = k % 2 == 0,
                                                .lifetimes = Shape::Lifetimes::kAny});
    const Bytes bound = solve::load_bound(problem);
    for (const std::int64_t work : {2'000, 20'000}) {
      // Several attempts may meet such a target.
      for (const Bytes target : {Bytes{0}, bound + bound / 8}) {
        const solve::Budget budget{.target = target};
        const solve::PortfolioResult one =
            solve::solve(problem, {.threads = 1, .work = work}, budget);
        const BusyProcessors busy;
        const solve::PortfolioResult four =
            solve::solve(problem, {.threads = 4, .work = work}, budget.within(60));
        EXPECT_EQ(one.layout.offsets, four.layout.offsets) << "problem " << k << ", work " << work;
        EXPECT_EQ(one.algorithm, four.algorithm);
        EXPECT_EQ(one.work, four.work) << "problem " << k << ", work " << work;
      }
    }
  }
}

TEST(Portfolio, MoreWorkGivesLowerLayouts) {
  RandomProblems random(15);
  const solve::Problem problem = random.next({.buffers = 600, .ticks = 400, .largest = 4000});
  Bytes before = std::numeric_limits<Bytes>::max();
  for (const std::int64_t work : {0, 20'000, 400'000}) {
    const solve::PortfolioResult result = solve::solve(problem, {.threads = 1, .work = work}, {});
    EXPECT_LT(result.layout.height, before) << "work " << work;
    EXPECT_LE(result.work, work + 5'000) << "a pass that has begun is completed";
    before = result.layout.height;
  }
}

// The second attempt ends first, and lower.
TEST(Attempts, TheFirstThatMeetsTheTargetWins) {
  for (const Bytes target : {100, 50}) {
    std::latch second_ended(1);
    const std::vector<solve::Attempt> attempts = {
        {"first",
         [&](const solve::Budget&,
             const std::atomic<Bytes>& limit) -> std::optional<solve::Layout> {
           second_ended.wait();
           while (limit == std::numeric_limits<Bytes>::max()) std::this_thread::yield();
           if (limit <= 90) return std::nullopt;
           return solve::Layout{{0}, 90};
         }},
        {"second", [&](const solve::Budget&, const std::atomic<Bytes>&) {
           second_ended.count_down();
           return std::optional(solve::Layout{{0}, 80});
         }}};
    solve::Winner winner;
    solve::run_attempts(attempts, 2, {.target = target}, winner);
    EXPECT_EQ(winner.name, target == 100 ? "first" : "second");
  }
}

TEST(Portfolio, StacksStreamsAndAvoidsFixedBuffersOfOthers) {
  RandomProblems random(12);
  for (int k = 0; k < 100; ++k) {
    solve::Problem problem = random.next(20, k % 2 == 0);
    for (solve::Buffer& b : problem.buffers) b.stream = static_cast<StreamId>(random.number(0, 2));
    const solve::PortfolioOptions options{.threads = 1, .search_steps = 2000};
    EXPECT_NO_THROW(solve::solve(problem, options, {})) << "problem " << k;
    if (problem.buffers.empty()) continue;
    problem.buffers.front().fixed = 2048;
    EXPECT_EQ(solve::solve(problem, options, {}).layout.offsets.front(), 2048);
  }
}

TEST(Portfolio, RefusesImpossibleProblems) {
  solve::Problem problem{.buffers = {{.size = 8, .upper = 5}, {.size = 8, .upper = 5}},
                         .alignment = 4};
  problem.capacity = 12;
  EXPECT_NE(complaint(problem).find("at least 16"), std::string::npos);
  problem.capacity = 16;
  EXPECT_EQ(complaint(problem), "");
  problem.buffers[0].fixed = 0;
  problem.buffers[1].fixed = 4;
  problem.capacity = 0;
  EXPECT_NE(complaint(problem).find("fixed offsets clash"), std::string::npos);
  problem.buffers[1].fixed = kUnplaced;
  EXPECT_EQ(complaint(problem), "");
  EXPECT_NE(complaint(problem, {.algorithm = "magic"}).find("first-fit-size"), std::string::npos);
  const solve::Layout short_one{{0}, 8};
  EXPECT_NE(complaint(problem, {.warm_start = &short_one}).find("1 offsets for 2"),
            std::string::npos);
}

TEST(Portfolio, IsNoHigherThanItsStart) {
  RandomProblems random(13);
  for (int k = 0; k < 60; ++k) {
    solve::Problem problem = random.next(8, k % 2 == 0);
    const solve::PortfolioResult cold = solve::solve(problem, {.threads = 1}, {});
    solve::PortfolioOptions options{.threads = 1, .warm_start = &cold.layout};
    const std::atomic<bool> cancel = true;  // nothing but the start has a chance
    EXPECT_LE(solve::solve(problem, options, {}).layout.height, cold.layout.height);
    EXPECT_NO_THROW(solve::solve(problem, options, {.cancel = &cancel}));
    // An older layout of a problem that has changed: some buffers are new.
    solve::Layout stale = cold.layout;
    for (Offset& offset : stale.offsets) {
      if (random.number(0, 2) == 0) offset = kUnplaced;
    }
    options.warm_start = &stale;
    EXPECT_LE(solve::solve(problem, options, {}).layout.height, cold.layout.height);
  }
}

TEST(Portfolio, ProvesNothingThatALayoutDisproves) {
  RandomProblems random(16);
  for (int k = 0; k < 200; ++k) {
    solve::Problem problem = random.next(12, k % 2 == 0);
    for (solve::Buffer& b : problem.buffers) b.stream = static_cast<StreamId>(random.number(0, 2));
    const solve::PortfolioResult free = solve::solve(problem, {.threads = 1}, {});
    EXPECT_LE(free.bound, free.layout.height);
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      if (random.number(0, 2) == 0) problem.buffers[i].fixed = free.layout.offsets[i];
    }
    const solve::PortfolioResult fixed = solve::solve(problem, {.threads = 1}, {});
    EXPECT_LE(fixed.bound, std::min(free.layout.height, fixed.layout.height)) << "problem " << k;
  }
}

TEST(Portfolio, HasAPlanEvenWithoutTime) {
  const solve::Budget none{.deadline = std::chrono::steady_clock::time_point::min()};
  RandomProblems random(14);
  for (int k = 0; k < 60; ++k) {
    const solve::Problem problem = random.next(30, k % 2 == 0);
    EXPECT_NO_THROW(
        verify::validate(problem, solve::solve(problem, {.threads = 1 + k % 3}, none).layout));
  }
}

TEST(Portfolio, StacksNothingUpForWantOfTime) {
  const solve::Budget none{.deadline = std::chrono::steady_clock::time_point::min()};
  solve::Problem problem{.alignment = 1};
  for (Tick t = 0; t < 1000; ++t) {
    problem.buffers.push_back({.size = 1, .lower = t, .upper = t + 2});
  }
  for (const int threads : {1, 3}) {
    EXPECT_EQ(solve::solve(problem, {.threads = threads}, none).layout.height, 2);
  }
}

TEST(Portfolio, TakesSizesUpTo62Bits) {
  const solve::Problem problem{.buffers = {{.size = Bytes{1} << 61, .lower = 0, .upper = 3},
                                           {.size = Bytes{1} << 61, .lower = 3, .upper = 5},
                                           {.size = Bytes{1} << 61, .lower = 2, .upper = 4}},
                               .alignment = 1};
  for (const solve::Planner* p : solve::planners()) {
    EXPECT_EQ(p->plan(problem, {}).height, Bytes{1} << 62) << p->name();
  }
  EXPECT_TRUE(solve::solve(problem, {}, {}).optimal);
}

TEST(Decompose, LosesNothingAndCutsWhereNothingLives) {
  RandomProblems random(15);
  for (int k = 0; k < 200; ++k) {
    const solve::Problem problem = random.next(7, k % 2 == 0);
    std::vector<Offset> offsets(problem.buffers.size(), kUnplaced);
    Bytes height = 0;
    for (const solve::Part& part : solve::decompose(problem, offsets)) {
      EXPECT_EQ(part.load, solve::load_bound(part.problem));
      height = std::max(height, part.base + testing::optimal_height(part.problem));
      for (const std::int32_t i : part.buffers) offsets[i] = 0;
    }
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      ASSERT_NE(offsets[i], kUnplaced);
      const Bytes size = align_up(problem.buffers[i].size, problem.alignment);
      height = std::max(height, offsets[i] + size);
    }
    EXPECT_EQ(height, testing::optimal_height(problem)) << "problem " << k;
  }
}

solve::Attempt attempt_of(std::string name, Bytes height) {
  return {std::move(name), [height](const solve::Budget&, const std::atomic<Bytes>& limit) {
            return height < limit ? std::optional<solve::Layout>({{}, height}) : std::nullopt;
          }};
}

TEST(Attempts, TheLowestWinsAndAmongEqualsTheFirst) {
  for (int threads = 1; threads <= 4; ++threads) {
    for (int k = 0; k < 50; ++k) {
      solve::Winner winner;
      solve::run_attempts(
          {attempt_of("a", 7), attempt_of("b", 5), attempt_of("c", 5), attempt_of("d", 6)}, threads,
          {}, winner);
      EXPECT_EQ(winner.name, "b");
      solve::run_attempts({attempt_of("e", 5), attempt_of("f", 4)}, threads, {.target = 5}, winner);
      EXPECT_EQ(winner.name, "b");
    }
  }
}

TEST(Attempts, PassesOnAnErrorOnlyWhenNoneHasALayout) {
  const solve::Attempt broken{
      "broken",
      [](const solve::Budget&, const std::atomic<Bytes>&) -> std::optional<solve::Layout> {
        throw PlanError("broken");
      }};
  for (int threads = 1; threads <= 2; ++threads) {
    solve::Winner winner;
    EXPECT_THROW(solve::run_attempts({broken}, threads, {}, winner), PlanError);
    EXPECT_NO_THROW(solve::run_attempts({broken, attempt_of("a", 1)}, threads, {}, winner));
    EXPECT_EQ(winner.name, "a");
  }
}

TEST(Attempts, ReportsProgressUpToTheEnd) {
  std::atomic<int> reports = 0;
  std::atomic<bool> in_range = true;
  solve::Budget budget;
  budget.progress = [&](double fraction) {
    ++reports;
    if (fraction < 0 || fraction > 1) in_range = false;
  };
  solve::Winner winner;
  const solve::Attempt waits{"waits", [&](const solve::Budget&, const std::atomic<Bytes>&) {
                               while (reports == 0) std::this_thread::yield();
                               return std::optional<solve::Layout>({{}, 1});
                             }};
  solve::run_attempts({waits}, 1, budget, winner);
  EXPECT_EQ(winner.name, "waits");
  EXPECT_TRUE(in_range);
}

}  // namespace
}  // namespace stalloc
