#include "solve/paper/paper_planner.h"

#include <gtest/gtest.h>

#include "base/align.h"
#include "base/error.h"
#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/core/origin.h"
#include "solve/paper/phase_groups.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

solve::Buffer of(Bytes size, Tick lower, Tick upper, PhaseIndex begin, PhaseIndex end) {
  return {.size = size, .lower = lower, .upper = upper, .phase_begin = begin, .phase_end = end};
}

TEST(PhaseGroups, PackBuffersThatShareBothPhases) {
  const solve::Problem problem{.buffers = {of(4, 0, 9, 0, 1), of(8, 1, 8, 0, 1), of(2, 2, 3, 0, 0),
                                           of(2, 4, 7, kNone, kNone)},
                               .alignment = 1};
  const std::vector<solve::PhaseGroup> groups = solve::phase_groups(problem, {});
  ASSERT_EQ(groups.size(), 3U);
  const solve::PhaseGroup& group = groups.back();
  EXPECT_EQ(group.size, 12);
  EXPECT_EQ(group.lower, 0);
  EXPECT_EQ(group.upper, 9);
  ASSERT_EQ(group.members.size(), 2U);
  EXPECT_EQ(group.members[1].offset, 4);
}

TEST(PhaseGroups, FuseWhereThatSavesMemoryTime) {
  // One group ends block by block in phase 1 while the other begins block by block.
  //
  //   |   2   |            |   2   |
  //   |   1       | + | 3      |     ->  the second fits where the first has gone
  //   |   0           |
  const solve::Problem problem{
      .buffers = {of(8, 0, 30, 0, 1), of(8, 1, 20, 0, 1), of(8, 2, 10, 0, 1), of(8, 11, 50, 1, 2),
                  of(8, 21, 49, 1, 2)},
      .alignment = 1};
  const std::vector<solve::PhaseGroup> groups = solve::phase_groups(problem, {});
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].size, 24);
  EXPECT_EQ(groups[0].members.size(), 5U);
  const solve::Layout layout = solve::PaperPlanner().plan(problem, {});
  EXPECT_EQ(layout.height, 24);
  EXPECT_NO_THROW(verify::validate(problem, layout));
}

TEST(PhaseGroups, FuseTheEarlierIntoTheLargerLaterOne) {
  const solve::Problem problem{
      .buffers = {of(8, 0, 29, 0, 1), of(8, 1, 19, 0, 1), of(8, 30, 60, 1, 2), of(8, 20, 61, 1, 2),
                  of(8, 10, 62, 1, 2)},
      .alignment = 1};
  const std::vector<solve::PhaseGroup> groups = solve::phase_groups(problem, {});
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].size, 24);
  EXPECT_EQ(groups[0].lower, 0);
  EXPECT_EQ(groups[0].upper, 62);
  EXPECT_NO_THROW(verify::validate(problem, solve::PaperPlanner().plan(problem, {})));
}

TEST(PhaseGroups, StayApartWhereFusionWouldReserveMore) {
  // The second group begins before any block of the first has ended.
  const solve::Problem problem{.buffers = {of(8, 0, 30, 0, 1), of(8, 1, 31, 0, 1),
                                           of(8, 20, 100, 1, 2), of(4, 21, 99, 1, 2)},
                               .alignment = 1};
  EXPECT_EQ(solve::phase_groups(problem, {}).size(), 2U);
}

TEST(PaperPlanner, ReusesALayerForOneSizeAndItsIdleTimeForSmallerOnes) {
  const solve::Problem problem{.buffers = {{.size = 8, .lower = 0, .upper = 5},
                                           {.size = 8, .lower = 5, .upper = 9},
                                           {.size = 8, .lower = 14, .upper = 16},
                                           {.size = 4, .lower = 9, .upper = 14},
                                           {.size = 4, .lower = 10, .upper = 13}},
                               .alignment = 1};
  const solve::Layout layout = solve::PaperPlanner().plan(problem, {});
  EXPECT_EQ(layout.height, 8);
  EXPECT_EQ(layout.offsets, (std::vector<Offset>{0, 0, 0, 0, 4}));
}

TEST(PaperPlanner, TakesTheLayerThatWasFreedLast) {
  // Algorithm 1 takes the layer that ended at 9, not the one that ended at 3, though both are free
  // at tick 10. So the other stays free for a request as long as its idle time.
  const solve::Problem problem{.buffers = {{.size = 8, .lower = 0, .upper = 3},
                                           {.size = 8, .lower = 1, .upper = 9},
                                           {.size = 8, .lower = 10, .upper = 12}},
                               .alignment = 1};
  EXPECT_EQ(solve::PaperPlanner().plan(problem, {}).offsets, (std::vector<Offset>{0, 8, 8}));
}

TEST(PaperPlanner, InsertsWithinOneLayerOnly) {
  // At tick 5 the upper half of the lower layer and all of the upper one are idle: 12 bytes in a
  // row, but no layer has more than 8.
  const solve::Problem problem{.buffers = {{.size = 8, .lower = 0, .upper = 5},
                                           {.size = 8, .lower = 0, .upper = 5},
                                           {.size = 6, .lower = 5, .upper = 9},
                                           {.size = 6, .lower = 6, .upper = 9}},
                               .alignment = 1};
  EXPECT_EQ(solve::PaperPlanner().plan(problem, {}).offsets, (std::vector<Offset>{0, 8, 0, 8}));
}

TEST(PaperPlanner, PlansEveryShapeWithAnyPhases) {
  RandomProblems random(8);
  for (int k = 0; k < 400; ++k) {
    solve::Problem problem = random.next(30, k % 2 == 0);
    for (solve::Buffer& b : problem.buffers) {
      b.phase_begin = static_cast<PhaseIndex>(random.number(-1, 3));
      b.phase_end = static_cast<PhaseIndex>(random.number(-1, 3));
    }
    const solve::Layout layout = solve::PaperPlanner().plan(problem, {});
    EXPECT_NO_THROW(verify::validate(problem, layout)) << "problem " << k;
    EXPECT_GE(layout.height, solve::load_bound(problem));
  }
}

TEST(PaperPlanner, SaysThatItCannotKeepFixedOffsets) {
  const solve::Problem problem{.buffers = {{.size = 8, .upper = 5, .fixed = 0}}, .alignment = 1};
  EXPECT_THROW(solve::PaperPlanner().plan(problem, {}), PlanError);
}

TEST(Origin, CutsWhereLeastCrosses) {
  RandomProblems random(9);
  for (int k = 0; k < 400; ++k) {
    const solve::Problem problem = random.next(12, /*circular=*/true);
    const auto crossing = [&](Tick cut) {  // live just before it and just after it
      Bytes sum = 0;
      for (const solve::Buffer& b : problem.buffers) {
        if (b.upper - b.lower == problem.period) continue;
        for (const Tick t : {cut, cut + problem.period}) {
          if (b.lower < t && t < b.upper) sum += align_up(b.size, problem.alignment);
        }
      }
      return sum;
    };
    const Tick cut = solve::lightest_tick(problem);
    Bytes least = crossing(0);
    for (Tick t = 0; t < problem.period; ++t) least = std::min(least, crossing(t));
    EXPECT_EQ(crossing(cut), least) << "problem " << k;
    const solve::Problem turned = solve::with_origin(problem, cut);
    EXPECT_EQ(turned.period == 0, least == 0);
    EXPECT_EQ(solve::load_bound(turned), solve::load_bound(problem));
    EXPECT_NO_THROW(turned.check());
  }
}

}  // namespace
}  // namespace stalloc
