// Graphs that are replayed in turns share the memory of what does not live on.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

// The chunk behind each address, as the device maps it.
std::uint64_t behind(std::uintptr_t address) {
  const std::uint64_t handle = standin_memory_at(reinterpret_cast<void*>(address));
  EXPECT_NE(handle, 0U) << "an address without memory";
  return handle;
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
    memory_->end({pool, 0});
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

TEST_F(Graphs, SegmentsOfOnePoolDoNotShareIfTheirBlocksAreUnknown) {
  segment(1, 20 * kMiB);
  segment(1, 2 * kMiB);
  EXPECT_EQ(held(), kUnit) << "nothing runs during a capture";
  memory_->settle({1, 0}, {});
  EXPECT_EQ(held(), 22 * kMiB);
  segment(2, 30 * kMiB);
  memory_->settle({2, 0}, {});
  EXPECT_EQ(held(), 30 * kMiB);
}

TEST_F(Graphs, WhatLivesOnHasItsOwnMemory) {
  const void* a = segment(1, 20 * kMiB);
  const std::vector<Addresses> kept{part(a, 3 * kMiB, 5 * kMiB)};  // lies on two chunks
  memory_->settle({1, 0}, kept);
  EXPECT_EQ(memory_->figures().own, 4 * kMiB);
  EXPECT_EQ(held(), 20 * kMiB);
  segment(2, 20 * kMiB);
  memory_->settle({2, 0}, {});
  EXPECT_EQ(held(), 24 * kMiB);
  // The second time nothing is left to do.
  memory_->settle({1, 0}, kept);
  EXPECT_EQ(memory_->figures().own, 4 * kMiB);
  EXPECT_EQ(held(), 24 * kMiB);
}

TEST_F(Graphs, TheRestOfALargerGraphIsShared) {
  segment(1, 20 * kMiB);
  memory_->settle({1, 0}, {});
  const void* b = segment(2, 40 * kMiB);
  const std::vector<Addresses> kept{part(b, 0, 20 * kMiB)};
  memory_->settle({2, 0}, kept);
  EXPECT_EQ(held(), 40 * kMiB) << "20 of its own, 20 that the first one has, too";
  EXPECT_EQ(memory_->figures().shared, 20 * kMiB);
}

TEST_F(Graphs, SegmentsGoWithTheirMemory) {
  void* a = segment(1, 20 * kMiB);
  memory_->settle({1, 0}, {});
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
  memory_->settle({1, 0}, {});
  void* s = stream();
  memory_->begin({2, 0});
  ASSERT_EQ(cudaStreamBeginCapture(s, 2), kCudaSuccess);
  memory_->release(a);
  void* b = memory_->allocate(2 * kMiB);
  EXPECT_NE(b, nullptr);
  void* graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), kCudaSuccess);
  EXPECT_EQ(held(), 20 * kMiB + kUnit);
  memory_->end({2, 0});
  EXPECT_EQ(held(), 2 * kMiB);
}

TEST_F(Graphs, ACaptureKeepsItsPoolWhileOthersBeginAndEnd) {
  memory_->begin({1, 0});
  void* a = memory_->allocate(4 * kMiB);
  memory_->begin({0, 0});
  EXPECT_THROW(memory_->begin({2, 0}), Error);
  void* b = memory_->allocate(4 * kMiB);
  memory_->end({0, 0});
  void* c = memory_->allocate(4 * kMiB);
  memory_->end({1, 0});
  memory_->settle({1, 0}, std::array{part(b, 0, 1)});
  EXPECT_EQ(memory_->figures().pools, 1U);
  EXPECT_EQ(memory_->figures().own, kUnit);
  EXPECT_EQ(memory_->figures().shared, 10 * kMiB) << "no address has the blank chunk";
  for (void* p : {a, c}) EXPECT_NE(behind(part(p, 0, 1).begin), behind(part(b, 0, 1).begin));
  EXPECT_NE(segment(2, 2 * kMiB), nullptr);
}

TEST_F(Graphs, SegmentsStayUntilTheLastCaptureHasEnded) {
  void* a = segment(1, 20 * kMiB);
  memory_->settle({1, 0}, {});
  void* s = stream();
  memory_->begin({0, 0});
  ASSERT_EQ(cudaStreamBeginCapture(s, 2), kCudaSuccess);
  memory_->begin({2, 0});
  memory_->release(a);
  memory_->end({2, 0});
  EXPECT_EQ(held(), 20 * kMiB);
  void* graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), kCudaSuccess);
  memory_->end({0, 0});
  EXPECT_EQ(held(), 0);
}

TEST_F(Graphs, OnlyAFirstGraphSettlesWhileAnotherIsCaptured) {
  void* s = stream();
  memory_->begin({0, 0});
  ASSERT_EQ(cudaStreamBeginCapture(s, 2), kCudaSuccess);
  void* a = segment(1, 4 * kMiB);
  memory_->settle({1, 0}, std::array{part(a, 0, 1)});
  EXPECT_EQ(memory_->figures().own, kUnit);
  segment(1, 4 * kMiB);
  EXPECT_THROW(memory_->settle({1, 0}, {}), Error) << "the first one may run";
  void* graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), kCudaSuccess) << "the capture is whole";
  memory_->end({0, 0});
  memory_->settle({1, 0}, {});
}

TEST_F(Graphs, SettleWhileAnotherDeviceIsCaptured) {
  standin_set_devices(2);
  memory_->begin({1, 0});
  ASSERT_NE(memory_->allocate(4 * kMiB), nullptr);
  memory_->end({1, 0});
  memory_->settle({1, 0}, {});
  ASSERT_EQ(cudaSetDevice(1), kCudaSuccess);
  void* s = stream();
  ASSERT_EQ(cudaStreamBeginCapture(s, 0), kCudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), kCudaSuccess);
  void* b = segment(1, 4 * kMiB);
  memory_->settle({1, 0}, std::array{part(b, 0, 1)});
  memory_->release(b);
  ASSERT_EQ(cudaSetDevice(1), kCudaSuccess);
  void* graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), kCudaSuccess) << "the capture is whole";
  ASSERT_EQ(cudaSetDevice(0), kCudaSuccess);
}

TEST_F(Graphs, ADeviceWithoutMemoryRefusesAndLosesNothing) {
  segment(1, 20 * kMiB);
  memory_->settle({1, 0}, {});
  void* most = nullptr;
  ASSERT_EQ(cudaMalloc(&most, static_cast<std::size_t>(kDevice - held())), kCudaSuccess);
  EXPECT_EQ(segment(2, 2 * kMiB), nullptr);
  EXPECT_EQ(memory_->allocate(2 * kMiB), nullptr);
  EXPECT_EQ(memory_->figures().pools, 1U);
  EXPECT_EQ(cudaFree(most), kCudaSuccess);
  const void* b = segment(3, 20 * kMiB);
  ASSERT_EQ(cudaMalloc(&most, static_cast<std::size_t>(kDevice - held())), kCudaSuccess);
  const std::vector<Addresses> kept{part(b, 0, kMiB)};
  EXPECT_THROW(memory_->settle({3, 0}, kept), OutOfMemory);
  EXPECT_EQ(cudaFree(most), kCudaSuccess);
  memory_->settle({3, 0}, kept);
  EXPECT_EQ(held(), 22 * kMiB);
}

TEST_F(Graphs, AddressesShareWithinAGraphWhoseBlocksDoNotLiveAtOnce) {
  const void* a = segment(1, 20 * kMiB);
  const void* b = segment(1, 30 * kMiB);
  const void* c = segment(1, 10 * kMiB);
  using Use = GraphMemory::Use;
  const std::vector<Use> uses{
      {part(a, 0, 20 * kMiB), 0, 5, 1},
      {part(b, 0, 28 * kMiB), 5, 9, 1},  // its last chunk has no block
      {part(c, 0, 2 * kMiB), 3, 6, 1},   // lives with both
      {part(c, 4 * kMiB, 6 * kMiB), 9, 12, 1},
      {part(c, 8 * kMiB, 10 * kMiB), 9, 12, 2},  // of another stream
  };
  memory_->settle({1, 0}, {}, uses);
  const GraphMemory::Figures f = memory_->figures();
  // 28 MiB, 2 of c, 2 of the other stream; and the blank chunk, behind 2 of b and 4 of c.
  EXPECT_EQ(f.shared, (28 + 2 + 2 + 2) * kMiB);
  EXPECT_EQ(held(), f.shared);
  // A second graph needs some of them at once.
  const std::vector<Use> others{
      {part(a, 0, 20 * kMiB), 0, 5, 1},
      {part(b, 0, 28 * kMiB), 4, 9, 1},
  };
  memory_->settle({1, 0}, {}, others);
  EXPECT_EQ(memory_->figures().shared, (20 + 28 + 2 + 2 + 2) * kMiB);
  // Nothing is known of a third one.
  memory_->settle({1, 0}, {});
  EXPECT_EQ(held(), 60 * kMiB);
}

// A graph of the forward pass leaves activations, which that of the backward frees.
TEST_F(Graphs, WhatALaterGraphFreesIsLentAfterThat) {
  using Use = GraphMemory::Use;
  const void* a = segment(1, 20 * kMiB);  // activations, and what follows them at their addresses
  const void* b = segment(1, 24 * kMiB);  // temporaries
  const std::vector<Addresses> activations{part(a, 0, 20 * kMiB)};
  const std::vector<Use> forward{
      {part(a, 0, 20 * kMiB), 3, Use::kAlways, 1},
      {part(b, 0, 4 * kMiB), 1, 5, 1},
  };
  memory_->settle({1, 0}, activations, forward);
  EXPECT_EQ(memory_->figures().own, 20 * kMiB);
  EXPECT_EQ(held(), (20 + 4 + 2) * kMiB) << "and the blank chunk";

  const std::vector<Addresses> gradients{part(a, 0, 6 * kMiB)};
  const std::vector<Use> backward{
      {part(a, 0, 20 * kMiB), 0, 8, 1},          {part(a, 0, 6 * kMiB), 8, Use::kAlways, 1},
      {part(b, 0, 6 * kMiB), 4, 8, 1},           // beside the activations
      {part(b, 6 * kMiB, 16 * kMiB), 8, 9, 1},   // after them, beside the gradients
      {part(b, 16 * kMiB, 18 * kMiB), 8, 9, 2},  // of another stream
      {part(b, 18 * kMiB, 24 * kMiB), 9, 10, 1},
  };
  memory_->settle({1, 0}, gradients, backward);
  const GraphMemory::Figures f = memory_->figures();
  EXPECT_EQ(f.own, 20 * kMiB);
  EXPECT_EQ(f.shared, (6 + 2) * kMiB);
  EXPECT_EQ(held(), f.own + f.shared);
  std::set<std::uint64_t> lent;
  const auto chunk = [](const void* p, Bytes at) {
    return standin_memory_at(reinterpret_cast<void*>(part(p, at, at).begin));
  };
  for (Bytes at = 6 * kMiB; at < 20 * kMiB; at += kUnit) lent.insert(chunk(a, at));
  for (Bytes at = 6 * kMiB; at < 16 * kMiB; at += kUnit) EXPECT_TRUE(lent.contains(chunk(b, at)));
  EXPECT_FALSE(lent.contains(chunk(b, 16 * kMiB)));
  for (Bytes at = 18 * kMiB; at < 24 * kMiB; at += kUnit) EXPECT_TRUE(lent.contains(chunk(b, at)));

  // A third graph keeps what it has there: the chunks are lent no longer.
  const std::vector<Addresses> more{part(a, 0, 20 * kMiB)};
  const std::vector<Use> third{
      {part(a, 0, 6 * kMiB), 0, Use::kAlways, 1},
      {part(a, 6 * kMiB, 20 * kMiB), 1, Use::kAlways, 1},
  };
  memory_->settle({1, 0}, more, third);
  EXPECT_EQ(memory_->figures().own, 20 * kMiB);
  EXPECT_EQ(memory_->figures().shared, (10 + 2) * kMiB);
  for (Bytes at = 0; at < 24 * kMiB; at += kUnit) EXPECT_FALSE(lent.contains(chunk(b, at)));
  // Nothing is known of a fourth one.
  memory_->settle({1, 0}, {});
  EXPECT_EQ(held(), (20 + 24) * kMiB);
}

TEST_F(Graphs, WhatBeginsToLiveGetsAChunkInWhichNothingLives) {
  using Use = GraphMemory::Use;
  const void* a = segment(1, 20 * kMiB);
  const std::vector<Addresses> activations{part(a, 0, 20 * kMiB)};
  const std::vector<Use> forward{{part(a, 0, 20 * kMiB), 3, Use::kAlways, 1}};
  memory_->settle({1, 0}, activations, forward);
  const void* c = segment(1, 10 * kMiB);
  const std::vector<Addresses> gradients{part(c, 0, 10 * kMiB)};
  const std::vector<Use> backward{
      {part(a, 0, 20 * kMiB), 0, 8, 1},
      {part(c, 0, 4 * kMiB), 7, Use::kAlways, 1},  // while the activations live
      {part(c, 4 * kMiB, 10 * kMiB), 8, Use::kAlways, 1},
  };
  memory_->settle({1, 0}, gradients, backward);
  EXPECT_EQ(memory_->figures().own, 24 * kMiB);
  EXPECT_EQ(held(), 24 * kMiB);
  const auto chunks_of = [](const void* p, Bytes size) {
    std::vector<std::uint64_t> result;
    for (Bytes at = 0; at < size; at += kUnit) {
      result.push_back(standin_memory_at(reinterpret_cast<void*>(part(p, at, at).begin)));
    }
    return result;
  };
  const std::vector<std::uint64_t> before = chunks_of(c, 10 * kMiB);
  // The next graph has temporaries where the activations were, or leaves something there.
  const std::vector<Addresses> more{part(c, 0, 10 * kMiB), part(a, 0, 10 * kMiB)};
  const std::vector<Use> third{
      {part(c, 0, 4 * kMiB), 0, Use::kAlways, 1},
      {part(c, 4 * kMiB, 10 * kMiB), 0, Use::kAlways, 1},
      {part(a, 0, 10 * kMiB), 2, Use::kAlways, 1},
      {part(a, 10 * kMiB, 20 * kMiB), 2, 3, 1},
  };
  memory_->settle({1, 0}, more, third);
  EXPECT_EQ(chunks_of(c, 10 * kMiB), before) << "what lives stays where it is";
  std::set<std::uint64_t> all;
  for (const std::uint64_t chunk : chunks_of(c, 10 * kMiB)) all.insert(chunk);
  for (const std::uint64_t chunk : chunks_of(a, 20 * kMiB)) EXPECT_TRUE(all.insert(chunk).second);
  EXPECT_EQ(held(), 30 * kMiB);
}

TEST_F(Graphs, LentChunksOutliveTheirOwnersAddresses) {
  using Use = GraphMemory::Use;
  void* a = segment(1, 20 * kMiB);
  void* b = segment(1, 20 * kMiB);
  const std::vector<Addresses> kept{part(a, 0, 20 * kMiB)};
  const std::vector<Use> first{{part(a, 0, 20 * kMiB), 1, Use::kAlways, 1}};
  memory_->settle({1, 0}, kept, first);
  const std::vector<Use> second{
      {part(a, 0, 20 * kMiB), 0, 2, 1},
      {part(b, 0, 20 * kMiB), 2, 4, 1},
  };
  memory_->settle({1, 0}, {}, second);
  EXPECT_EQ(held(), 20 * kMiB);
  memory_->release(a);
  EXPECT_EQ(held(), 20 * kMiB);
  EXPECT_EQ(memory_->figures().own, 20 * kMiB);
  const std::vector<Use> third{{part(b, 0, 20 * kMiB), 1, 4, 1}};
  memory_->settle({1, 0}, {}, third);
  EXPECT_EQ(memory_->figures().own, 0);
  EXPECT_EQ(held(), 20 * kMiB);
  memory_->release(b);
  EXPECT_EQ(held(), 0);
}

// Eager blocks between two replays.
TEST_F(Graphs, SharedChunksAreLentAndTakenBack) {
  EXPECT_EQ(memory_->lendable(), 0);
  EXPECT_EQ(memory_->lend(kUnit), nullptr);
  void* a = segment(1, 20 * kMiB);
  memory_->settle({1, 0}, std::array{part(a, 0, 1)});
  EXPECT_EQ(memory_->lendable(), 18 * kMiB);
  const std::uint64_t changes = memory_->changes();
  void* lent = memory_->lend(18 * kMiB);
  ASSERT_NE(lent, nullptr);
  EXPECT_EQ(memory_->lend(20 * kMiB), nullptr);
  EXPECT_TRUE(memory_->lends(lent));
  EXPECT_FALSE(memory_->lends(a));
  EXPECT_EQ(held(), 20 * kMiB) << "no memory of its own";
  EXPECT_EQ(memory_->changes(), changes);
  std::set<std::uint64_t> graphs;
  for (Bytes at = 2 * kMiB; at < 20 * kMiB; at += kUnit)
    graphs.insert(behind(part(a, at, at).begin));
  for (Bytes at = 0; at < 18 * kMiB; at += kUnit) {
    EXPECT_EQ(graphs.erase(behind(part(lent, at, at).begin)), 1U);
  }
  memory_->release(a);
  EXPECT_NE(memory_->changes(), changes);
  EXPECT_EQ(memory_->lendable(), 0);
  EXPECT_EQ(held(), 18 * kMiB);
  memory_->release(lent);
  EXPECT_EQ(held(), 0);
}

TEST_F(Graphs, GraphsGetOtherChunksForWhatEagerBlocksKeep) {
  void* a = segment(1, 20 * kMiB);
  memory_->settle({1, 0}, {});
  void* b = segment(2, 10 * kMiB);
  memory_->settle({2, 0}, {});
  void* first = memory_->lend(20 * kMiB);
  void* second = memory_->lend(20 * kMiB);
  const std::uint64_t kept[] = {behind(part(first, 4 * kMiB, 0).begin),
                                behind(part(first, 6 * kMiB, 0).begin)};
  memory_->keep(std::array{part(first, 5 * kMiB, 7 * kMiB)});
  EXPECT_EQ(behind(part(first, 4 * kMiB, 0).begin), kept[0]);
  EXPECT_EQ(behind(part(first, 6 * kMiB, 0).begin), kept[1]);
  EXPECT_EQ(memory_->figures().eager, 4 * kMiB);
  EXPECT_EQ(memory_->figures().own, 0);
  EXPECT_EQ(memory_->figures().shared, 20 * kMiB);
  EXPECT_EQ(memory_->figures().pools, 2U);
  EXPECT_EQ(held(), 24 * kMiB);
  for (const void* graph : {a, b, second}) {
    for (Bytes at = 0; at < (graph == b ? 10 : 20) * kMiB; at += kUnit) {
      const std::uint64_t chunk = behind(part(graph, at, at).begin);
      EXPECT_NE(chunk, kept[0]);
      EXPECT_NE(chunk, kept[1]);
      EXPECT_EQ(chunk, behind(part(a, at, at).begin)) << "graphs still share";
    }
  }
  memory_->keep(std::array{part(first, 5 * kMiB, 7 * kMiB)});
  EXPECT_EQ(held(), 24 * kMiB) << "there is nothing left to do";
  for (void* p : {a, second, b}) memory_->release(p);
  EXPECT_EQ(held(), 20 * kMiB);
  memory_->release(first);
  EXPECT_EQ(held(), 0);
}

TEST_F(Graphs, WithoutMemoryForTheGraphsNothingIsKept) {
  void* a = segment(1, 20 * kMiB);
  memory_->settle({1, 0}, {});
  void* lent = memory_->lend(20 * kMiB);
  void* most = nullptr;
  ASSERT_EQ(cudaMalloc(&most, static_cast<std::size_t>(kDevice - held() - kUnit)), kCudaSuccess);
  EXPECT_THROW(memory_->keep(std::array{part(lent, 0, 4 * kMiB)}), OutOfMemory);
  EXPECT_EQ(held(), kDevice - kUnit);
  for (Bytes at = 0; at < 20 * kMiB; at += kUnit) {
    EXPECT_EQ(behind(part(a, at, at).begin), behind(part(lent, at, at).begin));
  }
  memory_->begin({0, 0});
  EXPECT_THROW(memory_->keep(std::array{part(lent, 0, kMiB)}), Error)
      << "the wait spoils a capture";
  memory_->end({0, 0});
  memory_->keep(std::array{part(lent, 0, 2 * kMiB)});
  EXPECT_NE(behind(part(a, 0, 0).begin), behind(part(lent, 0, 0).begin));
  ASSERT_EQ(cudaFree(most), kCudaSuccess);
  memory_->release(lent);
}

TEST_F(Graphs, TooLittleMemoryLeavesEarlierGraphsTheirChunks) {
  using Use = GraphMemory::Use;
  const void* a = segment(1, 20 * kMiB);
  const std::vector<Use> first{
      {part(a, 0, 10 * kMiB), 0, 2, 1},
      {part(a, 10 * kMiB, 20 * kMiB), 2, 4, 1},
  };
  memory_->settle({1, 0}, {}, first);
  EXPECT_EQ(held(), 10 * kMiB);
  std::vector<std::uint64_t> before;
  for (Bytes at = 0; at < 20 * kMiB; at += kUnit) {
    before.push_back(standin_memory_at(reinterpret_cast<void*>(part(a, at, at).begin)));
  }
  void* most = nullptr;
  ASSERT_EQ(cudaMalloc(&most, static_cast<std::size_t>(kDevice - held() - 4 * kMiB)), kCudaSuccess);
  const std::vector<Use> second{{part(a, 0, 20 * kMiB), 0, 2, 1}};
  EXPECT_THROW(memory_->settle({1, 0}, {}, second), OutOfMemory);
  for (Bytes at = 0; at < 20 * kMiB; at += kUnit) {
    EXPECT_EQ(standin_memory_at(reinterpret_cast<void*>(part(a, at, at).begin)),
              before[static_cast<std::size_t>(at / kUnit)]);
  }
  EXPECT_EQ(memory_->figures().shared, 10 * kMiB);
  EXPECT_EQ(cudaFree(most), kCudaSuccess);
  EXPECT_EQ(held(), 10 * kMiB);
  memory_->settle({1, 0}, {}, second);
  EXPECT_EQ(held(), 20 * kMiB);
}

TEST_F(Graphs, RequestsOutsideOfCapturesShareNothing) {
  segment(1, 20 * kMiB);
  memory_->settle({1, 0}, {});
  void* a = memory_->allocate(4 * kMiB);
  EXPECT_EQ(held(), 24 * kMiB);
  memory_->begin({0, 0});  // a graph whose pool is not ours
  void* b = memory_->allocate(4 * kMiB);
  memory_->end({0, 0});
  EXPECT_EQ(held(), 28 * kMiB);
  EXPECT_EQ(memory_->figures().own, 8 * kMiB);
  memory_->release(a);
  memory_->release(b);
  EXPECT_EQ(held(), 20 * kMiB);
}

TEST_F(Graphs, OtherDevicesReachTheMemory) {
  standin_set_devices(2);
  standin_set_peers(1);
  GraphMemory memory(CudaRuntime::get(), 0);
  memory.begin({1, 0});
  void* a = memory.allocate(2 * kMiB);
  memory.end({1, 0});
  EXPECT_EQ(standin_accesses(a), 2) << "the blank chunk";
  memory.settle({1, 0}, {});
  EXPECT_EQ(standin_accesses(a), 2);
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

std::set<std::uintptr_t> pages_of(const Addresses& at) {
  std::set<std::uintptr_t> result;
  for (std::uintptr_t page = at.begin / kUnit * kUnit; page < at.end; page += kUnit) {
    result.insert(page);
  }
  return result;
}

// Random blocks of a capture, placed as torch places them, best fit in segments: chunks of blocks
// that live at once differ, as those of blocks that live on do from all others.
TEST_F(Graphs, HoldUnderRandomBlocks) {
  std::mt19937 random(11);
  const auto below = [&](Bytes n) {
    return std::uniform_int_distribution<Bytes>(0, n - 1)(random);
  };
  struct Block {
    Addresses at;
    std::int64_t from;
    std::int64_t to;  // negative while it lives
    std::uint64_t stream;
  };
  Bytes most = 0;  // that the blocks of a graph touch, without those that live on
  for (std::uint64_t pool = 1; pool <= 12; ++pool) {
    std::vector<Block> blocks;
    std::map<std::uintptr_t, std::pair<std::uintptr_t, std::uint64_t>> idle;  // end and stream
    std::int64_t tick = 0;
    for (; tick < 400; ++tick) {
      std::vector<Block*> live;
      for (Block& block : blocks) {
        if (block.to < 0) live.push_back(&block);
      }
      if (!live.empty() && below(2) == 0) {
        Block& block = *live[static_cast<std::size_t>(below(static_cast<Bytes>(live.size())))];
        block.to = tick;
        idle[block.at.begin] = {block.at.end, block.stream};
        continue;
      }
      const Bytes size = below(3) == 0 ? (1 + below(12)) * kMiB : 512 * (1 + below(4000));
      const std::uint64_t stream = static_cast<std::uint64_t>(below(8) == 0);
      auto place = idle.end();
      for (auto it = idle.begin(); it != idle.end(); ++it) {
        const auto room = static_cast<Bytes>(it->second.first - it->first);
        if (it->second.second == stream && room >= size &&
            (place == idle.end() ||
             room < static_cast<Bytes>(place->second.first - place->first))) {
          place = it;
        }
      }
      if (place == idle.end()) {
        const Bytes room = (std::max(size, 10 * kMiB) + kUnit - 1) / kUnit * kUnit;
        const Addresses whole = part(segment(pool, room), 0, room);
        place = idle.insert({whole.begin, {whole.end, stream}}).first;
      }
      const auto [begin, rest] = *place;
      idle.erase(place);
      const std::uintptr_t end = begin + static_cast<std::size_t>(size);
      if (end < rest.first) idle[end] = rest;
      blocks.push_back({{begin, end}, tick, -1, stream});
    }
    std::vector<Addresses> kept;
    std::vector<GraphMemory::Use> uses;
    for (const Block& block : blocks) {
      if (block.to < 0) {
        kept.push_back(block.at);
      } else {
        uses.push_back({block.at, block.from, block.to, block.stream});
      }
    }
    memory_->settle({pool, 0}, kept, uses);
    const auto pages = [](const Block& block) { return pages_of(block.at); };
    for (const Block& a : blocks) {
      for (const Block& b : blocks) {
        const bool at_once =
            a.stream != b.stream || a.to < 0 || b.to < 0 || (a.from < b.to && b.from < a.to);
        if (!at_once) continue;
        for (const std::uintptr_t mine : pages(a)) {
          for (const std::uintptr_t theirs : pages(b)) {
            if (mine != theirs) {
              ASSERT_NE(behind(mine), behind(theirs));
            }
          }
        }
      }
    }
    std::set<std::uintptr_t> touched;
    for (const Block& block : blocks) touched.merge(pages(block));
    for (const Block& block : blocks) {
      for (const std::uintptr_t at : block.to < 0 ? pages(block) : std::set<std::uintptr_t>()) {
        touched.erase(at);
      }
    }
    most = std::max(most, kUnit * static_cast<Bytes>(touched.size()));
  }
  const GraphMemory::Figures f = memory_->figures();
  EXPECT_EQ(held(), f.shared + f.own);
  EXPECT_LT(f.shared, most) << "of twelve graphs";
}

// Random captures, several into each pool, in which blocks of earlier ones are freed: whatever
// lives at once in a pool has chunks of its own, and what lives between captures shares with no
// other pool. Writes of all graphs, in the order of their captures, leave each block what it wrote.
TEST_F(Graphs, HoldUnderRandomPasses) {
  std::mt19937 random(23);
  const auto below = [&](Bytes n) {
    return std::uniform_int_distribution<Bytes>(0, n - 1)(random);
  };
  struct Block {
    Addresses at;
    std::uint64_t stream;
    std::int64_t from;
    int number;  // of the write
  };
  struct Step {  // a block is written, or read for the last time
    Addresses at;
    int number;
    bool writes;
  };
  struct Pool {
    std::vector<Block> live;
    std::map<std::uintptr_t, std::pair<std::uintptr_t, std::uint64_t>> idle;  // end and stream
    std::vector<std::vector<Step>> graphs;
  };
  std::map<std::uint64_t, Pool> pools;
  int number = 0;
  std::size_t several = 0;
  std::vector<std::uint64_t> order;
  for (int pass = 0; pass < 4; ++pass) {
    for (std::uint64_t id = 1; id <= 5; ++id) order.push_back(id);
  }
  std::ranges::shuffle(order, random);
  for (const std::uint64_t id : order) {
    Pool& pool = pools[id];
    std::vector<GraphMemory::Use> uses;
    std::vector<Step> steps;
    for (Block& block : pool.live) block.from = 0;
    const bool frees = below(2) == 0;  // more than it requests
    for (std::int64_t tick = 1; tick < 150; ++tick) {
      if (!pool.live.empty() && below(10) < (frees ? 6 : 4)) {
        const auto it = pool.live.begin() + below(static_cast<Bytes>(pool.live.size()));
        uses.push_back({it->at, it->from, tick, it->stream});
        steps.push_back({it->at, it->number, false});
        pool.idle[it->at.begin] = {it->at.end, it->stream};
        pool.live.erase(it);
        continue;
      }
      const Bytes size = below(3) == 0 ? (1 + below(12)) * kMiB : 512 * (1 + below(4000));
      const std::uint64_t stream = static_cast<std::uint64_t>(below(8) == 0);
      auto place = std::ranges::find_if(pool.idle, [&](const auto& hole) {
        return hole.second.second == stream &&
               static_cast<Bytes>(hole.second.first - hole.first) >= size;
      });
      if (place == pool.idle.end() || below(3) == 0) {
        const Bytes room = (std::max(size, 10 * kMiB) + kUnit - 1) / kUnit * kUnit;
        const Addresses whole = part(segment(id, room), 0, room);
        place = pool.idle.insert({whole.begin, {whole.end, stream}}).first;
      }
      const auto [begin, rest] = *place;
      pool.idle.erase(place);
      const std::uintptr_t end = begin + static_cast<std::size_t>(size);
      if (end < rest.first) pool.idle[end] = rest;
      pool.live.push_back({{begin, end}, stream, tick, ++number});
      steps.push_back({{begin, end}, number, true});
    }
    std::vector<Addresses> kept;
    for (const Block& block : pool.live) {
      kept.push_back(block.at);
      uses.push_back({block.at, block.from, GraphMemory::Use::kAlways, block.stream});
    }
    pool.graphs.push_back(steps);
    memory_->settle({id, 0}, kept, uses);
    ASSERT_EQ(held(), memory_->figures().shared + memory_->figures().own);

    // Replays: each pool's graphs in their order, one graph of any pool at a time.
    // The content of a chunk, by the page that it was written through: a write through one page
    // spoils what was written through others.
    std::map<std::uint64_t, std::pair<std::uintptr_t, std::set<int>>> written;
    const auto write = [&](const Addresses& at, int what) {
      for (const std::uintptr_t page : pages_of(at)) {
        auto& [through, values] = written[behind(page)];
        if (through != page) values.clear();
        through = page;
        values.insert(what);
      }
    };
    const auto holds = [&](const Addresses& at, int what) {
      return std::ranges::all_of(pages_of(at), [&](std::uintptr_t page) {
        const auto& [through, values] = written[behind(page)];
        return through == page && values.contains(what);
      });
    };
    std::vector<std::uint64_t> turns;
    for (const auto& [other, its] : pools) turns.insert(turns.end(), its.graphs.size(), other);
    std::ranges::shuffle(turns, random);
    std::map<std::uint64_t, std::size_t> done;
    for (const std::uint64_t turn : turns) {
      for (const Step& step : pools[turn].graphs[done[turn]++]) {
        if (step.writes) {
          write(step.at, step.number);
        } else {
          ASSERT_TRUE(holds(step.at, step.number)) << "pool " << turn;
        }
      }
    }
    std::set<std::uint64_t> lasting;
    for (const auto& [other, its] : pools) {
      std::set<std::uint64_t> mine;
      for (const Block& block : its.live) {
        ASSERT_TRUE(holds(block.at, block.number)) << "what lives on, of pool " << other;
        for (const std::uintptr_t page : pages_of(block.at)) mine.insert(behind(page));
      }
      for (const std::uint64_t handle : mine) {
        EXPECT_TRUE(lasting.insert(handle).second) << "two pools have it";
      }
    }
    std::map<std::uint64_t, std::set<std::uintptr_t>> users;  // of a chunk, in this pool
    for (const auto& graph : pool.graphs) {
      for (const Step& step : graph) {
        for (const std::uintptr_t page : pages_of(step.at)) users[behind(page)].insert(page);
      }
    }
    for (const auto& [handle, its] : users) several += its.size() > 1;
  }
  EXPECT_GT(several, 100U) << "chunks that a pool has at several addresses";
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
