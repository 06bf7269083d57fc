// Memory of a slot that a box has: an evaluation gets that of addresses without a block.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "checked_allocator.h"
#include "device/host.h"
#include "device/pretend.h"
#include "marked_blocks.h"
#include "plans.h"
#include "runtime/planned_allocator.h"
#include "runtime/static_pool.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

// The scores that a loop variable holds take one of two slots. Their gradient and then two others,
// the first of which stays until the next iteration, lie in the other one. 32 MiB.
plan::Plan boxed_plan() {
  plan::Decision scores{.size = 16 * kMiB, .upper = 8, .slots = 0, .over = 2};
  plan::Decision of_scores{.size = 16 * kMiB, .lower = 3, .upper = 4, .slots = 0, .box = 0};
  plan::Decision of_weight{.size = 4 * kMiB, .lower = 5, .upper = 7, .slots = 0, .box = 0};
  plan::Decision of_bias{.size = 8 * kMiB, .offset = 4 * kMiB, .lower = 6, .upper = 7};
  of_bias.slots = 0;
  of_bias.box = 0;
  plan::Plan plan = testing::plan_of({scores, of_scores, of_weight, of_bias}, 8);
  plan.slots.push_back({.size = 16 * kMiB, .offset = 0, .count = 2});
  plan.pool = 32 * kMiB;
  plan.check();
  return plan;
}

class MovedBoxes : public testing::CheckedAllocator {
 protected:
  MovedBoxes() : CheckedAllocator(200 * kMiB) { allocator_.enable(boxed_plan()); }
};

TEST_F(MovedBoxes, AnEvaluationGetsWhatNoBlockOfABoxHolds) {
  runtime::TrainingLoop& loop = allocator_.loop();
  void* scores = nullptr;
  for (int i = 0; i < 6; ++i) {
    loop.enter_phase(trace::PhaseKind::kForward, 0, 0);
    void* next = allocate(16 * kMiB);
    if (scores) free(scores);
    scores = next;
    free(allocate(16 * kMiB));
    void* gradient = allocate(4 * kMiB);
    free(allocate(8 * kMiB));
    loop.enter_phase(trace::PhaseKind::kOther, 0, 0);
    loop.end_iteration();
    free(scores);
    scores = nullptr;
    loop.enter_unplanned();
    for (int forward = 0; forward < 2; ++forward) {
      loop.begin_evaluation();
      free(allocate(26 * kMiB));  // 28 MiB are idle, 12 of them beside the gradient
    }
    loop.leave_unplanned();
    allocator_.inspect().check();
    free(gradient);
  }
  EXPECT_EQ(statistics().hits, 24) << "a box gets its memory back";
  EXPECT_EQ(statistics().conflicts, 0);
  EXPECT_EQ(statistics().reserved.peak, 32 * kMiB);
}

TEST_F(MovedBoxes, ASlotThatItsBoxHasLeftGetsItsMemoryBack) {
  runtime::TrainingLoop& loop = allocator_.loop();
  loop.enter_phase(trace::PhaseKind::kForward, 0, 0);
  void* scores = allocate(16 * kMiB);
  free(allocate(16 * kMiB));
  void* gradient = allocate(4 * kMiB);
  loop.enter_unplanned();
  loop.begin_evaluation();
  void* result = allocate(12 * kMiB);
  loop.leave_unplanned();
  free(gradient);
  loop.enter_phase(trace::PhaseKind::kOther, 0, 0);
  loop.end_iteration();
  loop.enter_phase(trace::PhaseKind::kForward, 0, 0);
  void* next = allocate(16 * kMiB);
  free(scores);
  free(allocate(16 * kMiB));
  EXPECT_EQ(statistics().conflicts, 0);
  EXPECT_EQ(statistics().fallback_requests, 0);
  for (void* p : {result, next}) free(p);
}

TEST(MovedBoxesOfAPool, ABlockGetsNoAddressesWithoutMemory) {
  runtime::StaticPool space(boxed_plan());
  const Bytes begin = 16 * kMiB;
  ASSERT_EQ(space.place(0), 0);
  ASSERT_EQ(space.place(2), begin);
  EXPECT_EQ(space.idle_in_boxes(), (std::vector<Range>{{begin + 4 * kMiB, begin + 16 * kMiB}}));
  space.remove_memory({begin + 6 * kMiB, begin + 10 * kMiB});
  space.check();
  EXPECT_EQ(space.idle_in_boxes(), (std::vector<Range>{{begin + 4 * kMiB, begin + 6 * kMiB},
                                                       {begin + 10 * kMiB, begin + 16 * kMiB}}));
  EXPECT_EQ(space.place(3), kUnplaced);
  const Range lacking{begin + 4 * kMiB, begin + 12 * kMiB};
  EXPECT_EQ(space.lacking_memory(plan::DecisionIndex(3), 8 * kMiB), lacking);
  space.return_memory({begin + 6 * kMiB, begin + 10 * kMiB});
  space.check();
  ASSERT_EQ(space.place(3), lacking.begin);
  space.release(lacking.begin);
  space.remove_memory({begin + 14 * kMiB, begin + 16 * kMiB});
  space.release(begin);
  space.check();
  EXPECT_EQ(space.place(1), kUnplaced) << "the slot lacks memory";
  space.return_memory({begin + 14 * kMiB, begin + 16 * kMiB});
  space.check();
  EXPECT_EQ(space.place(1), begin);
  space.check();
}

// Memory of the machine: each block keeps its content, and all of it can be used.
TEST(MovedBoxesOfHostMemory, NoBlockLosesItsContent) {
  const plan::Plan plan = boxed_plan();
  std::int64_t hits = 0;
  for (unsigned seed = 0; seed < 4; ++seed) {
    std::mt19937 random(seed);
    device::HostMemory device(Bytes{1} << 30);
    runtime::PlannedAllocator allocator(device);
    allocator.enable(plan);
    testing::MarkedBlocks live(allocator, random);
    for (int iteration = 0; iteration < 20; ++iteration) {
      allocator.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
      for (const plan::Decision& d : plan.decisions) {
        live.allocate(d.size);
        while (live.size() > 3 || (!live.empty() && live.below(2) == 0)) live.free_any();
      }
      allocator.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
      if (live.below(2) == 0) allocator.loop().end_iteration();
      allocator.loop().enter_unplanned();
      for (int forward = 0; forward < 3; ++forward) {
        if (live.below(4) > 0) allocator.loop().begin_evaluation();
        for (int i = 0; i < 4; ++i) {
          live.allocate(1 + live.below(28 * kMiB));
          while (live.size() > 3) live.free_any();
          if (live.below(3) > 0) live.free_any();
        }
      }
      allocator.loop().leave_unplanned();
      while (live.below(4) > 0 && !live.empty()) live.free_any();
    }
    while (!live.empty()) live.free_any();
    hits += allocator.figures().statistics().hits;
  }
  EXPECT_GT(hits, 0);
}

}  // namespace
}  // namespace stalloc
