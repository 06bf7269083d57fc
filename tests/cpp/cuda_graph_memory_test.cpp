// Graphs that are replayed in turns share the memory of what does not live on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cudart.h"
#include "device/graph_memory.h"
#include "pretended_gpu.h"
#include "standin.h"

namespace stalloc::device {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kUnit = 2 * kMiB;
constexpr Bytes kDevice = Bytes{80} << 30;

using Addresses = GraphMemory::Addresses;

Addresses part(const void* p, Bytes from, Bytes to) {
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  return {begin + static_cast<std::size_t>(from), begin + static_cast<std::size_t>(to)};
}

class Graphs : public testing::PretendedGpu {
 protected:
  void SetUp() override {
    PretendedGpu::SetUp();
    ASSERT_EQ(held(), 0);  // makes the device's context, as torch does before a capture
    memory_ = std::make_unique<GraphMemory>(CudaRuntime::get(), 0);
  }
  void TearDown() override {
    memory_.reset();
    EXPECT_EQ(standin_allocations(), 0);
    PretendedGpu::TearDown();
  }
  // A segment that a capture into a pool requests.
  void* segment(std::uint64_t pool, Bytes size) {
    memory_->begin({pool, 0});
    void* p = memory_->allocate(size);
    memory_->end();
    return p;
  }
  static Bytes held() {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), kCudaSuccess);
    return static_cast<Bytes>(total - free);
  }

  std::unique_ptr<GraphMemory> memory_;
};

TEST_F(Graphs, ShareWhatDoesNotLiveOn) {
  for (const std::uint64_t pool : {1, 2, 3}) {
    ASSERT_NE(segment(pool, 20 * kMiB), nullptr);
    memory_->settle({pool, 0}, {});
  }
  EXPECT_EQ(held(), 20 * kMiB);
  const GraphMemory::Figures f = memory_->figures();
  EXPECT_EQ(f.addresses, 60 * kMiB);
  EXPECT_EQ(f.shared, 20 * kMiB);
  EXPECT_EQ(f.own, 0);
  EXPECT_EQ(f.pools, 3U);
}

TEST_F(Graphs, SegmentsOfOnePoolDoNotShare) {
  segment(1, 20 * kMiB);
  segment(1, 2 * kMiB);
  EXPECT_EQ(held(), 22 * kMiB);
  segment(2, 30 * kMiB);
  EXPECT_EQ(held(), 30 * kMiB);
}

TEST_F(Graphs, WhatLivesOnHasItsOwnMemory) {
  const void* a = segment(1, 20 * kMiB);
  const std::vector<Addresses> kept{part(a, 3 * kMiB, 5 * kMiB)};  // lies on two chunks
  memory_->settle({1, 0}, kept);
  EXPECT_EQ(memory_->figures().own, 4 * kMiB);
  EXPECT_EQ(held(), 20 * kMiB);
  segment(2, 20 * kMiB);
  EXPECT_EQ(held(), 24 * kMiB);
  memory_->settle({2, 0}, {});
  EXPECT_EQ(held(), 24 * kMiB);
  // The second time nothing is left to do.
  memory_->settle({1, 0}, kept);
  EXPECT_EQ(memory_->figures().own, 4 * kMiB);
  EXPECT_EQ(held(), 24 * kMiB);
}

TEST_F(Graphs, ASmallerGraphNeedsNoMemoryOfItsOwnForWhatItSheds) {
  segment(1, 20 * kMiB);
  memory_->settle({1, 0}, {});
  // 40 MiB in the capture; 20 stay, and 20 shed.
  const void* b = segment(2, 40 * kMiB);
  EXPECT_EQ(held(), 40 * kMiB);
  const std::vector<Addresses> kept{part(b, 0, 20 * kMiB)};
  memory_->settle({2, 0}, kept);
  EXPECT_EQ(held(), 40 * kMiB) << "20 of its own, 20 that the first one has, too";
  EXPECT_EQ(memory_->figures().shared, 20 * kMiB);
}

TEST_F(Graphs, SegmentsGoWithTheirMemory) {
  void* a = segment(1, 20 * kMiB);
  void* b = segment(2, 40 * kMiB);
  const std::vector<Addresses> kept{part(b, 0, 1)};
  memory_->settle({2, 0}, kept);
  memory_->release(b);
  EXPECT_EQ(held(), 20 * kMiB);
  EXPECT_EQ(memory_->figures().pools, 1U);
  memory_->release(a);
  EXPECT_EQ(held(), 0);
}

TEST_F(Graphs, SegmentsThatCannotGoDuringACaptureGoLater) {
  void* a = segment(1, 20 * kMiB);
  void* s = stream();
  memory_->begin({2, 0});
  ASSERT_EQ(cudaStreamBeginCapture(s, 2), kCudaSuccess);
  memory_->release(a);
  void* b = memory_->allocate(2 * kMiB);
  EXPECT_NE(b, nullptr);
  void* graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), kCudaSuccess);
  EXPECT_EQ(held(), 20 * kMiB);
  memory_->end();
  EXPECT_EQ(held(), 2 * kMiB);
}

TEST_F(Graphs, ADeviceWithoutMemoryRefusesAndLosesNothing) {
  segment(1, 20 * kMiB);
  memory_->settle({1, 0}, {});
  EXPECT_EQ(segment(2, kDevice + kMiB), nullptr);
  EXPECT_EQ(held(), 20 * kMiB);
  EXPECT_EQ(memory_->figures().pools, 1U);
  void* most = nullptr;
  ASSERT_EQ(cudaMalloc(&most, static_cast<std::size_t>(kDevice - held())), kCudaSuccess);
  const void* b = segment(3, 20 * kMiB);
  ASSERT_NE(b, nullptr) << "all of it is shared";
  const std::vector<Addresses> kept{part(b, 0, kMiB)};
  EXPECT_THROW(memory_->settle({3, 0}, kept), OutOfMemory);
  EXPECT_EQ(cudaFree(most), kCudaSuccess);
  memory_->settle({3, 0}, kept);
  EXPECT_EQ(held(), 22 * kMiB);
}

TEST_F(Graphs, RequestsOutsideOfCapturesShareNothing) {
  segment(1, 20 * kMiB);
  void* a = memory_->allocate(4 * kMiB);
  EXPECT_EQ(held(), 24 * kMiB);
  memory_->begin({0, 0});  // a graph whose pool is not ours
  void* b = memory_->allocate(4 * kMiB);
  memory_->end();
  EXPECT_EQ(held(), 28 * kMiB);
  EXPECT_EQ(memory_->figures().own, 8 * kMiB);
  memory_->release(a);
  memory_->release(b);
  EXPECT_EQ(held(), 20 * kMiB);
}

TEST_F(Graphs, UnknownPoolsAndAddressesAreIgnored) {
  const void* a = segment(1, 2 * kMiB);
  const std::vector<Addresses> kept{{1, 2}, part(a, 4 * kMiB, 6 * kMiB), part(a, 0, 0)};
  memory_->settle({7, 7}, kept);
  memory_->settle({1, 0}, kept);
  EXPECT_EQ(memory_->figures().own, 0);
  int other = 0;
  memory_->release(&other);
}

// The chunk behind each address, as the device maps it.
std::uint64_t behind(std::uintptr_t address) {
  const std::uint64_t handle = standin_memory_at(reinterpret_cast<void*>(address));
  EXPECT_NE(handle, 0U) << "an address without memory";
  return handle;
}

// Random captures, later ones into pools that have graphs already: no two addresses of a pool have
// one chunk, what lives on shares with nobody, and the device holds each chunk once.
TEST_F(Graphs, HoldUnderRandomCaptures) {
  std::mt19937 random(7);
  const auto below = [&](Bytes n) {
    return std::uniform_int_distribution<Bytes>(0, n - 1)(random);
  };
  struct Segment {
    void* p;
    Bytes size;
  };
  std::map<std::uint64_t, std::vector<Segment>> pools;
  std::map<std::uint64_t, std::set<std::uintptr_t>> own;  // chunks that live on
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t pool = static_cast<std::uint64_t>(below(8));
    if (below(4) == 0) {
      for (const Segment& s : pools[pool]) memory_->release(s.p);
      pools.erase(pool);
      own.erase(pool);
    } else {
      std::vector<Addresses> kept;
      for (Bytes i = 0; i <= below(3); ++i) {
        const Bytes size = kUnit * (1 + below(6));
        pools[pool].push_back({segment(pool, size), size});
      }
      for (const Segment& s : pools[pool]) {
        if (below(2) == 0) continue;
        const Bytes from = below(s.size);
        const Addresses block = part(s.p, from, from + 1 + below(s.size - from));
        kept.push_back(block);
        const auto first = reinterpret_cast<std::uintptr_t>(s.p);
        for (std::uintptr_t at = first + (block.begin - first) / kUnit * kUnit; at < block.end;
             at += kUnit) {
          own[pool].insert(at);
        }
      }
      memory_->settle({pool, 0}, kept);
    }
    std::map<std::uint64_t, int> users;
    std::set<std::uint64_t> chunks;
    for (const auto& [id, segments] : pools) {
      std::set<std::uint64_t> mine;
      for (const Segment& s : segments) {
        for (Bytes at = 0; at < s.size; at += kUnit) {
          const std::uint64_t handle = behind(part(s.p, at, at).begin);
          EXPECT_TRUE(mine.insert(handle).second) << "two addresses of a pool have one chunk";
          ++users[handle];
        }
      }
      chunks.merge(mine);
    }
    for (const auto& [id, addresses] : own) {
      for (const std::uintptr_t at : addresses) {
        EXPECT_EQ(users[behind(at)], 1) << "what lives on shares its chunk";
      }
    }
    for (const auto& [handle, count] : users) chunks.insert(handle);
    const GraphMemory::Figures f = memory_->figures();
    ASSERT_EQ(held(), f.shared + f.own);
    ASSERT_EQ(held(), kUnit * static_cast<Bytes>(chunks.size()));
  }
}

}  // namespace
}  // namespace stalloc::device
