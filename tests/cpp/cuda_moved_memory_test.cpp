// Memory that moves within a pool of the pretended GPU: every block can be used while it lives,
// whatever the driver refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda_memory.h"
#include "device/cuda_streams.h"
#include "plans.h"
#include "pretended_gpu.h"
#include "runtime/partial_release.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

using testing::PretendedGpu;
using trace::PhaseKind;

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr StreamId kMain = 0;

// A training run on one device, and evaluations between its iterations, in any order.
class Training {
 public:
  struct Conditions {
    Bytes scale = 300;    // of the plan's sizes
    bool lags = false;    // a side stream uses blocks after they are freed
    bool faults = false;  // the driver refuses calls
    Bytes spare = 0;      // the device has so much memory besides the pool's; 0: enough
    bool helped = false;  // another thread has blocks, too
    StreamId streams = 1;
    solve::Streams reuse = solve::Streams::kSeparate;
  };

  Training(int device, unsigned seed, Conditions conditions)
      : conditions_(conditions),
        device_(device),
        random_(seed),
        plan_(testing::random_plan(random_, 40, 3, conditions.streams, conditions.reuse,
                                   conditions.scale)),
        memory_(device),
        streams_(device) {
    cudaSetDevice(device);
    if (conditions.spare > 0) {
      standin_set_memory(device, static_cast<std::uint64_t>(plan_.pool + conditions.spare));
    }
    EXPECT_EQ(cudaStreamCreateWithFlags(&side_, kCudaNonBlocking), kCudaSuccess);
    side_id_ = table_.id_of(side_);
    allocator_.enable(plan_);
  }
  ~Training() {
    cudaSetDevice(device_);
    while (!live_.empty()) free_one();
    allocator_.disable();
    allocator_.release_cached();
    EXPECT_EQ(standin_used(device_), 0u) << "all was given back";
  }

  void iterate() {
    cudaSetDevice(device_);
    PhaseIndex phase = kNone;
    for (const plan::Decision& d : plan_.decisions) {
      if (d.phase != phase) {
        phase = d.phase;
        allocator_.loop().enter_phase(PhaseKind::kForward, phase.number(), 0);
      }
      allocate(d.size, d.stream);
      if (live_.size() > 12 || below(2) == 0) free_one();
    }
    allocator_.loop().enter_phase(PhaseKind::kOther, 0, 0);
    while (live_.size() > static_cast<std::size_t>(below(4))) free_one();
    evaluate();
    if (below(3) > 0) free_all();
    if (below(8) == 0 && !conditions_.helped) {
      free_all();
      standin_drain_all();
      allocator_.release_pool();
      acquire();
    }
    if (below(4) == 0 && !conditions_.helped) give_way();
    allocator_.loop().end_iteration();
  }

  // A thread that does not train takes and frees blocks until it is told to stop.
  void help(const std::atomic<bool>& stop) {
    std::mt19937 random(1);
    const auto below = [&](Bytes n) {
      return static_cast<Bytes>(random() % static_cast<unsigned>(n));
    };
    std::vector<std::pair<void*, Block>> blocks;
    const auto free_last = [&] {
      const auto [p, block] = blocks.back();
      use(p, block, kMain);
      blocks.pop_back();
      EXPECT_TRUE(allocator_.deallocate(p));
    };
    std::uint64_t owner = std::uint64_t{1} << 40;
    while (!stop) {
      const Block block{1 + below(plan_.pool / 16), kMain, ++owner};
      void* p = allocator_.allocate(block.size, kMain, /*for_training=*/false);
      use(p, block, kMain);
      blocks.emplace_back(p, block);
      std::swap(blocks.back(), blocks[static_cast<std::size_t>(below(std::ssize(blocks)))]);
      if (blocks.size() > 6 || below(2) == 0) free_last();
    }
    while (!blocks.empty()) free_last();
  }

  // Frees everything and trains as planned, until the hits come back.
  void follow() {
    cudaSetDevice(device_);
    free_all();
    standin_drain_all();
    struct Event {
      Tick tick;
      bool is_allocation;
      std::size_t decision;
    };
    std::vector<Event> events;
    const auto planned = static_cast<std::int64_t>(plan_.decisions.size());
    for (std::size_t i = 0; i < plan_.decisions.size(); ++i) {
      const plan::Decision& d = plan_.decisions[i];
      events.push_back({d.lower, true, i});
      events.push_back({d.upper > plan_.period ? d.upper - plan_.period : d.upper, false, i});
    }
    std::ranges::sort(
        events, {}, [](const Event& e) { return std::tuple(e.tick, e.is_allocation, e.decision); });
    std::vector<void*> blocks(plan_.decisions.size());
    std::int64_t hits = 0;
    for (int i = 0; i < 4; ++i) {
      const std::int64_t before = statistics().hits;
      PhaseIndex phase = kNone;
      for (const Event& e : events) {
        const plan::Decision& d = plan_.decisions[e.decision];
        void*& p = blocks[e.decision];
        if (!e.is_allocation && p) {
          use(p, live_.at(p), d.stream);
          live_.erase(p);
          EXPECT_TRUE(allocator_.deallocate(std::exchange(p, nullptr)));
        }
        if (!e.is_allocation) continue;
        if (d.phase != phase) {
          phase = d.phase;
          allocator_.loop().enter_phase(PhaseKind::kForward, phase.number(), 0);
        }
        p = allocator_.allocate(d.size, d.stream, /*for_training=*/true);
        const Block block{d.size, d.stream, ++owners_};
        use(p, block, d.stream);
        live_[p] = block;
      }
      allocator_.loop().enter_phase(PhaseKind::kOther, 0, 0);
      allocator_.loop().end_iteration();
      hits = statistics().hits - before;
    }
    EXPECT_EQ(hits, planned);
  }

  runtime::Statistics statistics() const { return allocator_.figures().statistics(); }
  // The times that only the memory of blocks stayed.
  int given_way() const { return given_way_; }

 private:
  struct Block {
    Bytes size = 0;
    StreamId stream = kMain;
    std::uint64_t owner = 0;
  };

  Bytes below(Bytes n) { return static_cast<Bytes>(random_() % static_cast<unsigned>(n)); }

  void evaluate() {
    allocator_.loop().enter_unplanned();
    for (Bytes part = below(4); part > 0; --part) {
      if (below(4) > 0) allocator_.loop().begin_evaluation();
      for (int i = 0; i < 8; ++i) {
        const Bytes size = 1 + below(plan_.pool / (1 + below(4)));
        allocate(size, static_cast<StreamId>(below(conditions_.streams)));
        if (below(3) > 0) free_one();
      }
      while (live_.size() > 5) free_one();
    }
    allocator_.loop().leave_unplanned();
  }

  // The memory in which no block lies goes, and comes back later.
  void give_way() {
    standin_drain_all();
    // A pool that goes as a whole needs a driver that unmaps it.
    const auto in_pool = [&](const auto& b) {
      return allocator_.inspect().block_of(b.first).has_value();
    };
    if (std::ranges::any_of(live_, in_pool)) provoke_fault();
    try {
      allocator_.release_pool(/*partly=*/true);
      ++given_way_;
    } catch (const Error&) {  // no chunk was idle, or the driver gave none back
    }
    cancel_faults();
    allocator_.inspect().check();
    for (int i = 0; i < 3; ++i) {
      allocate(1 + below(plan_.pool / 16), kMain);
      if (below(2) == 0) free_one();
    }
    provoke_fault();
    try {
      allocator_.acquire_pool();
    } catch (const Error&) {
    }
    allocator_.inspect().check();
    acquire();
  }

  void acquire() {
    cancel_faults();
    try {
      allocator_.acquire_pool();
    } catch (const OutOfMemory&) {  // what lies beside the pool comes back later
      free_all();
      allocator_.release_cached();
      allocator_.acquire_pool();
    }
  }

  void provoke_fault() {
    if (!conditions_.faults) return;
    const std::array<const char*, 4> calls = {"cuMemCreate", "cuMemMap", "cuMemSetAccess",
                                              "cuMemUnmap"};
    // An unmapping that fails leaks while another failure is undone, or while a segment goes.
    const bool may_leak = conditions_.spare > 0 || statistics().fallback_reserved > 0;
    const char* call = calls[static_cast<std::size_t>(below(may_leak ? 3 : 4))];
    const bool is_lack = call == calls[0];
    if (below(3) == 0) {
      standin_fail(call, 1 + below(3), is_lack ? kCudaOutOfMemory : kCudaInvalidValue,
                   1 + below(2));
    }
  }
  static void cancel_faults() {
    for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"}) {
      standin_fail(call, 0, 0, 0);
    }
  }

  void allocate(Bytes size, StreamId stream) {
    provoke_fault();
    void* p = nullptr;
    try {
      p = allocator_.allocate(size, stream, /*for_training=*/true);
    } catch (const OutOfMemory&) {
      EXPECT_GT(conditions_.spare, 0);
    }
    cancel_faults();
    allocator_.inspect().check();
    if (!p) return;
    const Block block{size, stream, ++owners_};
    use(p, block, stream);
    ASSERT_TRUE(live_.emplace(p, block).second);
  }

  void* handle_of(StreamId stream) const { return stream == kMain ? nullptr : side_; }
  void use(void* p, const Block& block, StreamId stream) const {
    ASSERT_EQ(
        standin_use(handle_of(stream), p, static_cast<std::uint64_t>(block.size), block.owner),
        kCudaSuccess)
        << standin_last_complaint();
  }

  void free_one() {
    if (live_.empty()) return;
    const auto it = std::next(live_.begin(), below(static_cast<Bytes>(live_.size())));
    const auto [p, block] = *it;
    use(p, block, block.stream);  // its memory is still there
    if (conditions_.lags && below(3) == 0) {
      void* event = nullptr;
      cudaEventCreateWithFlags(&event, kCudaNoTiming);
      const StreamId other = block.stream == kMain ? side_id_ : kMain;
      cudaEventRecord(event, handle_of(block.stream));
      cudaStreamWaitEvent(handle_of(other), event, 0);
      cudaEventDestroy(event);
      use(p, block, other);
      EXPECT_TRUE(allocator_.record_stream(p, other));
    }
    if (conditions_.lags && below(6) == 0) standin_drain(side_);
    live_.erase(it);
    ASSERT_TRUE(allocator_.deallocate(p));
    allocator_.inspect().check();
  }
  void free_all() {
    while (!live_.empty()) free_one();
  }

  const Conditions conditions_;
  const int device_;
  std::mt19937 random_;
  const plan::Plan plan_;
  device::CudaMemory memory_;
  device::CudaStreams streams_;
  runtime::StreamTable table_;
  void* side_ = nullptr;
  StreamId side_id_ = kNone;
  std::uint64_t owners_ = 0;
  int given_way_ = 0;
  std::map<void*, Block> live_;
  runtime::PlannedAllocator allocator_{memory_, streams_, table_, runtime::Fallback::kOwn};
};

class CudaMovedMemory : public PretendedGpu {
 protected:
  // Returns the moves of all runs.
  static std::int64_t run(Training::Conditions conditions, int iterations = 30) {
    std::int64_t moves = 0;
    for (unsigned seed = 0; seed < 16; ++seed) {
      standin_reset();
      standin_set_manual(conditions.lags ? 1 : 0);
      Training training(0, seed, conditions);
      std::atomic<bool> stop = !conditions.helped;
      std::thread helper([&] { training.help(stop); });
      for (int i = 0; i < iterations && !HasFatalFailure(); ++i) training.iterate();
      stop = true;
      helper.join();
      training.follow();
      moves += training.statistics().moves;
      EXPECT_GT(training.given_way(), conditions.helped ? -1 : 0) << "seed " << seed;
      if (HasFatalFailure()) ADD_FAILURE() << "seed " << seed;
    }
    return moves;
  }
};

// Some sizes are no multiple of the unit in which the device gives memory, nor is the pool's.
TEST_F(CudaMovedMemory, EveryBlockCanBeUsed) { EXPECT_GT(run({.scale = 100'000}), 100); }

// The chunks of a large pool are larger than the unit.
TEST_F(CudaMovedMemory, EveryBlockOfALargePoolCanBeUsed) {
  EXPECT_GT(run({.scale = 60 * kMiB + 512}), 100);
}

TEST_F(CudaMovedMemory, ARefusalCostsNoBlock) {
  EXPECT_GT(run({.scale = 100'000, .faults = true}), 50);
}

TEST_F(CudaMovedMemory, AFullDeviceCostsNoBlock) {
  EXPECT_GT(run({.scale = 60 * kMiB + 512, .spare = 512 * kMiB}), 50);
}

TEST_F(CudaMovedMemory, StreamsThatLagBehindKeepTheirBlocks) {
  EXPECT_GT(run({.scale = 100'000, .lags = true}), 50);
}

TEST_F(CudaMovedMemory, FaultsStreamsAndAFullDeviceTogether) {
  EXPECT_GT(run({.scale = 3 * kMiB + 512, .lags = true, .faults = true, .spare = 64 * kMiB}), 50);
}

TEST_F(CudaMovedMemory, BlocksOfOtherThreadsStay) {
  EXPECT_GT(run({.scale = 100'000, .helped = true}), 50);
}

TEST_F(CudaMovedMemory, StreamsHaveAddressesOfTheirOwn) {
  EXPECT_GT(run({.scale = 100'000, .lags = true, .streams = 2}), 50);
}

TEST_F(CudaMovedMemory, StreamsThatShareAddressesWait) {
  EXPECT_GT(run({.scale = 100'000,
                 .lags = true,
                 .faults = true,
                 .streams = 2,
                 .reuse = solve::Streams::kOrdered}),
            50);
}

// Each device's pool moves its own memory.
TEST_F(CudaMovedMemory, DevicesMoveTheirMemoryAtTheSameTime) {
  standin_set_devices(2);
  std::array<std::unique_ptr<Training>, 2> runs;
  for (unsigned device = 0; device < 2; ++device) {
    runs[device] = std::make_unique<Training>(static_cast<int>(device), device + 1,
                                              Training::Conditions{.scale = 100'000});
  }
  std::vector<std::thread> threads;
  for (const auto& training : runs) {
    threads.emplace_back([&training] {
      for (int i = 0; i < 20; ++i) training->iterate();
    });
  }
  for (std::thread& t : threads) t.join();
  for (const auto& training : runs) EXPECT_GT(training->statistics().moves, 0);
}

// A pool of three plain pieces, of which one holds a block.
class CudaPartialRelease : public PretendedGpu {};

TEST_F(CudaPartialRelease, ADriverThatFailsTakesNoPiece) {
  constexpr Bytes kPiece = 16 * kMiB;
  constexpr Offset kStep = kPiece + kDefaultAlignment;
  std::vector<plan::Decision> decisions(3);
  for (Tick i = 0; i < 3; ++i) {
    plan::Decision& d = decisions[static_cast<std::size_t>(i)];
    d.size = kPiece;
    d.offset = i * kStep;
    d.lower = i;
    d.upper = 4;
  }
  plan::Plan plan = testing::plan_of(decisions, 4);
  plan.walls = {kPiece, kPiece + kStep};
  device::CudaMemory memory(0);
  const auto take = [&] { return static_cast<std::byte*>(memory.allocate(kPiece)); };
  runtime::Pool pool(plan, take());
  pool.first_size = kPiece;
  for (const int i : {1, 2}) pool.more.push_back({take(), kPiece, i * kStep});
  pool.space.place(plan::DecisionIndex(1));
  runtime::PartialRelease release(memory);
  ASSERT_TRUE(release.release(pool));
  EXPECT_EQ(standin_used(0), static_cast<std::uint64_t>(kPiece));
  standin_fail("cudaMalloc", 2, kCudaIllegalAddress, 1);
  EXPECT_FALSE(release.acquire(pool));
  EXPECT_EQ(standin_used(0), static_cast<std::uint64_t>(kPiece));
  EXPECT_TRUE(release.acquire(pool));
  pool.space.check();
  for (const runtime::Pool::Piece& piece : pool.pieces()) {
    memory.release(piece.memory, piece.size);
  }
  EXPECT_EQ(standin_used(0), 0u);
}

}  // namespace
}  // namespace stalloc
