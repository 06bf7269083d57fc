// A pool that takes memory beside the caller's fallback, which caches some.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device/pretend.h"
#include "fake_streams.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

// Two decisions of 16 MiB side by side.
plan::Plan two_blocks() {
  return testing::plan_of(
      {testing::decision(16 * kMiB, 0, 0, 10), testing::decision(16 * kMiB, 16 * kMiB, 2, 10)}, 10);
}

// A decision of 16 MiB, a region of 64, and a later decision of 40 behind it. The run is expected
// to reach 100 MiB.
plan::Plan region_between() {
  plan::Plan plan = testing::plan_of(
      {testing::decision(16 * kMiB, 0, 0, 10), testing::decision(40 * kMiB, 80 * kMiB, 4, 8)}, 10);
  plan.groups = {testing::group(0, 64 * kMiB, 16 * kMiB, 1, 3)};
  plan.pool = plan.bound = 120 * kMiB;
  plan.load = 100 * kMiB;
  plan.check();
  return plan;
}

class CallersCache : public ::testing::Test {
 protected:
  explicit CallersCache(runtime::Fallback fallback = runtime::Fallback::kCallers)
      : allocator_(device_, streams_, table_, fallback) {}

  runtime::TrainingLoop& loop() { return allocator_.loop(); }
  runtime::Statistics statistics() const { return allocator_.figures().statistics(); }
  bool wants_cached() { return loop().wants_cached(); }

  // The caller's fallback has so many live and cached bytes, and so many that wait for streams.
  void note(Bytes live, Bytes cached, Bytes waiting = 0) {
    runtime::JointGauges::Values values{};
    values[runtime::JointGauges::kRequested] = live;
    values[runtime::JointGauges::kRounded] = live;
    values[runtime::JointGauges::kActiveBytes] = live + waiting;
    values[runtime::JointGauges::kReserved] = live + waiting + cached;
    allocator_.figures().note_fallback(values);
  }
  void* allocate(Bytes size) {
    void* p = allocator_.allocate(size, 0, /*for_training=*/true);
    allocator_.inspect().check();
    return p;
  }
  void* allocate_dynamic(Bytes size) {
    loop().enter_dynamic();
    void* p = allocate(size);
    loop().leave_dynamic();
    return p;
  }
  void free(void* p) {
    EXPECT_TRUE(allocator_.deallocate(p));
    allocator_.inspect().check();
  }
  void enter_forward() { loop().enter_phase(trace::PhaseKind::kForward, 0, 0); }
  void end_iteration() {
    loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    loop().end_iteration();
  }
  // Trains an iteration of two_blocks().
  void train() {
    enter_forward();
    for (void* p : {allocate(16 * kMiB), allocate(16 * kMiB)}) free(p);
    end_iteration();
  }
  // Enables the plan; the pool has taken memory, which was answered.
  void enable_and_answer(const plan::Plan& plan, runtime::Serving::Scope scope = {}) {
    allocator_.enable(plan, scope);
    note(0, 90 * kMiB);
    ASSERT_TRUE(wants_cached());
    ASSERT_FALSE(wants_cached());
  }

  device::PretendMemory device_{1024 * kMiB, /*grows=*/true};
  testing::FakeStreams streams_;
  runtime::StreamTable table_;
  runtime::PlannedAllocator allocator_;
};

TEST_F(CallersCache, IsWantedOnceAfterAPoolIsFilled) {
  enable_and_answer(two_blocks(), {.filled = false});
  train();
  ASSERT_EQ(statistics().pool, 32 * kMiB);
  EXPECT_TRUE(wants_cached());
  EXPECT_FALSE(wants_cached());
  for (int i = 0; i < 2; ++i) {
    train();
    EXPECT_FALSE(wants_cached()) << "the pool takes no more";
  }
}

TEST_F(CallersCache, IsWantedOnceAfterRegionsGetMemory) {
  plan::Plan plan = region_between();
  plan.load = 115 * kMiB;
  enable_and_answer(plan);
  note(0, 25 * kMiB);
  enter_forward();
  void* first = allocate(16 * kMiB);
  void* dynamic = allocate_dynamic(36 * kMiB);
  ASSERT_EQ(statistics().pool, (56 + 36) * kMiB);
  EXPECT_TRUE(wants_cached());
  EXPECT_FALSE(wants_cached());
  free(dynamic);
  free(first);
}

TEST_F(CallersCache, IsWantedOnceAfterALargerLayout) {
  enable_and_answer(testing::block_of_tokens(kMiB));
  const std::vector<std::string> names = {"ids.0"};
  std::int64_t layouts = 0;
  for (const auto& [tokens, grows] : {std::pair{16, false}, {32, true}, {32, false}, {48, true}}) {
    loop().set_extents(names, std::vector<std::int64_t>{tokens});
    enter_forward();
    layouts += grows ? 1 : 0;
    ASSERT_EQ(statistics().relayouts, layouts);
    EXPECT_EQ(wants_cached(), grows) << tokens;
    EXPECT_FALSE(wants_cached()) << tokens;
    end_iteration();
  }
}

TEST_F(CallersCache, IsWantedOnceAfterAnEvaluationHasAddedMemory) {
  enable_and_answer(two_blocks());
  train();
  loop().enter_unplanned();
  loop().begin_evaluation();
  void* large = allocate(60 * kMiB);
  ASSERT_EQ(statistics().pool, 60 * kMiB);
  EXPECT_TRUE(wants_cached());
  EXPECT_FALSE(wants_cached());
  free(large);
  loop().leave_unplanned();
}

TEST_F(CallersCache, GoesBeforeAPoolThatLacksMemoryTakesSome) {
  enable_and_answer(region_between());  // begins without the region's 64 MiB
  EXPECT_TRUE(allocator_.wants_callers_cache(4 * kMiB)) << "the run would hold more than ever";
  note(90 * kMiB, 20 * kMiB);
  EXPECT_FALSE(allocator_.wants_callers_cache(4 * kMiB)) << "a segment of torch's is little";
  note(0, 70 * kMiB);
  EXPECT_FALSE(allocator_.wants_callers_cache(4 * kMiB)) << "the run has held more";
  EXPECT_TRUE(allocator_.wants_callers_cache(64 * kMiB));
  allocator_.begin_capture();
  EXPECT_FALSE(allocator_.wants_callers_cache(64 * kMiB));
  allocator_.end_capture();
}

TEST_F(CallersCache, GoesBeforeWholeChunksExceedTheMostThatTheRunHasHeld) {
  enable_and_answer(region_between(), {.filled = false});
  note(90 * kMiB, 20 * kMiB);
  note(0, 70 * kMiB);
  EXPECT_FALSE(allocator_.fills_to_new_peak(36 * kMiB));
  EXPECT_FALSE(allocator_.wants_callers_cache(36 * kMiB));
  EXPECT_TRUE(allocator_.fills_to_new_peak(40 * kMiB));
  EXPECT_TRUE(allocator_.wants_callers_cache(40 * kMiB));
}

// It lies between live blocks.
TEST_F(CallersCache, IsNotWantedAgainWhereItStays) {
  enable_and_answer(region_between());
  std::int64_t asked = 0;
  for (int i = 0; i < 10; ++i) {
    note(90 * kMiB + i * kMiB, 60 * kMiB);
    asked += allocator_.wants_callers_cache(4 * kMiB) ? 1 : 0;
  }
  EXPECT_EQ(asked, 1);
  note(90 * kMiB, 30 * kMiB);
  EXPECT_FALSE(allocator_.wants_callers_cache(64 * kMiB));
  note(90 * kMiB, 90 * kMiB);
  EXPECT_TRUE(allocator_.wants_callers_cache(4 * kMiB)) << "60 MiB are new";
}

TEST_F(CallersCache, StaysBesideAPoolThatHasItsMemory) {
  enable_and_answer(two_blocks());
  EXPECT_FALSE(allocator_.wants_callers_cache(64 * kMiB));
}

bool fits() { return true; }
bool fails() { return false; }

TEST_F(CallersCache, GivesWayFirst) {
  allocator_.enable(two_blocks());
  EXPECT_TRUE(allocator_.moves_memory());
  note(64 * kMiB, 40 * kMiB);
  for (int i = 0; i < 3; ++i) train();
  allocator_.make_way_for_caller(40 * kMiB, fits);
  EXPECT_EQ(statistics().pool, 32 * kMiB) << "a cached block serves the request";
  note(104 * kMiB, 0);
  allocator_.make_way_for_caller(16 * kMiB, fails);
  EXPECT_LE(statistics().pool, 16 * kMiB);
  EXPECT_GE(statistics().pool, 8 * kMiB) << "no more than is needed, in whole chunks";
  note(120 * kMiB, 0);
  allocator_.disable();
  EXPECT_FALSE(allocator_.moves_memory());
}

TEST_F(CallersCache, GivesNoWayForWhatLiesInSmallerBlocks) {
  allocator_.enable(two_blocks());
  note(64 * kMiB, 40 * kMiB);
  for (int i = 0; i < 3; ++i) train();
  const auto unasked = [] { return ADD_FAILURE() << "it does not matter", true; };
  allocator_.make_way_for_caller(1, unasked);
  EXPECT_EQ(statistics().pool, 32 * kMiB);
  allocator_.make_way_for_caller(16 * kMiB, fails);
  EXPECT_LE(statistics().pool, 16 * kMiB);
  allocator_.disable();
  allocator_.make_way_for_caller(16 * kMiB, unasked);
}

// A segment is a guess: an idle end of one may hold most of the request.
TEST_F(CallersCache, GivesWayAlsoAfterItTookLessThanForeseen) {
  allocator_.enable(two_blocks());
  note(64 * kMiB, 0);
  enter_forward();
  const std::vector<void*> blocks = {allocate(16 * kMiB), allocate(16 * kMiB)};
  allocator_.make_way_for_caller(64 * kMiB, fails);
  EXPECT_EQ(statistics().pool, 32 * kMiB) << "all of it is in use";
  note(72 * kMiB, 0);
  for (void* p : blocks) free(p);
  end_iteration();
  allocator_.make_way_for_caller(40 * kMiB, fails);
  EXPECT_LE(statistics().pool, 2 * kMiB);
  allocator_.disable();
}

// The device has the memory of later requests then.
TEST_F(CallersCache, EachWaitOfAnIterationMakesRoomForMore) {
  constexpr Bytes kHalf = 512 * kMiB;
  allocator_.enable(testing::plan_of({testing::decision(kHalf, 0, 0, 1)}, 2));
  note(kHalf, 0);
  loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  EXPECT_TRUE(allocator_.deallocate(allocate(kHalf)));
  for (Bytes live = kHalf; live < kHalf + 256 * kMiB; live += 16 * kMiB) {
    allocator_.make_way_for_caller(16 * kMiB, fails);
    note(live + 16 * kMiB, 0);
    EXPECT_LE(statistics().pool + live + 16 * kMiB, 2 * kHalf + 8 * kMiB);
  }
  EXPECT_LE(statistics().moves, 6) << "for sixteen requests";
  loop().end_iteration();
  allocator_.disable();
}

TEST_F(CallersCache, IsNotWantedIfItIsLittle) {
  allocator_.enable(two_blocks());
  note(64 * kMiB, 20 * kMiB);
  EXPECT_FALSE(wants_cached()) << "a segment of torch's";
  note(64 * 40 * kMiB, 40 * kMiB);
  EXPECT_FALSE(wants_cached()) << "one part in 64 of the load";
  note(64 * 40 * kMiB, 40 * kMiB + 512);
  EXPECT_TRUE(wants_cached()) << "the pool's memory is still unanswered";
}

TEST_F(CallersCache, IsNotWantedWhileItsBlocksWaitForStreams) {
  allocator_.enable(two_blocks());
  note(0, 90 * kMiB, 512);
  EXPECT_FALSE(wants_cached());
  note(0, 90 * kMiB);
  EXPECT_TRUE(wants_cached());
}

TEST_F(CallersCache, IsWantedOnceBothHoldMoreThanBefore) {
  enable_and_answer(two_blocks());
  note(0, 95 * kMiB);
  EXPECT_TRUE(wants_cached());
  EXPECT_FALSE(wants_cached());
  note(0, 85 * kMiB);
  EXPECT_FALSE(wants_cached()) << "they have held more";
  note(1840 * kMiB, 28 * kMiB);
  EXPECT_FALSE(wants_cached()) << "hardly more than the load";
  note(1840 * kMiB, 40 * kMiB);
  EXPECT_TRUE(wants_cached());
}

TEST_F(CallersCache, IsNotWantedDuringACapture) {
  allocator_.enable(two_blocks());
  note(0, 90 * kMiB);
  allocator_.begin_capture();
  EXPECT_FALSE(wants_cached());
  allocator_.end_capture();
  EXPECT_TRUE(wants_cached());
}

TEST_F(CallersCache, IsNotWantedWhileThePoolIsReleased) {
  allocator_.enable(two_blocks());
  note(0, 90 * kMiB);
  allocator_.release_pool();
  EXPECT_FALSE(wants_cached());
  allocator_.acquire_pool();
  EXPECT_TRUE(wants_cached());
}

TEST_F(CallersCache, IsNotWantedWithoutAPlan) {
  note(0, 90 * kMiB);
  EXPECT_FALSE(wants_cached());
  allocator_.enable(two_blocks());
  note(0, 90 * kMiB);
  allocator_.disable();
  EXPECT_FALSE(wants_cached());
}

class OwnCache : public CallersCache {
 protected:
  OwnCache() : CallersCache(runtime::Fallback::kOwn) {}
};

TEST_F(OwnCache, IsNotTheCallers) {
  allocator_.enable(two_blocks());
  note(0, 90 * kMiB);
  EXPECT_FALSE(wants_cached());
}

// The run's load is 100 MiB, of which the limit is a thirtieth more.
TEST_F(CallersCache, CountsAgainstThePoolsLimitWhileMemoryCanMove) {
  for (const Bytes cached : {0, 40}) {
    allocator_.enable(region_between());
    note(0, cached * kMiB);
    for (int i = 0; i < 3; ++i) {
      enter_forward();
      void* first = allocate(16 * kMiB);
      free(allocate_dynamic(36 * kMiB));
      free(allocate(40 * kMiB));
      free(first);
      end_iteration();
    }
    const runtime::Statistics s = statistics();
    EXPECT_EQ(s.hits, 6) << cached;
    EXPECT_EQ(s.fallback_requests, 0) << cached;
    EXPECT_LE(s.reserved.current, 100 * kMiB + 100 * kMiB / 30) << cached;
    EXPECT_EQ(s.pool, (cached == 0 ? 56 + 36 : 56) * kMiB) << "the caller holds the rest";
    EXPECT_EQ(s.moves > 0, cached > 0) << "the decision's memory serves the region";
    allocator_.disable();
  }
}

// Both had 156 MiB at once, and may have them again.
TEST_F(CallersCache, LeavesThePoolWhatBothHaveHadAtOnce) {
  for (const bool had_more : {false, true}) {
    allocator_.enable(region_between());
    enter_forward();
    note((had_more ? 100 : 60) * kMiB, 0);
    for (void* p : {allocate(16 * kMiB), allocate(40 * kMiB)}) {
      note((had_more ? 100 : 60) * kMiB, 0);
      if (p) free(p);
    }
    end_iteration();
    note(60 * kMiB, 0);
    enter_forward();
    void* first = allocate(16 * kMiB);
    free(allocate_dynamic(36 * kMiB));
    free(first);
    const runtime::Statistics s = statistics();
    EXPECT_EQ(s.pool, (had_more ? 56 + 36 : 56) * kMiB);
    EXPECT_EQ(s.moves, had_more ? 0 : 1);
    EXPECT_LE(s.reserved.current, s.run_peak_allocated + s.run_peak_allocated / 30);
    end_iteration();
    allocator_.disable();
  }
}

// The region's request makes a new peak of both, 152 MiB, so nothing has to move for it.
TEST_F(CallersCache, LeavesThePoolWhatANewPeakOfBothNeeds) {
  plan::Plan plan = region_between();
  plan.decisions[1].size = 4 * kMiB;
  plan.pool = plan.bound = 84 * kMiB;
  plan.load = 20 * kMiB;
  allocator_.enable(plan);
  note(100 * kMiB, 0);
  enter_forward();
  void* first = allocate(16 * kMiB);
  free(allocate_dynamic(36 * kMiB));
  free(first);
  EXPECT_EQ(statistics().pool, (16 + 36 + 4) * kMiB);
  EXPECT_EQ(statistics().moves, 0);
}

}  // namespace
}  // namespace stalloc
