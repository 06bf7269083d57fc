// Layouts for extents that the profile had: they need about its load, unless microbatches do not
// match those of the plan.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/pretend.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

// A plan for 16 tokens whose profile had up to 100 in another microbatch. Its load is 32 MiB.
plan::Plan block_of_tokens() {
  plan::Plan plan = testing::block_of_tokens(kMiB);
  plan.seen.push_back({100});
  plan.load = 32 * kMiB;
  return plan;
}

class ProfiledExtents : public ::testing::TestWithParam<bool> {
 protected:
  ProfiledExtents() { allocator_.enable(block_of_tokens()); }

  // Trains an iteration of so many tokens. Returns the pool's memory.
  Bytes train(std::int64_t tokens) {
    const std::vector<std::string> names = {"ids.0"};
    allocator_.loop().set_extents(names, std::vector<std::int64_t>{tokens});
    allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    void* p = allocator_.allocate(tokens * kMiB, 0, /*for_training=*/true);
    allocator_.inspect().check();
    EXPECT_TRUE(allocator_.deallocate(p));
    allocator_.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    allocator_.loop().end_iteration();
    return statistics().pool;
  }
  runtime::Statistics statistics() const { return allocator_.figures().statistics(); }

  device::PretendMemory device_{2048 * kMiB, /*grows=*/GetParam()};
  runtime::PlannedAllocator allocator_{device_};
};

TEST_P(ProfiledExtents, GetALayoutOfUpToTwiceTheProfilesLoad) {
  EXPECT_EQ(train(64), 64 * kMiB);
  EXPECT_EQ(statistics().relayouts, 1);
  EXPECT_EQ(statistics().fallback_requests, 0);
}

// The request lies beside the pool, or takes as much memory in one that grows.
TEST_P(ProfiledExtents, GetNoLayoutThatNeedsMore) {
  EXPECT_EQ(train(65), (GetParam() ? 65 : 16) * kMiB);
  EXPECT_EQ(statistics().relayouts, 0);
  EXPECT_EQ(statistics().hits, 0);
  EXPECT_EQ(statistics().fallback_requests, GetParam() ? 0 : 1);
  train(16);
  EXPECT_EQ(statistics().hits, 1);
}

// Regions of dynamic requests can add up to more than the load.
TEST_P(ProfiledExtents, GetALayoutOfUpToTwiceThePlansBound) {
  plan::Plan plan = block_of_tokens();
  plan.pool = plan.bound = 40 * kMiB;
  allocator_.enable(plan);
  EXPECT_EQ(train(80), 80 * kMiB);
  EXPECT_EQ(statistics().hits, 1);
}

TEST_P(ProfiledExtents, AreNotThoseBeyondTheProfile) {
  EXPECT_EQ(train(101), 101 * kMiB);
  EXPECT_EQ(statistics().relayouts, 1);
  EXPECT_EQ(statistics().hits, 1);
}

INSTANTIATE_TEST_SUITE_P(OfPools, ProfiledExtents, ::testing::Bool(), [](const auto& pool) {
  return pool.param ? "ThatGrow" : "ThatAreExchanged";
});

}  // namespace
}  // namespace stalloc
