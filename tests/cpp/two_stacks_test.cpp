#include "solve/pipeline/two_stacks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <utility>
#include <vector>

#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/greedy/greedy.h"
#include "solve/portfolio.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

// The first stage of a pipeline of two: F0 F1 B0 F2 B1 ..., two microbatches in flight. After the
// last forward, the loss's gradient takes all free bytes. After the logits and half of that
// gradient have been freed, another request takes all free bytes in one piece.
class TwoInFlight {
 public:
  solve::Problem problem(int microbatches) {
    std::vector<std::vector<std::size_t>> saved;
    saved.push_back(forward());
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      if (microbatch + 1 < microbatches) saved.push_back(forward());
      backward(saved[microbatch]);
    }
    return std::move(problem_);
  }

 private:
  std::size_t allocate(Bytes units) {
    problem_.buffers.push_back({.size = units * 512, .lower = tick_++, .phase_begin = phase_});
    return problem_.buffers.size() - 1;
  }
  void free(std::size_t buffer) {
    problem_.buffers[buffer].upper = tick_++;
    problem_.buffers[buffer].phase_end = phase_;
  }

  std::vector<std::size_t> forward() {
    std::vector<std::size_t> saved;
    for (int layer = 0; layer < 6; ++layer) {
      for (const Bytes units : {2, 1, 3}) saved.push_back(allocate(units));
      free(allocate(2));
    }
    saved.push_back(allocate(4));  // the logits
    ++phase_;
    return saved;
  }

  void backward(std::vector<std::size_t> saved) {
    const std::size_t kept = allocate(4);
    const std::size_t gradient = allocate(4);
    free(gradient);
    free(saved.back());
    saved.pop_back();
    const std::size_t large = allocate(8);
    free(kept);
    std::size_t flowing = allocate(2);
    free(large);
    for (auto it = saved.rbegin(); it != saved.rend(); ++it) {
      const std::size_t next = allocate(2);
      free(*it);
      free(flowing);
      flowing = next;
    }
    free(flowing);
    ++phase_;
  }

  solve::Problem problem_;
  Tick tick_ = 0;
  PhaseIndex phase_ = 0;
};

TEST(TwoStacks, MeetTheBoundWhereNoOrderDoes) {
  const solve::Problem problem = TwoInFlight().problem(8);
  const Bytes bound = solve::load_bound(problem);
  for (const solve::GreedyPlanner& greedy : solve::greedy_planners()) {
    EXPECT_GT(greedy.plan(problem, {.target = bound}).height, bound) << greedy.name();
  }
  const solve::Layout layout = solve::TwoStacksPlanner().plan(problem, {});
  EXPECT_NO_THROW(verify::validate(problem, layout));
  EXPECT_EQ(layout.height, bound);
  const solve::PortfolioResult result = solve::solve(problem, {.threads = 1}, {});
  EXPECT_EQ(result.algorithm, "two-stacks");
  EXPECT_TRUE(result.optimal);
}

TEST(TwoStacks, AreValidOnEveryShape) {
  RandomProblems random(31);
  int stacks = 0;
  for (int k = 0; k < 500; ++k) {
    solve::Problem problem = random.next(30, k % 4 == 0);
    for (solve::Buffer& b : problem.buffers) {
      b.phase_begin = static_cast<PhaseIndex>(b.lower / 4);
      b.phase_end = static_cast<PhaseIndex>(b.upper / 4);
    }
    EXPECT_NO_THROW(verify::validate(problem, solve::TwoStacksPlanner().plan(problem, {})))
        << "problem " << k;
    stacks += solve::plan_two_stacks(problem, solve::Timeline(problem), {}).has_value();
  }
  EXPECT_GT(stacks, 100);
}

TEST(TwoStacks, NeedPhasesAndNothingFixed) {
  solve::Problem problem = TwoInFlight().problem(4);
  const solve::Timeline timeline(problem);
  EXPECT_TRUE(solve::plan_two_stacks(problem, timeline, {}));
  std::atomic<Bytes> limit = solve::load_bound(problem);
  EXPECT_FALSE(solve::plan_two_stacks(problem, timeline, {}, &limit));
  solve::Problem fixed = problem;
  fixed.buffers[0].fixed = 0;
  EXPECT_FALSE(solve::plan_two_stacks(fixed, timeline, {}));
  for (solve::Buffer& b : problem.buffers) b.phase_begin = b.phase_end = kNone;
  EXPECT_FALSE(solve::plan_two_stacks(problem, timeline, {}));
}

TEST(Carried, ComesBeforeBuffersOfOnePhase) {
  const solve::Problem problem{
      .buffers = {{.size = 1, .lower = 0, .upper = 2, .phase_begin = 0, .phase_end = 0},
                  {.size = 1, .lower = 1, .upper = 9, .phase_begin = 0, .phase_end = 1},
                  {.size = 9, .lower = 3, .upper = 5, .phase_begin = 0, .phase_end = 0},
                  {.size = 1, .lower = 4, .upper = 8, .phase_begin = 0, .phase_end = 1}}};
  const solve::Timeline timeline(problem);
  EXPECT_EQ(solve::ordered(problem, timeline, solve::Order::kCarriedStart),
            (std::vector<solve::BufferIndex>{1, 3, 0, 2}));
  EXPECT_EQ(solve::ordered(problem, timeline, solve::Order::kCarriedCentreOutEnd),
            (std::vector<solve::BufferIndex>{1, 3, 2, 0}));
}

}  // namespace
}  // namespace stalloc
