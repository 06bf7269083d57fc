#include "solve/pipeline/walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/greedy/greedy.h"
#include "solve/pipeline/chain.h"
#include "solve/pipeline/two_stacks.h"
#include "solve/portfolio.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

// The first stage of a virtual pipeline. Two microbatches at a time pass through each chunk of
// layers, forwards and, in another order, backwards. After the last forward, two gradients take all
// free bytes. Then one of them and the newest saved buffer are freed, and a buffer as large as both
// is needed.
class Interleaved {
 public:
  explicit Interleaved(int chunks) : chunks_(chunks) {}

  solve::Problem problem(int microbatches) {
    const int passes = chunks_ * microbatches;
    const int in_flight = 2 * chunks_ + 1;
    saved_.resize(passes);
    for (int k = 0; k < passes + in_flight; ++k) {
      if (k >= in_flight) backward(pass(k - in_flight, /*is_forward=*/false));
      if (k < passes) forward(pass(k, /*is_forward=*/true));
    }
    return std::move(problem_);
  }

 private:
  // The chunk and microbatch of the k-th pass.
  int pass(int k, bool is_forward) const {
    const int group = k / (2 * chunks_);
    const int chunk = k % (2 * chunks_) / 2;
    const int microbatch = 2 * group + k % 2;
    return microbatch * chunks_ + (is_forward ? chunk : chunks_ - 1 - chunk);
  }

  std::size_t allocate(Bytes units) {
    problem_.buffers.push_back({.size = units * 512, .lower = tick_++});
    return problem_.buffers.size() - 1;
  }
  void free(std::size_t buffer) { problem_.buffers[buffer].upper = tick_++; }

  void forward(int pass) {
    for (const Bytes units : {1, 3, 8, 4, 1, 3, 8, 4}) {
      saved_[pass].push_back(allocate(units));
      free(allocate(2));
    }
  }

  void backward(int pass) {
    const std::size_t gradient = allocate(4);
    const std::size_t kept = allocate(4);
    free(gradient);
    free(saved_[pass].back());
    saved_[pass].pop_back();
    const std::size_t needed = allocate(8);
    free(kept);
    while (!saved_[pass].empty()) {
      const std::size_t flowing = allocate(1);
      free(saved_[pass].back());
      saved_[pass].pop_back();
      free(flowing);
    }
    free(needed);
  }

  int chunks_;
  std::vector<std::vector<std::size_t>> saved_;
  solve::Problem problem_;
  Tick tick_ = 0;
};

TEST(Walk, MeetsTheBoundOfAVirtualPipelineWhereNothingElseDoes) {
  const solve::Problem problem = Interleaved(3).problem(8);
  const solve::Timeline timeline(problem);
  const Bytes bound = solve::load_bound(problem);
  for (const solve::GreedyPlanner& greedy : solve::greedy_planners()) {
    EXPECT_GT(greedy.plan(problem, {.target = bound}).height, bound) << greedy.name();
  }
  EXPECT_GT(solve::ChainPlanner().plan(problem, {}).height, bound);
  EXPECT_GT(solve::TwoStacksPlanner().plan(problem, {}).height, bound);
  const solve::Layout layout = solve::WalkPlanner().plan(problem, {.target = bound});
  EXPECT_NO_THROW(verify::validate(problem, layout));
  EXPECT_EQ(layout.height, bound);
  const solve::PortfolioResult result = solve::solve(problem, {.threads = 1}, {});
  EXPECT_EQ(result.algorithm, "walk");
  EXPECT_TRUE(result.optimal);
}

TEST(Walk, ComesBackIfThereAreFewerCellsThanPeaks) {
  const solve::Problem problem = Interleaved(7).problem(16);  // 98 turns, some seven a slot
  const Bytes bound = solve::load_bound(problem);
  const std::optional<solve::Layout> layout =
      solve::plan_walk(problem, solve::Timeline(problem), {.target = bound});
  ASSERT_TRUE(layout);
  EXPECT_NO_THROW(verify::validate(problem, *layout));
  EXPECT_EQ(layout->height, bound);
}

TEST(Walk, EndsWhenTheCellsDo) {
  const solve::Problem problem = Interleaved(3).problem(200);
  EXPECT_FALSE(solve::plan_walk(problem, solve::Timeline(problem), {}));
  EXPECT_NO_THROW(verify::validate(problem, solve::WalkPlanner().plan(problem, {})));
}

TEST(Walk, KeepsFixedBuffersAndItsLimit) {
  const solve::Problem problem = Interleaved(3).problem(8);
  const solve::Timeline timeline(problem);
  std::atomic<Bytes> limit = solve::load_bound(problem);
  EXPECT_TRUE(solve::plan_walk(problem, timeline, {}));
  EXPECT_FALSE(solve::plan_walk(problem, timeline, {}, &limit));
  solve::Problem fixed = problem;
  fixed.buffers[0].fixed = 0;
  EXPECT_FALSE(solve::plan_walk(fixed, timeline, {}));
}

// Pipelines with some buffers of irregular sizes and lifetimes, as in real ones.
TEST(Walk, IsValidBesideAnyOtherBuffers) {
  RandomProblems random(53);
  int walks = 0;
  for (int k = 0; k < 300; ++k) {
    solve::Problem problem = Interleaved(static_cast<int>(random.number(1, 4))).problem(6);
    Tick end = 0;
    for (const solve::Buffer& b : problem.buffers) end = std::max(end, b.upper);
    for (std::int64_t more = random.number(0, 12); more > 0; --more) {
      const Tick lower = random.number(0, end - 1);
      problem.buffers.push_back({.size = random.number(0, 1500),
                                 .lower = lower,
                                 .upper = random.number(lower, std::min(lower + 300, end))});
    }
    for (std::int64_t changes = random.number(0, 6); changes > 0; --changes) {
      solve::Buffer& b = problem.buffers[random.number(0, std::ssize(problem.buffers) - 1)];
      b.size = random.number(0, 5000);
      b.upper = random.number(b.lower, end);
    }
    if (k % 3 == 0) {  // and some that wrap round
      problem.period = end + 1;
      problem.buffers.push_back({.size = 700, .lower = end - 20, .upper = end + 30});
    }
    const solve::Timeline timeline(problem);
    walks += solve::plan_walk(problem, timeline, {}).has_value();
    EXPECT_NO_THROW(verify::validate(problem, solve::WalkPlanner().plan(problem, {})))
        << "problem " << k;
  }
  EXPECT_GT(walks, 20);
  for (int k = 0; k < 1000; ++k) {
    const solve::Problem problem = random.next(40, k % 4 == 0);
    EXPECT_NO_THROW(verify::validate(problem, solve::WalkPlanner().plan(problem, {})))
        << "problem " << k;
  }
}

TEST(Walk, TakesTheLargestSizes) {
  solve::Problem problem = Interleaved(3).problem(8);
  for (solve::Buffer& b : problem.buffers) b.size <<= 40;
  const solve::Layout layout = solve::WalkPlanner().plan(problem, {});
  EXPECT_NO_THROW(verify::validate(problem, layout));
}

}  // namespace
}  // namespace stalloc
