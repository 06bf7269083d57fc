// Segments of the own fallback that lose memory between their live blocks, and get it back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "device/host.h"
#include "device/pretend.h"
#include "plans.h"
#include "runtime/caching_pool.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kGiB = Bytes{1} << 30;

class CachingPoolMemory : public ::testing::Test {
 protected:
  CachingPoolMemory() { pool_.set_moves(true); }
  ~CachingPoolMemory() override {
    pool_.check();
    EXPECT_EQ(pool_.reserved(), device_.used());
    EXPECT_EQ(device_.wrong_releases(), 0);
  }

  // A segment of 100 MiB with two live blocks of 20 MiB and 60 MiB free between them.
  void make_hole() {
    pool_.deallocate(pool_.allocate(100 * kMiB, 0));
    first_ = pool_.allocate(20 * kMiB, 0);
    hole_ = pool_.allocate(60 * kMiB, 0);
    last_ = pool_.allocate(20 * kMiB, 0);
    pool_.deallocate(hole_);
    ASSERT_EQ(pool_.reserved(), 100 * kMiB);
  }

  device::PretendMemory device_{130 * kMiB, /*grows=*/true};
  runtime::CachingPool pool_{device_};
  void* first_ = nullptr;
  void* hole_ = nullptr;
  void* last_ = nullptr;
};

TEST_F(CachingPoolMemory, GoesBetweenLiveBlocksAndComesBackWithTheNextRequest) {
  make_hole();
  EXPECT_EQ(pool_.give_back(50 * kMiB, 0, 0), 50 * kMiB) << "the end of the free block";
  EXPECT_EQ(device_.used(), 50 * kMiB);
  EXPECT_FALSE(pool_.holds(kMiB + 1, 0)) << "10 MiB of the block are left, but not all";
  EXPECT_EQ(pool_.growth(40 * kMiB, 0), 30 * kMiB);
  EXPECT_EQ(pool_.growth(40 * kMiB, 1), 40 * kMiB) << "a segment of the other stream";
  EXPECT_EQ(pool_.growth(61 * kMiB, 0), 62 * kMiB) << "a segment: the block is too small";
  EXPECT_EQ(pool_.allocate(40 * kMiB, 0), hole_);
  EXPECT_EQ(device_.used(), 80 * kMiB);
  pool_.check();
  pool_.deallocate(hole_);
  EXPECT_FALSE(pool_.holds(2 * kMiB, 0));
  EXPECT_EQ(pool_.growth(60 * kMiB, 0), 20 * kMiB) << "free neighbours merge";
  EXPECT_EQ(pool_.allocate(60 * kMiB, 0), hole_);
  EXPECT_EQ(device_.used(), 100 * kMiB);
}

TEST_F(CachingPoolMemory, IsNoPartOfASegmentThatIsListed) {
  make_hole();
  pool_.give_back(50 * kMiB, 0, 0);
  const auto parts = pool_.segments();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].begin, first_);
  EXPECT_EQ(parts[0].size, 30 * kMiB);
  EXPECT_EQ(parts[1].begin, last_);
  EXPECT_EQ(parts[1].size, 20 * kMiB);
  EXPECT_EQ(pool_.segment_of(static_cast<std::byte*>(last_) + kMiB).begin, last_);
  EXPECT_EQ(pool_.segment_of(static_cast<std::byte*>(hole_)).begin, first_);
  EXPECT_EQ(pool_.segment_of(static_cast<std::byte*>(hole_) + 30 * kMiB).begin, nullptr);
}

// A free neighbour without memory before a block that was just freed costs the block nothing.
TEST_F(CachingPoolMemory, ThatIsThereIsUsedWhereverItLies) {
  make_hole();
  EXPECT_EQ(pool_.give_back(60 * kMiB, 0, 0), 60 * kMiB);
  pool_.deallocate(last_);
  EXPECT_EQ(pool_.growth(20 * kMiB, 0), 0);
  EXPECT_EQ(pool_.allocate(20 * kMiB, 0), last_) << "the end of the block";
  pool_.deallocate(last_);
  EXPECT_EQ(pool_.growth(30 * kMiB, 0), 10 * kMiB);
  EXPECT_EQ(pool_.allocate(30 * kMiB, 0), static_cast<std::byte*>(last_) - 10 * kMiB);
  EXPECT_EQ(device_.used(), 50 * kMiB);
}

// The device waits before memory is unmapped, which would spoil the capture.
TEST_F(CachingPoolMemory, StaysAndDoesNotComeDuringACapture) {
  make_hole();
  pool_.give_back(50 * kMiB, 0, 0);
  pool_.set_capturing(true);
  EXPECT_EQ(pool_.give_back(50 * kMiB, 0, 0), 0);
  EXPECT_EQ(pool_.allocate(10 * kMiB, 0), hole_) << "10 MiB are there";
  pool_.deallocate(hole_);
  EXPECT_NE(pool_.allocate(20 * kMiB, 0), hole_);
  EXPECT_EQ(device_.used(), 70 * kMiB) << "a plain segment";
  pool_.deallocate(first_);
  pool_.deallocate(last_, /*keep=*/false);
  EXPECT_EQ(pool_.release_cached(), 0);
  pool_.release_unused();
  EXPECT_EQ(pool_.release_unused(), 0);
  pool_.set_capturing(false);
  EXPECT_EQ(pool_.release_cached(), 50 * kMiB);
}

TEST_F(CachingPoolMemory, ComesAsTheLastResort) {
  make_hole();
  pool_.give_back(50 * kMiB, 0, 0);
  void* rest = device_.allocate(30 * kMiB);
  pool_.set_moves(false);
  EXPECT_EQ(pool_.largest_hole(), 10 * kMiB) << "what is there";
  EXPECT_EQ(pool_.allocate(60 * kMiB, 0), hole_) << "50 MiB are left, too few for a segment";
  device_.release(rest, 30 * kMiB);
}

TEST_F(CachingPoolMemory, GoesWithItsSegment) {
  make_hole();
  pool_.give_back(50 * kMiB, 0, 0);
  pool_.deallocate(first_);
  pool_.deallocate(last_);
  EXPECT_EQ(pool_.release_cached(), 50 * kMiB);
  EXPECT_EQ(device_.used(), 0);
}

TEST_F(CachingPoolMemory, StaysInTheBlockOfTheNextRequest) {
  make_hole();
  EXPECT_EQ(pool_.give_back(10 * kMiB, 0, 0), 10 * kMiB);
  EXPECT_EQ(pool_.give_back(50 * kMiB, 55 * kMiB, 0), 0);
  EXPECT_EQ(pool_.give_back(50 * kMiB, 55 * kMiB, 1), 50 * kMiB) << "another stream's request";
}

TEST_F(CachingPoolMemory, OfPlainAndSmallSegmentsStays) {
  pool_.set_moves(false);
  make_hole();
  void* small = pool_.allocate(1, 0);
  EXPECT_EQ(pool_.give_back(50 * kMiB, 0, 0), 0);
  pool_.set_moves(true);
  EXPECT_EQ(pool_.give_back(50 * kMiB, 0, 0), 0);
  EXPECT_EQ(pool_.reserved(), 102 * kMiB);
  pool_.deallocate(small);
}

TEST_F(CachingPoolMemory, DoesNotComeWhileMemoryMayNotMove) {
  make_hole();
  pool_.give_back(50 * kMiB, 0, 0);
  pool_.set_moves(false);
  void* other = pool_.allocate(40 * kMiB, 0);
  EXPECT_NE(other, hole_);
  EXPECT_EQ(device_.used(), 90 * kMiB) << "a segment of its own";
}

TEST_F(CachingPoolMemory, ThatTheDeviceLacksIsSoughtElsewhere) {
  make_hole();
  pool_.give_back(50 * kMiB, 0, 0);
  void* rest = device_.allocate(60 * kMiB);
  EXPECT_EQ(pool_.allocate(40 * kMiB, 0), nullptr) << "20 MiB are left";
  pool_.check();
  EXPECT_EQ(pool_.allocate(20 * kMiB, 0), hole_) << "10 of them";
  device_.release(rest, 60 * kMiB);
  pool_.deallocate(hole_);
  device_.fail_at(1);
  void* other = pool_.allocate(60 * kMiB, 0);
  EXPECT_NE(other, nullptr) << "a segment of its own";
  EXPECT_NE(other, hole_);
}

// Memory that goes and comes changes no content of live blocks.
TEST(CachingPoolMemoryStress, KeepsContentAndInvariants) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    device::HostMemory device(6 * kMiB);
    runtime::CachingPool pool(device);
    std::map<std::byte*, Bytes> live;
    int given_back = 0;
    for (int step = 0; step < 3000; ++step) {
      pool.set_moves(pick(0, 4) > 0);
      if (pick(0, 19) == 0) pool.release_cached();
      if (pick(0, 49) == 0) pool.release_unused();
      if (pick(0, 4) == 0) {
        const Bytes before = pool.reserved();
        const Bytes gone = pool.give_back(pick(1, 64) * 8192, pick(1, 1 << 18), pick(0, 1));
        ASSERT_EQ(pool.reserved(), before - gone);
        given_back += gone > 0 ? 1 : 0;
      }
      if (pick(0, 9) < 6) {
        const Bytes size = pick(0, 2) == 0 ? pick(1, 8000) : pick(8192, 400000);
        auto* p = static_cast<std::byte*>(pool.allocate(size, pick(0, 1)));
        if (p) {
          std::memset(p, static_cast<int>(reinterpret_cast<std::uintptr_t>(p) / 512 % 251),
                      static_cast<std::size_t>(size));
          live[p] = size;
        }
      } else if (!live.empty()) {
        const auto it = std::next(live.begin(), pick(0, static_cast<int>(live.size()) - 1));
        const auto [p, size] = *it;
        const auto value = static_cast<std::byte>(reinterpret_cast<std::uintptr_t>(p) / 512 % 251);
        ASSERT_TRUE(std::all_of(p, p + size, [&](std::byte b) { return b == value; }));
        ASSERT_EQ(pool.deallocate(p).size, size);
        live.erase(it);
      }
      ASSERT_NO_THROW(pool.check());
      ASSERT_EQ(device.available(), 6 * kMiB - pool.reserved());
    }
    EXPECT_GT(given_back, 20);
  }
}

TEST(CachingPoolMemoryStress, SurvivesADeviceThatFails) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    device::PretendMemory device(200 * kMiB, /*grows=*/true);
    {
      runtime::CachingPool pool(device);
      std::map<std::byte*, Bytes> live;
      for (int step = 0; step < 1500; ++step) {
        pool.set_moves(pick(0, 4) > 0);
        if (pick(0, 30) == 0) device.fail_at(pick(1, 3));
        if (pick(0, 49) == 0) pool.release_cached();
        if (pick(0, 4) == 0) pool.give_back(pick(1, 40) * kMiB, pick(1, 60) * kMiB, pick(0, 1));
        if (pick(0, 9) < 6) {
          const Bytes size = pick(1, 200) * kMiB / 5;
          auto* p = static_cast<std::byte*>(pool.allocate(size, pick(0, 1)));
          if (!p) continue;
          const auto next = live.lower_bound(p);
          ASSERT_TRUE(next == live.end() || p + size <= next->first);
          ASSERT_TRUE(next == live.begin() ||
                      std::prev(next)->first + std::prev(next)->second <= p);
          live[p] = size;
        } else if (!live.empty()) {
          const auto it = std::next(live.begin(), pick(0, static_cast<int>(live.size()) - 1));
          ASSERT_EQ(pool.deallocate(it->first).size, it->second);
          live.erase(it);
        }
        ASSERT_NO_THROW(pool.check());
        ASSERT_EQ(pool.reserved(), device.used());
      }
    }
    EXPECT_EQ(device.used(), 0) << "a pool that goes gives everything back";
    EXPECT_EQ(device.wrong_releases(), 0);
  }
}

// Beside a plan the run does not come to a new peak while memory lies idle between blocks.
TEST(CachingPoolMemoryBesideAPlan, GoesBeforeTheRunComesToANewPeak) {
  device::PretendMemory device(kGiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(device, runtime::Fallback::kOwn);
  const auto allocate = [&](Bytes size) {
    void* p = allocator.allocate(size, 0, /*for_training=*/true);
    allocator.inspect().check();
    return p;
  };
  std::vector<plan::Decision> decisions;
  for (int i = 0; i < 5; ++i) {
    decisions.push_back(testing::decision(16 * kMiB, i * 16 * kMiB, 2 * i, 10));
  }
  allocator.enable(testing::plan_of(decisions, 10));
  allocator.drain(/*departed=*/true);
  allocator.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  std::vector<void*> planned;
  for (int i = 0; i < 5; ++i) planned.push_back(allocate(16 * kMiB));
  allocator.deallocate(allocate(100 * kMiB));
  void* first = allocate(20 * kMiB);
  void* hole = allocate(60 * kMiB);
  void* last = allocate(20 * kMiB);
  allocator.deallocate(hole);
  ASSERT_EQ(device.used(), 180 * kMiB);
  void* other = allocate(61 * kMiB);
  EXPECT_LE(device.used(), 182 * kMiB) << "60 MiB have moved";
  EXPECT_EQ(allocator.figures().statistics().reserved.current, device.used());
  for (void* p : planned) EXPECT_TRUE(allocator.deallocate(p));
  for (void* p : {first, last, other}) EXPECT_TRUE(allocator.deallocate(p));
  allocator.disable();
  EXPECT_EQ(device.used(), 0);
}

}  // namespace
}  // namespace stalloc
