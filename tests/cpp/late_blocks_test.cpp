#include "runtime/late_blocks.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "device/pretend.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kSmall = 512;
constexpr Bytes kMiB = Bytes{1} << 20;
constexpr std::int64_t kDecisions = 2 * runtime::LateBlocks::kShare;

// One block after another at the same addresses, and idle space behind them.
plan::Plan queue(Bytes first) {
  std::vector<plan::Decision> decisions;
  for (std::int64_t i = 0; i < kDecisions; ++i) {
    plan::Decision d;
    d.size = i == 0 ? first : kSmall;
    d.lower = 2 * i;
    d.upper = 2 * i + 1;
    d.phase = PhaseIndex(0);
    decisions.push_back(d);
  }
  plan::Plan plan = testing::plan_of(std::move(decisions), 2 * kDecisions);
  plan.pool = 2 * kMiB;
  return plan;
}

class LateBlocksTest : public ::testing::Test {
 protected:
  // The hits of an iteration whose request `late` is in the way of `harm` others, if they need its
  // addresses; kDecisions: no request is late.
  std::int64_t hits(Bytes first, std::int64_t late, std::int64_t harm = kDecisions) {
    const std::int64_t before = allocator_.figures().statistics().hits;
    allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    void* kept = nullptr;
    for (std::int64_t i = 0; i < kDecisions; ++i) {
      if (kept && i == late + harm + 1) allocator_.deallocate(std::exchange(kept, nullptr));
      void* p = allocator_.allocate(i == 0 ? first : kSmall, 0, /*for_training=*/false);
      if (i == late) {
        kept = p;
      } else if (p) {
        allocator_.deallocate(p);
      }
    }
    if (kept) allocator_.deallocate(kept);
    allocator_.loop().end_iteration();
    return allocator_.figures().statistics().hits - before;
  }

  device::PretendMemory device_{100 * kMiB};
  runtime::PlannedAllocator allocator_{device_};
};

TEST_F(LateBlocksTest, ASmallBlockThatWasInTheWayLiesOutsideThePool) {
  allocator_.enable(queue(kSmall));
  EXPECT_EQ(hits(kSmall, kDecisions), kDecisions);
  EXPECT_EQ(hits(kSmall, 0), 1) << "all others need its addresses";
  EXPECT_EQ(hits(kSmall, 0), kDecisions - 1) << "it is in nobody's way";
  EXPECT_EQ(hits(kSmall, kDecisions), kDecisions - 1);
}

TEST_F(LateBlocksTest, ABlockThatWasInTheWayOfFewStaysInThePool) {
  allocator_.enable(queue(kSmall));
  const std::int64_t few = runtime::LateBlocks::kMostHarm - 1;
  EXPECT_EQ(hits(kSmall, 0, few), kDecisions - few);
  EXPECT_EQ(hits(kSmall, kDecisions), kDecisions);
  EXPECT_EQ(hits(kSmall, 0, 1), kDecisions - 1);
  EXPECT_EQ(hits(kSmall, kDecisions), kDecisions - 1) << "the harm of all iterations counts";
}

TEST_F(LateBlocksTest, ALargeBlockStaysInThePool) {
  allocator_.enable(queue(kMiB));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(hits(kMiB, 0), 1);
  EXPECT_EQ(hits(kMiB, kDecisions), kDecisions);
}

TEST_F(LateBlocksTest, FewDecisionsAreTakenOut) {
  allocator_.enable(queue(kSmall));
  for (std::int64_t late = 0; late < 8; ++late) hits(kSmall, late);
  EXPECT_EQ(hits(kSmall, kDecisions), kDecisions - kDecisions / std::int64_t{200});
}

}  // namespace
}  // namespace stalloc
