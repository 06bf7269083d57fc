// The machine's memory as a device: pools that grow in place, and limits.
#include <gtest/gtest.h>

#include <cstring>

#include "device/host.h"

namespace stalloc::device {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

TEST(HostMemory, PoolsGrowInPlaceAndKeepTheirContent) {
  HostMemory memory(64 * kMiB);
  auto* pool = static_cast<unsigned char*>(memory.allocate_pool(kMiB + 100, /*grows=*/true));
  ASSERT_NE(pool, nullptr);
  ASSERT_TRUE(memory.can_grow(pool));
  std::memset(pool, 7, kMiB + 100);
  ASSERT_TRUE(memory.grow(pool, kMiB + 100, 3 * kMiB + 1));
  std::memset(pool + kMiB + 100, 9, 2 * kMiB - 99);
  EXPECT_EQ(pool[kMiB + 99], 7);
  EXPECT_EQ(pool[3 * kMiB], 9);
  EXPECT_EQ(memory.available(), 61 * kMiB - 1);
  EXPECT_FALSE(memory.grow(pool, 3 * kMiB + 1, 65 * kMiB)) << "the limit";
  EXPECT_EQ(memory.available(), 61 * kMiB - 1);

  ASSERT_TRUE(memory.suspend(pool, 3 * kMiB + 1));
  EXPECT_FALSE(memory.grow(pool, 3 * kMiB + 1, 4 * kMiB)) << "it has no memory now";
  ASSERT_TRUE(memory.resume(pool, 3 * kMiB + 1));
  ASSERT_TRUE(memory.grow(pool, 3 * kMiB + 1, 4 * kMiB));
  std::memset(pool, 1, 4 * kMiB);
  memory.release(pool, 4 * kMiB);
  EXPECT_EQ(memory.available(), 64 * kMiB);
}

TEST(HostMemory, MemoryMovesWithinAPool) {
  HostMemory memory(64 * kMiB);
  auto* pool = static_cast<unsigned char*>(memory.allocate_pool(8 * kMiB + 100, /*grows=*/true));
  std::memset(pool, 7, 8 * kMiB + 100);
  const Range moved = memory.detach(pool, {kMiB + 1, 3 * kMiB + 1});
  EXPECT_EQ(moved, (Range{kMiB + 4096, 3 * kMiB})) << "whole pages";
  EXPECT_EQ(memory.available(), 56 * kMiB - 100);
  ASSERT_TRUE(memory.grow(pool, 8 * kMiB + 100, 8 * kMiB + 100 + moved.size()));
  EXPECT_EQ(memory.available(), 56 * kMiB - 100) << "no other memory was taken";
  std::memset(pool + 8 * kMiB + 100, 9, static_cast<std::size_t>(moved.size()));
  EXPECT_EQ(pool[moved.begin - 1], 7);
  EXPECT_EQ(pool[moved.end], 7);
  EXPECT_EQ(pool[8 * kMiB + 99], 7);

  const Range back = memory.detach(pool, {8 * kMiB + 100, 8 * kMiB + 100 + moved.size()});
  EXPECT_EQ(back.begin, 8 * kMiB + 4096) << "the page of the last bytes stays";
  ASSERT_TRUE(memory.attach(pool, moved));
  memory.drop_detached(pool);
  std::memset(pool + moved.begin, 5, static_cast<std::size_t>(moved.size()));
  EXPECT_EQ(pool[moved.begin - 1], 7);
  EXPECT_EQ(pool[moved.end], 7);
  EXPECT_EQ(memory.available(), 56 * kMiB - 4096);
  ASSERT_EQ(memory.detach(pool, {0, kMiB}).size(), kMiB);
  memory.drop_detached(pool);
  void* rest = memory.allocate(57 * kMiB - 4096);
  ASSERT_NE(rest, nullptr);
  EXPECT_FALSE(memory.attach(pool, {0, kMiB})) << "the limit";
  memory.release(rest, 57 * kMiB - 4096);
  EXPECT_FALSE(memory.attach(pool, {0, 2 * kMiB})) << "the second has memory";
  EXPECT_TRUE(memory.attach(pool, {0, kMiB}));
  memory.release(pool, 8 * kMiB + 4096);
  EXPECT_EQ(memory.available(), 64 * kMiB);
}

TEST(HostMemory, APoolBeginsWithAPartOfItsMemory) {
  HostMemory memory(64 * kMiB);
  auto* pool = static_cast<unsigned char*>(memory.allocate_addresses(100 * kMiB, 2 * kMiB));
  ASSERT_NE(pool, nullptr) << "more addresses than memory";
  EXPECT_EQ(memory.available(), 62 * kMiB);
  std::memset(pool, 1, 2 * kMiB);
  ASSERT_TRUE(memory.attach(pool, {50 * kMiB, 60 * kMiB}));
  std::memset(pool + 50 * kMiB, 2, 10 * kMiB);
  EXPECT_EQ(memory.available(), 52 * kMiB);
  ASSERT_TRUE(memory.grow(pool, 100 * kMiB, 101 * kMiB)) << "behind all addresses";
  std::memset(pool + 100 * kMiB, 3, kMiB);
  EXPECT_EQ(pool[2 * kMiB - 1], 1);
  EXPECT_EQ(memory.allocate_addresses(100 * kMiB, 52 * kMiB), nullptr) << "the limit";
  memory.release(pool, 101 * kMiB);
  EXPECT_EQ(memory.available(), 64 * kMiB);
}

TEST(HostMemory, AMovablePieceLosesMemoryAndGetsItBack) {
  HostMemory memory(64 * kMiB);
  auto* piece =
      static_cast<unsigned char*>(memory.allocate_movable(40 * kMiB, 40 * kMiB, 2 * kMiB));
  ASSERT_NE(piece, nullptr);
  EXPECT_FALSE(memory.can_grow(piece));
  EXPECT_EQ(memory.available(), 24 * kMiB);
  std::memset(piece, 1, 40 * kMiB);
  EXPECT_EQ(memory.detach(piece, {10 * kMiB, 30 * kMiB}), (Range{10 * kMiB, 30 * kMiB}));
  memory.drop_detached(piece);
  EXPECT_EQ(memory.available(), 44 * kMiB);
  EXPECT_EQ(piece[10 * kMiB - 1], 1);
  EXPECT_EQ(piece[30 * kMiB], 1);
  EXPECT_EQ(memory.allocate_movable(45 * kMiB, 45 * kMiB, 2 * kMiB), nullptr) << "the limit";
  ASSERT_TRUE(memory.attach(piece, {20 * kMiB, 30 * kMiB}));
  std::memset(piece + 20 * kMiB, 2, 10 * kMiB);
  EXPECT_EQ(memory.available(), 34 * kMiB);
  memory.release(piece, 40 * kMiB);
  EXPECT_EQ(memory.available(), 64 * kMiB);
}

TEST(HostMemory, OtherPoolsDoNotGrow) {
  HostMemory memory(64 * kMiB);
  void* pool = memory.allocate_pool(kMiB, /*grows=*/false);
  EXPECT_FALSE(memory.can_grow(pool));
  EXPECT_FALSE(memory.grow(pool, kMiB, 2 * kMiB));
  memory.release(pool, kMiB);
  EXPECT_EQ(memory.allocate_pool(65 * kMiB, /*grows=*/true), nullptr);
  EXPECT_EQ(memory.available(), 64 * kMiB);
}

}  // namespace
}  // namespace stalloc::device
