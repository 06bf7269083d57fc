// Large requests where the plan has a group of kept requests: samples that a run keeps are scored.
#include <gtest/gtest.h>

#include <vector>

#include "device/pretend.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr int kDecisions = 5;

// A forward of 80 MiB, after which samples are kept.
plan::Plan with_kept_group() {
  plan::Plan plan = testing::plan_of(testing::side_by_side(kDecisions, 16 * kMiB, 10), 12, 2);
  plan.phases[0].end = plan.phases[1].begin = 10;
  plan.phases[1].key = {trace::PhaseKind::kOther, kNone, 0, 0};
  plan::DynamicGroup group;
  group.phase = group.phase_end = PhaseIndex(1);
  group.lower = 11;
  group.upper = 23;
  plan.groups.push_back(group);
  plan.check();
  EXPECT_TRUE(plan.is_kept(plan.groups[0]));
  return plan;
}

class KeptRequests : public ::testing::Test {
 protected:
  KeptRequests() { allocator_.enable(with_kept_group()); }
  ~KeptRequests() override { EXPECT_EQ(device_.wrong_releases(), 0); }

  runtime::TrainingLoop& loop() { return allocator_.loop(); }
  void* allocate(Bytes size) {
    void* p = allocator_.allocate(size, 0, /*for_training=*/true);
    allocator_.inspect().check();
    return p;
  }
  bool is_in_pool(void* p) const { return allocator_.inspect().block_of(p).has_value(); }
  // Runs the forward, and enters the phase of the samples.
  void forward() {
    loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    std::vector<void*> blocks;
    for (int i = 0; i < kDecisions; ++i) blocks.push_back(allocate(16 * kMiB));
    for (void* p : blocks) EXPECT_TRUE(allocator_.deallocate(p));
    loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
  }

  device::PretendMemory device_{400 * kMiB, /*grows=*/true};
  runtime::PlannedAllocator allocator_{device_, runtime::Fallback::kOwn};
};

TEST_F(KeptRequests, ALargeOneLiesInThePool) {
  for (int i = 0; i < 3; ++i) {
    forward();
    EXPECT_FALSE(is_in_pool(allocate(2 * kMiB))) << "a sample";
    void* scores = allocate(40 * kMiB);
    EXPECT_EQ(is_in_pool(scores), i > 0) << "the first iteration may make anything";
    EXPECT_TRUE(allocator_.deallocate(scores));
    loop().end_iteration();
  }
}

TEST_F(KeptRequests, OnlyTheFirstThatStaysLiesInThePool) {
  forward();
  loop().end_iteration();
  for (int i = 0; i < 4; ++i) {
    forward();
    EXPECT_EQ(is_in_pool(allocate((20 + i) * kMiB)), i == 0);
    loop().end_iteration();
  }
}

TEST_F(KeptRequests, NoneLiesInAPoolThatIsToStayEmptyMeanwhile) {
  forward();
  loop().end_iteration();
  allocator_.keep_pauses_clear(true);
  forward();
  EXPECT_FALSE(is_in_pool(allocate(40 * kMiB)));
}

}  // namespace
}  // namespace stalloc
