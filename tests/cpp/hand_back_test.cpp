// Blocks that other streams still use are freed at once if their addresses are needed: their own
// stream waits on the device.
#include "runtime/hand_back.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "plans.h"
#include "two_streams.h"

namespace stalloc {
namespace {

using testing::FakeStreams;
using Lifetime = runtime::StreamTable::Lifetime;
using testing::kMain;
using testing::kMiB;
using testing::kSide;

plan::Plan plan_of(std::vector<plan::Decision> decisions, solve::Streams streams) {
  plan::Plan plan = testing::plan_of(std::move(decisions), 8);
  plan.streams = streams;
  return plan;
}

plan::Decision decision(Offset offset, Tick lower, Tick upper, StreamId stream = kMain,
                        Bytes size = kMiB) {
  return {.size = size, .offset = offset, .lower = lower, .upper = upper, .stream = stream};
}

class HandBackTest : public testing::TwoStreams {
 protected:
  void enable(std::vector<plan::Decision> decisions,
              solve::Streams streams = solve::Streams::kOrdered) {
    TwoStreams::enable(plan_of(std::move(decisions), streams));
  }
  // Frees `p` while `user` still works on it.
  void free_in_use(std::byte* p, StreamId user = kSide, Bytes size = kMiB) {
    use(p, user, size);
    ASSERT_TRUE(allocator_.record_stream(p, user));
    ASSERT_TRUE(allocator_.deallocate(p));
  }
  void expect_order() const {
    EXPECT_EQ(streams_.hazards, 0);
    EXPECT_EQ(streams_.misuses, 0);
    EXPECT_EQ(streams_.synchronizations, 0) << "the host waits for nothing";
    allocator_.inspect().check();
  }
};

TEST_F(HandBackTest, APlannedRequestGetsItsAddressAndItsStreamWaits) {
  enable({decision(0, 0, 1), decision(0, 2, 3)});
  std::byte* const a = take();
  free_in_use(a);
  EXPECT_EQ(take(), a);
  EXPECT_EQ(statistics().handed_back, 1);
  EXPECT_EQ(statistics().stream_waits, 1);
  EXPECT_EQ(statistics().conflicts, 0);
  EXPECT_EQ(streams_.live_events(), 0u);
  expect_order();
}

TEST_F(HandBackTest, ABlockWhoseUsersAreDoneCostsNoWait) {
  enable({decision(0, 0, 1), decision(0, 2, 3)});
  std::byte* const a = take();
  free_in_use(a);
  streams_.complete(side_);
  EXPECT_EQ(take(), a);
  EXPECT_EQ(statistics().handed_back, 0);
  EXPECT_EQ(streams_.waits, 0);
}

TEST_F(HandBackTest, AProducerFarAheadOfItsConsumerStaysInThePool) {
  enable({decision(0, 0, 1), decision(kMiB, 2, 3)});
  for (int step = 0; step < 32; ++step) {
    free_in_use(take());
    free_in_use(take());
    next_iteration();
  }
  EXPECT_EQ(statistics().hits, 64);
  EXPECT_EQ(statistics().run_peak_reserved, 2 * kMiB);
  EXPECT_EQ(statistics().handed_back, 62);
  expect_order();
}

TEST_F(HandBackTest, AnotherStreamThatGetsTheAddressWaitsForAll) {
  const StreamId third = table_.id_of(FakeStreams::stream(9));
  enable({decision(0, 0, 1), decision(0, 2, 3, third)});
  std::byte* const a = take();
  free_in_use(a);
  EXPECT_EQ(take(third), a);
  EXPECT_EQ(statistics().handed_back, 1);
  expect_order();
}

TEST_F(HandBackTest, TheOwnStreamDoesNotWaitForABlockThatAnotherOneGets) {
  const StreamId third = table_.id_of(FakeStreams::stream(9));
  enable({decision(0, 0, 1), decision(0, 2, 3, third)});
  std::byte* const a = take();
  free_in_use(a);
  EXPECT_EQ(streams_.records, 4) << "one on each stream for the next one, and the block's own";
  EXPECT_EQ(take(third), a);
  EXPECT_EQ(streams_.records, 4) << "it waits for the work up to the free";
  EXPECT_EQ(statistics().handed_back, 1);
  EXPECT_EQ(statistics().stream_waits, 2) << "of the third stream for the two others";
  expect_order();
}

TEST_F(HandBackTest, ABlockThatNobodyTakesOverStaysSafeForItsOwnStream) {
  const StreamId third = table_.id_of(FakeStreams::stream(9));
  enable({decision(0, 0, 1), decision(0, 2, 3, third), decision(0, 4, 5)});
  std::byte* const a = take();
  free_in_use(a);
  streams_.fail_waits = true;
  std::byte* const b = take(third);
  EXPECT_NE(b, a);
  allocator_.deallocate(b);
  streams_.fail_waits = false;
  EXPECT_EQ(take(), a);
  EXPECT_GT(statistics().stream_waits, 0);
  expect_order();
}

TEST_F(HandBackTest, ABlockThatIsFoundDoneIsWaitedForUpToItsFree) {
  const StreamId third = table_.id_of(FakeStreams::stream(9));
  enable({decision(0, 0, 1), decision(0, 2, 3, third)});
  std::byte* const a = take();
  free_in_use(a);
  streams_.complete(side_);
  EXPECT_EQ(take(third), a);
  EXPECT_EQ(streams_.records, 4);
  EXPECT_EQ(statistics().handed_back, 0);
  expect_order();
}

// No event can be recorded on such a stream later, so the block's own stream waits for the one that
// the free has recorded.
TEST_F(HandBackTest, AUserThatMayVanishIsWaitedForByTheOwnStream) {
  const StreamId third = table_.id_of(FakeStreams::stream(9));
  const StreamId foreign = table_.id_of(FakeStreams::stream(11), Lifetime::kMayVanish);
  enable({decision(0, 0, 1), decision(0, 2, 3, third)});
  std::byte* const a = take();
  free_in_use(a, foreign);
  EXPECT_EQ(take(third), a);
  EXPECT_EQ(statistics().handed_back, 1);
  expect_order();
}

// The upper half belongs to the main stream alone, which asks for no order there.
TEST_F(HandBackTest, ABlockOfWhichOneStreamKeepsAPartIsOrderedByIt) {
  const StreamId third = table_.id_of(FakeStreams::stream(9));
  enable({decision(0, 0, 1, kMain, 2 * kMiB), decision(0, 2, 7, third), decision(kMiB, 3, 6)});
  std::byte* const a = take(kMain, 2 * kMiB);
  free_in_use(a, kSide, 2 * kMiB);
  EXPECT_EQ(take(third), a);
  EXPECT_EQ(take(), a + kMiB);
  expect_order();
}

TEST_F(HandBackTest, TheRestOfABlockIsOrderedToo) {
  // The second decision takes the upper half of the first one, the third one the lower half.
  enable({decision(0, 0, 1, kMain, 2 * kMiB), decision(kMiB, 2, 7), decision(0, 3, 6, kSide)});
  std::byte* const a = take(kMain, 2 * kMiB);
  const StreamId third = table_.id_of(FakeStreams::stream(9));
  free_in_use(a, third, 2 * kMiB);
  EXPECT_EQ(take(), a + kMiB);
  EXPECT_EQ(take(kSide), a);
  expect_order();
}

TEST_F(HandBackTest, OneWaitCoversEarlierFrees) {
  enable({decision(0, 0, 1), decision(kMiB, 2, 3), decision(kMiB, 4, 7), decision(0, 5, 6)});
  std::byte* const a = take();
  free_in_use(a);
  std::byte* const b = take();
  free_in_use(b);
  EXPECT_EQ(take(), b) << "freed last";
  EXPECT_EQ(take(), a);
  EXPECT_EQ(statistics().handed_back, 2);
  EXPECT_EQ(statistics().stream_waits, 1);
  expect_order();
}

TEST_F(HandBackTest, SeparateStreamsHandBackToo) {
  enable({decision(0, 0, 1), decision(0, 2, 3)}, solve::Streams::kSeparate);
  for (int step = 0; step < 32; ++step) {
    std::byte* const a = take();
    free_in_use(a);
    EXPECT_EQ(take(), a);
    free_in_use(a);
    next_iteration();
  }
  EXPECT_EQ(statistics().hits, 64);
  EXPECT_EQ(statistics().handed_back, 63);
  EXPECT_EQ(statistics().stream_waits, 63);
  EXPECT_EQ(statistics().run_peak_reserved, kMiB);
  expect_order();
}

TEST_F(HandBackTest, TheCallerMayTurnItOff) {
  for (const auto streams : {solve::Streams::kSeparate, solve::Streams::kOrdered}) {
    allocator_.enable(plan_of({decision(0, 0, 1), decision(0, 2, 3)}, streams),
                      {.hand_back = false});
    next_iteration();
    std::byte* const a = take();
    free_in_use(a);
    std::byte* const b = take();
    EXPECT_NE(b, a);
    free_in_use(b);
    EXPECT_EQ(statistics().conflicts, 1);
    EXPECT_EQ(statistics().handed_back, 0);
    EXPECT_EQ(streams_.waits, 0);
    expect_order();
    streams_.complete(side_);
  }
}

TEST_F(HandBackTest, ARequestBesideThePoolTakesAWaitingBlockBeforeMoreMemory) {
  enable({decision(0, 0, 1)}, solve::Streams::kSeparate);
  constexpr Bytes kLarge = 20 * kMiB;
  std::byte* const a = take(kMain, kLarge);
  free_in_use(a, kSide, kLarge);
  EXPECT_NE(take(kSide, kLarge), a) << "of another stream";
  EXPECT_NE(take(kMain, 512), a) << "a small request cannot use it";
  EXPECT_EQ(statistics().handed_back, 0);
  EXPECT_EQ(take(kMain, kLarge), a);
  EXPECT_EQ(statistics().handed_back, 1);
  EXPECT_EQ(statistics().stream_waits, 1);
  expect_order();
}

TEST_F(HandBackTest, NothingBesideThePoolIsHandedBackDuringACapture) {
  enable({decision(0, 0, 1)}, solve::Streams::kSeparate);
  std::byte* const a = take(kMain, 20 * kMiB);
  free_in_use(a, kSide, 20 * kMiB);
  allocator_.begin_capture();
  EXPECT_NE(take(kMain, 20 * kMiB), a);
  allocator_.end_capture();
  EXPECT_EQ(statistics().handed_back, 0);
  expect_order();
}

TEST_F(HandBackTest, ABlockThatIsStillLiveStays) {
  enable({decision(0, 0, 2), decision(kMiB, 1, 3), decision(0, 4, 5, kMain, 2 * kMiB)});
  std::byte* const a = take();
  std::byte* const b = take();
  free_in_use(a);
  EXPECT_NE(take(kMain, 2 * kMiB), a);
  EXPECT_EQ(statistics().handed_back, 0) << "the other block is in the way all the same";
  EXPECT_EQ(streams_.waits, 0);
  ASSERT_TRUE(allocator_.deallocate(b));
  expect_order();
}

TEST_F(HandBackTest, ARequestWithoutADecisionTakesAWaitingBlockBeforeMoreMemory) {
  enable({decision(0, 0, 1), decision(kMiB, 2, 3, kMain, 2 * kMiB)});
  free_in_use(take());
  std::byte* const large = take(kMain, 2 * kMiB);
  free_in_use(large, kSide, 2 * kMiB);
  allocator_.loop().enter_unplanned();
  EXPECT_EQ(take(kMain, kMiB + 512), large) << "the only one that is large enough";
  EXPECT_EQ(statistics().fallback_requests, 0);
  EXPECT_EQ(statistics().handed_back, 1);
  allocator_.loop().leave_unplanned();
  expect_order();
}

TEST_F(HandBackTest, NothingIsHandedBackDuringACapture) {
  enable({decision(0, 0, 1), decision(0, 2, 3)});
  std::byte* const a = take();
  free_in_use(a);
  allocator_.begin_capture();
  EXPECT_NE(take(), a);
  EXPECT_EQ(streams_.waits, 0);
  allocator_.end_capture();
  expect_order();
}

TEST_F(HandBackTest, ABlockFreedDuringACaptureIsHandedBackAfterIt) {
  enable({decision(0, 0, 1), decision(0, 2, 3)});
  std::byte* const a = take();
  allocator_.begin_capture();
  free_in_use(a);
  allocator_.end_capture();
  EXPECT_EQ(take(), a);
  EXPECT_EQ(statistics().handed_back, 1);
  expect_order();
}

TEST_F(HandBackTest, ABlockWithoutItsEventStays) {
  enable({decision(0, 0, 1), decision(0, 2, 3)});
  std::byte* const a = take();
  streams_.fail_records = true;
  free_in_use(a);
  streams_.fail_records = false;
  EXPECT_NE(take(), a);
  EXPECT_EQ(statistics().handed_back, 0);
  EXPECT_EQ(streams_.hazards, 0);
}

TEST_F(HandBackTest, ABlockStaysIfItsStreamCannotWait) {
  enable({decision(0, 0, 1), decision(0, 2, 3)});
  std::byte* const a = take();
  free_in_use(a);
  streams_.fail_waits = true;
  EXPECT_NE(take(), a);
  EXPECT_EQ(statistics().handed_back, 0);
  streams_.fail_waits = false;
  streams_.complete(side_);
  next_iteration();
  EXPECT_EQ(take(), a) << "its event is still asked for";
  EXPECT_EQ(streams_.live_events(), 0u);
  expect_order();
}

TEST_F(HandBackTest, AStreamThatMayBeGoneIsNotMadeToWait) {
  const StreamId foreign = table_.id_of(FakeStreams::stream(9), Lifetime::kMayVanish);
  enable({decision(0, 0, 1, foreign), decision(0, 2, 3)});
  std::byte* const a = take(foreign);
  free_in_use(a);
  EXPECT_NE(take(), a);
  EXPECT_EQ(statistics().handed_back, 0);
  expect_order();
}

TEST_F(HandBackTest, AStreamWithTheHandleOfADestroyedOneWaitsItself) {
  const StreamId foreign = table_.id_of(FakeStreams::stream(9), Lifetime::kMayVanish);
  enable({decision(0, 0, 1, foreign), decision(kMiB, 2, 3, foreign), decision(kMiB, 4, 7, foreign),
          decision(0, 5, 6, foreign)});
  std::byte* const a = take(foreign);
  free_in_use(a);
  std::byte* const b = take(foreign);
  free_in_use(b);
  EXPECT_EQ(take(foreign), b);
  EXPECT_EQ(take(foreign), a);
  EXPECT_EQ(statistics().stream_waits, 2);
}

}  // namespace
}  // namespace stalloc
