#include "runtime/static_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/align.h"
#include "plans.h"

namespace stalloc {
namespace {

using testing::decision;
using testing::group;

constexpr Bytes kUnit = Bytes{64} << 10;  // of what is not small

TEST(StaticPool, ServesThePlanAndNothingIsStray) {
  runtime::StaticPool pool(testing::plan_of(
      {decision(512, 0, 0, 2), decision(512, 512, 1, 3), decision(512, 0, 4, 5)}, 6));
  for (int iteration = 0; iteration < 3; ++iteration) {
    EXPECT_EQ(pool.place(0), 0);
    EXPECT_EQ(pool.place(1), 512);
    EXPECT_EQ(pool.release(0).size, 512);
    EXPECT_EQ(pool.release(512).size, 512);
    EXPECT_EQ(pool.place(2), 0);
    EXPECT_EQ(pool.release(0).size, 512);
    pool.end_iteration();
    pool.check();
    EXPECT_EQ(pool.strays(), 0u);
    EXPECT_EQ(pool.live_blocks(), 0u);
  }
}

TEST(StaticPool, BriefBlocksLeaveTheEndOfThePoolToOthers) {
  const plan::Plan plan = testing::plan_of({decision(4096, 0, 0, 2)}, 4);
  runtime::StaticPool pool(plan);
  const auto place = [&](Bytes size) { return pool.place_idle(size, 0, {.is_brief = true}); };
  EXPECT_EQ(place(1024), 0);
  EXPECT_EQ(place(512), 1024);
  EXPECT_EQ(place(512), 1536);
  EXPECT_EQ(pool.release(0).size, 1024);
  EXPECT_EQ(pool.release(1536).size, 512);
  EXPECT_EQ(place(512), 0) << "not the rest of the pool, nor the smallest range";
  EXPECT_EQ(place(1024), 1536);
  EXPECT_EQ(pool.missing_at_end(2048, 0), 512) << "the other end is in one piece";
  EXPECT_EQ(place(2048), kUnplaced);
  pool.check();
}

TEST(StaticPool, RefusesAnAddressThatALateBlockHolds) {
  runtime::StaticPool pool(testing::plan_of({decision(512, 0, 0, 1), decision(100, 0, 2, 3)}, 4));
  ASSERT_EQ(pool.place(0), 0);
  EXPECT_EQ(pool.place(1), kUnplaced);
  EXPECT_EQ(pool.strays(), 1u);
  pool.check();
  EXPECT_EQ(pool.release(0).size, 512);
  EXPECT_EQ(pool.place(1), 0);
  EXPECT_EQ(pool.release(0).size, 100) << "sizes are given back as they were asked for";
}

TEST(StaticPool, ALateBlockIsRegularAgainInTheNextIteration) {
  runtime::StaticPool pool(testing::plan_of({decision(512, 0, 0, 1), decision(512, 512, 2, 3)}, 4));
  ASSERT_EQ(pool.place(0), 0);
  pool.end_iteration();
  EXPECT_EQ(pool.strays(), 1u);
  EXPECT_EQ(pool.place(0), kUnplaced) << "still live from the iteration before";
  EXPECT_EQ(pool.strays(), 0u);
  pool.check();
  EXPECT_EQ(pool.place(1), 512);
  EXPECT_EQ(pool.strays(), 1u);
  pool.check();
}

TEST(StaticPool, WrapAroundLivesIntoTheNextIteration) {
  runtime::StaticPool pool(testing::plan_of({decision(512, 0, 6, 10), decision(512, 0, 4, 5)}, 8));
  ASSERT_EQ(pool.place(1), 0);  // decisions are ordered by their start: 1 is the later one
  pool.end_iteration();
  EXPECT_EQ(pool.strays(), 0u);
  EXPECT_EQ(pool.place(0), kUnplaced) << "the clock has passed the wrap-around's planned free";
  EXPECT_EQ(pool.release(0).size, 512);
  EXPECT_EQ(pool.place(0), 0);
  pool.check();
}

TEST(StaticPool, RefusesADecisionWhoseTimeIsOver) {
  runtime::StaticPool pool(testing::plan_of(
      {decision(512, 0, 0, 2), decision(512, 512, 1, 8), decision(512, 0, 3, 4)}, 9));
  ASSERT_EQ(pool.place(2), 0);  // clock at 3: decision 0 is over, decision 1 is not
  EXPECT_EQ(pool.place(0), kUnplaced);
  EXPECT_EQ(pool.place(1), 512);
  pool.check();
}

// Phase 0 makes a block that stays to the end and one that passes; phase 1 another that passes.
plan::Plan two_phases() {
  plan::Decision last = decision(512, 512, 3, 4);
  last.phase = 1;
  plan::Plan plan = testing::plan_of({decision(512, 0, 0, 5), decision(512, 512, 1, 2), last}, 6,
                                     /*phases=*/2);
  plan.phases[1].begin = 3;
  return plan;
}

TEST(StaticPool, ARepeatedPhaseTakesItsPlacesAgain) {
  runtime::StaticPool pool(two_phases());
  ASSERT_EQ(pool.place(0), 0);
  ASSERT_EQ(pool.place(1), 512);
  ASSERT_EQ(pool.release(512).size, 512);
  for (int visit = 0; visit < 3; ++visit) {
    pool.begin_phase(1);
    EXPECT_EQ(pool.place(2), 512);
    EXPECT_EQ(pool.strays(), 0u) << "the block of phase 0 stays regular";
    EXPECT_EQ(pool.release(512).size, 512);
    pool.check();
  }
  pool.begin_phase(0);
  EXPECT_EQ(pool.strays(), 1u) << "the clock is before its allocation";
  EXPECT_EQ(pool.place(0), kUnplaced) << "and its place is taken";
  EXPECT_EQ(pool.place(1), 512);
  pool.check();
}

TEST(StaticPool, ABlockOfALaterPhaseIsAStrayWhileAnEarlierOneRepeats) {
  runtime::StaticPool pool(two_phases());
  ASSERT_EQ(pool.place(2), 512);
  pool.begin_phase(0);
  EXPECT_EQ(pool.strays(), 1u);
  EXPECT_EQ(pool.place(0), 0);
  EXPECT_EQ(pool.place(1), kUnplaced) << "the later phase's block lies there";
  pool.check();
  pool.begin_phase(1);
  EXPECT_EQ(pool.place(2), kUnplaced) << "it is still live";
  EXPECT_EQ(pool.strays(), 0u) << "and regular again";
  pool.check();
}

TEST(StaticPool, ReleasesOnlyBlocks) {
  runtime::StaticPool pool(testing::plan_of({decision(512, 0, 0, 1), decision(512, 512, 0, 1)}, 2));
  EXPECT_EQ(pool.release(0).size, runtime::StaticPool::kNotLive);
  ASSERT_EQ(pool.place(0), 0);
  EXPECT_EQ(pool.release(512).size, runtime::StaticPool::kNotLive);
  EXPECT_EQ(pool.release(256).size, runtime::StaticPool::kNotLive);
  EXPECT_EQ(pool.release(0).size, 512);
  EXPECT_EQ(pool.release(0).size, runtime::StaticPool::kNotLive) << "freed twice";
}

TEST(StaticPool, IdleSpaceIsBestFitAroundLiveBlocks) {
  runtime::StaticPool pool(testing::plan_of({decision(512, 0, 0, 9), decision(1024, 512, 1, 2),
                                             decision(512, 1536, 1, 9), decision(4096, 2048, 3, 4)},
                                            10));
  ASSERT_EQ(pool.place(0), 0);
  ASSERT_EQ(pool.place(2), 1536);
  EXPECT_EQ(pool.largest_hole(), 4096);
  EXPECT_EQ(pool.place_idle(700, 0), 512) << "the hole of 1024 fits better than the one of 4096";
  EXPECT_EQ(pool.place_idle(5000, 0), kUnplaced);
  EXPECT_EQ(pool.place_idle(1, 0), 2048);
  pool.check();
  EXPECT_EQ(pool.place(3), kUnplaced) << "a foreign block lies there";
  EXPECT_EQ(pool.release(2048).size, 1);
  EXPECT_EQ(pool.place(3), 2048);
  EXPECT_EQ(pool.place_idle(1, 0), kUnplaced) << "nothing is idle any more";
  EXPECT_EQ(pool.release(512).size, 700);
  EXPECT_EQ(pool.place_idle(1024, 0), 512);
  pool.check();
}

TEST(StaticPool, ASmallerRequestLeavesTheRestOfItsRangeIdle) {
  runtime::StaticPool pool(
      testing::plan_of({decision(2048, 0, 0, 5), decision(512, 1536, 6, 7)}, 8));
  ASSERT_EQ(pool.place(0, 700), 0);
  EXPECT_EQ(pool.largest_hole(), 1024);
  EXPECT_EQ(pool.place_idle(1025, 0), kUnplaced);
  EXPECT_EQ(pool.place_idle(1000, 0), 1024);
  EXPECT_EQ(pool.place_idle(1, 0), kUnplaced);
  pool.check();
  EXPECT_EQ(pool.place(1), kUnplaced) << "the rest is taken, and the decision before is late";
  EXPECT_EQ(pool.strays(), 2u);
  pool.check();
  EXPECT_EQ(pool.release(0).size, 700);
  EXPECT_EQ(pool.release(1024).size, 1000);
  EXPECT_EQ(pool.place(1), 1536);
  pool.end_iteration();
  EXPECT_EQ(pool.release(1536).size, 512);
  EXPECT_EQ(pool.place(0), 0) << "without a size it is that of the last request";
  EXPECT_EQ(pool.largest_hole(), 1024);
  pool.check();
}

// Decision 1 comes where the rest of decision 0 was, before the group's blocks are freed.
TEST(StaticPool, ADynamicBlockInSuchARestDisplacesNoTemporary) {
  const auto place_until = [](Tick upper) {
    plan::Plan plan =
        testing::plan_of({decision(2 * kUnit, 0, 0, 5), decision(kUnit, kUnit, 6, 7)}, 10);
    plan.groups = {group(0, 0, 0, 1, upper)};
    plan.check();
    runtime::StaticPool pool(plan);
    EXPECT_EQ(pool.place(0, kUnit), 0);
    EXPECT_EQ(pool.place_dynamic(0, kUnit), kUnplaced);
    return pool.place_idle(kUnit, 0, {.lifetime = pool.region_of(0)});
  };
  EXPECT_EQ(place_until(5), kUnit);
  EXPECT_EQ(place_until(8), kUnplaced);
}

TEST(StaticPool, ABlockInTheWayOfALargerRequestMayLeaveRoomForASmallerOne) {
  runtime::StaticPool pool(testing::plan_of({decision(2048, 0, 2, 5), decision(512, 0, 0, 1)}, 8));
  ASSERT_TRUE(pool.place_at(1024, 1024, 0));
  EXPECT_EQ(pool.place(1, 2048), kUnplaced);
  EXPECT_EQ(pool.in_the_way(1, 2048), std::vector<Offset>{1024});
  EXPECT_EQ(pool.in_the_way(1, 1024), std::vector<Offset>{});
  EXPECT_EQ(pool.place(1, 1024), 0);
  pool.check();
}

TEST(StaticPool, ANewLayoutKeepsABlockBesideAnotherInTheRestOfItsRange) {
  const plan::Plan plan = testing::plan_of({decision(2048, 0, 0, 5)}, 8);
  runtime::StaticPool pool(plan);
  ASSERT_EQ(pool.place(0, 1024), 0);
  ASSERT_EQ(pool.place_idle(1024, 0), 1024);
  pool.relayout(plan, plan.pool);
  pool.check();
  EXPECT_EQ(pool.at(0).decision, plan::DecisionIndex(0)) << "not displaced";
  EXPECT_EQ(pool.strays(), 1u);
  EXPECT_EQ(pool.release(0).size, 1024);
  EXPECT_EQ(pool.largest_hole(), 1024);
  pool.check();
}

TEST(StaticPool, TheRestOfARangeMayLackMemory) {
  const plan::DecisionIndex d(0);
  runtime::StaticPool pool(testing::plan_of({decision(2048, 0, 0, 5)}, 8));
  pool.remove_memory({1024, 2048});
  EXPECT_EQ(pool.place(d, 2048), kUnplaced);
  EXPECT_EQ(pool.lacking_memory(d, 2048), (Range{0, 2048}));
  EXPECT_EQ(pool.lacking_memory(d, 1024), Range{}) << "its own part has memory";
  EXPECT_EQ(pool.place(d, 1024), 0);
  pool.check();
  pool.return_memory({1024, 2048});
  EXPECT_EQ(pool.idle_ranges(runtime::StaticPool::kLevels - 2), std::vector<Range>{})
      << "other addresses get this memory at last";
  EXPECT_EQ(pool.idle_ranges(), (std::vector<Range>{{1024, 2048}}));
  EXPECT_EQ(pool.place_idle(1024, 0), 1024);
  pool.check();
}

TEST(StaticPool, ABlockInTheRestLeavesTheOtherAddressesToLackMemory) {
  const plan::DecisionIndex d(0);
  runtime::StaticPool pool(testing::plan_of({decision(2048, 0, 0, 5)}, 8));
  ASSERT_TRUE(pool.place_at(1536, 512, 0));
  pool.remove_memory({512, 1024});
  EXPECT_EQ(pool.place(d, 1024), kUnplaced);
  EXPECT_EQ(pool.lacking_memory(d, 2048), Range{}) << "something else is in the way";
  EXPECT_EQ(pool.lacking_memory(d, 1024), (Range{0, 1024}));
  pool.return_memory({512, 1024});
  EXPECT_EQ(pool.place(d, 1024), 0);
  pool.check();
}

TEST(StaticPool, ABlockThatIsLikelyToStayLiesAtAnEnd) {
  constexpr Bytes kPool = Bytes{1} << 20;
  constexpr Bytes kGap = 4096;  // for small blocks
  runtime::StaticPool pool(testing::plan_of({decision(kPool, 0, 0, 1)}, 4));
  RangeSet anchors;
  anchors.insert({0, 1024});
  anchors.insert({16384, 20480});
  const runtime::StaticPool::Departure first{.stays_outside = &anchors};
  const runtime::StaticPool::Departure last{.stays_outside = &anchors, .last = true};
  EXPECT_EQ(pool.place_idle(4096, 0, first), 1024 + kGap);
  EXPECT_EQ(pool.place_idle(8192, 0, first), 20480 + kGap) << "not where the anchor lies";
  EXPECT_EQ(pool.place_idle(512, 0, first), 1024) << "a small one goes into the gap";
  EXPECT_EQ(pool.place_idle(4096, 0, last), kPool - kGap - 4096);
  EXPECT_EQ(pool.place_idle(512, 0, last), kPool - 512);
  EXPECT_EQ(pool.place_idle(kPool, 0, first), kUnplaced);
  const Offset end = 20480 + kGap + 8192;
  EXPECT_EQ(pool.place_idle(kPool - kGap - 4096 - end, 0, first), end) << "without a gap";
  pool.check();
}

TEST(StaticPool, AZoneLiesAtEitherEndOfAnIdleRange) {
  runtime::StaticPool pool(testing::plan_of({decision(8192, 0, 0, 1)}, 4));
  for (const bool last : {false, true}) {
    ASSERT_TRUE(pool.open_zone(2048, 0, 0, last));
    EXPECT_EQ(pool.place_in_zone(512, 1024, 0, {}), last ? 6656 : 512);
    EXPECT_EQ(pool.place_in_zone(1536, 1024, 0, {}), kUnplaced) << "beyond the zone";
    pool.close_zone();
    pool.release(last ? 6656 : 512);
    pool.check();
  }
  EXPECT_FALSE(pool.open_zone(8704, 0));
  EXPECT_FALSE(pool.open_zone(2048, 0, 6656)) << "no room for what stays";
  EXPECT_TRUE(pool.open_zone(2048, 0, 6144));
}

TEST(StaticPool, ADisplacedDecisionDisplacesNoneIfItNeedNot) {
  runtime::StaticPool pool(testing::plan_of(
      {decision(512, 0, 0, 9), decision(512, 512, 3, 4), decision(1024, 1024, 10, 11)}, 12));
  ASSERT_EQ(pool.place_idle(512, 0), 0);
  ASSERT_EQ(pool.place(0), kUnplaced);
  EXPECT_EQ(pool.place_idle(512, 0, {.lifetime = 0}), 1024) << "only decision 1 comes before 9";
  pool.check();
  EXPECT_EQ(pool.place(1), 512);
  EXPECT_EQ(pool.place(2), kUnplaced) << "the displaced one is late";
  EXPECT_EQ(pool.release(1024).size, 512);
  EXPECT_EQ(pool.place(2), 1024);
  pool.check();
}

TEST(StaticPool, ADisplacedDecisionGoesWhereThePlanNeedsTheAddressesLast) {
  runtime::StaticPool pool(testing::plan_of({decision(512, 0, 0, 9), decision(512, 1024, 3, 4),
                                             decision(512, 1536, 5, 6), decision(512, 512, 4, 5)},
                                            10));
  ASSERT_EQ(pool.place_idle(512, 0), 0);
  ASSERT_EQ(pool.place(0), kUnplaced);
  EXPECT_EQ(pool.place_idle(512, 0, {.lifetime = 0}), 1536);
  pool.check();
}

TEST(StaticPool, ADisplacedDecisionIsNotInTheWayOfALargeOne) {
  const auto place_before = [](Bytes needed) {
    runtime::StaticPool pool(
        testing::plan_of({decision(512, 0, 0, 9), decision(needed, 512, 3, 4)}, 10));
    EXPECT_EQ(pool.place_idle(512, 0), 0);
    EXPECT_EQ(pool.place(0), kUnplaced);
    return pool.place_idle(512, 0, {.lifetime = 0});
  };
  EXPECT_EQ(place_before(1024), kUnplaced) << "it would find no other place";
  EXPECT_EQ(place_before(512), 512) << "it is no larger";
}

TEST(StaticPool, ADisplacedDecisionIsNotInTheWayOfALargeOneThatComesLater) {
  const auto place_before = [](Bytes needed) {
    runtime::StaticPool pool(testing::plan_of(
        {decision(512, 0, 0, 9), decision(512, 512, 3, 4), decision(needed, 512, 5, 6)}, 10));
    EXPECT_EQ(pool.place_idle(512, 0), 0);
    EXPECT_EQ(pool.place(0), kUnplaced);
    return pool.place_idle(512, 0, {.lifetime = 0});
  };
  EXPECT_EQ(place_before(1024), kUnplaced);
  EXPECT_EQ(place_before(512), 512);
}

TEST(StaticPool, AHarmlessBlockDisplacesNone) {
  const auto place_before = [](Tick needed, bool displaces) {
    runtime::StaticPool pool(
        testing::plan_of({decision(512, 0, 0, 5), decision(512, 512, needed, needed + 1)}, 10));
    EXPECT_EQ(pool.place_idle(512, 0), 0);
    EXPECT_EQ(pool.place(0), kUnplaced);
    const Offset at =
        pool.place_idle(512, 0, {.lifetime = 0, .displaces = displaces, .harmless = !displaces});
    pool.check();
    return at;
  };
  EXPECT_EQ(place_before(6, /*displaces=*/false), 512) << "needed when the block is gone";
  EXPECT_EQ(place_before(3, /*displaces=*/false), kUnplaced);
  EXPECT_EQ(place_before(3, /*displaces=*/true), 512);
}

TEST(StaticPool, ABlockMayDisplaceALargeDecisionWhereNoMemoryMoves) {
  runtime::StaticPool pool(
      testing::plan_of({decision(512, 0, 0, 9), decision(1024, 512, 3, 4)}, 10));
  ASSERT_EQ(pool.place_idle(512, 0), 0);
  ASSERT_EQ(pool.place(0), kUnplaced);
  EXPECT_EQ(pool.place_idle(512, 0, {.lifetime = 0}), kUnplaced);
  EXPECT_EQ(pool.place_idle(512, 0, {.lifetime = 0, .displaces = true}), 512);
  pool.check();
}

TEST(StaticPool, ATinyBlockDisplacesFewDecisions) {
  // Of a pool of 64 KiB, only as many bytes as the block needs are idle, and `count` temporaries
  // come and go there.
  const auto place_before = [](int count, Bytes size) {
    std::vector<plan::Decision> decisions = {decision(size, 0, 0, 40),
                                             decision((64 << 10) - 2 * size, 2 * size, 1, 39)};
    for (int i = 0; i < count; ++i) decisions.push_back(decision(512, size, 3 + 2 * i, 4 + 2 * i));
    runtime::StaticPool pool(testing::plan_of(decisions, 41));
    EXPECT_EQ(pool.place_idle(size, 0), 0);
    EXPECT_EQ(pool.place(0), kUnplaced);
    EXPECT_EQ(pool.place(1), 2 * size);
    return pool.place_idle(size, 0, {.lifetime = 0});
  };
  EXPECT_EQ(place_before(4, 512), 512);
  EXPECT_EQ(place_before(5, 512), kUnplaced) << "it costs little beside the pool";
  EXPECT_EQ(place_before(5, 1024), 1024) << "more than a part in 128 costs more than they do";
}

TEST(StaticPool, ADisplacedDecisionThatWrapsLooksIntoTheNextIteration) {
  runtime::StaticPool pool(testing::plan_of({decision(512, 1024, 1, 2), decision(512, 512, 4, 5),
                                             decision(512, 0, 6, 13), decision(512, 1536, 8, 9)},
                                            10));
  ASSERT_EQ(pool.place(1), 512);
  ASSERT_EQ(pool.release(512).size, 512);
  ASSERT_TRUE(pool.place_at(0, 512, 0));
  ASSERT_EQ(pool.place(2), kUnplaced);
  EXPECT_EQ(pool.place_idle(512, 0, {.lifetime = 2}), 512) << "1024 is needed at 11, 1536 at 8";
  pool.check();
}

TEST(StaticPool, ABlockThatOutlivesItsRegionDisplacesOnlyItsOwnAddresses) {
  plan::Plan plan = testing::plan_of(
      {decision(512, 0, 0, 20), decision(kUnit, 512, 10, 11), decision(kUnit, 512 + kUnit, 12, 13)},
      20);
  plan.groups = {group(0, 2 * kUnit, 512, 1, 5)};
  plan.check();
  runtime::StaticPool pool(plan);
  ASSERT_EQ(pool.place(0), 0);
  ASSERT_EQ(pool.place_dynamic(0, 600), 512);
  ASSERT_EQ(pool.place_dynamic(0, 700), 512 + 1024);
  EXPECT_EQ(pool.strays(), 0u);
  EXPECT_EQ(pool.release(512).size, 600);
  pool.check();
  EXPECT_EQ(pool.place(1), kUnplaced) << "700 bytes are still there";
  EXPECT_EQ(pool.strays(), 1u);
  pool.check();
  EXPECT_EQ(pool.place(2), 512 + kUnit) << "the rest of the region is free again";
  pool.end_iteration();

  // The region opens around blocks left from the iteration before.
  EXPECT_EQ(pool.place_dynamic(0, 2048), 512 + 1024 + 1024);
  EXPECT_EQ(pool.place_dynamic(0, 1000), 512);
  pool.check();
  EXPECT_EQ(pool.release(512 + 1024).size, 700);
  EXPECT_EQ(pool.strays(), 1u) << "decision 2, which lives from the iteration before";
  pool.check();
}

// A gradient that is missing in the first microbatch comes in a later one, and lives as long.
TEST(StaticPool, ASizeThatALongerRegionDidNotGetGoesThereLater) {
  plan::Plan plan = testing::plan_of({decision(512, 0, 0, 20), decision(512, 512, 6, 20)}, 20);
  plan::DynamicGroup gradients = group(0, 2 * kUnit, 1024, 1, 19);
  gradients.contexts = {{.size = kUnit, .before = profile::DynamicContext::kVaries}};
  plan.groups = {gradients, group(1, 3 * kUnit, 1024 + 2 * kUnit, 7, 9)};
  plan.pool = plan.bound = 1024 + 5 * kUnit;
  plan.check();
  runtime::StaticPool pool(plan);
  ASSERT_EQ(pool.place(0), 0);
  ASSERT_EQ(pool.place_dynamic(0, kUnit), 1024);
  ASSERT_EQ(pool.place(1), 512);
  EXPECT_EQ(pool.place_dynamic(1, kUnit / 2), 1024 + 2 * kUnit) << "a size that does not recur";
  EXPECT_EQ(pool.place_dynamic(1, kUnit), 1024 + kUnit);
  EXPECT_EQ(pool.at(1024 + kUnit).kind, runtime::StaticPool::Kind::kRegion);
  EXPECT_EQ(pool.place_dynamic(1, kUnit), 1024 + 2 * kUnit + kUnit / 2) << "all there";
  pool.check();
  EXPECT_EQ(pool.release(1024 + kUnit).size, kUnit);
  EXPECT_EQ(pool.place_dynamic(1, kUnit), 1024 + kUnit);
  pool.end_iteration();
  pool.check();
}

TEST(StaticPool, BriefRequestsMayUseFinishedRegions) {
  plan::Plan plan = testing::plan_of({decision(512, 0, 0, 20), decision(512, 512, 6, 20)}, 20);
  plan.groups = {group(0, 2 * kUnit, 1024, 1, 19), group(1, kUnit, 1024 + 2 * kUnit, 7, 9)};
  plan.pool = plan.bound = 1024 + 3 * kUnit;
  plan.check();
  runtime::StaticPool pool(plan);
  ASSERT_EQ(pool.place(0), 0);
  ASSERT_EQ(pool.place_dynamic(0, kUnit / 2), 1024);
  ASSERT_EQ(pool.place(1), 512);
  EXPECT_EQ(pool.place_dynamic(1, kUnit), 1024 + 2 * kUnit);
  EXPECT_EQ(pool.place_dynamic(1, kUnit), 1024 + kUnit / 2) << "the first group's room";
  EXPECT_EQ(pool.place_dynamic(1, kUnit), kUnplaced);
  pool.check();
}

TEST(StaticPool, OverflowGoesOnlyToSpaceIdleThroughItsWindow) {
  plan::Plan plan =
      testing::plan_of({decision(512, 0, 0, 20), decision(4 * kUnit, 512, 8, 20)}, 20);
  plan.groups = {group(0, kUnit, 512 + 4 * kUnit, 1, 9), group(0, 0, 0, 1, 8)};
  plan.groups[1].reusable = {{512, 512 + 4 * kUnit}};
  plan.pool = plan.bound = 512 + 5 * kUnit;
  plan.check();
  runtime::StaticPool pool(plan);
  ASSERT_EQ(pool.place(0), 0);
  ASSERT_EQ(pool.place_dynamic(0, kUnit), 512 + 4 * kUnit);
  EXPECT_EQ(pool.place_dynamic(0, kUnit), kUnplaced) << "it would be in the way of decision 1";
  EXPECT_EQ(pool.place_dynamic(1, 3 * kUnit), 512);
  EXPECT_EQ(pool.at(512).kind, runtime::StaticPool::Kind::kReused);
  EXPECT_EQ(pool.place_dynamic(1, 2 * kUnit), kUnplaced);
  EXPECT_EQ(pool.place_dynamic(1, kUnit), 512 + 3 * kUnit);
  pool.check();
  EXPECT_EQ(pool.release(512).size, 3 * kUnit);
  EXPECT_EQ(pool.place_dynamic(1, 2 * kUnit), 512) << "what was given back";
  pool.check();
}

// The test's own record of live blocks, for comparison with the pool.
class Shadow {
 public:
  void add(Offset begin, Bytes size, Bytes pool) {
    const Offset end = begin + align_up(size, kDefaultAlignment);
    ASSERT_GE(begin, 0);
    ASSERT_LE(end, pool);
    const auto next = live_.lower_bound(begin);
    if (next != live_.end()) {
      ASSERT_LE(end, next->first) << "two live blocks overlap";
    }
    if (next != live_.begin()) {
      ASSERT_LE(std::prev(next)->second, begin) << "two live blocks overlap";
    }
    live_[begin] = end;
  }
  void remove(Offset begin) { live_.erase(begin); }
  std::size_t size() const { return live_.size(); }

 private:
  std::map<Offset, Offset> live_;
};

// A program that follows its plan is served entirely, for any plan.
TEST(StaticPool, StressInStepServesEverything) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const plan::Plan plan = testing::random_plan(random, 120, 3);
    runtime::StaticPool pool(plan);
    Shadow shadow;
    std::vector<std::tuple<Tick, bool, std::int32_t>> program;  // frees before allocations
    for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
      const plan::Decision& d = plan.decisions[i];
      program.emplace_back(d.lower, true, static_cast<int>(i));
      program.emplace_back(d.upper > plan.period ? d.upper - plan.period : d.upper, false,
                           static_cast<int>(i));
    }
    std::sort(program.begin(), program.end());
    std::vector<bool> live(plan.decisions.size());
    for (int iteration = 0; iteration < 3; ++iteration) {
      for (const auto& [tick, is_allocation, i] : program) {
        const auto index = static_cast<std::size_t>(i);
        const plan::Decision& d = plan.decisions[index];
        if (is_allocation) {
          ASSERT_EQ(pool.place(i), d.offset)
              << "seed " << seed << " iteration " << iteration << " d" << i;
          shadow.add(d.offset, d.size, plan.pool);
          live[index] = true;
        } else if (live[index]) {
          ASSERT_EQ(pool.release(d.offset).size, d.size);
          shadow.remove(d.offset);
          live[index] = false;
        }
        ASSERT_EQ(pool.strays(), 0u);
      }
      pool.end_iteration();
      ASSERT_NO_THROW(pool.check());
    }
    EXPECT_EQ(pool.live_blocks(), shadow.size());
  }
}

// A program that departs from its plan in any way never gets a taken address.
TEST(StaticPool, StressOutOfStepNeverOverlaps) {
  int placed = 0, refused = 0, idle = 0, rewound = 0, displaced = 0, smaller = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    int steps = 0;
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    const plan::Plan plan = testing::random_plan(random, 60, 3);
    runtime::StaticPool pool(plan);
    Shadow shadow;
    std::vector<Offset> live;
    std::vector<std::int32_t> order(plan.decisions.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return plan.decisions[static_cast<std::size_t>(a)].lower <
             plan.decisions[static_cast<std::size_t>(b)].lower;
    });
    const auto add = [&](Offset offset, Bytes size) {
      shadow.add(offset, size, plan.pool);
      live.push_back(offset);
    };
    for (int iteration = 0; iteration < 4; ++iteration) {
      for (std::size_t at = 0; at < order.size(); ++at) {
        const int what = pick(0, 19);
        if (pick(0, 19) == 0) {
          const PhaseIndex phase = pick(0, 2);
          const std::size_t strays = pool.strays();
          pool.begin_phase(phase);
          rewound += pool.strays() != strays ? 1 : 0;
          // Half of the time the run goes on from there, else it goes on as if nothing happened.
          const auto begins = [&](std::int32_t d) {
            return plan.decisions[static_cast<std::size_t>(d)].phase < phase;
          };
          if (pick(0, 1) == 0 && steps < 400) {
            at = static_cast<std::size_t>(std::ranges::partition_point(order, begins) -
                                          order.begin());
          }
          if (at == order.size()) break;
        }
        ++steps;
        if (what == 0) {
          const Bytes size = pick(1, 4000);
          if (const Offset o = pool.place_idle(size, 0); o != kUnplaced) {
            add(o, size);
            ++idle;
          }
        }
        // Usually the next decision, at times skipped, at times any.
        if (what != 1) {
          const std::int32_t d =
              what == 2 ? pick(0, static_cast<int>(order.size()) - 1) : order[at];
          const Bytes planned = plan.decisions[static_cast<std::size_t>(d)].size;
          const Bytes size = pick(0, 1) == 0 ? planned : pick(1, static_cast<int>(planned));
          smaller += pool.round_up(size) < pool.round_up(planned) ? 1 : 0;
          Offset o = pool.place(d, size);
          (o == kUnplaced ? refused : placed) += 1;
          if (o == kUnplaced && pick(0, 1) == 0) {
            const int means = pick(0, 2);
            o = pool.place_idle(size, 0,
                                {.lifetime = d, .displaces = means == 1, .harmless = means == 2});
            displaced += o != kUnplaced ? 1 : 0;
          }
          if (o != kUnplaced) add(o, size);
        }
        while (!live.empty() && pick(0, 9) < 4) {
          const auto i = static_cast<std::size_t>(pick(0, static_cast<int>(live.size()) - 1));
          ASSERT_GT(pool.release(live[i]).size, 0);
          shadow.remove(live[i]);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
        }
        ASSERT_NO_THROW(pool.check()) << "seed " << seed;
        if (HasFatalFailure()) return;
      }
      pool.end_iteration();
      ASSERT_NO_THROW(pool.check());
    }
  }
  // The stress test counts only if each event happens often.
  EXPECT_GT(placed, 5000);
  EXPECT_GT(refused, 100);
  EXPECT_GT(idle, 300);
  EXPECT_GT(rewound, 300);
  EXPECT_GT(displaced, 100);
  EXPECT_GT(smaller, 1000);
}

// Dynamic requests of all sizes, at their site and elsewhere, among decisions that are skipped,
// early or late. No address is ever given twice.
TEST(StaticPool, StressDynamicRequestsNeverOverlap) {
  int in_region = 0, reused = 0, idle = 0, refused = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    plan::Plan plan = testing::with_groups(testing::random_plan(random, 60, 2), 4);
    if (seed % 3 == 0) testing::share_regions(plan);
    plan.check();
    runtime::StaticPool pool(plan);
    Shadow shadow;
    std::vector<Offset> live;
    struct Step {
      Tick tick;
      bool dynamic;
      std::int32_t index;
    };
    std::vector<Step> program;
    for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
      program.push_back({plan.decisions[i].lower, false, static_cast<int>(i)});
    }
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      program.push_back({plan.groups[g].lower, true, static_cast<int>(g)});
    }
    std::sort(program.begin(), program.end(),
              [](const Step& a, const Step& b) { return a.tick < b.tick; });
    const auto add = [&](Offset offset, Bytes size) {
      shadow.add(offset, size, plan.pool);
      live.push_back(offset);
    };
    for (int iteration = 0; iteration < 5; ++iteration) {
      for (const Step& step : program) {
        const int what = pick(0, 29);
        if (what == 0) continue;
        if (pick(0, 19) == 0) pool.begin_phase(pick(0, 1));
        if (what == 1) {
          if (const Offset o = pool.place_idle(300, 0); o != kUnplaced) add(o, 300);
        }
        const bool astray = what == 2;
        if (step.dynamic || astray) {
          const std::int32_t g =
              astray ? pick(0, static_cast<int>(plan.groups.size()) - 1) : step.index;
          for (int i = pick(1, 5); i > 0; --i) {
            const Bytes size = pick(0, 1) == 0 ? pick(1, 6000) : 512 * pick(1, 4);
            Offset o = pool.place_dynamic(g, size);
            if (o == kUnplaced && pick(0, 1) == 0) {
              o = pool.place_idle(size, 0, {.lifetime = pool.region_of(g)});
            }
            if (o == kUnplaced) {
              ++refused;
              continue;
            }
            const auto kind = pool.at(o).kind;
            in_region += kind == runtime::StaticPool::Kind::kRegion ? 1 : 0;
            reused += kind == runtime::StaticPool::Kind::kReused ? 1 : 0;
            idle += kind == runtime::StaticPool::Kind::kIdle ? 1 : 0;
            add(o, size);
            ASSERT_NO_THROW(pool.check()) << "seed " << seed;
          }
        } else {
          const Bytes planned = plan.decisions[static_cast<std::size_t>(step.index)].size;
          const Bytes size = pick(0, 1) == 0 ? planned : pick(1, static_cast<int>(planned));
          const Offset o = pool.place(step.index, size);
          if (o != kUnplaced) add(o, size);
        }
        while (!live.empty() && pick(0, 9) < 5) {
          const auto i = static_cast<std::size_t>(pick(0, static_cast<int>(live.size()) - 1));
          ASSERT_GT(pool.release(live[i]).size, 0);
          shadow.remove(live[i]);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
        }
        ASSERT_NO_THROW(pool.check()) << "seed " << seed;
        if (HasFatalFailure()) return;
      }
      pool.end_iteration();
      ASSERT_NO_THROW(pool.check());
    }
    for (const Offset o : live) ASSERT_GT(pool.release(o).size, 0);
    EXPECT_EQ(pool.live_blocks(), 0u);
  }
  EXPECT_GT(in_region, 5000);
  EXPECT_GT(reused, 1000);
  EXPECT_GT(idle, 300);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace stalloc
