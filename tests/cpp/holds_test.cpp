// Holds: addresses that stay closed to another stream for a while after a buffer's end.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/core/timeline.h"
#include "solve/greedy/place_in_order.h"
#include "solve/portfolio.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

// Random streams and holds for a random problem.
solve::Problem with_holds(RandomProblems& random, bool circular) {
  solve::Problem problem = random.next(12, circular);
  problem.streams = solve::Streams::kOrdered;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    solve::Buffer& b = problem.buffers[i];
    b.stream = static_cast<StreamId>(random.number(0, 2));
    const Tick most = problem.period > 0 ? b.lower + problem.period : b.upper + 6;
    for (StreamId s = 0; s < 3; ++s) {
      if (s == b.stream || b.upper >= most || random.number(0, 1) == 0) continue;
      const Tick until = random.number(b.upper + 1, most);
      problem.holds.push_back({static_cast<std::int32_t>(i), s, until});
    }
  }
  return problem;
}

// True if the two intervals meet, on a line or on a circle.
bool meet(Tick begin, Tick end, const solve::Buffer& b, Tick period) {
  for (Tick shift = -2 * period; shift <= 2 * period; shift += std::max<Tick>(period, 1)) {
    if (begin < b.upper + shift && b.lower + shift < end) return true;
    if (period == 0) break;
  }
  return false;
}

// The number of buffers that another stream takes while they are held for it.
int broken(const solve::Problem& problem, const solve::Layout& layout) {
  const auto end = [&](std::size_t i) {
    return layout.offsets[i] + align_up(problem.buffers[i].size, problem.alignment);
  };
  int result = 0;
  for (const auto& [buffer, stream, until] : problem.holds) {
    const auto h = static_cast<std::size_t>(buffer);
    const solve::Buffer& held = problem.buffers[h];
    if (held.size == 0 || held.upper <= held.lower) continue;
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      const solve::Buffer& b = problem.buffers[i];
      if (b.stream != stream || b.size == 0 || b.upper <= b.lower) continue;
      if (layout.offsets[i] >= end(h) || layout.offsets[h] >= end(i)) continue;
      if (meet(held.upper, until, b, problem.period)) ++result;
    }
  }
  return result;
}

TEST(Holds, AreKeptByEachOrderOfPlacement) {
  RandomProblems random(11);
  int unlike = 0;
  for (int k = 0; k < 400; ++k) {
    const solve::Problem problem = with_holds(random, k % 2 == 0);
    problem.check();
    solve::Problem without = problem;
    without.holds.clear();
    for (const solve::Fit fit : {solve::Fit::kFirst, solve::Fit::kBest}) {
      const solve::Timeline timeline(problem);
      const auto order = solve::ordered(problem, timeline, solve::Order::kStart);
      const solve::Layout layout = *solve::place_in_order(problem, timeline, order, fit, {});
      EXPECT_NO_THROW(verify::validate(problem, layout)) << "problem " << k;
      EXPECT_EQ(broken(problem, layout), 0) << "problem " << k;
      const solve::Timeline plain(without);
      const auto same = solve::ordered(without, plain, solve::Order::kStart);
      if (broken(problem, *solve::place_in_order(without, plain, same, fit, {})) > 0) ++unlike;
    }
  }
  EXPECT_GT(unlike, 50) << "the problems need the holds";
}

TEST(Holds, AreKeptByThePortfolio) {
  RandomProblems random(12);
  for (int k = 0; k < 100; ++k) {
    const solve::Problem problem = with_holds(random, k % 2 == 0);
    const solve::PortfolioResult result = solve::solve(problem, {}, {});
    EXPECT_EQ(broken(problem, result.layout), 0) << "problem " << k;
    EXPECT_GE(result.layout.height, solve::load_bound(problem));
    EXPECT_EQ(result.optimal, result.layout.height == result.bound);
  }
}

// a (stream 0) | b | with a held for stream 1 until tick 4.
solve::Problem follow(StreamId stream, Tick lower) {
  return {.buffers = {{.size = 512, .lower = 0, .upper = 2},
                      {.size = 512, .lower = lower, .upper = 6, .stream = stream}},
          .streams = solve::Streams::kOrdered,
          .holds = {{.buffer = 0, .stream = 1, .until = 4}}};
}

TEST(Holds, ConcernOneStream) {
  EXPECT_EQ(solve::solve(follow(1, 3), {}, {}).layout.height, 1024);
  EXPECT_EQ(solve::solve(follow(1, 4), {}, {}).layout.height, 512);
  EXPECT_EQ(solve::solve(follow(0, 2), {}, {}).layout.height, 512);
  EXPECT_EQ(solve::solve(follow(2, 2), {}, {}).layout.height, 512);
}

TEST(Holds, HaveToMakeSense) {
  solve::Problem problem = follow(1, 3);
  const auto refuses = [&](solve::Hold hold) {
    problem.holds = {hold};
    EXPECT_THROW(problem.check(), PlanError);
  };
  refuses({.buffer = 2, .stream = 1, .until = 4});
  refuses({.buffer = -1, .stream = 1, .until = 4});
  refuses({.buffer = 0, .stream = 0, .until = 4});
  refuses({.buffer = 0, .stream = 1, .until = 2});
  problem.period = 6;
  refuses({.buffer = 0, .stream = 1, .until = 7});
  problem.holds = {{.buffer = 0, .stream = 1, .until = 6}, {.buffer = 0, .stream = 1, .until = 5}};
  EXPECT_THROW(problem.check(), PlanError) << "twice";
  problem.holds.pop_back();
  EXPECT_NO_THROW(problem.check());
  problem.streams = solve::Streams::kSeparate;
  EXPECT_THROW(problem.check(), PlanError);
}

}  // namespace
}  // namespace stalloc
