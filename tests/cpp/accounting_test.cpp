// The figures by which a pool grows: its own, or those of both allocators.
#include "runtime/accounting.h"

#include <gtest/gtest.h>

namespace stalloc::runtime {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

JointGauges::Values other(Bytes requested, Bytes active, Bytes reserved) {
  JointGauges::Values values{};
  values[JointGauges::kRequested] = requested;
  values[JointGauges::kActiveBytes] = active;
  values[JointGauges::kReserved] = reserved;
  return values;
}

void enable(Accounting& accounting) {
  accounting.begin();
  accounting.set_reserved(20 * kMiB, 1, 0);
  accounting.begin_joint();
}

StaticPool::Block block_of(Bytes size) { return {.size = size}; }

TEST(Accounting, CountsBothAllocatorsWhereTheCallerServesTheFallback) {
  Accounting accounting(/*joint=*/true);
  enable(accounting);
  EXPECT_EQ(accounting.cached_by_caller(), 0) << "it has told nothing yet";
  accounting.note_fallback(other(5 * kMiB, 6 * kMiB, 9 * kMiB));
  EXPECT_EQ(accounting.live(), 5 * kMiB);
  EXPECT_EQ(accounting.reserved(), 29 * kMiB);
  EXPECT_EQ(accounting.cached_by_caller(), 3 * kMiB);
  accounting.add_block(10 * kMiB - 1, 10 * kMiB);
  EXPECT_EQ(accounting.live(), 15 * kMiB - 1) << "as asked for";
  EXPECT_EQ(accounting.most_live(), 15 * kMiB - 1) << "before the caller tells again";
  accounting.note_fallback(other(0, 0, 9 * kMiB));
  EXPECT_EQ(accounting.live(), 10 * kMiB - 1);
  EXPECT_EQ(accounting.cached_by_caller(), 9 * kMiB);
  accounting.set_reserved(12 * kMiB, 1, 0);
  EXPECT_EQ(accounting.reserved(), 21 * kMiB);
}

TEST(Accounting, CountsTheOwnAllocatorAloneOtherwise) {
  Accounting accounting(/*joint=*/false);
  enable(accounting);
  accounting.add_block(10 * kMiB, 10 * kMiB);
  accounting.counts().fallback.add(4 * kMiB);
  accounting.add_block(4 * kMiB, 4 * kMiB);
  accounting.set_reserved(20 * kMiB, 1, 6 * kMiB);
  EXPECT_EQ(accounting.live(), 14 * kMiB);
  EXPECT_EQ(accounting.reserved(), 26 * kMiB) << "with the own fallback";
  EXPECT_EQ(accounting.cached_by_caller(), 0);
  accounting.free_fallback_block(4 * kMiB, /*dynamic=*/false);
  EXPECT_EQ(accounting.live(), 10 * kMiB);
  EXPECT_EQ(accounting.most_live(), 14 * kMiB);
}

TEST(Accounting, RemembersTheMostLiveBytesWhenPeaksAreReset) {
  for (const bool joint : {false, true}) {
    Accounting accounting(joint);
    enable(accounting);
    accounting.add_block(10 * kMiB, 10 * kMiB);
    const Bytes others = joint ? 5 * kMiB : 0;
    if (joint) accounting.note_fallback(other(others, others, others));
    accounting.free_block(block_of(10 * kMiB), 10 * kMiB);
    accounting.release_block(10 * kMiB);
    if (joint) accounting.note_fallback(other(0, 0, others));
    for (int i = 0; i < 2; ++i) {
      accounting.reset_peaks();
      EXPECT_EQ(accounting.live(), 0) << joint;
      EXPECT_EQ(accounting.most_live(), 10 * kMiB + others) << joint << i;
    }
    accounting.add_block(3 * kMiB, 3 * kMiB);
    EXPECT_EQ(accounting.most_live(), 10 * kMiB + others) << joint << " although fewer are live";
    enable(accounting);
    EXPECT_EQ(accounting.most_live(), 3 * kMiB) << joint << " of another plan";
  }
}

}  // namespace
}  // namespace stalloc::runtime
