#include "solve/search/multilevel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/core/order.h"
#include "solve/core/timeline.h"
#include "solve/greedy/greedy.h"
#include "solve/portfolio.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

// The first stage of a pipeline: `ahead` microbatches ahead, one less than stages. Lengths differ
// between microbatches. There is one checkpoint a layer, and everything else of it is recomputed.
class RecomputingStage {
 public:
  RecomputingStage(int layers, std::uint32_t seed, int ahead = 2)
      : layers_(layers), ahead_(ahead), random_(seed) {}

  solve::Problem problem(int microbatches) {
    std::vector<Bytes> lengths;
    for (int m = 0; m < microbatches; ++m) lengths.push_back(random_.number(45, 64));
    std::vector<std::vector<std::size_t>> checkpoints;
    for (int m = 0; m < microbatches + ahead_; ++m) {
      if (m < microbatches) checkpoints.push_back(forward(lengths[m]));
      if (m >= ahead_) backward(lengths[m - ahead_], checkpoints[m - ahead_]);
    }
    return problem_;
  }

 private:
  std::size_t allocate(Bytes size) {
    problem_.buffers.push_back({.size = size, .lower = tick_++});
    return problem_.buffers.size() - 1;
  }

  void free(std::size_t buffer) { problem_.buffers[buffer].upper = tick_++; }

  // The temporaries of a layer: some of them overlap.
  std::vector<std::size_t> layer(Bytes length) {
    const std::size_t gathered = allocate(4 * length);
    const std::size_t projected = allocate(3 * length);
    free(gathered);
    const std::size_t attended = allocate(length);
    free(projected);
    return {attended, allocate(8 * length), allocate(4 * length)};
  }

  std::vector<std::size_t> forward(Bytes length) {
    std::vector<std::size_t> checkpoints;
    for (int k = 0; k < layers_; ++k) {
      checkpoints.push_back(allocate(length));
      for (const std::size_t buffer : layer(length)) free(buffer);
    }
    return checkpoints;
  }

  void backward(Bytes length, const std::vector<std::size_t>& checkpoints) {
    std::size_t gradient = allocate(length);
    for (int k = layers_ - 1; k >= 0; --k) {
      const std::vector<std::size_t> saved = layer(length);
      const std::size_t wide = allocate(8 * length);
      free(saved[2]);
      free(saved[1]);
      const std::size_t next = allocate(length);
      free(wide);
      free(saved[0]);
      free(gradient);
      gradient = next;
      free(checkpoints[k]);
    }
    free(gradient);
  }

  int layers_;
  int ahead_;
  RandomProblems random_;
  solve::Problem problem_{.alignment = 1};
  Tick tick_ = 0;
};

solve::Layout first_fit(const solve::Problem& problem) {
  const solve::Timeline timeline(problem);
  return *solve::place_in_order(problem, timeline,
                                solve::ordered(problem, timeline, solve::Order::kPeakRankSize),
                                solve::Fit::kFirst, {});
}

TEST(Multilevel, ComesCloserToTheBoundOfARecomputingStageThanAnyOrder) {
  const solve::Problem problem = RecomputingStage(24, 5).problem(48);
  const Bytes bound = solve::load_bound(problem);
  const Bytes limit = bound + bound / 50;
  for (const solve::GreedyPlanner& greedy : solve::greedy_planners()) {
    if (greedy.name().starts_with("repaired-")) continue;
    EXPECT_GT(greedy.plan(problem, {.target = bound}).height, limit) << greedy.name();
  }
  const solve::Layout layout = solve::MultilevelPlanner().plan(problem, {});
  EXPECT_NO_THROW(verify::validate(problem, layout));
  EXPECT_LT(layout.height, limit);
}

TEST(Multilevel, MeetsTheBoundWhereOrdersWithRepairFail) {
  const solve::Problem problem = RecomputingStage(32, 7).problem(48);
  const Bytes bound = solve::load_bound(problem);
  for (const solve::GreedyPlanner& greedy : solve::greedy_planners()) {
    EXPECT_GT(greedy.plan(problem, {.target = bound}).height, bound) << greedy.name();
  }
  EXPECT_EQ(solve::MultilevelPlanner().plan(problem, {}).height, bound);
}

TEST(Multilevel, ComesCloseToTheBoundWithEightMicrobatchesInFlight) {
  const solve::Problem problem = RecomputingStage(16, 5, 7).problem(64);
  const Bytes bound = solve::load_bound(problem);
  const Bytes first = first_fit(problem).height;
  const Bytes height = solve::MultilevelPlanner().plan(problem, {}).height;
  EXPECT_GT(first, bound + bound / 20);
  EXPECT_LT(height, bound + bound / 50);
}

TEST(Multilevel, WinsInThePortfolioWhereOrdersFail) {
  const solve::Problem problem = RecomputingStage(36, 3).problem(48);
  const Bytes bound = solve::load_bound(problem);
  const Bytes target = bound + bound / 100;
  const solve::PortfolioResult result = solve::solve(problem, {.threads = 1}, {.target = target});
  EXPECT_EQ(result.algorithm, "multilevel");
  EXPECT_LE(result.layout.height, target);
}

TEST(Multilevel, IsValidOnEveryShape) {
  RandomProblems random(37);
  for (int k = 0; k < 300; ++k) {
    solve::Problem problem = random.next(40, k % 2 == 0);
    const solve::Layout start = first_fit(problem);
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      if (random.number(0, 4) == 0) problem.buffers[i].fixed = start.offsets[i];
    }
    const solve::Layout layout = solve::search_multilevel(problem, start, 2'000, {}).layout;
    EXPECT_NO_THROW(verify::validate(problem, layout)) << "problem " << k;
    EXPECT_LE(layout.height, start.height) << "problem " << k;
  }
}

TEST(Multilevel, RepeatsItsResultAndEndsWhenTold) {
  const solve::Problem problem = RecomputingStage(8, 5).problem(12);
  const solve::Layout start = first_fit(problem);
  const solve::Layout once = solve::search_multilevel(problem, start, 20'000, {}).layout;
  EXPECT_EQ(once.offsets, solve::search_multilevel(problem, start, 20'000, {}).layout.offsets);
  EXPECT_EQ(start.offsets, solve::search_multilevel(problem, start, 0, {}).layout.offsets);
  const std::atomic<bool> cancel = true;
  constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(start.offsets,
            solve::search_multilevel(problem, start, kForEver, {.cancel = &cancel}).layout.offsets);
}

}  // namespace
}  // namespace stalloc
