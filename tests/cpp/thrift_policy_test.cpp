// When a caching allocator gives back what is idle.
#include "runtime/thrift_policy.h"

#include <gtest/gtest.h>

namespace stalloc {
namespace {

using runtime::ThriftPolicy;

constexpr Bytes kMiB = Bytes{1} << 20;

TEST(ThriftPolicy, WantsWhatIsIdleBeforeANewPeak) {
  ThriftPolicy policy;
  EXPECT_FALSE(policy.wants({.reserved = 500 * kMiB, .idle = 0}, 100 * kMiB)) << "nothing is idle";
  EXPECT_FALSE(policy.wants({.reserved = 500 * kMiB, .idle = 300 * kMiB}, 100 * kMiB))
      << "the run has held 600 MiB";
  EXPECT_TRUE(policy.wants({.reserved = 500 * kMiB, .idle = 300 * kMiB}, 101 * kMiB));
}

TEST(ThriftPolicy, LeavesWhatIsNotWorthTheCalls) {
  ThriftPolicy policy;
  EXPECT_FALSE(policy.wants({.reserved = 500 * kMiB, .idle = 19 * kMiB}, kMiB)) << "a page";
  EXPECT_FALSE(policy.wants({.reserved = 10240 * kMiB, .idle = 39 * kMiB}, kMiB)) << "a 256th";
  EXPECT_TRUE(policy.wants({.reserved = 10300 * kMiB, .idle = 50 * kMiB}, kMiB));
}

TEST(ThriftPolicy, DoesNotAskAgainForWhatCouldNotGo) {
  ThriftPolicy policy;
  ASSERT_TRUE(policy.wants({.reserved = 500 * kMiB, .idle = 300 * kMiB}, 600 * kMiB));
  policy.done({.reserved = 400 * kMiB, .idle = 200 * kMiB});
  EXPECT_FALSE(policy.wants({.reserved = 1000 * kMiB, .idle = 210 * kMiB}, 600 * kMiB));
  EXPECT_TRUE(policy.wants({.reserved = 1600 * kMiB, .idle = 230 * kMiB}, 600 * kMiB));
}

TEST(ThriftPolicy, LetsThePeakRiseIfMemoryGoesAgainAndAgain) {
  ThriftPolicy policy;
  int asked = 0;
  for (int i = 0; i < 10'000; ++i) {
    // Each time the same peak, from the same memory.
    if (!policy.wants({.reserved = 1280 * kMiB, .idle = 640 * kMiB}, 640 * kMiB)) continue;
    ++asked;
    policy.done({.reserved = 640 * kMiB, .idle = 0});
  }
  EXPECT_GT(asked, 256);
  EXPECT_LT(asked, 256 + 2 * 128) << "then the run has what it asks for";
}

}  // namespace
}  // namespace stalloc
