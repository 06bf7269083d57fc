// Requests of different streams: no address is used again before its last users are done.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>

#include "base/error.h"
#include "plans.h"
#include "two_streams.h"

namespace stalloc {
namespace {

using testing::FakeStreams;
using testing::kMiB;
using testing::kSide;

plan::Decision decision(Bytes size, Offset offset, Tick lower, Tick upper, StreamId stream = 0) {
  plan::Decision d = testing::decision(size, offset, lower, upper);
  d.stream = stream;
  return d;
}

TEST(StreamTable, NumbersStreamsByFirstUse) {
  runtime::StreamTable table;
  EXPECT_EQ(table.id_of(nullptr), 0);
  EXPECT_EQ(table.id_of(FakeStreams::stream(70)), 1);
  EXPECT_EQ(table.id_of(FakeStreams::stream(30)), 2);
  EXPECT_EQ(table.id_of(FakeStreams::stream(70)), 1);
  EXPECT_EQ(table.handle_of(2), FakeStreams::stream(30));
  for (int i = 3; i < runtime::StreamTable::kStreams; ++i) {
    EXPECT_EQ(table.id_of(FakeStreams::stream(1000 + i)), i);
  }
  EXPECT_EQ(table.id_of(FakeStreams::stream(5000)), kNone);
  EXPECT_EQ(table.id_of(FakeStreams::stream(30)), 2);
}

// A library's stream may use memory before the program's own make their first requests.
TEST(StreamTable, UsersDoNotChangeTheNumbersOfRequests) {
  using Lifetime = runtime::StreamTable::Lifetime;
  runtime::StreamTable table;
  EXPECT_EQ(table.user_of(nullptr), 0);
  const StreamId user = table.user_of(FakeStreams::stream(9), Lifetime::kUnknown);
  EXPECT_NE(user, kNone);
  EXPECT_EQ(table.user_of(FakeStreams::stream(9)), user);
  EXPECT_NE(table.user_of(FakeStreams::stream(8)), user);
  EXPECT_EQ(table.handle_of(user), FakeStreams::stream(9));
  EXPECT_EQ(table.find(FakeStreams::stream(9)), kNone);
  EXPECT_TRUE(table.may_vanish(user));

  EXPECT_EQ(table.id_of(FakeStreams::stream(70)), 1);
  EXPECT_EQ(table.user_of(FakeStreams::stream(70)), 1);
  EXPECT_EQ(table.id_of(FakeStreams::stream(9), Lifetime::kUnknown), 2);
  EXPECT_TRUE(table.may_vanish(2));
  EXPECT_EQ(table.id_of(FakeStreams::stream(9), Lifetime::kStays), 2);
  EXPECT_EQ(table.user_of(FakeStreams::stream(9)), 2);
  EXPECT_FALSE(table.may_vanish(user)) << "known by its other number";
  EXPECT_EQ(table.id_of(FakeStreams::stream(8), Lifetime::kUnknown), 3);
  EXPECT_FALSE(table.may_vanish(3)) << "known by its other number";

  std::vector<device::StreamHandle> visited;
  table.user_of(FakeStreams::stream(5));
  table.visit([&](StreamId id) { visited.push_back(table.handle_of(id)); });
  EXPECT_EQ(visited, (std::vector<device::StreamHandle>{
                         nullptr, FakeStreams::stream(70), FakeStreams::stream(9),
                         FakeStreams::stream(8), FakeStreams::stream(5)}));

  runtime::StreamTable small;
  for (int i = 1; i < runtime::StreamTable::kStreams; ++i) {
    EXPECT_NE(small.user_of(FakeStreams::stream(1000 + i)), kNone);
  }
  EXPECT_EQ(small.user_of(FakeStreams::stream(5000)), kNone);
  EXPECT_EQ(small.id_of(FakeStreams::stream(5000)), kNone);
  EXPECT_EQ(small.id_of(nullptr), 0);
}

TEST(StaticPoolStreams, IdleSpaceIsOfTheStreamThatPlansIt) {
  // stream 0 at [0, 1 MiB), stream 1 at [1, 3), only groups of stream 2 at [3, 4).
  plan::Plan plan = testing::plan_of({decision(kMiB, 0, 0, 1), decision(2 * kMiB, kMiB, 1, 2, 1),
                                      decision(kMiB, 4 * kMiB, 2, 3, 2)},
                                     4);
  plan::DynamicGroup group;
  group.phase = group.phase_end = 0;
  group.after = 2;
  group.lower = 3;
  group.upper = 4;
  group.stream = 2;
  group.reusable = {{3 * kMiB, 5 * kMiB}};
  plan.groups.push_back(group);
  plan.check();
  runtime::StaticPool pool(plan);
  EXPECT_EQ(pool.place_idle(2 * kMiB, 0), kUnplaced);
  EXPECT_EQ(pool.place_idle(2 * kMiB, 1), kMiB);
  EXPECT_EQ(pool.place_idle(1, 1), kUnplaced);
  EXPECT_EQ(pool.place_idle(2 * kMiB, 2), 3 * kMiB);
  EXPECT_EQ(pool.place_idle(1, 3), kUnplaced) << "the plan has no such stream";
  EXPECT_EQ(pool.place_idle(kMiB, 0), 0);
  pool.check();
  EXPECT_EQ(pool.at(0).stream, 0);
  EXPECT_EQ(pool.at(kMiB).stream, 1);
  EXPECT_EQ(pool.at(3 * kMiB).stream, 2);
  pool.release(kMiB);
  pool.release(0);
  pool.check();
  EXPECT_EQ(pool.place_idle(2 * kMiB, 0), kUnplaced) << "neighbours of two streams do not merge";
}

TEST(StaticPoolStreams, SpaceThatTwoStreamsMayReuseBelongsToTheFirst) {
  plan::Plan plan =
      testing::plan_of({decision(kMiB, 0, 0, 1), decision(kMiB, 2 * kMiB, 1, 2, 1)}, 8);
  for (const StreamId stream : {0, 1}) {
    plan::DynamicGroup group;
    group.phase = group.phase_end = 0;
    group.after = 1;
    group.lower = 4;
    group.upper = 6;
    group.stream = stream;
    group.reusable = {{kMiB, 2 * kMiB}};
    plan.groups.push_back(group);
  }
  plan.check();
  runtime::StaticPool pool(plan);
  ASSERT_NE(pool.place(0), kUnplaced);
  EXPECT_EQ(pool.place_dynamic(1, kMiB / 4), kUnplaced) << "both may reuse it by the plan";
  EXPECT_EQ(pool.place_dynamic(0, kMiB / 4), kMiB);
  EXPECT_EQ(pool.at(kMiB).stream, 0);
}

class StreamsTest : public testing::TwoStreams {
 protected:
  void* allocate(Bytes size, StreamId stream = 0) {
    return allocator_.allocate(size, stream, true);
  }
  static plan::Plan two_blocks() {
    return testing::plan_of({decision(kMiB, 0, 0, 3), decision(kMiB, kMiB, 1, 2)}, 4);
  }
};

TEST_F(StreamsTest, ARecordedBlockKeepsItsPlaceUntilItsUsersAreDone) {
  allocator_.enable(two_blocks(), {.hand_back = false});
  allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  void* a = allocate(kMiB);
  ASSERT_TRUE(allocator_.record_stream(a, kSide));
  ASSERT_TRUE(allocator_.record_stream(a, kSide));
  streams_.submit(side_);
  EXPECT_TRUE(allocator_.deallocate(a));
  EXPECT_FALSE(allocator_.deallocate(a)) << "freed twice";
  EXPECT_FALSE(allocator_.record_stream(a, kSide)) << "freed already";
  EXPECT_EQ(allocator_.figures().statistics().allocated.current, 0);
  EXPECT_EQ(allocator_.figures().statistics().live_blocks, 1);

  next_iteration();
  void* other = allocate(kMiB);
  EXPECT_NE(other, a);
  EXPECT_EQ(allocator_.figures().statistics().conflicts, 1);
  allocator_.inspect().check();
  EXPECT_TRUE(allocator_.deallocate(other));

  streams_.complete(side_);
  next_iteration();
  EXPECT_EQ(allocate(kMiB), a) << "back in its place";
  EXPECT_EQ(streams_.records, 1) << "recorded twice on a stream is once";
  EXPECT_EQ(streams_.live_events(), 0u);
  EXPECT_EQ(streams_.synchronizations, 0);
}

TEST_F(StreamsTest, ItsOwnStreamIsNoOther) {
  enable(two_blocks());
  void* a = allocate(kMiB);
  EXPECT_TRUE(allocator_.record_stream(a, 0));
  EXPECT_TRUE(allocator_.deallocate(a));
  EXPECT_EQ(streams_.records, 0);
  int foreign = 0;
  EXPECT_FALSE(allocator_.record_stream(&foreign, kSide));
}

TEST_F(StreamsTest, TheFallbackKeepsStreamsApartAndBlocksInPlace) {
  enable(two_blocks());
  void* a = allocate(3 * kMiB, kSide);
  EXPECT_TRUE(allocator_.deallocate(a));
  EXPECT_EQ(allocate(3 * kMiB, kSide), a);
  void* b = allocate(3 * kMiB, 0);
  EXPECT_NE(a, b);
  ASSERT_TRUE(allocator_.record_stream(b, kSide));
  streams_.submit(side_);
  EXPECT_TRUE(allocator_.deallocate(b));
  EXPECT_EQ(allocator_.figures().statistics().fallback.current, 3 * kMiB);
  EXPECT_NE(allocate(3 * kMiB, 0), b);
  streams_.complete(side_);
  EXPECT_EQ(allocate(3 * kMiB, 0), b);
}

TEST_F(StreamsTest, EventsAreAskedAfterOnceARequest) {
  enable(two_blocks());
  void* a = allocate(kMiB);
  allocator_.record_stream(a, kSide);
  streams_.submit(side_);
  allocator_.deallocate(a);
  for (int i = 0; i < 10; ++i) allocator_.deallocate(allocate(100));
  EXPECT_EQ(streams_.queries, 10);
  streams_.complete(side_);
  allocator_.deallocate(allocate(100));
  EXPECT_EQ(streams_.queries, 11);
  for (int i = 0; i < 10; ++i) allocator_.deallocate(allocate(100));
  EXPECT_EQ(streams_.queries, 11) << "nothing waits any more";
}

TEST_F(StreamsTest, ABlockWhoseEventCannotBeRecordedIsNotHandedOutAgain) {
  enable(two_blocks());
  void* a = allocate(kMiB);
  allocator_.record_stream(a, kSide);
  streams_.submit(side_);
  streams_.fail_records = true;
  EXPECT_TRUE(allocator_.deallocate(a));
  streams_.fail_synchronize = true;
  next_iteration();
  EXPECT_NE(allocate(kMiB), a);
  streams_.fail_synchronize = false;
  next_iteration();
  EXPECT_EQ(allocate(kMiB), a) << "the device has been waited for";
}

TEST_F(StreamsTest, OtherThreadsGoOnWhileTheDeviceIsWaitedFor) {
  enable(two_blocks());
  void* a = allocate(kMiB);
  void* b = allocate(kMiB);
  for (void* p : {a, b}) allocator_.record_stream(p, kNone);
  EXPECT_TRUE(allocator_.deallocate(a));
  bool went_on = false;
  std::thread other;
  streams_.while_synchronizing = [&] {
    std::atomic<bool> done = false;
    other = std::thread([&, b] {
      EXPECT_TRUE(allocator_.deallocate(b));
      done = true;
    });
    for (int i = 0; i < 1'000'000 && !done; ++i) std::this_thread::yield();
    went_on = done;
    if (went_on) other.join();
    streams_.while_synchronizing = nullptr;
  };
  allocator_.loop().end_iteration();
  if (other.joinable()) other.join();
  ASSERT_TRUE(went_on);
  EXPECT_EQ(allocator_.figures().statistics().live_blocks, 1) << "the one freed meanwhile waits";
  allocator_.inspect().check();
  next_iteration();
  EXPECT_EQ(allocator_.figures().statistics().live_blocks, 0);
  EXPECT_EQ(streams_.synchronizations, 2);
}

TEST_F(StreamsTest, ABlockWhoseEventFailsIsNotHandedOutAgain) {
  enable(two_blocks());
  void* a = allocate(kMiB);
  allocator_.record_stream(a, kSide);
  streams_.submit(side_);
  EXPECT_TRUE(allocator_.deallocate(a));
  streams_.fail_queries = streams_.fail_synchronize = true;
  next_iteration();
  EXPECT_NE(allocate(kMiB), a);
  next_iteration();
  EXPECT_NE(allocate(kMiB), a);
  EXPECT_EQ(streams_.live_events(), 0u);
  allocator_.inspect().check();
}

TEST_F(StreamsTest, DuringACaptureNoEventIsRecordedOrAskedAfter) {
  enable(two_blocks());
  void* a = allocate(kMiB);
  void* b = allocate(kMiB);
  allocator_.record_stream(a, kSide);
  allocator_.record_stream(b, kSide);
  streams_.submit(side_);
  allocator_.deallocate(a);
  allocator_.begin_capture();
  streams_.capturing.insert(side_);
  allocator_.deallocate(b);
  allocator_.deallocate(allocate(100));
  EXPECT_EQ(streams_.records, 1);
  EXPECT_EQ(streams_.queries, 0);
  allocator_.disable();
  streams_.capturing.clear();
  allocator_.end_capture();
  EXPECT_EQ(streams_.records, 2);
  EXPECT_EQ(streams_.misuses, 0);
}

TEST_F(StreamsTest, DisableWaitsForStreamsAndGivesThePoolBack) {
  enable(two_blocks());
  void* a = allocate(kMiB);
  allocator_.record_stream(a, kSide);
  streams_.submit(side_);
  allocator_.deallocate(a);
  allocator_.disable();
  EXPECT_EQ(device_.used(), 0);
  EXPECT_EQ(streams_.live_events(), 0u);
}

TEST_F(StreamsTest, WhenMemoryRunsOutStreamsAreWaitedForFirst) {
  enable(two_blocks());
  void* a = allocate(90 * kMiB);
  allocator_.record_stream(a, kSide);
  streams_.submit(side_);
  allocator_.deallocate(a);
  void* b = allocate(95 * kMiB);
  EXPECT_NE(b, nullptr);
  EXPECT_EQ(streams_.synchronizations, 1);
  EXPECT_THROW(allocate(10 * kMiB), OutOfMemory);
  // As the last resort, the allocator uses addresses that the plan does not need at the moment.
  EXPECT_NE(allocate(2 * kMiB), nullptr);
  EXPECT_EQ(allocator_.figures().statistics().idle_requests, 1);
}

TEST_F(StreamsTest, AReleasedPoolComesBack) {
  EXPECT_THROW(allocator_.release_pool(), Error);
  enable(two_blocks());
  void* a = allocate(kMiB);
  try {
    allocator_.release_pool();
    FAIL() << "a tensor lies in it";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("1 tensors lie in it, of 1.0 MiB"), std::string::npos)
        << e.what();
  }
  allocator_.record_stream(a, kSide);
  streams_.submit(side_);
  allocator_.deallocate(a);
  allocator_.release_pool();
  allocator_.release_pool();
  EXPECT_EQ(device_.used(), 0);
  EXPECT_EQ(allocator_.figures().statistics().reserved.current, 0);
  next_iteration();
  void* b = allocate(kMiB);
  EXPECT_EQ(allocator_.figures().statistics().hits, 1) << "that of the first iteration";
  EXPECT_TRUE(allocator_.deallocate(b));
  allocator_.release_cached();
  device_.fail_at(1);
  EXPECT_THROW(allocator_.acquire_pool(), OutOfMemory);
  allocator_.acquire_pool();
  allocator_.acquire_pool();
  next_iteration();
  allocator_.deallocate(allocate(kMiB));
  EXPECT_EQ(allocator_.figures().statistics().hits, 2);
  allocator_.inspect().check();
}

TEST_F(StreamsTest, AForkedChildLeavesTheDeviceAlone) {
  enable(two_blocks());
  void* a = allocate(kMiB);
  void* b = allocate(kMiB);
  allocator_.record_stream(a, kSide);
  allocator_.record_stream(b, kSide);
  streams_.submit(side_);
  allocator_.deallocate(a);
  const int records = streams_.records;
  allocator_.abandon();
  EXPECT_FALSE(allocator_.enabled());
  EXPECT_EQ(allocate(1), nullptr);
  EXPECT_TRUE(allocator_.deallocate(b));
  EXPECT_EQ(streams_.records, records);
  EXPECT_EQ(streams_.queries + streams_.synchronizations, 0);
  EXPECT_EQ(device_.used(), 2 * kMiB) << "the parent's";
  EXPECT_THROW(allocator_.enable(two_blocks()), Error);
}

// Giving memory back waits for all work that may still use it, as cudaFree does.
class WaitingMemory final : public device::DeviceMemory {
 public:
  explicit WaitingMemory(FakeStreams& streams) : streams_(streams) {}
  std::string_view name() const override { return "waiting"; }
  void* allocate(Bytes size) override { return memory_.allocate(size); }
  void release(void* piece, Bytes size) noexcept override {
    streams_.synchronize(/*everywhere=*/false);
    memory_.release(piece, size);
  }
  Bytes available() const override { return memory_.available(); }
  Bytes used() const { return memory_.used(); }

 private:
  FakeStreams& streams_;
  device::PretendMemory memory_{Bytes{1} << 32};
};

class StreamsStress : public ::testing::TestWithParam<solve::Streams> {};
INSTANTIATE_TEST_SUITE_P(, StreamsStress,
                         ::testing::Values(solve::Streams::kSeparate, solve::Streams::kOrdered),
                         [](const auto& reuse) {
                           return reuse.param == solve::Streams::kOrdered ? "Ordered" : "Separate";
                         });

// Trains a random plan on three streams, with dynamic requests, record_stream, late frees, foreign
// requests and evaluations; streams fall behind, catch up, and refuse events and waits at random.
TEST_P(StreamsStress, NoAddressIsUsedBeforeItsUsersAreDone) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    const auto chance = [&](int one_in) { return random() % static_cast<unsigned>(one_in) == 0; };
    FakeStreams streams;
    WaitingMemory device(streams);
    runtime::StreamTable table;
    std::vector<device::StreamHandle> handles = {nullptr};
    for (int s = 1; s < 3; ++s) handles.push_back(FakeStreams::stream(s));
    for (const device::StreamHandle h : handles) table.id_of(h);
    handles.push_back(FakeStreams::stream(3));  // uses blocks of others before its first request
    runtime::PlannedAllocator allocator(device, streams, table, runtime::Fallback::kOwn);
    plan::Plan plan = testing::random_plan(random, 200, 4, /*streams=*/3, GetParam());
    if (seed % 2 == 1) plan = testing::with_groups(std::move(plan), 5);
    plan.check();
    allocator.enable(plan);

    struct Block {
      Bytes size;
      StreamId stream;
    };
    std::map<void*, Block> live;
    const auto use = [&](void* p, Bytes size, StreamId s) {
      const auto begin = reinterpret_cast<std::uintptr_t>(p);
      streams.use(begin, begin + static_cast<std::uintptr_t>(size), table.handle_of(s));
    };
    const auto allocate = [&](Bytes size, StreamId s) {
      void* p = allocator.allocate(size, s, true);
      const auto begin = reinterpret_cast<std::uintptr_t>(p);
      streams.hand_out(begin, begin + static_cast<std::uintptr_t>(size), table.handle_of(s));
      ASSERT_TRUE(live.emplace(p, Block{size, s}).second);
      use(p, size, s);
    };
    const auto free_one = [&] {
      auto it = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      const auto [p, block] = *it;
      for (int users = 0; users < 2; ++users) {
        if (!chance(3)) continue;
        const StreamId other = table.user_of(handles[random() % 4]);
        ASSERT_TRUE(allocator.record_stream(p, other));
        use(p, block.size, other);
      }
      live.erase(it);
      ASSERT_TRUE(allocator.deallocate(p));
    };
    for (int iteration = 0; iteration < 25; ++iteration) {
      PhaseIndex phase = kNone;
      for (const plan::Decision& d : plan.decisions) {
        if (d.phase != phase) {
          phase = d.phase;
          allocator.loop().enter_phase(trace::PhaseKind::kForward, phase.number(), 0);
        }
        if (chance(40)) continue;
        if (chance(40)) {
          allocator.loop().enter_unplanned();
          const bool may_be_new = iteration >= 12;  // then the last stream makes requests, too
          allocate(d.size, table.id_of(handles[random() % (may_be_new ? 4 : 3)]));
          allocator.loop().leave_unplanned();
        }
        if (!plan.groups.empty() && chance(4)) {
          allocator.loop().enter_dynamic();
          allocate(512 * static_cast<Bytes>(1 + random() % 4), static_cast<StreamId>(random() % 3));
          allocator.loop().leave_dynamic();
        }
        allocate(d.size, d.stream);
        while (live.size() > 12) free_one();
        if (chance(5)) streams.complete(handles[random() % 4]);
        streams.complete_some(handles[random() % 4]);
        if (chance(20)) streams.fail_records = chance(4);
        if (chance(20)) streams.fail_waits = chance(4);
      }
      while (!live.empty() && !chance(20)) free_one();
      allocator.loop().end_iteration();
      allocator.inspect().check();
    }
    EXPECT_EQ(streams.hazards, 0) << "seed " << seed;
    EXPECT_EQ(streams.misuses, 0);
    EXPECT_GT(allocator.figures().statistics().hits, 1000);
    // In separate streams only blocks that are handed back cost waits.
    const runtime::Statistics counts = allocator.figures().statistics();
    EXPECT_GT(counts.handed_back, 0);
    EXPECT_GT(counts.stream_waits, GetParam() == solve::Streams::kOrdered ? 100 : 0);
    streams.fail_records = streams.fail_waits = false;
    while (!live.empty()) free_one();
    allocator.disable();
    EXPECT_EQ(device.used(), 0);
    EXPECT_EQ(streams.live_events(), 0u);
  }
}

}  // namespace
}  // namespace stalloc
