#include "runtime/caching_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "device/pretend.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kGiB = Bytes{1} << 30;

TEST(CachingPool, CutsSmallRequestsFromOneSegment) {
  device::PretendMemory device(kGiB);
  runtime::CachingPool pool(device);
  void* a = pool.allocate(1, 0);
  void* b = pool.allocate(513, 0);
  EXPECT_EQ(static_cast<std::byte*>(b) - static_cast<std::byte*>(a), 512);
  EXPECT_EQ(pool.reserved(), 2 * kMiB);
  EXPECT_EQ(device.calls(), 1);
  EXPECT_EQ(pool.deallocate(a).size, 1);
  EXPECT_EQ(pool.deallocate(b).size, 513);
  pool.check();
  EXPECT_EQ(pool.allocate(kMiB, 0), a) << "freed neighbours merge";
}

TEST(CachingPool, SegmentsNotKeptGoBackWithTheirLastBlock) {
  device::PretendMemory device(kGiB);
  runtime::CachingPool pool(device);
  void* a = pool.allocate(1, 0);
  void* b = pool.allocate(1, 0);
  void* big = pool.allocate(30 * kMiB, 0);
  EXPECT_EQ(pool.deallocate(big, /*keep=*/false).size, 30 * kMiB);
  EXPECT_EQ(device.used(), 2 * kMiB);
  pool.deallocate(a, /*keep=*/false);
  EXPECT_EQ(device.used(), 2 * kMiB) << "a block of it lives";
  pool.check();
  pool.deallocate(b, /*keep=*/false);
  EXPECT_EQ(device.used(), 0);
  EXPECT_EQ(pool.reserved(), 0);
  EXPECT_EQ(device.wrong_releases(), 0);
  pool.check();
}

TEST(CachingPool, GivesBackUnusualMemoryOnceItIsOver) {
  device::PretendMemory device(kGiB);
  runtime::CachingPool pool(device);
  void* usual = pool.allocate(1, 0);
  pool.deallocate(pool.allocate(30 * kMiB, 0));
  EXPECT_EQ(pool.release_unused(), 0) << "it was used just now";
  pool.deallocate(usual);
  usual = pool.allocate(1, 0);
  EXPECT_EQ(pool.release_unused(), 30 * kMiB);
  EXPECT_EQ(device.used(), 2 * kMiB);
  EXPECT_EQ(pool.release_unused(), 0) << "a block of it lives";
  pool.deallocate(usual);
  EXPECT_EQ(pool.release_unused(), 2 * kMiB);
  EXPECT_EQ(device.used(), 0);
  EXPECT_EQ(device.wrong_releases(), 0);
  pool.check();
}

TEST(CachingPool, AThriftyPoolGrowsByNoMoreThanTheRequestNeeds) {
  device::PretendMemory device(kGiB);
  runtime::CachingPool pool(device);
  pool.set_thrifty(true, true);
  void* a = pool.allocate(8 * kMiB, 0);
  EXPECT_EQ(pool.reserved(), 8 * kMiB);
  pool.deallocate(a);
  a = pool.allocate(6 * kMiB, 0);
  EXPECT_EQ(pool.reserved(), 8 * kMiB) << "a cached segment is used again";
  pool.deallocate(a);
  pool.allocate(12 * kMiB, 0);
  EXPECT_EQ(pool.reserved(), 12 * kMiB) << "empty segments go back first";
  pool.allocate(kMiB + 1, 0);
  EXPECT_EQ(pool.reserved(), 32 * kMiB) << "small requests share a segment";
  a = pool.allocate(24 * kMiB, 0);
  pool.deallocate(a);
  pool.set_thrifty(true, false);
  pool.allocate(32 * kMiB, 0);
  EXPECT_EQ(pool.reserved(), 88 * kMiB) << "the empty segment of 24 MiB stays";
  pool.check();
}

TEST(CachingPool, SegmentSizesAreTorchs) {
  device::PretendMemory device(kGiB);
  runtime::CachingPool pool(device);
  pool.allocate(kMiB, 0);
  EXPECT_EQ(pool.reserved(), 2 * kMiB);
  pool.allocate(kMiB + 1, 0);
  EXPECT_EQ(pool.reserved(), 22 * kMiB);
  pool.allocate(19 * kMiB + 1, 0);
  EXPECT_EQ(pool.reserved(), 22 * kMiB + 20 * kMiB);
}

TEST(CachingPool, StreamsDoNotShareBlocks) {
  device::PretendMemory device(kGiB);
  runtime::CachingPool pool(device);
  void* a = pool.allocate(4096, 0);
  pool.deallocate(a);
  EXPECT_NE(pool.allocate(4096, 1), a);
  EXPECT_EQ(pool.allocate(4096, 0), a);
}

TEST(CachingPool, GivesBackCachedMemoryBeforeItFails) {
  device::PretendMemory device(40 * kMiB);
  runtime::CachingPool pool(device);
  void* a = pool.allocate(20 * kMiB, 0);
  ASSERT_NE(a, nullptr);
  pool.deallocate(a);
  EXPECT_EQ(pool.reserved(), 20 * kMiB);
  EXPECT_NE(pool.allocate(30 * kMiB, 1), nullptr);
  EXPECT_EQ(pool.reserved(), 30 * kMiB);
  EXPECT_EQ(pool.allocate(30 * kMiB, 1), nullptr);
  pool.check();
  EXPECT_EQ(device.used(), 30 * kMiB);
}

TEST(CachingPool, KnowsItsOwn) {
  device::PretendMemory device(kGiB);
  runtime::CachingPool pool(device);
  auto* a = static_cast<std::byte*>(pool.allocate(4096, 0));
  int other = 0;
  EXPECT_EQ(pool.deallocate(&other).size, runtime::CachingPool::kNotOurs);
  EXPECT_EQ(pool.deallocate(a + 512).size, runtime::CachingPool::kNotOurs)
      << "the middle of a block";
  EXPECT_EQ(pool.deallocate(a).size, 4096);
  EXPECT_EQ(pool.deallocate(a).size, runtime::CachingPool::kNotOurs) << "freed twice";
}

TEST(CachingPool, StressWithFailuresKeepsItsInvariants) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    device::PretendMemory device(70 * kMiB);
    {
      runtime::CachingPool pool(device);
      std::map<std::uintptr_t, Bytes> live;
      int failures = 0;
      for (int step = 0; step < 1500; ++step) {
        if (pick(0, 60) == 0) device.fail_at(pick(1, 3));
        if (pick(0, 99) == 0) pool.release_cached();
        if (pick(0, 49) == 0) pool.release_unused();
        if (pick(0, 9) < 6) {
          const Bytes size = pick(0, 3) == 0 ? pick(1, 30) * kMiB / 3 : pick(1, 100000);
          void* p = pool.allocate(size, pick(0, 2));
          if (!p) {
            ++failures;
            continue;
          }
          const auto address = reinterpret_cast<std::uintptr_t>(p);
          ASSERT_EQ(address % kDefaultAlignment, 0u);
          const auto next = live.lower_bound(address);
          ASSERT_TRUE(next == live.end() ||
                      address + static_cast<std::uintptr_t>(size) <= next->first);
          ASSERT_TRUE(next == live.begin() ||
                      std::prev(next)->first +
                              static_cast<std::uintptr_t>(std::prev(next)->second) <=
                          address);
          live[address] = size;
        } else if (!live.empty()) {
          auto it = std::next(live.begin(), pick(0, static_cast<int>(live.size()) - 1));
          ASSERT_EQ(pool.deallocate(reinterpret_cast<void*>(it->first)).size, it->second);
          live.erase(it);
        }
        ASSERT_NO_THROW(pool.check());
      }
      EXPECT_GT(failures, 0);
      EXPECT_EQ(pool.reserved(), device.used());
    }
    EXPECT_EQ(device.used(), 0) << "a pool that goes gives everything back";
    EXPECT_EQ(device.wrong_releases(), 0);
  }
}

}  // namespace
}  // namespace stalloc
