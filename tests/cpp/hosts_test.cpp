// Regions that several groups of dynamic requests share.
#include "plan/hosts.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "plans.h"
#include "runtime/static_pool.h"

namespace stalloc {
namespace {

constexpr Bytes kUnit = Bytes{64} << 10;

// A group of phase 0 with one request in each iteration; it ends in `phase_end`.
profile::ProfiledGroup profiled(Tick lower, Tick upper, PhaseIndex phase_end,
                                const std::vector<Bytes>& sizes) {
  profile::ProfiledGroup group;
  group.phase = 0;
  group.lower = lower;
  group.upper = upper;
  group.phase_end = phase_end;
  for (const Bytes size : sizes) group.sightings.push_back({{size, lower, upper}});
  return group;
}

TEST(Hosts, GroupsThatOutliveTheirPhaseShareTheRegionOfTheFirst) {
  const std::vector<profile::ProfiledGroup> groups = {
      profiled(1, 3, 0, {5}), profiled(2, 19, 1, {10, 20}), profiled(4, 17, 1, {20, 10})};
  const auto hosts = plan::find_hosts(groups, 20, plan::Sharing::kKept);
  EXPECT_EQ(hosts, (std::vector<plan::GroupIndex>{kNone, 1, 1}));
  const auto shared = plan::with_hosts(groups, hosts);
  EXPECT_EQ(shared[1].lower, 2);
  EXPECT_EQ(shared[1].upper, 19);
  for (const auto& sightings : shared[1].sightings) EXPECT_EQ(sightings.size(), 2u);
  for (const auto& sightings : shared[2].sightings) EXPECT_TRUE(sightings.empty());
  EXPECT_EQ(shared[0].sightings[0].size(), 1u);
}

TEST(Hosts, AHostsWindowHoldsThoseOfItsGroups) {
  const std::vector<profile::ProfiledGroup> groups = {profiled(3, 12, 1, {5}),
                                                      profiled(2, 19, 2, {10})};
  const auto shared = plan::with_hosts(groups, plan::find_hosts(groups, 20, plan::Sharing::kKept));
  EXPECT_EQ(shared[0].lower, 2);
  EXPECT_EQ(shared[0].upper, 19);
  EXPECT_EQ(shared[0].phase_end, PhaseIndex(2));
}

TEST(Hosts, TheGroupsOfASiteShareARegionOfTheirKind) {
  std::vector<profile::ProfiledGroup> groups = {profiled(1, 3, 0, {5}), profiled(1, 4, 0, {7}),
                                                profiled(2, 19, 1, {10}), profiled(2, 18, 1, {20}),
                                                profiled(4, 17, 1, {20})};
  for (const std::size_t i : {2u, 3u}) groups[i].after = 7;
  groups[4].after = 9;
  EXPECT_EQ(plan::find_hosts(groups, 20, plan::Sharing::kKeptOfSite),
            (std::vector<plan::GroupIndex>{kNone, kNone, 2, 2, kNone}));
  EXPECT_EQ(plan::find_hosts(groups, 20, plan::Sharing::kTemporaries),
            (std::vector<plan::GroupIndex>{0, 0, kNone, kNone, kNone}));
}

TEST(Hosts, GroupsOfAllPhasesWithoutALawShareOneRegion) {
  std::vector<profile::ProfiledGroup> groups = {profiled(1, 3, 0, {5}), profiled(2, 19, 1, {10}),
                                                profiled(3, 21, 1, {10}), profiled(4, 17, 1, {20}),
                                                profiled(12, 15, 1, {30})};
  groups[3].law = 2;
  groups[4].phase = 1;
  const auto hosts = plan::find_hosts(groups, 20, plan::Sharing::kAll);
  EXPECT_EQ(hosts, (std::vector<plan::GroupIndex>{0, 0, kNone, kNone, 0}));
  groups[1].sightings[0].clear();
  EXPECT_EQ(plan::find_hosts(groups, 20, plan::Sharing::kAll)[1], plan::GroupIndex(kNone))
      << "another region has its requests";
}

TEST(Hosts, AHostHasTheLawOfItsLargestGroup) {
  std::vector<profile::ProfiledGroup> groups = {profiled(2, 19, 1, {10}), profiled(4, 17, 1, {20})};
  const auto hosts = plan::find_hosts(groups, 20, plan::Sharing::kKept);
  groups[0].law = 3;
  EXPECT_EQ(plan::with_hosts(groups, hosts)[0].law, profile::LawIndex(kNone));
  groups[1].law = 4;
  EXPECT_EQ(plan::with_hosts(groups, hosts)[0].law, profile::LawIndex(4));
}

TEST(Hosts, OneGroupAloneKeepsItsRegion) {
  const std::vector<profile::ProfiledGroup> groups = {profiled(2, 19, 1, {10})};
  EXPECT_EQ(plan::find_hosts(groups, 20, plan::Sharing::kKept),
            (std::vector<plan::GroupIndex>{kNone}));
}

TEST(Hosts, GroupsThatTogetherExceedAPeriodKeepTheirRegions) {
  const std::vector<profile::ProfiledGroup> groups = {profiled(2, 21, 1, {10}),
                                                      profiled(4, 23, 1, {10})};
  EXPECT_EQ(plan::find_hosts(groups, 20, plan::Sharing::kKept),
            (std::vector<plan::GroupIndex>{kNone, kNone}));
}

// Two groups with one region of three units, after decisions 0 and 1.
plan::Plan shared_region() {
  plan::Plan plan = testing::plan_of({{.size = 512, .offset = 0, .lower = 0, .upper = 20},
                                      {.size = 512, .offset = 512, .lower = 4, .upper = 20},
                                      {.size = 512, .offset = 1024, .lower = 6, .upper = 20}},
                                     20);
  plan::DynamicGroup host;
  host.phase = host.phase_end = 0;
  host.after = 0;
  host.size = 3 * kUnit;
  host.offset = 1536;
  host.lower = 1;
  host.upper = 19;
  host.host = 0;
  plan::DynamicGroup other = host;
  other.after = 1;
  other.size = other.offset = 0;
  other.lower = 5;
  other.upper = 17;
  plan.groups = {host, other};
  plan.pool = plan.bound = 1536 + 3 * kUnit;
  return plan;
}

TEST(Hosts, AGroupTakesWhatAnotherLeavesOfTheirRegion) {
  const plan::Plan plan = shared_region();
  plan.check();
  for (const Bytes first : {kUnit, 2 * kUnit}) {
    runtime::StaticPool pool(plan);
    ASSERT_EQ(pool.place(0), 0);
    ASSERT_EQ(pool.place_dynamic(0, first), 1536);
    ASSERT_EQ(pool.place(1), 512);
    EXPECT_EQ(pool.place_dynamic(1, 3 * kUnit - first), 1536 + first);
    EXPECT_EQ(pool.at(1536 + first).kind, runtime::StaticPool::Kind::kRegion);
    EXPECT_EQ(pool.place_dynamic(1, 512), kUnplaced) << "the region is full";
    pool.check();
    EXPECT_EQ(pool.release(1536 + first).size, 3 * kUnit - first);
    EXPECT_EQ(pool.release(1536).size, first);
    pool.end_iteration();
    pool.check();
  }
}

TEST(Hosts, ARegionOpensWithTheFirstRequestOfAnyOfItsGroups) {
  const plan::Plan plan = shared_region();
  runtime::StaticPool pool(plan);
  ASSERT_EQ(pool.place(1), 512);
  EXPECT_EQ(pool.place_dynamic(1, kUnit), 1536);
  pool.check();
  EXPECT_EQ(pool.place(2), 1024);
  pool.check();
}

TEST(Hosts, APlanIsRefusedWhoseHostDoesNotHoldItsGroups) {
  const auto refused = [](auto change) {
    plan::Plan plan = shared_region();
    change(plan.groups);
    EXPECT_THROW(plan.check(), PlanError);
  };
  refused([](auto& groups) { groups[1].upper = 20; });
  refused([](auto& groups) { groups[0].host = kNone; });
  refused([](auto& groups) { groups[0].host = 1; });
  refused([](auto& groups) { groups[1].host = 7; });
  refused([](auto& groups) { groups[1].host = -2; });
  refused([](auto& groups) { groups[0].stream = 1; });
}

}  // namespace
}  // namespace stalloc
