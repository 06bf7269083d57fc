// The contract of everything that allocates and frees blocks, checked for each kind of pool: live
// blocks are aligned and never overlap, a block is freed once, and memory that was freed serves
// again, also after the pool has run out.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "base/range_set.h"
#include "compat/graph_pools.h"
#include "device/pretend.h"
#include "fake_streams.h"
#include "plans.h"
#include "replay/caching_model.h"
#include "runtime/caching_pool.h"
#include "runtime/planned_allocator.h"
#include "runtime/static_pool.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kCapacity = 64 * kMiB;

plan::Plan half_of_the_capacity() {
  plan::Decision decision;
  decision.size = kCapacity / 2;
  decision.upper = 1;
  return testing::plan_of({decision}, 2);
}

// Each kind has allocate(size, stream), empty when the memory does not suffice; free(address),
// false for an address at which no live block begins; and check(), which throws Error.

struct Caching {
  std::optional<std::uintptr_t> allocate(Bytes size, StreamId stream) {
    void* p = pool.allocate(size, stream);
    return p ? std::optional(reinterpret_cast<std::uintptr_t>(p)) : std::nullopt;
  }
  bool free(std::uintptr_t p) { return pool.deallocate(reinterpret_cast<void*>(p)).size >= 0; }
  void check() const { pool.check(); }

  device::PretendMemory device{kCapacity};
  runtime::CachingPool pool{device};
};

// The idle space of a plan's pool.
struct Static {
  std::optional<std::uintptr_t> allocate(Bytes size, StreamId) {
    Offset offset = pool.place_idle(size, 0);
    if (offset == kUnplaced) {  // the searches of an iteration are limited
      pool.end_iteration();
      offset = pool.place_idle(size, 0);
    }
    return offset == kUnplaced ? std::nullopt : std::optional<std::uintptr_t>(offset);
  }
  bool free(std::uintptr_t p) { return pool.release(static_cast<Offset>(p)).size >= 0; }
  void check() const { pool.check(); }

  runtime::StaticPool pool{half_of_the_capacity()};
};

// A plan's pool and the fallback beside it.
struct Planned {
  Planned() { allocator.enable(half_of_the_capacity()); }
  std::optional<std::uintptr_t> allocate(Bytes size, StreamId stream) {
    try {
      void* p = allocator.allocate(size, stream, /*for_training=*/false);
      return reinterpret_cast<std::uintptr_t>(p);
    } catch (const OutOfMemory&) {
      return std::nullopt;
    }
  }
  bool free(std::uintptr_t p) { return allocator.deallocate(reinterpret_cast<void*>(p)); }
  void check() const { allocator.inspect().check(); }

  device::PretendMemory device{kCapacity};
  runtime::PlannedAllocator allocator{device};
};

// An allocator on a device with streams.
template <runtime::Fallback kFallback>
struct WithStreams {
  bool free(std::uintptr_t p) { return allocator.deallocate(reinterpret_cast<void*>(p)); }
  void check() const { allocator.inspect().check(); }

  device::PretendMemory device{kCapacity};
  testing::FakeStreams streams;
  runtime::StreamTable table;
  runtime::PlannedAllocator allocator{device, streams, table, kFallback};
};

// The fallback of compat mode, which serves without a plan.
struct Unplanned : WithStreams<runtime::Fallback::kAlways> {
  std::optional<std::uintptr_t> allocate(Bytes size, StreamId stream) {
    try {
      void* p = allocator.allocate(size, stream, /*for_training=*/false);
      return reinterpret_cast<std::uintptr_t>(p);
    } catch (const OutOfMemory&) {
      return std::nullopt;
    }
  }
};

// A plan's pool alone, beside the caller's allocator.
struct Beside : WithStreams<runtime::Fallback::kCallers> {
  Beside() {
    allocator.enable(half_of_the_capacity());
    allocator.loop().enter_unplanned();  // requests go into idle space
  }
  std::optional<std::uintptr_t> allocate(Bytes size, StreamId) {
    void* p = allocator.allocate(size, 0, /*for_training=*/false);
    return p ? std::optional(reinterpret_cast<std::uintptr_t>(p)) : std::nullopt;
  }
};

// The memory of one CUDA graph.
struct Graph {
  Graph() {
    pools.open({0, 1}, [](device::StreamHandle) { return true; });
  }
  std::optional<std::uintptr_t> allocate(Bytes size, StreamId stream) {
    void* p = pools.allocate(size, testing::FakeStreams::stream(stream), stream).block;
    return p ? std::optional(reinterpret_cast<std::uintptr_t>(p)) : std::nullopt;
  }
  bool free(std::uintptr_t p) { return pools.deallocate(reinterpret_cast<void*>(p)); }
  void check() const {}

  device::PretendMemory device{kCapacity};
  compat::GraphPools pools{device};
};

// The model of torch's allocator, which names blocks by numbers.
template <bool kExpandable>
struct Model {
  std::optional<std::uintptr_t> allocate(Bytes size, StreamId stream) {
    const auto id = model.malloc(size, stream);
    if (id == replay::CachingModel::kOutOfMemory) return std::nullopt;
    const auto address = static_cast<std::uintptr_t>(model.address(id));
    ids[address] = id;
    return address;
  }
  bool free(std::uintptr_t p) {
    const auto id = ids.find(p);
    try {
      model.free(id == ids.end() ? replay::CachingModel::kOutOfMemory : id->second);
      return true;
    } catch (const Error&) {
      return false;
    }
  }
  void check() const { model.check(); }

  replay::CachingModel model{{.expandable_segments = kExpandable, .capacity = kCapacity}};
  std::unordered_map<std::uintptr_t, replay::CachingModel::Id> ids;
};

template <typename Pool>
class PoolContract : public ::testing::Test {
 protected:
  Pool pool_;
};

using Pools =
    ::testing::Types<Caching, Static, Planned, Unplanned, Beside, Graph, Model<false>, Model<true>>;
TYPED_TEST_SUITE(PoolContract, Pools);

TYPED_TEST(PoolContract, LiveBlocksAreAlignedAndNeverOverlap) {
  std::mt19937 random(5);
  struct Live {
    std::uintptr_t address = 0;
    Range range;
  };
  std::vector<Live> live;
  RangeSet taken;
  int failures = 0;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 9 < 5) {
      const Bytes size = random() % 4 == 0 ? 1 + static_cast<Bytes>(random() % (6 * kMiB))
                                           : 1 + static_cast<Bytes>(random() % 100'000);
      const auto address = this->pool_.allocate(size, static_cast<StreamId>(random() % 2));
      if (!address) {
        ++failures;
        continue;
      }
      ASSERT_EQ(*address % kDefaultAlignment, 0u);
      const auto begin = static_cast<Offset>(*address);
      const Range range{begin, begin + align_up(size, kDefaultAlignment)};
      ASSERT_FALSE(taken.overlaps(range)) << "step " << step;
      taken.insert(range);
      live.push_back({*address, range});
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_TRUE(this->pool_.free(live.back().address));
      taken.erase(live.back().range.begin);
      live.pop_back();
    }
    if (step % 10 == 0) this->pool_.check();
  }
  EXPECT_GT(failures, 0) << "the pool never ran out";
  for (const Live& block : live) EXPECT_TRUE(this->pool_.free(block.address));
  this->pool_.check();
}

TYPED_TEST(PoolContract, FreesABlockOnce) {
  const auto a = this->pool_.allocate(1000, 0);
  const auto b = this->pool_.allocate(1000, 0);
  ASSERT_TRUE(a && b);
  EXPECT_FALSE(this->pool_.free(*a + kDefaultAlignment)) << "the middle of a block";
  EXPECT_TRUE(this->pool_.free(*a));
  EXPECT_FALSE(this->pool_.free(*a));
  EXPECT_TRUE(this->pool_.free(*b));
  this->pool_.check();
}

TYPED_TEST(PoolContract, ServesAgainAfterItRanOut) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::uintptr_t> blocks;
    while (const auto block = this->pool_.allocate(3 * kMiB, 0)) blocks.push_back(*block);
    EXPECT_GE(blocks.size(), 5u) << "round " << round;
    EXPECT_FALSE(this->pool_.allocate(kCapacity, 0));
    this->pool_.check();
    for (const std::uintptr_t block : blocks) EXPECT_TRUE(this->pool_.free(block));
    const auto large = this->pool_.allocate(kCapacity / 4, 0);
    ASSERT_TRUE(large) << "freed memory is one piece again";
    EXPECT_TRUE(this->pool_.free(*large));
    this->pool_.check();
  }
}

}  // namespace
}  // namespace stalloc
