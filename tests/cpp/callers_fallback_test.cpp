// The allocator for a caller that serves the fallback itself, and their joint statistics.
#include <gtest/gtest.h>

#include "device/pretend.h"
#include "fake_streams.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

runtime::JointGauges::Values other(Bytes bytes) {
  runtime::JointGauges::Values values{};
  values[runtime::JointGauges::kBlocks] = bytes > 0 ? 1 : 0;
  values[runtime::JointGauges::kRequested] = bytes;
  values[runtime::JointGauges::kReserved] = bytes;
  return values;
}

TEST(JointGauges, ASumPassesItsPeakOnlyWhenNoted) {
  runtime::JointGauges gauges;
  gauges.record(other(100));
  gauges.add_block(10, 512);
  EXPECT_TRUE(gauges.behind());
  gauges.record(other(60));  // freed meanwhile
  EXPECT_FALSE(gauges.behind());
  EXPECT_EQ(gauges.peaks()[runtime::JointGauges::kRequested], 100);
  EXPECT_EQ(gauges.peaks()[runtime::JointGauges::kRounded], 512);
  gauges.free_block(10, 512);
  gauges.add_block(10, 512);
  EXPECT_TRUE(gauges.behind()) << "the freed block is still active";
  gauges.record(other(60));
  gauges.free_block(10, 512);
  gauges.release_block(512);
  gauges.release_block(512);
  gauges.add_block(10, 512);
  EXPECT_FALSE(gauges.behind()) << "no peak is near";
  EXPECT_EQ(gauges.totals()[runtime::JointGauges::kBlocks], 3);
}

TEST(JointGauges, PeaksBeginAnewAndAreRemembered) {
  runtime::JointGauges gauges;
  gauges.add_block(100, 512);
  gauges.record(other(50));
  gauges.free_block(100, 512);
  gauges.release_block(512);
  gauges.begin();
  gauges.record(other(20));
  EXPECT_EQ(gauges.peaks()[runtime::JointGauges::kRequested], 20);
  EXPECT_EQ(gauges.all_time_peaks()[runtime::JointGauges::kRequested], 150);
  gauges.reset_peaks();
  EXPECT_EQ(gauges.all_time_peaks()[runtime::JointGauges::kRequested], 20);
}

class CallersFallbackTest : public ::testing::Test {
 protected:
  CallersFallbackTest() {
    plan::Decision a;
    a.size = kMiB;
    a.upper = 1;
    allocator_.enable(testing::plan_of({a}, 2));
    allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  }
  void* allocate(Bytes size, StreamId stream = 0) {
    return allocator_.allocate(size, stream, true);
  }

  device::PretendMemory device_{100 * kMiB};
  testing::FakeStreams streams_;
  runtime::StreamTable table_;
  runtime::PlannedAllocator allocator_{device_, streams_, table_, runtime::Fallback::kCallers};
};

TEST_F(CallersFallbackTest, TheCallerServesRequestsOutsideThePool) {
  void* a = allocate(kMiB);
  ASSERT_NE(a, nullptr);
  EXPECT_TRUE(allocator_.may_own(a));
  EXPECT_EQ(allocator_.inspect().pool_of(a).begin, a);
  EXPECT_EQ(allocate(3 * kMiB), nullptr);
  EXPECT_EQ(allocate(kMiB), nullptr);
  EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 2);
  EXPECT_EQ(device_.used(), kMiB) << "no fallback of its own";
  int foreign = 0;
  EXPECT_FALSE(allocator_.may_own(&foreign));
  EXPECT_EQ(allocator_.inspect().pool_of(&foreign).begin, nullptr);
  EXPECT_FALSE(allocator_.deallocate(&foreign));
  EXPECT_TRUE(allocator_.deallocate(a));
  allocator_.disable();
  EXPECT_FALSE(allocator_.may_own(a));
}

TEST_F(CallersFallbackTest, FiguresAreThoseOfBoth) {
  allocator_.figures().note_fallback(other(7 * kMiB));
  EXPECT_FALSE(allocator_.figures().are_behind());
  void* a = allocate(kMiB);
  EXPECT_TRUE(allocator_.figures().are_behind());
  allocator_.figures().note_fallback(other(5 * kMiB));
  runtime::Statistics s = allocator_.figures().statistics();
  EXPECT_EQ(s.allocated.current, 6 * kMiB);
  EXPECT_EQ(s.allocated.peak, 7 * kMiB);
  EXPECT_EQ(s.reserved.current, 6 * kMiB);
  EXPECT_EQ(s.fallback.current, 5 * kMiB);
  EXPECT_EQ(s.fallback_reserved, 5 * kMiB);
  const auto pools = allocator_.inspect().pools();
  ASSERT_EQ(pools.size(), 1u);
  ASSERT_EQ(pools[0].blocks.size(), 1u);
  EXPECT_EQ(pools[0].blocks[0].begin, a);
  EXPECT_FALSE(pools[0].blocks[0].waiting);
  allocator_.record_stream(a, 1);
  allocator_.deallocate(a);
  EXPECT_TRUE(allocator_.inspect().pools()[0].blocks[0].waiting);
  EXPECT_EQ(allocator_.figures().joint_gauges().ours()[runtime::JointGauges::kBlocks], 0);
  EXPECT_EQ(allocator_.figures().joint_gauges().ours()[runtime::JointGauges::kActiveBlocks], 1);
}

TEST_F(CallersFallbackTest, WhenTheCallerRunsOutIdleSpaceServes) {
  EXPECT_EQ(allocator_.rescue(2 * kMiB, 0), nullptr);
  EXPECT_EQ(allocator_.rescue(kMiB, 1), nullptr) << "another stream's";
  void* a = allocator_.rescue(kMiB, 0);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(allocate(kMiB), nullptr) << "the plan makes way";
  EXPECT_EQ(allocator_.figures().statistics().conflicts, 1);
  EXPECT_NE(allocator_.figures().out_of_memory_message(5 * kMiB).find("1.0 MiB of its 1.0 MiB"),
            std::string::npos);
  EXPECT_TRUE(allocator_.deallocate(a));
}

}  // namespace
}  // namespace stalloc
