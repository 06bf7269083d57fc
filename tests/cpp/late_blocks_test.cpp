#include "runtime/late_blocks.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

#include "device/pretend.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kSmall = 512;
constexpr Bytes kMiB = Bytes{1} << 20;
constexpr std::int64_t kShare = runtime::LateBlocks::kShare;
constexpr std::int64_t kDecisions = 2 * kShare;
constexpr std::int64_t kNone = -1;

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

enum class By { kTraining, kItsGraph, kAnother };

class LateBlocksTest : public ::testing::Test {
 protected:
  // The hits of an iteration whose request `late` is freed when all others have been made.
  std::int64_t hits(Bytes first, std::int64_t late, By by = By::kAnother) {
    const std::int64_t before = allocator_.figures().statistics().hits;
    allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    void* kept = nullptr;
    for (std::int64_t i = 0; i < kDecisions; ++i) {
      void* p = allocator_.allocate(i == 0 ? first : kSmall, 0, /*for_training=*/false);
      if (i == late) {
        kept = p;
      } else {
        allocator_.deallocate(p);
      }
    }
    if (kept) free(kept, by);
    allocator_.loop().end_iteration();
    return allocator_.figures().statistics().hits - before;
  }

  void free(void* p, By by) {
    if (by == By::kTraining) {
      allocator_.deallocate(p);
    } else {
      std::thread([&] { allocator_.deallocate(p, by == By::kItsGraph); }).join();
    }
  }

  device::PretendMemory device_{100 * kMiB};
  runtime::PlannedAllocator allocator_{device_};
};

TEST_F(LateBlocksTest, ASmallBlockThatAnotherThreadFreesLateLiesOutsideThePool) {
  allocator_.enable(queue(kSmall));
  EXPECT_EQ(hits(kSmall, kNone), kDecisions);
  EXPECT_EQ(hits(kSmall, 0), 1) << "all others need its addresses";
  EXPECT_EQ(hits(kSmall, 0), kDecisions - 1) << "it is in nobody's way";
  EXPECT_EQ(hits(kSmall, kNone), kDecisions - 1);
}

TEST_F(LateBlocksTest, ABlockThatTheTrainingFreesLateStaysInThePool) {
  allocator_.enable(queue(kSmall));
  for (const By by : {By::kTraining, By::kItsGraph}) {
    EXPECT_EQ(hits(kSmall, 0, by), 1);
    EXPECT_EQ(hits(kSmall, kNone), kDecisions);
  }
}

TEST_F(LateBlocksTest, ABlockThatAnotherThreadFreesInTimeStaysInThePool) {
  allocator_.enable(queue(kSmall));
  EXPECT_EQ(hits(kSmall, kDecisions - 1), kDecisions);
  EXPECT_EQ(hits(kSmall, kNone), kDecisions);
}

TEST_F(LateBlocksTest, ALargeBlockStaysInThePool) {
  allocator_.enable(queue(kMiB));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(hits(kMiB, 0), 1);
  EXPECT_EQ(hits(kMiB, kNone), kDecisions);
}

TEST_F(LateBlocksTest, FewDecisionsAreTakenOut) {
  allocator_.enable(queue(kSmall));
  for (std::int64_t late = 0; late < 8; ++late) hits(kSmall, late);
  EXPECT_EQ(hits(kSmall, kNone), kDecisions - kDecisions / kShare);
}

}  // namespace
}  // namespace stalloc
