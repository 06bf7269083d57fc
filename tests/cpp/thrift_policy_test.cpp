// When a caching allocator gives back what is idle.
#include "runtime/thrift_policy.h"

#include <gtest/gtest.h>

#include <algorithm>

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

// How often memory goes in a run that comes to the same peak again and again, by what is idle then.
int times_of(Bytes reserved, Bytes idle) {
  ThriftPolicy policy;
  int times = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (!policy.wants({.reserved = reserved, .idle = idle}, reserved)) continue;
    ++times;
    policy.done({.reserved = reserved - idle, .idle = 0});
  }
  return times;
}

TEST(ThriftPolicy, WantsTheMoreToBeIdleTheMoreOftenItWent) {
  EXPECT_EQ(times_of(10240 * kMiB, 40 * kMiB), 32) << "a 256th";
  EXPECT_EQ(times_of(10240 * kMiB, 160 * kMiB), 3 * 32) << "a 64th";
  EXPECT_EQ(times_of(10240 * kMiB, 5120 * kMiB), 8 * 32) << "half of it";
}

TEST(ThriftPolicy, LeavesASteadyRunItsOwnPeak) {
  ThriftPolicy policy;
  Bytes reserved = 10240 * kMiB;
  int times = 0;
  for (int i = 0; i < 10'000; ++i) {
    // A 50th is idle. If it goes, the run asks for the same again.
    if (policy.wants({.reserved = reserved, .idle = 200 * kMiB}, 200 * kMiB)) {
      ++times;
      policy.done({.reserved = reserved - 200 * kMiB, .idle = 0});
    } else {
      reserved = std::max<Bytes>(reserved, 10440 * kMiB);
    }
  }
  EXPECT_EQ(times, 3 * 32);
  EXPECT_EQ(reserved, 10440 * kMiB) << "once, not with every time";
}

}  // namespace
}  // namespace stalloc
