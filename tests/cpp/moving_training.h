// A training run on the pretended GPU that moves memory within its pool, at random.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda_memory.h"
#include "device/cuda_streams.h"
#include "plans.h"
#include "pretended_gpu.h"
#include "runtime/planned_allocator.h"

namespace stalloc::testing {

// A training run on one device, and evaluations between its iterations, in any order.
class MovingTraining {
 public:
  static constexpr StreamId kMain = 0;

  struct Conditions {
    Bytes scale = 300;    // of the plan's sizes
    bool lags = false;    // a side stream uses blocks after they are freed
    bool faults = false;  // the driver refuses calls
    Bytes spare = 0;      // the device has so much memory besides the pool's; 0: enough
    bool helped = false;  // another thread has blocks, too
    StreamId streams = 1;
    solve::Streams reuse = solve::Streams::kSeparate;
  };

  MovingTraining(int device, unsigned seed, Conditions conditions)
      : conditions_(conditions),
        device_(device),
        random_(seed),
        plan_(random_plan(random_, 40, 3, conditions.streams, conditions.reuse, conditions.scale)),
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
  ~MovingTraining() {
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
        allocator_.loop().enter_phase(trace::PhaseKind::kForward, phase.number(), 0);
      }
      allocate(d.size, d.stream);
      if (live_.size() > 12 || below(2) == 0) free_one();
    }
    allocator_.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
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
          allocator_.loop().enter_phase(trace::PhaseKind::kForward, phase.number(), 0);
        }
        p = allocator_.allocate(d.size, d.stream, /*for_training=*/true);
        const Block block{d.size, d.stream, ++owners_};
        use(p, block, d.stream);
        live_[p] = block;
      }
      allocator_.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
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

}  // namespace stalloc::testing
