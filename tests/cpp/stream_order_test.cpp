// Plans whose streams share addresses: the stream that gets an address waits for those that had it.
#include "runtime/stream_order.h"

#include <gtest/gtest.h>

#include <thread>

#include "plans.h"
#include "two_streams.h"

namespace stalloc {
namespace {

using testing::FakeStreams;
using testing::kMain;
using testing::kMiB;
using testing::kSide;

plan::Decision decision(Offset offset, Tick lower, Tick upper, StreamId stream, Bytes size = kMiB) {
  return {.size = size, .offset = offset, .lower = lower, .upper = upper, .stream = stream};
}

plan::Plan ordered_plan(std::vector<plan::Decision> decisions, Tick period) {
  plan::Plan plan = testing::plan_of(std::move(decisions), period);
  plan.streams = solve::Streams::kOrdered;
  return plan;
}

class StreamOrderTest : public testing::TwoStreams {
 protected:
  std::byte* allocate(StreamId stream, Bytes size = kMiB) { return take(stream, size); }
  void free(std::byte* p) { ASSERT_TRUE(allocator_.deallocate(p)); }
  // One iteration as planned, so that the allocator recognizes departures.
  void follow(const plan::Plan& plan) {
    for (const plan::Decision& d : plan.decisions) free(allocate(d.stream, d.size));
    next_iteration();
    waits_before_ = statistics().stream_waits;
    records_before_ = streams_.records;
  }
  std::int64_t waits() const { return statistics().stream_waits - waits_before_; }
  int records() const { return streams_.records - records_before_; }

  std::int64_t waits_before_ = 0;
  int records_before_ = 0;
};

TEST_F(StreamOrderTest, TheLaterStreamWaitsForTheEarlierOnesWorkUpToItsFree) {
  enable(ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide)}, 4));
  std::byte* a = allocate(kMain);
  EXPECT_EQ(statistics().stream_waits, 0);
  free(a);
  EXPECT_EQ(streams_.records, 2) << "one on each stream";
  std::byte* b = allocate(kSide);
  EXPECT_EQ(b, a);
  EXPECT_EQ(statistics().stream_waits, 1);
  EXPECT_EQ(streams_.records, 2) << "the free's own events";
  free(b);
  next_iteration();
  EXPECT_EQ(allocate(kMain), a) << "and the next iteration waits for this one";
  EXPECT_EQ(statistics().stream_waits, 2);
  EXPECT_EQ(statistics().misses + statistics().conflicts, 0);
  EXPECT_EQ(streams_.hazards + streams_.misuses, 0);
  EXPECT_EQ(streams_.queries + streams_.synchronizations, 0) << "the host waits for nothing";
  allocator_.deallocate(a);
  allocator_.disable();
  EXPECT_EQ(streams_.live_events(), 0u);
}

TEST_F(StreamOrderTest, OneWaitIsEnoughForAllThatWasFreedBeforeIt) {
  enable(ordered_plan({decision(0, 0, 4, kMain), decision(kMiB, 1, 3, kMain),
                       decision(0, 5, 9, kSide), decision(kMiB, 6, 8, kSide)},
                      10));
  std::byte* a = allocate(kMain);
  std::byte* b = allocate(kMain);
  free(b);
  free(a);
  EXPECT_EQ(allocate(kSide), a);
  EXPECT_EQ(allocate(kSide), b);
  EXPECT_EQ(statistics().stream_waits, 1);
  EXPECT_EQ(streams_.hazards, 0);
}

TEST_F(StreamOrderTest, AddressesOfOneStreamCostNothing) {
  enable(ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kMain),
                       decision(kMiB, 4, 5, kSide), decision(kMiB, 6, 7, kSide)},
                      8));
  for (const StreamId stream : {kMain, kMain, kSide, kSide}) free(allocate(stream));
  EXPECT_EQ(statistics().hits, 4);
  EXPECT_EQ(streams_.records + streams_.waits, 0);
}

// a (main) | b (side) | c (main) at one address, and b is asked for late, or not at all.
TEST_F(StreamOrderTest, AStreamWaitsForTheActualLastUser) {
  const plan::Plan plan =
      ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide, 2 * kMiB),
                    decision(kMiB, 4, 5, kMain, kMiB / 2)},
                   6);
  enable(plan);
  follow(plan);
  std::byte* a = allocate(kMain);  // where b was last, which main has waited for to get at c
  EXPECT_EQ(waits(), 0);
  free(a);
  std::byte* c = allocate(kMain, kMiB / 2);  // b has not come
  EXPECT_EQ(c, a + kMiB);
  EXPECT_EQ(waits(), 0) << "nobody has been there since";
  free(c);
  next_iteration();
  free(allocate(kMain));
  std::byte* b = allocate(kSide, 2 * kMiB);
  EXPECT_EQ(b, a);
  EXPECT_EQ(waits(), 1) << "for c, and with it for a, which was freed before";
  EXPECT_NE(allocate(kMain, kMiB / 2), c) << "b is still there";
  EXPECT_EQ(statistics().conflicts, 1);
  free(b);
  next_iteration();
  EXPECT_EQ(allocate(kMain), a) << "b, freed late, is waited for";
  EXPECT_EQ(waits(), 2);
  EXPECT_EQ(streams_.hazards, 0);
}

TEST_F(StreamOrderTest, ABlockThePlanDoesNotKnowIsWaitedFor) {
  const plan::Plan plan = ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide)}, 4);
  enable(plan);
  follow(plan);
  allocator_.loop().enter_unplanned();
  std::byte* guest = allocate(kMain, kMiB / 2);
  allocator_.loop().leave_unplanned();
  EXPECT_EQ(statistics().idle_requests, 1);
  EXPECT_EQ(waits(), 1) << "for the side stream's of the iteration before";
  free(guest);
  EXPECT_EQ(records(), 0) << "nobody was known to wait for it";
  EXPECT_EQ(allocate(kSide), guest);
  EXPECT_EQ(records(), 2) << "so events are recorded when they are needed";
  EXPECT_EQ(waits(), 2);
  EXPECT_EQ(streams_.hazards, 0);
}

// After the free, the program makes the block's own stream wait for its user. That suffices if the
// memory goes back to that stream.
TEST_F(StreamOrderTest, AStreamWaitsForTheBlocksOtherUsersToo) {
  const device::StreamHandle third = FakeStreams::stream(8);
  table_.id_of(third);
  enable(ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide)}, 4));
  std::byte* a = allocate(kMain);
  const auto begin = reinterpret_cast<std::uintptr_t>(a);
  streams_.use(begin, begin + kMiB, third);
  free(a);
  EXPECT_EQ(allocate(kSide), a);
  EXPECT_EQ(statistics().stream_waits, 2);
  EXPECT_EQ(streams_.hazards, 0);
}

TEST_F(StreamOrderTest, AStreamThatCannotBeMadeToWaitDoesNotGetTheAddress) {
  enable(ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide)}, 4));
  streams_.fail_records = true;
  std::byte* a = allocate(kMain);
  free(a);
  std::byte* b = allocate(kSide);
  EXPECT_NE(b, a);
  EXPECT_EQ(statistics().conflicts, 1);
  allocator_.inspect().check();
  free(b);
  streams_.fail_records = false;
  streams_.fail_waits = true;
  next_iteration();
  free(allocate(kMain));
  b = allocate(kSide);
  EXPECT_NE(b, a);
  free(b);
  streams_.fail_waits = false;
  next_iteration();
  free(allocate(kMain));
  EXPECT_EQ(allocate(kSide), a);
  EXPECT_EQ(streams_.hazards, 0);
}

TEST_F(StreamOrderTest, AStreamThatMayVanishIsNamedInItsOwnRequestsOnly) {
  using Lifetime = runtime::StreamTable::Lifetime;
  const device::StreamHandle foreign = FakeStreams::stream(9);
  const StreamId id = table_.id_of(foreign, Lifetime::kUnknown);
  ASSERT_EQ(id, 2);
  EXPECT_TRUE(table_.may_vanish(id));
  EXPECT_EQ(table_.id_of(foreign, Lifetime::kMayVanish), id);
  EXPECT_EQ(table_.id_of(foreign, Lifetime::kStays), id) << "known already";
  EXPECT_TRUE(table_.may_vanish(id));
  EXPECT_FALSE(table_.may_vanish(kSide));
  enable(
      ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide), decision(0, 4, 5, id)}, 6));
  std::byte* a = allocate(kMain);
  free(a);
  EXPECT_EQ(streams_.records, 2) << "not on the foreign stream";
  free(allocate(kSide));
  std::byte* b = allocate(id);
  EXPECT_EQ(b, a) << "it can wait for others";
  free(b);
  next_iteration();
  b = allocate(kMain);
  EXPECT_NE(b, a) << "nobody can wait for it";
  EXPECT_EQ(statistics().conflicts, 1);
  free(b);
  EXPECT_EQ(streams_.records_on(foreign), 0);
  EXPECT_EQ(streams_.hazards, 0);
}

TEST_F(StreamOrderTest, DuringACaptureNothingIsRecordedOrWaitedFor) {
  enable(ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide)}, 4));
  std::byte* a = allocate(kMain);
  allocator_.begin_capture();
  streams_.capturing.insert(FakeStreams::stream(9));
  free(a);
  std::byte* b = allocate(kSide);
  EXPECT_NE(b, a);
  EXPECT_EQ(streams_.records + streams_.waits, 0);
  free(b);
  streams_.capturing.clear();
  allocator_.end_capture();
  next_iteration();
  free(allocate(kMain));
  EXPECT_EQ(allocate(kSide), a);
  EXPECT_EQ(streams_.hazards + streams_.misuses, 0);
}

TEST_F(StreamOrderTest, AFreeDuringACaptureIsWaitedForAfterIt) {
  const plan::Plan plan = ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide)}, 4);
  enable(plan);
  follow(plan);  // its free has an event of this iteration
  std::byte* a = allocate(kMain);
  allocator_.begin_capture();
  free(a);
  allocator_.end_capture();
  EXPECT_EQ(records(), 0);
  EXPECT_EQ(allocate(kSide), a);
  EXPECT_EQ(records(), 2);
  EXPECT_EQ(streams_.hazards, 0);
}

TEST_F(StreamOrderTest, TheNextStreamWaitsForTheUsersOfARecordedBlock) {
  const StreamId third = table_.id_of(FakeStreams::stream(8));
  enable(ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide)}, 4));
  std::byte* a = allocate(kMain);
  const auto begin = reinterpret_cast<std::uintptr_t>(a);
  ASSERT_TRUE(allocator_.record_stream(a, third));
  streams_.use(begin, begin + kMiB, table_.handle_of(third));
  free(a);
  EXPECT_EQ(allocate(kSide), a);
  EXPECT_EQ(streams_.hazards, 0);
  free(a);
  streams_.complete(table_.handle_of(third));
  next_iteration();
  free(allocate(kMain));
  EXPECT_EQ(allocate(kSide), a);
  EXPECT_EQ(streams_.hazards, 0);
}

TEST_F(StreamOrderTest, AForkedChildLeavesTheDeviceAlone) {
  enable(ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide),
                       decision(kMiB, 4, 7, kMain), decision(kMiB, 8, 9, kSide)},
                      10));
  std::byte* a = allocate(kMain);
  free(a);
  a = allocate(kSide);
  std::byte* waiting = allocate(kMain);
  ASSERT_TRUE(allocator_.record_stream(waiting, kSide));
  streams_.submit(side_);
  free(waiting);
  const int records = streams_.records;
  const std::size_t events = streams_.live_events();
  allocator_.abandon();
  EXPECT_TRUE(allocator_.deallocate(a));
  EXPECT_EQ(streams_.records, records);
  EXPECT_EQ(streams_.live_events(), events);
  EXPECT_EQ(streams_.queries + streams_.synchronizations, 0);
}

// The streams and what is known of them are touched by one thread at a time.
TEST_F(StreamOrderTest, ThreadsTakeTurns) {
  enable(ordered_plan({decision(0, 0, 1, kMain), decision(0, 2, 3, kSide),
                       decision(kMiB, 4, 5, kMain), decision(kMiB, 6, 7, kSide)},
                      8));
  const auto work = [&](StreamId stream) {
    for (int i = 0; i < 500; ++i) {
      void* p = allocator_.allocate(kMiB, stream, true);
      if (i % 7 == 0) allocator_.record_stream(p, 1 - stream);
      if (i % 11 == 0) allocator_.begin_capture();
      EXPECT_TRUE(allocator_.deallocate(p));
      if (i % 11 == 0) allocator_.end_capture();
      if (i % 4 == 0) allocator_.loop().end_iteration();
      if (i % 4 == 0) allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    }
  };
  {
    const std::jthread other(work, kSide);
    work(kMain);
  }
  EXPECT_GT(statistics().hits, 0);
  EXPECT_EQ(streams_.misuses, 0);
  allocator_.inspect().check();
  allocator_.disable();
  EXPECT_EQ(streams_.live_events(), 0u);
}

// A table indexed by pairs of streams would take 80 GB.
TEST_F(StreamOrderTest, StreamsThatCanNeverComeCostNothing) {
  std::vector<plan::Decision> decisions = {decision(0, 0, 1, kMain), decision(0, 2, 3, kSide)};
  for (StreamId i = 0; i < 100'000; ++i) {
    decisions.push_back(decision(0, 4 + i, 5 + i, runtime::StreamTable::kStreams + i, 512));
  }
  enable(ordered_plan(std::move(decisions), 200'000));
  std::byte* a = allocate(kMain);
  free(a);
  EXPECT_EQ(allocate(kSide), a);
  EXPECT_EQ(statistics().stream_waits, 1);
  EXPECT_EQ(streams_.hazards, 0);
}

}  // namespace
}  // namespace stalloc
