// Memory that moves for dynamic requests: regions get it request by request, and give it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "checked_allocator.h"
#include "device/host.h"
#include "device/pretend.h"
#include "marked_blocks.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

// A decision of 16 MiB, a region of 64 MiB behind it, and then a decision at the region's
// addresses.
plan::Plan one_region() {
  plan::Plan plan = testing::plan_of(
      {testing::decision(16 * kMiB, 0, 0, 10), testing::decision(64 * kMiB, 16 * kMiB, 6, 10)}, 10);
  plan.groups = {testing::group(0, 64 * kMiB, 16 * kMiB, 1, 5)};
  plan.check();
  return plan;
}

TEST(MovedRegions, GetMemoryByTheRequest) {
  runtime::StaticPool space(one_region());
  const plan::GroupIndex group(0);
  EXPECT_EQ(space.place(plan::DecisionIndex(0)), 0);
  space.remove_memory({16 * kMiB, 80 * kMiB});
  EXPECT_EQ(space.lacking_memory(group, 10 * kMiB), (Range{16 * kMiB, 26 * kMiB}));
  space.return_memory({16 * kMiB, 26 * kMiB});
  EXPECT_EQ(space.lacking_memory(group, 10 * kMiB), Range{}) << "these have memory now";
  EXPECT_EQ(space.place_dynamic(group, 10 * kMiB), 16 * kMiB);

  EXPECT_EQ(space.place_dynamic(group, 8 * kMiB), kUnplaced);
  EXPECT_EQ(space.lacking_memory(group, 8 * kMiB), (Range{26 * kMiB, 34 * kMiB}));
  space.return_memory({26 * kMiB, 34 * kMiB});
  EXPECT_EQ(space.place_dynamic(group, 8 * kMiB), 26 * kMiB) << "the open region has it";
  EXPECT_EQ(space.lacking_memory(group, 46 * kMiB), (Range{34 * kMiB, 80 * kMiB}));
  EXPECT_EQ(space.lacking_memory(group, 47 * kMiB), Range{}) << "the region does not hold it";
  space.check();

  EXPECT_EQ(space.idle_in_regions(), std::vector<Range>{});
  space.release(16 * kMiB);
  EXPECT_EQ(space.idle_in_regions(), (std::vector<Range>{{16 * kMiB, 26 * kMiB}}));
  space.remove_memory({18 * kMiB, 26 * kMiB});
  space.check();
  EXPECT_EQ(space.place_dynamic(group, 4 * kMiB), kUnplaced) << "its memory has gone";
  EXPECT_EQ(space.place_dynamic(group, 2 * kMiB), 16 * kMiB);
  space.check();
}

// A decision of 16 MiB, and a region of 64 MiB behind it that no decision overlaps.
plan::Plan region_alone() {
  plan::Plan plan = testing::plan_of({testing::decision(16 * kMiB, 0, 0, 10)}, 10);
  plan.groups = {testing::group(0, 64 * kMiB, 16 * kMiB, 1, 5)};
  plan.pool = 80 * kMiB;
  plan.check();
  return plan;
}

TEST(MovedRegions, APoolBeginsWithoutTheirMemory) {
  device::PretendMemory memory(1024 * kMiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(memory);
  allocator.enable(region_alone());
  EXPECT_EQ(memory.used(), 16 * kMiB);
  EXPECT_EQ(allocator.figures().statistics().pool, 16 * kMiB);
}

// Memory that moves would save less than it costs.
TEST(MovedRegions, APoolWhoseRegionsCostLittleHasItsMemoryAtOnce) {
  plan::Plan plan = region_alone();
  for (const auto& [load, used] : {std::pair{79 * kMiB, 80 * kMiB}, {78 * kMiB, 16 * kMiB}}) {
    plan.load = load;
    device::PretendMemory memory(1024 * kMiB, /*grows=*/true);
    runtime::PlannedAllocator allocator(memory);
    allocator.enable(plan);
    EXPECT_EQ(memory.used(), used) << load;
  }
}

// The device has memory for all of the plan, or the plan is refused.
TEST(MovedRegions, APoolThatMayNotGetTheirMemoryIsRefused) {
  device::PretendMemory memory(79 * kMiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(memory);
  EXPECT_THROW(allocator.enable(region_alone()), OutOfMemory);
  EXPECT_EQ(memory.used(), 0);
}

TEST(MovedRegions, UpcomingDecisionsAreThoseOfTheRestOfThePhase) {
  plan::Decision next = testing::decision(kMiB, 16 * kMiB, 12, 14);
  next.phase = 1;
  plan::Plan plan =
      testing::plan_of({testing::decision(kMiB, 0, 0, 10), testing::decision(kMiB, 4 * kMiB, 2, 10),
                        testing::decision(kMiB, 8 * kMiB, 4, 10), next},
                       14, 2);
  plan.phases[0].end = plan.phases[1].begin = 12;
  runtime::StaticPool space(plan);
  const Range last{8 * kMiB, 9 * kMiB};
  EXPECT_EQ(space.upcoming(), (std::vector<Range>{{0, kMiB}, {4 * kMiB, 5 * kMiB}, last}));
  EXPECT_EQ(space.place(plan::DecisionIndex(1)), 4 * kMiB);
  EXPECT_EQ(space.upcoming(), std::vector<Range>{last});
  EXPECT_EQ(space.place(plan::DecisionIndex(2)), 8 * kMiB);
  EXPECT_EQ(space.upcoming(), std::vector<Range>{});
}

class MovedForRegions : public testing::CheckedAllocator {
 protected:
  MovedForRegions() : CheckedAllocator(200 * kMiB) { allocator_.enable(one_region()); }

  void* allocate_dynamic(Bytes size) {
    allocator_.loop().enter_dynamic();
    void* p = allocate(size);
    allocator_.loop().leave_dynamic();
    return p;
  }

  // Serves an iteration whose experts ask for these sizes. Returns its hits.
  std::int64_t train(const std::vector<Bytes>& experts) {
    const std::int64_t hits = statistics().hits;
    allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    std::vector<void*> blocks;
    void* first = allocate(16 * kMiB);
    for (const Bytes size : experts) blocks.push_back(allocate_dynamic(size));
    for (void* p : blocks) free(p);
    free(allocate(64 * kMiB));
    free(first);
    allocator_.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    allocator_.loop().end_iteration();
    return statistics().hits - hits;
  }
};

// 50 MiB are idle in the region, and no range of the pool holds 60.
TEST_F(MovedForRegions, ARequestThatItsRegionDoesNotHoldGetsRoom) {
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(train({14 * kMiB, 60 * kMiB}), 2) << i;
  }
  const runtime::Statistics s = statistics();
  EXPECT_EQ(s.fallback_requests, 0);
  // All that is live at once, and the rest of a chunk.
  EXPECT_LE(s.reserved.peak, (16 + 14 + 60 + 2) * kMiB);
  EXPECT_GT(s.moves, 0);
}

TEST_F(MovedForRegions, AFullDeviceStillServesThem) {
  const Bytes beside = device_.available();
  void* others = device_.allocate(beside);
  ASSERT_NE(others, nullptr);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(train({14 * kMiB, 40 * kMiB}), 2) << i;
    EXPECT_EQ(train({20 * kMiB, 44 * kMiB}), 2) << i;
  }
  EXPECT_EQ(statistics().fallback_requests, 0);
  device_.release(others, beside);
}

// A decision of 16 MiB, a region of 64, and a later decision of 40 behind it.
plan::Plan region_beside() {
  plan::Plan plan = testing::plan_of(
      {testing::decision(16 * kMiB, 0, 0, 10), testing::decision(40 * kMiB, 80 * kMiB, 4, 8)}, 10);
  plan.groups = {testing::group(0, 64 * kMiB, 16 * kMiB, 1, 3)};
  plan.pool = plan.bound = 120 * kMiB;
  plan.check();
  return plan;
}

// Each iteration needs the region or the decision. Once memory has moved often enough, requests of
// the region lie in the decision's memory rather than in more.
TEST(MovedForRegionsInTurns, TheRunNeedsNoMoreOnceMemoryNoLongerMoves) {
  device::PretendMemory device(400 * kMiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(region_beside());
  const auto allocate = [&](Bytes size) { return allocator.allocate(size, 0, true); };
  for (int i = 0; i < 560; ++i) {
    allocator.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    std::vector<void*> blocks = {allocate(16 * kMiB)};
    allocator.loop().enter_dynamic();
    blocks.push_back(allocate((i % 2 == 0 ? 36 : 2) * kMiB));
    allocator.loop().leave_dynamic();
    if (i % 2 == 1) blocks.push_back(allocate(40 * kMiB));
    allocator.inspect().check();
    for (void* p : blocks) EXPECT_TRUE(allocator.deallocate(p));
    allocator.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    allocator.loop().end_iteration();
  }
  const runtime::Statistics s = allocator.figures().statistics();
  EXPECT_LT(s.moves, 550) << "the limit was reached";
  const Bytes load = (16 + 2 + 40) * kMiB;
  EXPECT_EQ(s.allocated.peak, load);
  EXPECT_LE(s.reserved.peak, load + load / 20);
}

// A block that has outlived an iteration is expected to do so again. In the decision's memory it
// would displace the decision from then on.
TEST(MovedForRegionsInTurns, OneThatStaysGetsItsRegionsAddresses) {
  device::PretendMemory device(400 * kMiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(region_beside());
  // The block of the region, which the caller frees, with its distance to the first decision.
  struct Dynamic {
    void* p = nullptr;
    Offset offset = 0;
  };
  const auto iterate = [&](Bytes dynamic, bool decision) {
    allocator.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    void* first = allocator.allocate(16 * kMiB, 0, true);
    allocator.loop().enter_dynamic();
    void* p = allocator.allocate(dynamic, 0, true);
    allocator.loop().leave_dynamic();
    void* second = decision ? allocator.allocate(40 * kMiB, 0, true) : nullptr;
    allocator.inspect().check();
    EXPECT_TRUE(allocator.deallocate(first));
    if (second) {
      EXPECT_TRUE(allocator.deallocate(second));
    }
    const Offset offset = static_cast<std::byte*>(p) - static_cast<std::byte*>(first);
    return Dynamic{p, offset};
  };
  const auto end_iteration = [&] {
    allocator.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    allocator.loop().end_iteration();
  };
  for (int i = 0; i < 560; ++i) {
    const Dynamic d = iterate((i % 2 == 0 ? 36 : 2) * kMiB, i % 2 == 1);
    EXPECT_TRUE(allocator.deallocate(d.p));
    end_iteration();
  }
  const Dynamic kept = iterate(36 * kMiB, false);
  EXPECT_GE(kept.offset, 80 * kMiB) << "in the decision's memory";
  for (int i = 0; i < 2; ++i) end_iteration();
  EXPECT_TRUE(allocator.deallocate(kept.p));
  const Dynamic next = iterate(36 * kMiB, false);
  EXPECT_GE(next.offset, 16 * kMiB);
  EXPECT_LT(next.offset, 80 * kMiB);
  EXPECT_TRUE(allocator.deallocate(next.p));
}

// Memory of the machine: whatever departs, each block keeps its content, and all can be used.
TEST(MovedForRegionsStress, NoBlockLosesItsContent) {
  std::int64_t moves = 0;
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    device::HostMemory device(Bytes{1} << 30);
    runtime::PlannedAllocator allocator(device);
    plan::Plan plan = testing::with_groups(
        testing::random_plan(random, 60, 3, 1, solve::Streams::kSeparate, 40'000), 3);
    if (seed % 3 == 0) testing::share_regions(plan);
    plan.check();
    allocator.enable(plan);
    testing::MarkedBlocks live(allocator, random);
    for (int iteration = 0; iteration < 25; ++iteration) {
      PhaseIndex phase = kNone;
      for (const plan::Decision& d : plan.decisions) {
        if (d.phase != phase) {
          phase = d.phase;
          allocator.loop().enter_phase(trace::PhaseKind::kForward, phase.number(), 0);
        }
        if (live.below(8) > 0) live.allocate(d.size);
        for (Bytes n = live.below(3); n > 0; --n) live.allocate_dynamic(1 + live.below(3 * kMiB));
        while (live.size() > 14 || (!live.empty() && live.below(2) == 0)) live.free_any();
      }
      allocator.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
      while (live.size() > static_cast<std::size_t>(live.below(4))) live.free_any();
      allocator.loop().end_iteration();
    }
    while (!live.empty()) live.free_any();
    moves += allocator.figures().statistics().moves;
    allocator.disable();
    allocator.release_cached();
    EXPECT_EQ(device.available(), std::min(Bytes{1} << 30, device::HostMemory(0).available()))
        << "all was given back";
  }
  EXPECT_GT(moves, 100);
}

}  // namespace
}  // namespace stalloc
