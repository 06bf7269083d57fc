#include "solve/core/bound.h"

#include <gtest/gtest.h>

#include "base/align.h"
#include "brute_force.h"
#include "random_problems.h"

namespace stalloc {
namespace {

// The definition, tick by tick.
Bytes slow_bound(const solve::Problem& problem) {
  Bytes highest = 0;
  for (Tick t = 0; t <= 64; ++t) {
    const solve::Buffer probe{.size = 1, .lower = t, .upper = t + 1};
    Bytes live = 0;
    for (const solve::Buffer& b : problem.buffers) {
      if (problem.period > 0 && t >= problem.period) continue;
      if (testing::live_together(problem, probe, b)) live += align_up(b.size, problem.alignment);
      highest = std::max(highest, align_up(b.size, problem.alignment));
    }
    highest = std::max(highest, live);
  }
  return highest;
}

TEST(LoadBound, IsTheLargestSumOfLiveSizes) {
  RandomProblems random(1);
  for (int k = 0; k < 500; ++k) {
    const solve::Problem problem = random.next(12, k % 2 == 0);
    EXPECT_EQ(solve::load_bound(problem), slow_bound(problem)) << "problem " << k;
  }
}

TEST(LoadBound, AddsUpStreams) {
  const solve::Problem problem{.buffers = {{.size = 8, .lower = 0, .upper = 2},
                                           {.size = 8, .lower = 5, .upper = 6},
                                           {.size = 4, .lower = 9, .upper = 10, .stream = 1}},
                               .alignment = 4};
  EXPECT_EQ(solve::load_bound(problem), 12);
}

TEST(LoadBound, ReachesTheEndOfFixedBuffers) {
  const solve::Problem problem{.buffers = {{.size = 8, .lower = 0, .upper = 2, .fixed = 64}},
                               .alignment = 4};
  EXPECT_EQ(solve::load_bound(problem), 72);
}

TEST(LoadBound, IsZeroWithoutBuffers) { EXPECT_EQ(solve::load_bound({}), 0); }

}  // namespace
}  // namespace stalloc
