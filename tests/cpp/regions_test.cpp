// The sizes of regions, and the choice of head room.
#include "plan/regions.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "plan/region_trial.h"
#include "plan/window_loads.h"
#include "solve/core/bound.h"

namespace stalloc {
namespace {

// A group of which each iteration has so many bytes live at once, in one piece.
profile::ProfiledGroup group_of(const std::vector<Bytes>& sizes) {
  profile::ProfiledGroup place;
  place.phase = place.phase_end = 0;
  place.upper = 10;
  for (const Bytes size : sizes) place.sightings.push_back({{size, 0, 5}});
  return place;
}

// Groups in phases of their own, each the backward of a microbatch. The problem also has a static
// request of `static_size` bytes at another time.
plan::Regions regions_of(std::vector<profile::ProfiledGroup> groups, Bytes static_size = 0,
                         Bytes alignment = 1) {
  solve::Problem problem{.period = 20, .alignment = alignment};
  problem.buffers.push_back({.size = static_size, .lower = 12, .upper = 15});
  std::vector<profile::ProfiledPhase> phases;
  for (profile::ProfiledGroup& p : groups) {
    p.phase = p.phase_end = static_cast<PhaseIndex>(phases.size());
    phases.push_back({{trace::PhaseKind::kBackward, p.phase.number(), 0, 0}, 0, 20});
    problem.buffers.push_back({.lower = p.lower, .upper = p.upper});
  }
  return plan::size_regions(groups, phases, problem);
}

TEST(Regions, NoGroupsGiveNoRegions) {
  const plan::Regions regions = regions_of({});
  EXPECT_TRUE(regions.sizes.empty());
  EXPECT_EQ(regions.headroom, 0);
}

TEST(Regions, NeedNoHeadroomWhereIterationsAreAlike) {
  const plan::Regions regions = regions_of({group_of({1000, 1000, 1000})});
  EXPECT_EQ(regions.sizes, (std::vector<Bytes>{1000}));
  EXPECT_EQ(regions.cost, 0);
  EXPECT_EQ(regions.saves, 0);
}

TEST(Regions, WithOneIterationTakeTheDefault) {
  const plan::Regions regions = regions_of({group_of({1000})});
  EXPECT_EQ(regions.headroom, plan::kDefaultHeadroom);
  EXPECT_EQ(regions.sizes, (std::vector<Bytes>{1100}));
  EXPECT_EQ(regions.cost, 100);
  EXPECT_EQ(regions.saves, 0);
}

TEST(Regions, AFamilysRegionsHaveOneSizeFromAllItsPlaces) {
  const plan::Regions regions = regions_of(
      {group_of({1000, 1010, 1020}), group_of({1030, 1000, 1010}), group_of({90, 80})}, 10000);
  EXPECT_EQ(regions.sizes[0], regions.sizes[1]);
  EXPECT_EQ(regions.headroom, plan::kDefaultHeadroom) << "it costs nothing under the static peak";
  EXPECT_EQ(regions.sizes[0], 1010 + 2 * 20);
  EXPECT_EQ(regions.sizes[2], 90 + 2 * 4)
      << "far from alike: two needs, a twentieth above the median";
}

TEST(Regions, TakeHeadroomWhereItSavesMoreThanItCosts) {
  // If the iteration with 1040 is left out, all of it overflows the region sized by the others.
  // With so few iterations, the least head room is a twentieth, which suffices.
  const std::vector<profile::ProfiledGroup> groups = {group_of({1000, 1040, 1008, 1000})};
  const plan::Regions regions = regions_of(groups);
  EXPECT_EQ(regions.headroom, 100);
  EXPECT_EQ(regions.sizes, (std::vector<Bytes>{1040}));
  EXPECT_EQ(regions.cost, 32);
  EXPECT_EQ(regions.saves, 1040);
  // An outlier that no candidate reaches is not worth anything.
  EXPECT_EQ(regions_of({group_of({1000, 9000, 1000, 1000})}).headroom, 0);
}

TEST(Regions, AwayFromThePeakHaveMoreHeadroom) {
  // The second place is at the peak, where an outlier that no candidate reaches is worth nothing.
  std::vector<profile::ProfiledGroup> groups = {group_of({1000, 1010, 1020, 1000}),
                                                group_of({2000, 19000, 2000, 2000})};
  groups[0].upper = groups[1].lower = 10;
  groups[1].upper = 12;
  const plan::Regions regions = regions_of(groups);
  EXPECT_EQ(regions.headroom, 0);
  EXPECT_EQ(regions.cost, 0);
  EXPECT_EQ(regions.sizes, (std::vector<Bytes>{1010 + 2 * 10, 2000}));
  groups[0].upper = 11;  // now both are
  EXPECT_EQ(regions_of(groups).sizes, (std::vector<Bytes>{1010, 2000}));
}

TEST(Regions, HoldTheBlocksAliveAtOncePackedByBestFit) {
  profile::ProfiledGroup place;
  place.upper = 10;
  // Holes of 30 and 20 between neighbours; 20 takes the smaller one, then 30 the other.
  place.sightings = {
      {{30, 0, 5}, {10, 1, 100}, {20, 2, 6}, {10, 3, 100}, {20, 7, 100}, {30, 8, 100}},
      {{30, 0, 5}, {10, 1, 100}, {20, 2, 6}, {10, 3, 100}, {20, 7, 100}, {30, 8, 100}},
      {{30, 0, 5}, {10, 1, 100}, {20, 2, 6}, {10, 3, 100}, {20, 7, 100}, {30, 8, 100}}};
  EXPECT_EQ(regions_of({place}).sizes, (std::vector<Bytes>{70}));
  EXPECT_EQ(regions_of({place}, 0, 64).sizes, (std::vector<Bytes>{4 * 64}));
}

TEST(Regions, AreRoundedToTheAlignment) {
  const plan::Regions regions = regions_of({group_of({1000}), group_of({0 + 1})}, 0, 512);
  EXPECT_EQ(regions.sizes, (std::vector<Bytes>{1536, 1024}));
}

TEST(Regions, AreRefusedBeyond63Bits) {
  EXPECT_THROW(regions_of({group_of({Bytes{1} << 62})}), OverflowError);
  profile::ProfiledGroup place = group_of({1});
  for (int i = 0; i < 3; ++i) place.sightings[0].push_back({1, 1, 5});
  EXPECT_THROW(regions_of({place}, 0, Bytes{1} << 61), OverflowError);
}

TEST(RegionTrial, CountsRequestsThatFitNowhere) {
  // Two groups whose windows overlap; the second's requests come when the first has made all of
  // its own, and stay as long.
  std::vector<profile::ProfiledGroup> groups(2);
  groups[0].phase = groups[1].phase = 0;
  groups[0].phase_end = groups[1].phase_end = 1;
  groups[0].sightings = {{{100, 0, 50}}};
  groups[1].sightings = {{{100, 10, 50}, {60, 11, 50}, {60, 12, 50}}};
  Bytes limit = 1000;
  const auto overflow = [&](std::vector<Bytes> sizes, Bytes idle = 0) {
    const plan::RegionTrial trial(groups, 0, 1, 100);
    return trial.overflow(sizes, std::vector<Bytes>{idle, idle}, limit);
  };
  EXPECT_EQ(overflow({100, 220}), 0);
  EXPECT_EQ(overflow({160, 160}), 0) << "60 go into the first's";
  EXPECT_EQ(overflow({159, 160}), 60);
  EXPECT_EQ(overflow({100, 0}), 220);
  EXPECT_EQ(overflow({100, 0}, 1000), 220) << "nothing idle is used by what outlives its phase";
  groups[1].phase_end = 0;
  groups[1].upper = 60;
  EXPECT_EQ(overflow({100, 0}, 320), 60) << "half of what is idle is of use";
  limit = 100;
  EXPECT_EQ(overflow({100, 0}), 160) << "it ends where the limit is exceeded";
  groups[1].stream = 1;
  EXPECT_EQ(overflow({160, 160}), 60) << "not another stream's";
}

TEST(WindowLoads, AreTheLargestLoadInAWindow) {
  profile::ProfiledGroup place = group_of({1});
  place.lower = 8;
  place.upper = 12;
  const solve::Problem problem{.buffers = {{.size = 100, .lower = 0, .upper = 5},
                                           {.size = 70, .lower = 4, .upper = 9},
                                           {.size = 40, .lower = 6, .upper = 7},
                                           {.size = 30, .lower = 9, .upper = 11},
                                           {.lower = 8, .upper = 12}},
                               .period = 10,
                               .alignment = 1};
  // At its peak, tick 4, 170 are live; in [8, 10) and [0, 2) no more than 100 + 30.
  plan::WindowLoads loads(std::vector{place}, problem);
  EXPECT_EQ(loads.peak(0), 170);
  EXPECT_EQ(loads.most(0), 130);
  EXPECT_EQ(loads.bound(), 170);
  loads.grow(0, 41);
  EXPECT_EQ(loads.most(0), 171);
  EXPECT_EQ(loads.bound(), 171) << "the window's peak is the highest now";
  loads.grow(0, -41);
  EXPECT_EQ(loads.bound(), 170);
}

TEST(WindowLoadsProperty, TheirBoundIsTheProblems) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](Tick low, Tick high) {
      return std::uniform_int_distribution<Tick>(low, high)(random);
    };
    solve::Problem problem{.period = pick(1, 30), .alignment = 4};
    const auto add = [&](Bytes size) {
      const Tick lower = pick(0, problem.period - 1);
      problem.buffers.push_back({.size = size,
                                 .lower = lower,
                                 .upper = lower + pick(1, problem.period),
                                 .stream = static_cast<StreamId>(pick(0, 1))});
    };
    for (Tick i = pick(0, 12); i > 0; --i) add(pick(1, 40));
    const std::size_t first = problem.buffers.size();
    std::vector<profile::ProfiledGroup> groups(static_cast<std::size_t>(pick(1, 8)));
    for (profile::ProfiledGroup& place : groups) {
      add(0);
      place.lower = problem.buffers.back().lower;
      place.upper = problem.buffers.back().upper;
      place.stream = problem.buffers.back().stream;
    }
    plan::WindowLoads loads(groups, problem);
    for (int step = 0; step < 10; ++step) {
      const auto p = static_cast<std::size_t>(pick(0, std::ssize(groups) - 1));
      solve::Buffer& region = problem.buffers[first + p];
      const Bytes size = 4 * pick(0, 10);
      loads.grow(p, size - region.size);
      region.size = size;
      EXPECT_EQ(loads.bound(), solve::load_bound(problem)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace stalloc
