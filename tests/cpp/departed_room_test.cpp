// Requests that depart from a plan without dynamic groups: idle memory moves for them, and goes to
// the device where the pool no longer needs it.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checked_allocator.h"
#include "device/pretend.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr int kDecisions = 5;

// Decisions of 16 MiB side by side, 80 MiB, that live to the end of the iteration.
plan::Plan five_blocks() {
  return testing::plan_of(testing::side_by_side(kDecisions, 16 * kMiB, 10), 10);
}

class DepartedRoom : public testing::CheckedAllocator {
 protected:
  explicit DepartedRoom(runtime::Fallback fallback = runtime::Fallback::kOwn)
      : CheckedAllocator(400 * kMiB, fallback) {}

  void enter_forward() { allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0); }
  void end_iteration() {
    allocator_.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    allocator_.loop().end_iteration();
  }
  // Begins an iteration with its decisions.
  std::vector<void*> begin() {
    enter_forward();
    std::vector<void*> blocks;
    for (int i = 0; i < kDecisions; ++i) blocks.push_back(allocate(16 * kMiB));
    return blocks;
  }
  // Ends it; the others are free.
  void end(const std::vector<void*>& blocks, const std::vector<std::size_t>& live) {
    for (const std::size_t i : live) free(blocks[i]);
    end_iteration();
  }
  // Runs iterations that move memory for a departing request, a number of times.
  void move(Bytes size, int times) {
    for (int i = 0; i < times; ++i) {
      const std::vector<void*> blocks = begin();
      free(blocks[1]);
      free(blocks[3]);
      free(allocate(size));
      end(blocks, {0, 2, 4});
    }
  }
  // Runs an iteration in which a request of 20 MiB departs. Its block, which lives on, has memory
  // behind the layout, and the layout's addresses have got theirs again: 100 MiB.
  // `held`: and has held so much beside the pool before.
  void* leave_behind(Bytes held = 0) {
    allocator_.enable(five_blocks());
    if (held > 0) free(allocate(held));
    std::vector<void*> blocks = begin();
    free(blocks[1]);
    free(blocks[3]);
    void* departed = allocate(20 * kMiB);
    end(blocks, {0, 2, 4});
    blocks = begin();
    EXPECT_EQ(statistics().hits, 2 * kDecisions);
    EXPECT_EQ(statistics().pool, 100 * kMiB);
    return departed;
  }
};

TEST_F(DepartedRoom, IsMadeOfIdleMemoryThatNoIdleRangeHolds) {
  allocator_.enable(five_blocks());
  for (int i = 0; i < 3; ++i) {
    const std::vector<void*> blocks = begin();
    free(blocks[1]);
    free(blocks[3]);
    void* departed = allocate(20 * kMiB);
    EXPECT_EQ(statistics().moves, 2 * i + 1);
    free(departed);
    end(blocks, {0, 2, 4});
  }
  const runtime::Statistics s = statistics();
  EXPECT_EQ(s.idle_requests, 3);
  EXPECT_EQ(s.fallback_requests, 0);
  EXPECT_EQ(s.hits, 3 * kDecisions);
  EXPECT_EQ(s.reserved.peak, 80 * kMiB);
  EXPECT_EQ(device_.used(), 80 * kMiB);
}

// The fallback gets memory of the pool before the run comes to a new peak, and the pool gets it
// back.
TEST_F(DepartedRoom, IsGivenUpForWhatLiesBeside) {
  allocator_.enable(five_blocks());
  allocator_.drain(/*departed=*/true);
  for (int i = 0; i < 3; ++i) {
    enter_forward();
    void* beside = allocate(60 * kMiB);
    EXPECT_EQ(statistics().fallback_requests, i + 1);
    EXPECT_LE(device_.used(), 80 * kMiB);
    EXPECT_GE(statistics().pool, 16 * kMiB) << "not much more than is needed";
    free(beside);
    end(begin(), {0, 1, 2, 3, 4});
    EXPECT_EQ(statistics().pool, 80 * kMiB) << "the fallback has given back its segment";
    EXPECT_EQ(device_.used(), 80 * kMiB);
  }
  EXPECT_EQ(statistics().hits, 3 * kDecisions);
  EXPECT_EQ(statistics().reserved.peak, 80 * kMiB);
}

// Before its first phase, too: the pool has what is left, and gets the rest back.
TEST_F(DepartedRoom, IsGivenUpForWhatComesFirst) {
  allocator_.enable(five_blocks());
  void* first = allocate(60 * kMiB);
  EXPECT_EQ(statistics().fallback_requests, 1);
  EXPECT_LE(device_.used(), 80 * kMiB);
  free(first);
  end(begin(), {0, 1, 2, 3, 4});
  EXPECT_EQ(statistics().hits, kDecisions);
  EXPECT_EQ(statistics().reserved.peak, 80 * kMiB);
}

// The addresses of a plan whose extents never came together in its recording.
TEST_F(DepartedRoom, IsAllThatAPlanBeginsWithIfItsRecordingNeededLess) {
  plan::Plan plan = five_blocks();
  plan.load = 80 * kMiB;
  for (const Bytes recorded : {71, 72}) {
    plan.recorded_load = recorded * kMiB;
    allocator_.enable(plan);
    EXPECT_EQ(statistics().pool, (recorded == 72 ? 80 : 2) * kMiB) << recorded;
    end(begin(), {0, 1, 2, 3, 4});
    EXPECT_EQ(statistics().hits, kDecisions);
    EXPECT_EQ(statistics().pool, 80 * kMiB);
    allocator_.disable();
  }
}

// No request is served from an earlier plan's pool: its idle memory goes before its last block.
TEST_F(DepartedRoom, OfAnEarlierPlanGoesWithThePlan) {
  allocator_.enable(five_blocks());
  const std::vector<void*> blocks = begin();
  for (const std::size_t i : {0, 1, 3, 4}) free(blocks[i]);
  allocator_.enable(five_blocks());
  EXPECT_EQ(device_.used(), (80 + 16) * kMiB);
  EXPECT_EQ(statistics().reserved.current, (80 + 16) * kMiB);
  end(begin(), {0, 1, 2, 3, 4});
  allocator_.disable();
  EXPECT_EQ(device_.used(), 16 * kMiB);
  free(blocks[2]);
  EXPECT_EQ(device_.used(), 0);
}

// The plan's other requests could not use it.
TEST_F(DepartedRoom, GetsNoMemoryOfTheDevice) {
  allocator_.enable(five_blocks(), {.filled = false});
  enter_forward();
  void* first = allocate(16 * kMiB);
  ASSERT_EQ(statistics().pool, 16 * kMiB);
  void* departed = allocate(20 * kMiB);
  EXPECT_EQ(statistics().fallback_requests, 1);
  EXPECT_EQ(statistics().pool, 16 * kMiB);
  EXPECT_EQ(device_.used(), 36 * kMiB);
  free(departed);
  free(first);
}

TEST_F(DepartedRoom, IsSoughtAgainInThePhaseOnceSoMuchIsFreed) {
  allocator_.enable(five_blocks());
  const std::vector<void*> blocks = begin();
  free(allocate(100 * kMiB));  // the run holds more than it does below
  std::vector<void*> beside = {allocate(20 * kMiB)};
  EXPECT_EQ(statistics().fallback_requests, 2) << "all of the pool is live";
  free(blocks[1]);
  free(blocks[3]);
  beside.push_back(allocate(21 * kMiB));
  EXPECT_EQ(statistics().fallback_requests, 3) << "12 MiB fewer are live than at the refusal";
  for (void* p : beside) free(p);
  void* departed = allocate(21 * kMiB);
  EXPECT_EQ(statistics().fallback_requests, 3) << "32 MiB fewer";
  EXPECT_EQ(statistics().idle_requests, 1);
  EXPECT_EQ(statistics().pool, 80 * kMiB);
  free(departed);
  end(blocks, {0, 2, 4});
}

// The fallback's memory would come on top.
TEST_F(DepartedRoom, GoesToTheDeviceBeforeTheFallbackReservesMore) {
  void* departed = leave_behind();
  free(allocate(30 * kMiB));
  ASSERT_EQ(device_.used(), (100 + 30) * kMiB) << "the fallback keeps its segment";
  free(departed);
  free(allocate(30 * kMiB));
  EXPECT_EQ(statistics().pool, 100 * kMiB) << "the fallback holds the request";
  void* larger = allocate(40 * kMiB);
  EXPECT_EQ(statistics().pool, 80 * kMiB);
  EXPECT_EQ(statistics().fallback_requests, 3);
  EXPECT_LE(device_.used(), (80 + 30 + 40) * kMiB);
  free(larger);
}

// Such as the shapes that a pipeline sends after an evaluation, and keeps.
TEST_F(DepartedRoom, IsNotForASmallBlockThatMayStay) {
  free(leave_behind());
  allocator_.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
  void* const small = allocate(1000);
  EXPECT_EQ(statistics().fallback_requests, 1);
  EXPECT_EQ(statistics().idle_requests, 1) << "only the one before";
  free(small);
}

// To wait for the device costs more than a small request.
TEST_F(DepartedRoom, StaysForASmallRequestBesideThePool) {
  free(leave_behind(/*held=*/100 * kMiB));
  allocator_.drain(/*departed=*/true);
  const std::int64_t moves = statistics().moves;
  void* small = allocate(kMiB);
  EXPECT_EQ(statistics().fallback_requests, 2);
  EXPECT_EQ(statistics().pool, 100 * kMiB);
  EXPECT_EQ(statistics().moves, moves);
  void* large = allocate(2 * kMiB);
  EXPECT_EQ(statistics().fallback_requests, 3);
  EXPECT_EQ(statistics().pool, 80 * kMiB);
  free(small);
  free(large);
}

// Memory has moved as often as it may. No idle range of the pool holds the request, and the device
// has too little beside the pool.
TEST_F(DepartedRoom, IsGivenUpInPiecesForARequestThatNothingElseServes) {
  allocator_.enable(five_blocks());
  move(20 * kMiB, 300);
  ASSERT_LT(statistics().moves, 2 * 300);
  ASSERT_EQ(statistics().fallback_requests, 0);
  enter_forward();
  void* const planned = allocate(16 * kMiB);
  void* const large = allocate(380 * kMiB);
  EXPECT_EQ(statistics().fallback_requests, 1);
  EXPECT_LE(device_.used(), 400 * kMiB);
  free(large);
  free(planned);
}

// The same where the run no longer does what the plan says: the fallback has one heap, and the pool
// beside it would hold memory for nothing.
TEST_F(DepartedRoom, GoesWithThePoolWhereTheRunHasLeftThePlan) {
  allocator_.enable(five_blocks());
  const auto depart = [&] {
    enter_forward();
    void* const kept = allocate(16 * kMiB);
    end_iteration();
    free(kept);
  };
  move(20 * kMiB, 300);
  ASSERT_LT(statistics().moves, 2 * 300) << "memory no longer moves";
  const Bytes pool = statistics().pool;
  depart();
  move(20 * kMiB, 8);
  for (int i = 0; i < 2; ++i) depart();
  EXPECT_GE(device_.used(), pool) << "a few iterations of another kind";
  enter_forward();
  void* const kept = allocate(16 * kMiB);
  end_iteration();
  EXPECT_EQ(device_.used(), 16 * kMiB);
  void* const next = allocate(40 * kMiB);
  EXPECT_EQ(device_.used(), 56 * kMiB);
  free(kept);
  free(next);
  const std::int64_t hits = statistics().hits;
  move(20 * kMiB, 1);
  EXPECT_EQ(statistics().hits, hits) << "the pool does not come back";
}

// Without moves, this pool would need a third more than its load for good.
TEST_F(DepartedRoom, IsLeftBeforeItsMemoryMayMoveNoMore) {
  allocator_.enable(five_blocks());
  move(30 * kMiB, 100);
  EXPECT_EQ(statistics().fallback_requests, 0);
  EXPECT_EQ(statistics().pools_left, 0);
  EXPECT_EQ(device_.used(), 80 * kMiB);
  move(30 * kMiB, 200);
  allocator_.release_cached();
  EXPECT_EQ(device_.used(), 0) << "the pool has gone";
  EXPECT_EQ(statistics().pools_left, 1);
  EXPECT_LT(statistics().moves, 512) << "the most";
  EXPECT_EQ(statistics().conflicts, 0) << "memory moved for each request";
  EXPECT_EQ(statistics().hits % kDecisions, 0);
}

// The pool and what lies beside it would need a third more than the load, which has both.
TEST_F(DepartedRoom, IsLeftAlsoWhereWeightsLieBesideThePool) {
  allocator_.enable(five_blocks());
  constexpr StreamId kAnother = 1;  // the pool has no addresses for it
  void* const weights = allocator_.allocate(4 * kMiB, kAnother, /*for_training=*/true);
  move(30 * kMiB, 300);
  const runtime::Statistics s = statistics();
  EXPECT_EQ(s.pools_left, 1);
  EXPECT_EQ(s.pool, 0);
  EXPECT_LT(s.moves, 512) << "the most";
  allocator_.acquire_pool();
  EXPECT_EQ(statistics().pool, 0) << "it stays left";
  free(weights);
}

TEST_F(DepartedRoom, OfAPoolThatIsLeftGoesAsBlocksAreFreed) {
  allocator_.enable(five_blocks());
  std::vector<void*> blocks;
  for (int i = 0; i < 300 && (i == 0 || device_.used() == 80 * kMiB); ++i) {
    for (const std::size_t kept : {0, 2}) {
      if (i > 0) free(blocks[kept]);
    }
    blocks = begin();
    free(blocks[1]);
    free(blocks[3]);
    free(allocate(30 * kMiB));
    end(blocks, {4});
  }
  ASSERT_EQ(device_.used(), 32 * kMiB) << "that of the blocks";
  EXPECT_EQ(statistics().pool, 32 * kMiB);
  free(blocks[0]);
  free(blocks[2]);
  EXPECT_EQ(device_.used(), 0) << "before the iteration that needs the memory comes to its peak";
  EXPECT_EQ(statistics().pool, 0);
  end_iteration();
}

class DepartedRoomBesideTheCallers : public DepartedRoom {
 protected:
  DepartedRoomBesideTheCallers() : DepartedRoom(runtime::Fallback::kCallers) {}

  void note_cached(Bytes bytes) {
    runtime::JointGauges::Values values{};
    values[runtime::JointGauges::kReserved] = bytes;
    allocator_.figures().note_fallback(values);
  }
};

TEST_F(DepartedRoomBesideTheCallers, GoesToTheDeviceUnlessTheirCacheHoldsTheRequest) {
  void* departed = leave_behind();
  free(departed);
  note_cached(30 * kMiB);
  EXPECT_EQ(allocate(30 * kMiB), nullptr);
  allocator_.make_way_for_caller(30 * kMiB, [] { return true; });
  EXPECT_EQ(statistics().pool, 100 * kMiB);
  note_cached(29 * kMiB);  // or more, in smaller blocks
  EXPECT_EQ(allocate(30 * kMiB), nullptr);
  allocator_.make_way_for_caller(30 * kMiB, [] { return false; });
  EXPECT_EQ(statistics().pool, 80 * kMiB);
  EXPECT_EQ(device_.used(), 80 * kMiB);
  EXPECT_EQ(statistics().reserved.current, (80 + 29) * kMiB);
}

TEST_F(DepartedRoomBesideTheCallers, OfAnEarlierPlanGoesInPartsAsItIsFreed) {
  allocator_.enable(five_blocks());
  const std::vector<void*> blocks = begin();
  allocator_.disable();
  EXPECT_EQ(device_.used(), 80 * kMiB);
  free(blocks[0]);
  EXPECT_EQ(device_.used(), 80 * kMiB) << "not worth a wait";
  free(blocks[1]);
  EXPECT_EQ(device_.used(), 48 * kMiB);
  free(blocks[3]);
  EXPECT_EQ(device_.used(), 48 * kMiB);
  EXPECT_EQ(allocator_.give_idle(kMiB), 16 * kMiB) << "before a request fails";
  EXPECT_EQ(device_.used(), 32 * kMiB);
  free(blocks[2]);
  free(blocks[4]);
  EXPECT_EQ(device_.used(), 0);
}

TEST_F(DepartedRoomBesideTheCallers, IsGivenToThemOnceTheyRunOut) {
  allocator_.enable(five_blocks());
  enter_forward();
  void* const planned = allocate(16 * kMiB);
  EXPECT_EQ(allocator_.rescue(380 * kMiB, 0), nullptr);
  EXPECT_EQ(allocator_.give_idle(385 * kMiB), 0) << "the device had too little";
  EXPECT_EQ(statistics().pool, 80 * kMiB);
  EXPECT_EQ(allocator_.give_idle(380 * kMiB), 64 * kMiB);
  EXPECT_EQ(device_.used(), 16 * kMiB);
  EXPECT_EQ(statistics().pool, 16 * kMiB);
  EXPECT_EQ(statistics().reserved.current, 16 * kMiB);
  EXPECT_EQ(allocator_.give_idle(kMiB), 0) << "nothing is left";
  free(planned);
  allocator_.inspect().check();
  end(begin(), {0, 1, 2, 3, 4});
  EXPECT_EQ(statistics().hits, 1 + kDecisions) << "the pool gets it back";
}

}  // namespace
}  // namespace stalloc
