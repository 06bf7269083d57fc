// Memory that moves within a pool: an evaluation gets the idle memory of the pool in one range.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/error.h"
#include "checked_allocator.h"
#include "device/host.h"
#include "device/pretend.h"
#include "marked_blocks.h"
#include "plans.h"
#include "runtime/moving_memory.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

// Five decisions side by side, one after the other in time: 80 MiB.
plan::Plan five_blocks() {
  std::vector<plan::Decision> decisions;
  for (Tick i = 0; i < 5; ++i) {
    plan::Decision d;
    d.size = 16 * kMiB;
    d.offset = i * d.size;
    d.lower = 2 * i;
    d.upper = 10;
    decisions.push_back(d);
  }
  return testing::plan_of(decisions, 10);
}

class MovedMemory : public testing::CheckedAllocator {
 protected:
  MovedMemory() : CheckedAllocator(200 * kMiB) { allocator_.enable(five_blocks()); }

  runtime::TrainingLoop& loop() { return allocator_.loop(); }
  void begin_evaluation() {
    loop().enter_unplanned();
    loop().begin_evaluation();
  }
  void end_evaluation(const std::vector<void*>& blocks) {
    for (void* p : blocks) free(p);
    loop().leave_unplanned();
  }

  // Trains an iteration. Returns the number of decisions at their addresses.
  std::int64_t train() {
    const std::int64_t hits = statistics().hits;
    loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    std::vector<void*> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(allocate(16 * kMiB));
    for (void* p : blocks) free(p);
    loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    loop().end_iteration();
    return statistics().hits - hits;
  }
  // Takes all of the pool, then frees all but the second and fourth quarter.
  std::vector<void*> divide() {
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(allocate(20 * kMiB));
    free(blocks[0]);
    free(blocks[2]);
    return {blocks[1], blocks[3]};
  }
};

TEST_F(MovedMemory, IdleMemoryServesARequestThatNoIdleRangeHolds) {
  ASSERT_EQ(train(), 5);
  begin_evaluation();
  std::vector<void*> blocks = divide();
  blocks.push_back(allocate(36 * kMiB));
  EXPECT_EQ(statistics().reserved.peak, 80 * kMiB) << "36 of 40 idle MiB were enough";
  EXPECT_EQ(device_.used(), 80 * kMiB);
  EXPECT_EQ(statistics().fallback_requests, 0);
  end_evaluation(blocks);
  EXPECT_EQ(train(), 5);
  EXPECT_EQ(statistics().conflicts, 0);
  EXPECT_EQ(statistics().reserved.peak, 80 * kMiB);
  EXPECT_EQ(statistics().pool, 80 * kMiB);
}

// As a checkpoint makes them. Another plan may replace one that is kept clear.
TEST_F(MovedMemory, CopiesOfWeightsAfterAnIterationKeepOutOfTheLayout) {
  plan::Plan plan = five_blocks();
  plan.phases.push_back({{trace::PhaseKind::kOther, kNone, 0, 0}, plan.period, plan.period});
  plan.startup = {{.phase = PhaseIndex(0), .size = 12 * kMiB, .upper = kNever}};
  for (const bool keeps_clear : {false, true}) {
    allocator_.enable(plan);
    if (keeps_clear) allocator_.keep_clear();
    ASSERT_EQ(train(), 5);
    loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    const std::vector<void*> copies = {allocate(12 * kMiB), allocate(12 * kMiB)};
    EXPECT_EQ(statistics().fallback_requests, keeps_clear ? 2 : 0);
    EXPECT_LE(statistics().reserved.peak, 85 * kMiB)
        << "idle memory of the pool gives way, but for one part in 16";
    loop().end_iteration();
    EXPECT_EQ(train(), 5) << "they are in nobody's way";
    EXPECT_EQ(statistics().conflicts, 0);
    for (void* p : copies) free(p);
    EXPECT_EQ(train(), 5);
  }
}

TEST_F(MovedMemory, AResultThatStaysBehindThePoolCostsItsOwnMemory) {
  train();
  begin_evaluation();
  std::vector<void*> blocks = divide();
  void* kept = allocate(36 * kMiB);
  end_evaluation(blocks);
  EXPECT_EQ(train(), 5) << "all of the plan's addresses have memory again";
  EXPECT_EQ(statistics().conflicts, 0);
  EXPECT_LE(statistics().reserved.peak, 120 * kMiB) << "36 MiB, and chunks of 2 MiB at its ends";
  free(kept);
  for (int i = 0; i < 50; ++i) {
    begin_evaluation();
    blocks = divide();
    blocks.push_back(allocate(36 * kMiB));
    end_evaluation(blocks);
    EXPECT_EQ(train(), 5);
  }
  EXPECT_LE(statistics().reserved.peak, 120 * kMiB) << "however often";
  EXPECT_EQ(statistics().fallback_requests, 0);
}

TEST_F(MovedMemory, TrainingGetsWhatAnEvaluationHasAddedBesideThePool) {
  train();
  for (int i = 0; i < 2; ++i) {
    begin_evaluation();
    void* large = allocate(100 * kMiB);
    EXPECT_EQ(statistics().pool, 100 * kMiB) << i;
    free(large);
    loop().leave_unplanned();
    EXPECT_EQ(train(), 5) << i;
    EXPECT_EQ(statistics().pool, 100 * kMiB) << "nothing else needs it";
    // The pool cannot hold it, nor the device without what the evaluation has added.
    loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    void* beside = allocate(110 * kMiB);
    // At first idle memory of the pool gives way, too. Later the run has held both before.
    EXPECT_EQ(statistics().pool, (i == 0 ? 0 : 80) * kMiB) << i;
    EXPECT_EQ(device_.used(), statistics().pool + 110 * kMiB) << i;
    loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    loop().end_iteration();
    EXPECT_EQ(train(), 5) << i;
    free(beside);
    EXPECT_EQ(statistics().conflicts, 0) << i;
  }
  EXPECT_LE(statistics().reserved.peak, 190 * kMiB);
}

// A checkpoint gets memory of the pool, and no other.
TEST_F(MovedMemory, WorkWithoutAForwardGetsOnlyWhatIsThere) {
  train();
  loop().enter_unplanned();
  std::vector<void*> blocks = divide();
  blocks.push_back(allocate(36 * kMiB));
  EXPECT_EQ(statistics().fallback_requests, 0);
  blocks.push_back(allocate(36 * kMiB));
  EXPECT_EQ(statistics().fallback_requests, 1);
  EXPECT_EQ(statistics().pool, 76 * kMiB) << "what is idle gives way";
  EXPECT_EQ(device_.used(), (76 + 36) * kMiB);
  end_evaluation(blocks);
  EXPECT_EQ(train(), 5);
}

// A block of an evaluation that has outlived an iteration goes where no decision lies.
TEST_F(MovedMemory, ResultsThatStayDisplaceNoDecision) {
  train();
  void* kept = nullptr;
  for (int i = 0; i < 6; ++i) {
    begin_evaluation();
    void* hidden = allocate(30 * kMiB);
    void* next = allocate(20 * kMiB);
    if (kept) free(kept);
    kept = next;
    end_evaluation({hidden});
    const std::int64_t hits = train();
    if (i > 2) {
      EXPECT_EQ(hits, 5) << i;
    }
    EXPECT_GE(train(), hits) << i;
  }
  EXPECT_LE(statistics().reserved.current, 110 * kMiB);
  free(kept);
}

// A stranger that comes and goes in each iteration lets a decision give way each time.
TEST_F(MovedMemory, TrainingMovesMemoryOnlySoOften) {
  train();
  for (int i = 0; i < 1200; ++i) {
    begin_evaluation();
    void* kept = allocate(20 * kMiB);
    end_evaluation({});
    train();
    free(kept);
    begin_evaluation();
    end_evaluation(divide());
    train();
  }
  const runtime::Statistics s = statistics();
  EXPECT_GT(s.moves, 0);
  EXPECT_LE(s.moves, 512 + s.requests() / 500 + 1200) << "one more after each evaluation at most";
}

TEST_F(MovedMemory, MemoryThatIsRefusedLeavesAllAsItWas) {
  loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  std::vector<void*> planned;
  for (int i = 0; i < 5; ++i) planned.push_back(allocate(16 * kMiB));
  free(allocate(100 * kMiB));  // the run holds more than it does below
  for (void* p : planned) free(p);
  loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
  loop().end_iteration();
  begin_evaluation();
  std::vector<void*> blocks = divide();
  device_.fail_at(1);
  blocks.push_back(allocate(50 * kMiB));  // 10 MiB more than are idle
  EXPECT_EQ(statistics().fallback_requests, 2);
  EXPECT_EQ(statistics().pool, 80 * kMiB);
  end_evaluation(blocks);
  EXPECT_EQ(train(), 5);
}

// Decisions whose memory does not come back lie beside the pool, and come back when it does.
TEST_F(MovedMemory, MemoryThatDoesNotComeBackCostsNoMoreThanItsDecisions) {
  train();
  begin_evaluation();
  std::vector<void*> blocks = divide();
  void* kept = allocate(36 * kMiB);
  end_evaluation(blocks);
  device_.fail_at(1);
  EXPECT_LT(train(), 5);
  EXPECT_EQ(train(), 5);
  free(kept);
}

TEST_F(MovedMemory, APoolThatGoesTakesItsGapsAlong) {
  train();
  begin_evaluation();
  std::vector<void*> blocks = divide();
  blocks.push_back(allocate(36 * kMiB));
  end_evaluation(blocks);
  allocator_.release_pool();
  EXPECT_EQ(device_.used(), 0);
  allocator_.acquire_pool();
  EXPECT_EQ(train(), 5);
  EXPECT_EQ(device_.used(), 80 * kMiB);
  begin_evaluation();
  blocks = divide();
  blocks.push_back(allocate(36 * kMiB));
  for (void* p : blocks) free(p);
  allocator_.disable();
  EXPECT_EQ(device_.used(), 0);
}

// The addresses without memory begin in the layout and end behind it.
TEST(MovedMemoryOfAPool, ASolidPoolEndsWithItsLayout) {
  runtime::StaticPool space(five_blocks());
  ASSERT_EQ(space.missing_at_end(100 * kMiB, 0), 20 * kMiB);
  space.extend(20 * kMiB, 0);
  space.remove_memory({70 * kMiB, 90 * kMiB});
  space.remove_memory({30 * kMiB, 40 * kMiB});
  space.make_solid();
  space.check();
  EXPECT_EQ(space.size(), 80 * kMiB);
  EXPECT_EQ(space.memory(), 80 * kMiB);
  EXPECT_TRUE(space.absent().empty());
  for (plan::DecisionIndex d(0); d < plan::DecisionIndex(5); ++d) {
    EXPECT_EQ(space.place(d), d.number() * 16 * kMiB);
  }
}

// The device gets more than a request needs, so that the next requests do not wait.
TEST(MovedMemoryOfAPool, AWaitLeavesACushionWhereAllIsNeededSoon) {
  for (const Bytes cushion : {0, 8}) {
    device::PretendMemory device(80 * kMiB, /*grows=*/true);
    auto* memory = static_cast<std::byte*>(device.allocate_addresses(80 * kMiB, 2 * kMiB));
    runtime::Pool pool(five_blocks(), memory);
    pool.chunk = 2 * kMiB;
    pool.space.remove_memory({2 * kMiB, 80 * kMiB});
    ASSERT_TRUE(device.attach(memory, {16 * kMiB, 80 * kMiB}));
    pool.space.return_memory({16 * kMiB, 80 * kMiB});
    ASSERT_EQ(device.used(), 66 * kMiB);
    runtime::MovingMemory moving(device, pool);
    EXPECT_TRUE(moving.provide({0, 16 * kMiB}, {}, pool.space.planned(),
                               {.waits = true, .cushion = cushion * kMiB}));
    EXPECT_TRUE(moving.moved());
    EXPECT_FALSE(pool.space.absent().overlaps({0, 16 * kMiB}));
    EXPECT_LE(device.used(), (66 - cushion) * kMiB);
    EXPECT_GE(device.used(), (66 - cushion - 4) * kMiB) << "in whole chunks";
    EXPECT_EQ(pool.space.memory(), device.used());
    pool.space.check();
  }
}

TEST(MovedMemoryOfAPool, RoomThatTheDeviceRefusesLeavesItsMemory) {
  device::PretendMemory device(40 * kMiB, /*virtual_memory=*/true);
  auto* memory = static_cast<std::byte*>(device.allocate_addresses(80 * kMiB, 2 * kMiB));
  runtime::Pool pool(testing::plan_of({testing::decision(80 * kMiB, 0, 0, 1)}, 2), memory);
  pool.chunk = 2 * kMiB;
  pool.space.remove_memory({2 * kMiB, 80 * kMiB});
  ASSERT_TRUE(device.attach(memory, {30 * kMiB, 32 * kMiB}));
  pool.space.return_memory({30 * kMiB, 32 * kMiB});
  runtime::MovingMemory moving(device, pool);
  EXPECT_FALSE(moving.make_room({70 * kMiB, 0, /*stays=*/false}, {.more = true}));
  EXPECT_EQ(pool.space.memory(), 4 * kMiB);
  EXPECT_EQ(device.used(), 4 * kMiB) << "the range before the other piece had got 28 MiB";
}

// The scores that a loop variable holds take one of two slots. An evaluation gets the other one.
TEST(MovedSlots, AFreeSlotLendsItsMemory) {
  plan::Decision scores;
  scores.size = 16 * kMiB;
  scores.upper = 4;
  scores.over = 1;
  scores.slots = 0;
  plan::Decision x;
  x.size = 16 * kMiB;
  x.offset = 32 * kMiB;
  x.lower = 1;
  x.upper = 2;
  plan::Plan plan = testing::plan_of({scores, x}, 4);
  plan.slots.push_back({.size = 16 * kMiB, .offset = 0, .count = 2});
  plan.check();
  device::PretendMemory device(200 * kMiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(plan);
  void* held = nullptr;
  for (int i = 0; i < 4; ++i) {
    allocator.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    void* next = allocator.allocate(16 * kMiB, 0, true);
    if (held) {
      EXPECT_TRUE(allocator.deallocate(held));
    }
    held = next;
    EXPECT_TRUE(allocator.deallocate(allocator.allocate(16 * kMiB, 0, true)));
    allocator.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    allocator.loop().end_iteration();
    allocator.loop().enter_unplanned();
    allocator.loop().begin_evaluation();
    void* all = allocator.allocate(30 * kMiB, 0, true);
    allocator.inspect().check();
    EXPECT_TRUE(allocator.deallocate(all));
    allocator.loop().leave_unplanned();
    allocator.inspect().check();
  }
  EXPECT_EQ(allocator.figures().statistics().hits, 8);
  EXPECT_EQ(allocator.figures().statistics().reserved.peak, 48 * kMiB);
  EXPECT_TRUE(allocator.deallocate(held));
}

// Three slots of 16 MiB, of which two lack some of their memory.
TEST(MovedSlots, TheRestOfOneThatLacksMemoryIsIdle) {
  plan::Decision kept;
  kept.size = 16 * kMiB;
  kept.upper = 4;
  kept.over = 2;
  kept.slots = 0;
  plan::Plan plan = testing::plan_of({kept}, 4);
  plan.slots.push_back({.size = 16 * kMiB, .offset = 0, .count = 3});
  plan.pool = 48 * kMiB;
  plan.check();
  runtime::StaticPool space(plan);
  const plan::DecisionIndex d(0);
  space.remove_memory({36 * kMiB, 48 * kMiB});
  space.remove_memory({20 * kMiB, 24 * kMiB});
  space.remove_memory({26 * kMiB, 28 * kMiB});
  space.check();
  const std::vector<Range> idle = {{0, 20 * kMiB}, {24 * kMiB, 26 * kMiB}, {28 * kMiB, 36 * kMiB}};
  EXPECT_EQ(space.idle_ranges(), idle);
  EXPECT_EQ(space.vacate(), idle);
  EXPECT_EQ(space.place(d, 16 * kMiB), 0) << "the one that has all of it";
  const Range least{16 * kMiB, 32 * kMiB};
  EXPECT_EQ(space.lacking_memory(d, 16 * kMiB), least) << "the other one lacks more";
  space.remove_memory({16 * kMiB, 20 * kMiB});
  space.check();
  EXPECT_EQ(space.idle_ranges(),
            (std::vector<Range>{{24 * kMiB, 26 * kMiB}, {28 * kMiB, 36 * kMiB}}));
  space.return_memory({16 * kMiB, 20 * kMiB});
  space.return_memory({20 * kMiB, 24 * kMiB});
  space.return_memory({26 * kMiB, 28 * kMiB});
  space.check();
  EXPECT_EQ(space.idle_ranges(), (std::vector<Range>{{16 * kMiB, 36 * kMiB}}));
  EXPECT_EQ(space.lacking_memory(d, 16 * kMiB), Range{}) << "one is free";
}

// Memory of the machine: each block keeps its content, and all of it can be used.
TEST(MovedHostMemory, NoBlockLosesItsContent) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    device::HostMemory device(Bytes{1} << 30);
    runtime::PlannedAllocator allocator(device);
    plan::Plan plan = testing::random_plan(random, 60, 3);
    allocator.enable(plan);
    testing::MarkedBlocks live(allocator, random);
    const Bytes most = plan.pool;
    for (int iteration = 0; iteration < 40; ++iteration) {
      PhaseIndex phase = kNone;
      for (const plan::Decision& d : plan.decisions) {
        if (d.phase != phase) {
          phase = d.phase;
          allocator.loop().enter_phase(trace::PhaseKind::kForward, phase.number(), 0);
        }
        live.allocate(d.size);
        if (live.size() > 12 || live.below(2) == 0) live.free_any();
      }
      allocator.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
      while (live.size() > static_cast<std::size_t>(live.below(4))) live.free_any();
      allocator.loop().enter_unplanned();
      for (Bytes part = live.below(4); part > 0; --part) {
        if (live.below(4) > 0) allocator.loop().begin_evaluation();
        for (int i = 0; i < 8; ++i) {
          live.allocate(1 + live.below(most / (1 + live.below(4))));
          if (live.below(3) > 0) live.free_any();
        }
        while (live.size() > 5) live.free_any();
      }
      allocator.loop().leave_unplanned();
      if (live.below(3) > 0) {
        while (!live.empty()) live.free_any();
      }
      allocator.loop().end_iteration();
    }
    while (!live.empty()) live.free_any();
    EXPECT_GT(allocator.figures().statistics().pool, 0);
    allocator.disable();
    allocator.release_cached();
    EXPECT_EQ(device.available(), std::min(Bytes{1} << 30, device::HostMemory(0).available()))
        << "all was given back";
  }
}

}  // namespace
}  // namespace stalloc
