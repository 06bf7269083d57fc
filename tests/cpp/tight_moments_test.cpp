#include "solve/search/tight_moments.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/core/timeline.h"
#include "solve/greedy/greedy.h"
#include "solve/portfolio.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

constexpr int kStages = 4;
constexpr int kChunks = 2;
constexpr int kLayers = 4;  // of a chunk

// The last stage of a virtual pipeline. Lengths differ between microbatches. A forward saves three
// buffers a layer, which its backward frees in reverse.
class VirtualStage {
 public:
  explicit VirtualStage(std::uint32_t seed) : random_(seed) {}

  solve::Problem problem(int microbatches) {
    std::vector<Bytes> lengths;
    for (int m = 0; m < microbatches; ++m) lengths.push_back(random_.number(45, 64));
    saved_.resize(kChunks * microbatches);
    const int passes = kChunks * microbatches;
    const int ahead = (kChunks - 1) * kStages;
    for (int k = 0; k < passes + ahead; ++k) {
      if (k < passes) forward(microbatch(k) * kChunks + chunk(k), lengths[microbatch(k)]);
      const int b = k - ahead;
      if (b < 0) continue;
      const int last = kChunks - 1 - chunk(b);
      backward(microbatch(b) * kChunks + last, lengths[microbatch(b)]);
    }
    return problem_;
  }

 private:
  // The passes go in groups of a microbatch a stage, first all of them through one chunk.
  static int chunk(int pass) { return pass / kStages % kChunks; }
  static int microbatch(int pass) { return pass / (kStages * kChunks) * kStages + pass % kStages; }

  std::size_t allocate(Bytes size) {
    problem_.buffers.push_back({.size = size, .lower = tick_++});
    return problem_.buffers.size() - 1;
  }

  void free(std::size_t buffer) { problem_.buffers[buffer].upper = tick_++; }

  void forward(int pass, Bytes length) {
    for (int k = 0; k < kLayers; ++k) {
      saved_[pass].push_back(allocate(length));
      const std::size_t gathered = allocate(4 * length);
      saved_[pass].push_back(allocate(3 * length));
      free(gathered);
      saved_[pass].push_back(allocate(8 * length));
    }
  }

  void backward(int pass, Bytes length) {
    std::size_t gradient = allocate(length);
    for (int k = 0; k < kLayers; ++k) {
      const std::size_t gathered = allocate(4 * length);
      const std::size_t wide = allocate(8 * length);
      free(take(pass));
      const std::size_t narrow = allocate(3 * length);
      free(wide);
      free(gathered);
      free(take(pass));
      const std::size_t next = allocate(length);
      free(narrow);
      free(std::exchange(gradient, next));
      free(take(pass));
    }
    free(gradient);
  }

  std::size_t take(int pass) {
    const std::size_t last = saved_[pass].back();
    saved_[pass].pop_back();
    return last;
  }

  RandomProblems random_;
  solve::Problem problem_{.alignment = 1};
  std::vector<std::vector<std::size_t>> saved_;
  Tick tick_ = 0;
};

constexpr std::int64_t kPlacements = 300'000;

solve::Layout plan(const solve::Problem& problem, const solve::TightStart& start,
                   std::int64_t placements = kPlacements) {
  return *solve::plan_tight_moments(problem, solve::Timeline(problem), start, solve::kNoIncumbent,
                                    placements, {});
}

TEST(TightMoments, EveryStartMeetsTheBoundWhereOrdersWithRepairFail) {
  const solve::Problem problem = VirtualStage(6).problem(32);
  const Bytes bound = solve::load_bound(problem);
  for (const solve::GreedyPlanner& greedy : solve::greedy_planners()) {
    EXPECT_GT(greedy.plan(problem, {.target = bound}).height, bound) << greedy.name();
  }
  for (const solve::TightStart& start : solve::tight_starts()) {
    const solve::Layout layout = plan(problem, start);
    EXPECT_NO_THROW(verify::validate(problem, layout)) << start.name;
    EXPECT_EQ(layout.height, bound) << start.name;
  }
}

TEST(TightMoments, LongBuffersFirstMeetTheBoundWhereOtherStartsFail) {
  const solve::Problem problem = VirtualStage(5).problem(32);
  const Bytes bound = solve::load_bound(problem);
  for (const solve::TightStart& start : solve::tight_starts()) {
    EXPECT_EQ(plan(problem, start).height == bound, start.is_long_first) << start.name;
  }
}

TEST(TightMoments, BuffersThatFailedComeFirstAmongEquals) {
  const solve::Problem problem = VirtualStage(7).problem(32);
  const Bytes bound = solve::load_bound(problem);
  solve::TightStart start = solve::tight_starts().front();
  EXPECT_EQ(plan(problem, start).height, bound);
  start.is_failed_first = false;
  EXPECT_GT(plan(problem, start).height, bound + bound / 50);
}

TEST(TightMoments, WinInThePortfolioWhereOrdersFail) {
  const solve::Problem problem = VirtualStage(6).problem(32);
  const solve::PortfolioResult result = solve::solve(problem, {.threads = 1}, {});
  EXPECT_EQ(result.algorithm, "tight-long-first");
  EXPECT_TRUE(result.optimal);
}

TEST(TightMoments, AreValidOnEveryShape) {
  RandomProblems random(41);
  for (int k = 0; k < 300; ++k) {
    solve::Problem problem = random.next(40, k % 2 == 0);
    const solve::Layout first = solve::TightMomentsPlanner().plan(problem, {});
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      if (random.number(0, 4) == 0) problem.buffers[i].fixed = first.offsets[i];
    }
    for (const solve::TightStart& start : solve::tight_starts()) {
      const Bytes incumbent = k % 3 == 0 ? first.height : solve::kNoIncumbent;
      const auto layout =
          solve::plan_tight_moments(problem, solve::Timeline(problem), start, incumbent, 2'000, {});
      if (!layout) continue;
      EXPECT_NO_THROW(verify::validate(problem, *layout)) << "problem " << k;
    }
  }
}

TEST(TightMoments, RepeatTheirResultAndEndWhenTold) {
  const solve::Problem problem = VirtualStage(7).problem(16);
  const solve::Timeline timeline(problem);
  const solve::TightStart& start = solve::tight_starts().front();
  const solve::Layout once = plan(problem, start, 50'000);
  EXPECT_EQ(once.offsets, plan(problem, start, 50'000).offsets);
  const std::atomic<Bytes> as_high = once.height;
  const auto search = [&](std::int64_t placements, const solve::Budget& budget,
                          const std::atomic<Bytes>* limit = nullptr) {
    return solve::plan_tight_moments(problem, timeline, start, solve::kNoIncumbent, placements,
                                     budget, limit);
  };
  EXPECT_FALSE(search(50'000, {}, &as_high));
  const std::atomic<bool> cancel = true;
  constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();
  EXPECT_FALSE(search(kForEver, {.cancel = &cancel}));
  const solve::Budget easy = {.target = 2 * once.height};  // the first round meets it
  EXPECT_EQ(search(kForEver, easy)->offsets, plan(problem, start, 1).offsets);
}

// The placements of a search that knows a layout of height `incumbent`.
std::int64_t cost(const solve::Problem& problem, const solve::TightStart& start, Bytes incumbent) {
  solve::Work work{.limit = std::numeric_limits<std::int64_t>::max()};
  solve::Budget budget;
  budget.work = &work;
  solve::plan_tight_moments(problem, solve::Timeline(problem), start, incumbent, kPlacements,
                            budget);
  return work.done;
}

TEST(TightMoments, EndEarlyIfTheyLagBehindAndGainNothing) {
  const solve::Problem problem = VirtualStage(5).problem(32);
  const solve::TightStart& start = solve::tight_starts().back();
  const Bytes bound = solve::load_bound(problem);
  ASSERT_GT(plan(problem, start).height, bound + 1);
  EXPECT_LT(2 * cost(problem, start, bound + 1), cost(problem, start, solve::kNoIncumbent));
}

TEST(TightMoments, GoOnWhileTheyLead) {
  const solve::Problem problem = VirtualStage(5).problem(32);
  const solve::TightStart& start = solve::tight_starts().back();
  const Bytes alone = plan(problem, start).height;
  // A search that comes below the known layout goes on like one that knows none.
  EXPECT_EQ(cost(problem, start, 2 * alone), cost(problem, start, solve::kNoIncumbent));
}

TEST(TightMoments, MeetTheBoundBesideALayoutJustAboveIt) {
  const solve::Problem problem = VirtualStage(6).problem(32);
  const Bytes bound = solve::load_bound(problem);
  const auto layout =
      solve::plan_tight_moments(problem, solve::Timeline(problem), solve::tight_starts().front(),
                                bound + bound / 200, kPlacements, {});
  ASSERT_TRUE(layout);
  EXPECT_NO_THROW(verify::validate(problem, *layout));
  EXPECT_EQ(layout->height, bound);
}

}  // namespace
}  // namespace stalloc
