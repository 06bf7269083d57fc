#include "solve/search/gaps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/align.h"
#include "base/error.h"
#include "brute_force.h"
#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/portfolio.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

// A problem with idle intervals in most lifetimes, some up to the end or throughout.
solve::Problem with_gaps(RandomProblems& random, int most, bool circular) {
  solve::Problem problem = random.next(most, circular);
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const solve::Buffer& b = problem.buffers[i];
    Tick reached = b.lower;
    while (reached < b.upper && random.number(0, 2) > 0) {
      const Tick lower = random.number(reached, b.upper - 1);
      const Tick upper = random.number(lower + 1, b.upper);
      problem.idle.push_back({static_cast<std::int32_t>(i), lower, upper});
      reached = upper;
    }
  }
  return problem;
}

// The definition, tick by tick.
bool is_active(const solve::Problem& problem, std::size_t i, Tick t) {
  const auto at = [&](Tick tick) {
    const solve::Buffer& b = problem.buffers[i];
    if (tick < b.lower || tick >= b.upper) return false;
    return std::ranges::none_of(problem.idle, [&](const solve::IdleInterval& gap) {
      return static_cast<std::size_t>(gap.buffer) == i && tick >= gap.lower && tick < gap.upper;
    });
  };
  return at(t) || (problem.period > 0 && at(t + problem.period));
}

bool meet(const solve::Problem& problem, std::size_t i, std::size_t j) {
  constexpr Tick kEnd = 64;
  const Tick end = problem.period > 0 ? problem.period : kEnd;
  for (Tick t = 0; t < end; ++t) {
    if (is_active(problem, i, t) && is_active(problem, j, t)) return true;
  }
  return false;
}

TEST(IdleIntervals, PlansAreOptimalForSmallProblems) {
  RandomProblems random(31);
  int lower = 0;
  for (int k = 0; k < 300; ++k) {
    solve::Problem problem = with_gaps(random, 7, k % 2 == 0);
    const solve::PortfolioResult result = solve::solve(problem, {.threads = 1}, {});
    EXPECT_NO_THROW(verify::validate(problem, result.layout)) << "problem " << k;
    EXPECT_EQ(result.layout.height,
              testing::optimal_height(
                  problem, [&](std::size_t i, std::size_t j) { return meet(problem, i, j); }))
        << "problem " << k;
    EXPECT_TRUE(result.optimal) << "problem " << k;
    EXPECT_GE(result.bound, solve::load_bound(problem));
    problem.idle.clear();
    lower += result.layout.height < solve::solve(problem, {.threads = 1}, {}).layout.height;
  }
  EXPECT_GT(lower, 100);  // gaps are worth something
}

TEST(IdleIntervals, TheLoadCountsActiveBuffers) {
  RandomProblems random(32);
  for (int k = 0; k < 200; ++k) {
    const solve::Problem problem = with_gaps(random, 12, k % 2 == 0);
    Bytes highest = 0;
    for (const solve::Buffer& b : problem.buffers) {
      highest = std::max(highest, align_up(b.size, problem.alignment));
    }
    for (Tick t = 0; t < 64 && (problem.period == 0 || t < problem.period); ++t) {
      Bytes live = 0;
      for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
        if (is_active(problem, i, t)) live += align_up(problem.buffers[i].size, problem.alignment);
      }
      highest = std::max(highest, live);
    }
    EXPECT_EQ(solve::load_bound(problem), highest) << "problem " << k;
  }
}

TEST(IdleIntervals, TheValidatorSeesEveryOverlapAndNoOther) {
  RandomProblems random(33);
  int good = 0;
  for (int k = 0; k < 2000; ++k) {
    const solve::Problem problem = with_gaps(random, 3, k % 2 == 0);
    solve::Layout layout;
    for (const solve::Buffer& b : problem.buffers) {
      layout.offsets.push_back(random.number(0, 3) * 1024);
      layout.height =
          std::max(layout.height, layout.offsets.back() + align_up(b.size, problem.alignment));
    }
    bool overlap = false;
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const auto end = [&](std::size_t x) {
          return layout.offsets[x] + align_up(problem.buffers[x].size, problem.alignment);
        };
        overlap |= meet(problem, i, j) && problem.buffers[i].size > 0 &&
                   problem.buffers[j].size > 0 && layout.offsets[i] < end(j) &&
                   layout.offsets[j] < end(i);
      }
    }
    good += !overlap;
    if (overlap) {
      EXPECT_THROW(verify::validate(problem, layout), PlanError) << "problem " << k;
    } else {
      EXPECT_NO_THROW(verify::validate(problem, layout)) << "problem " << k;
    }
  }
  EXPECT_GT(good, 200);
}

TEST(IdleIntervals, ServesLargeProblemsWithStreamsFixedOffsetsAndWarmStarts) {
  RandomProblems random(34);
  for (int k = 0; k < 60; ++k) {
    solve::Problem problem = with_gaps(random, 60, k % 2 == 0);
    for (solve::Buffer& b : problem.buffers) b.stream = static_cast<StreamId>(random.number(0, 1));
    const solve::PortfolioResult result = solve::solve(problem, {.threads = 1}, {});
    EXPECT_NO_THROW(verify::validate(problem, result.layout)) << "problem " << k;
    EXPECT_GE(result.layout.height, result.bound);
    const solve::PortfolioOptions warm{.threads = 1, .warm_start = &result.layout};
    EXPECT_LE(solve::solve(problem, warm, {}).layout.height, result.layout.height)
        << "problem " << k;
    for (std::size_t i = 0; i < problem.buffers.size(); i += 3) {
      problem.buffers[i].fixed = result.layout.offsets[i];
    }
    EXPECT_NO_THROW(verify::validate(problem, solve::solve(problem, {.threads = 1}, {}).layout));
    // A planner without support for idle intervals ignores them.
    const solve::PortfolioOptions alone{.algorithm = "first-fit-size", .threads = 1};
    EXPECT_NO_THROW(solve::solve(problem, alone, {})) << "problem " << k;
  }
}

TEST(IdleIntervals, HasAPlanEvenWithoutTime) {
  RandomProblems random(35);
  for (int k = 0; k < 50; ++k) {
    const solve::Problem problem = with_gaps(random, 300, k % 2 == 0);
    const std::atomic<bool> cancel = true;
    EXPECT_NO_THROW(
        verify::validate(problem, solve::solve(problem, {}, {.cancel = &cancel}).layout));
  }
}

TEST(IdleIntervals, StacksNoBuffersUpForWantOfTime) {
  const solve::Budget none{.deadline = std::chrono::steady_clock::time_point::min()};
  solve::Problem problem{.alignment = 1};
  for (std::int32_t t = 0; t < 1000; ++t) {
    problem.buffers.push_back({.size = 1, .lower = 3 * t, .upper = 3 * t + 6});
    problem.idle.push_back({t, 3 * t + 4, 3 * t + 5});
  }
  EXPECT_EQ(solve::solve(problem, {}, none).layout.height, 2);
}

TEST(IdleIntervals, RefusesInvalidIntervals) {
  const auto complaint = [](std::vector<solve::IdleInterval> gaps,
                            solve::Streams streams = solve::Streams::kSeparate) {
    const solve::Problem problem{
        .buffers = {{.size = 8, .lower = 2, .upper = 9}, {.size = 8, .upper = 9}},
        .alignment = 1,
        .streams = streams,
        .idle = std::move(gaps)};
    try {
      problem.check();
    } catch (const PlanError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(complaint({{0, 2, 4}, {0, 4, 9}, {1, 0, 9}}), "");
  EXPECT_NE(complaint({{0, 1, 4}}).find("buffer 0 has an idle interval from tick 1 to 4, outside"),
            std::string::npos);
  EXPECT_NE(complaint({{0, 3, 10}}).find("outside"), std::string::npos);
  EXPECT_NE(complaint({{0, 4, 4}}).find("empty"), std::string::npos);
  EXPECT_NE(complaint({{0, 3, 6}, {0, 5, 7}}).find("overlaps"), std::string::npos);
  EXPECT_NE(complaint({{1, 3, 6}, {0, 5, 7}}).find("out of order"), std::string::npos);
  EXPECT_NE(complaint({{2, 3, 6}}).find("buffer 2"), std::string::npos);
  EXPECT_NE(complaint({{0, 3, 6}}, solve::Streams::kOrdered).find("streams"), std::string::npos);
}

}  // namespace
}  // namespace stalloc
