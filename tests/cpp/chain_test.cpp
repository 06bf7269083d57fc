#include "solve/pipeline/chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/greedy/greedy.h"
#include "solve/portfolio.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

// A pipeline in its steady state. Each microbatch saves buffers that the fourth one after it frees,
// in reverse order. One gradient is larger than the buffers freed just before.
class Pipeline {
 public:
  solve::Problem problem(int turns) {
    std::deque<std::vector<std::size_t>> in_flight;
    for (int turn = 0; turn < turns + 4; ++turn) {
      if (turn < turns) in_flight.push_back(forward());
      if (turn < 3) continue;
      backward(in_flight.front());
      in_flight.pop_front();
      if (in_flight.empty()) break;
    }
    return std::move(problem_);
  }

 private:
  std::size_t allocate(Bytes units) {
    problem_.buffers.push_back({.size = units * 512, .lower = tick_++});
    return problem_.buffers.size() - 1;
  }
  void free(std::size_t buffer) { problem_.buffers[buffer].upper = tick_++; }

  std::vector<std::size_t> forward() {
    std::vector<std::size_t> saved;
    for (int layer = 0; layer < 8; ++layer) {
      for (const Bytes units : {1, 1, 8, 4, 1}) saved.push_back(allocate(units));
      free(allocate(3));
    }
    return saved;
  }

  void backward(const std::vector<std::size_t>& saved) {
    const std::size_t received = allocate(1);
    std::size_t gradient = allocate(1);
    for (auto it = saved.rbegin(); it != saved.rend(); ++it) {
      const std::size_t flowing = allocate(problem_.buffers[*it].size / 512);
      free(*it);
      free(gradient);
      gradient = flowing;
    }
    free(gradient);
    free(received);
  }

  solve::Problem problem_;
  Tick tick_ = 0;
};

Bytes lowest_greedy(const solve::Problem& problem) {
  Bytes lowest = std::numeric_limits<Bytes>::max();
  for (const solve::GreedyPlanner& greedy : solve::greedy_planners()) {
    lowest = std::min(lowest, greedy.plan(problem, {.target = solve::load_bound(problem)}).height);
  }
  return lowest;
}

TEST(Chain, MeetsTheBoundOfASteadyPipelineWhereNoOrderDoes) {
  const solve::Problem problem = Pipeline().problem(30);
  const Bytes bound = solve::load_bound(problem);
  EXPECT_GT(lowest_greedy(problem), bound);
  const solve::Layout layout = solve::ChainPlanner().plan(problem, {});
  EXPECT_NO_THROW(verify::validate(problem, layout));
  EXPECT_EQ(layout.height, bound);
  EXPECT_EQ(solve::solve(problem, {.threads = 1}, {}).algorithm, "chain");
}

TEST(Chain, IsValidOnEveryShape) {
  RandomProblems random(21);
  int chains = 0;
  for (int k = 0; k < 1000; ++k) {
    const solve::Problem problem = random.next(30, k % 4 == 0);
    const solve::Layout layout = solve::ChainPlanner().plan(problem, {});
    EXPECT_NO_THROW(verify::validate(problem, layout)) << "problem " << k;
    chains += solve::plan_chain(problem, solve::Timeline(problem), {}).has_value();
  }
  EXPECT_GT(chains, 200);
}

TEST(Chain, LeavesFixedBuffersAndCirclesToOthers) {
  solve::Problem problem;
  problem.alignment = 1;
  problem.buffers = {{.size = 4, .lower = 0, .upper = 2}, {.size = 2, .lower = 1, .upper = 3}};
  EXPECT_TRUE(solve::plan_chain(problem, solve::Timeline(problem), {}));
  solve::Problem fixed = problem;
  fixed.buffers[1].fixed = 0;
  EXPECT_FALSE(solve::plan_chain(fixed, solve::Timeline(fixed), {}));
  solve::Problem circular = problem;
  circular.period = 3;
  circular.buffers = {{.size = 1, .lower = 0, .upper = 1},
                      {.size = 1, .lower = 1, .upper = 2},
                      {.size = 1, .lower = 2, .upper = 4}};
  EXPECT_FALSE(solve::plan_chain(circular, solve::Timeline(circular), {}));
}

TEST(Chain, PlansNothingAtHeightZero) {
  EXPECT_EQ(solve::ChainPlanner().plan(solve::Problem{}, {}).height, 0);
}

}  // namespace
}  // namespace stalloc
