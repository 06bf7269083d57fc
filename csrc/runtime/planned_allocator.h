// The allocator of a planned run: the static pool under a plan, idle pool space outside planned
// phases, and the caching pool for everything else.
//
//   request --> in a planned phase, of the training thread? --matcher--> static pool --> address
//                  | outside: idle pool space                    |        (decision, or the region
//                  |                                             |         of a dynamic group)
//                  +----------------> caching pool <-------------+ no match, or the place is taken
//
// Thread-safe. One mutex, held for the few operations of a request; the device is asked for memory
// under it, which only the fallback does and rarely.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/types.h"
#include "device/memory.h"
#include "plan/plan.h"
#include "runtime/caching_pool.h"
#include "runtime/matcher.h"
#include "runtime/static_pool.h"
#include "runtime/statistics.h"
#include "runtime/threads.h"

namespace stalloc {

class PlannedAllocator {
 public:
  explicit PlannedAllocator(DeviceMemory& device) : device_(device), fallback_(device) {}
  PlannedAllocator(const PlannedAllocator&) = delete;
  PlannedAllocator& operator=(const PlannedAllocator&) = delete;
  ~PlannedAllocator();

  // Reserves the pool of `plan` and serves from it from now on; a plan that was enabled before is
  // retired. Statistics start anew. Without `reuse`, dynamic requests go to the
  // fallback. Throws PlanError when the plan is not sound and OutOfMemory
  // when the pool cannot be reserved; then nothing has changed.
  void enable(const Plan& plan, bool reuse = true);

  // Serves nothing more. Blocks that are still live stay valid; the pool goes back to the device
  // with the last of them. No-op when nothing is enabled.
  void disable();

  bool enabled() const { return enabled_.load(std::memory_order_acquire); }

  // `size` > 0 bytes. `for_training`: the calling thread runs the training thread's graph. `node`:
  // the autograd node that runs on it; needed only if follows_nodes(). Null when no plan is
  // enabled: the caller's own allocator has to serve. Throws OutOfMemory.
  void* allocate(Bytes size, StreamId stream, bool for_training, NodeSequence node = {});

  // Takes a block back; false when `p` is not a live block of this allocator.
  bool deallocate(void* p);

  // What the training loop is doing; see Matcher and hooks.py. The calling thread becomes the
  // training thread. No-ops when nothing is enabled.
  void enter_phase(PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  void enter_unplanned();
  void leave_unplanned();
  void end_iteration();

  // The modules whose requests are dynamic: entered, left, and which autograd nodes they made (on
  // this thread, ascending). Backward requests of these nodes are dynamic as well.
  void enter_dynamic();
  void leave_dynamic();
  void tag_dynamic_nodes(std::uint64_t first, std::uint64_t last);
  bool follows_nodes() const { return follows_nodes_.load(std::memory_order_relaxed); }

  Statistics statistics() const;
  void reset_peaks();
  // Gives cached fallback segments back to the device. Returns how many bytes.
  Bytes release_cached();

  // For fork handlers: between the two, no other thread is inside.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

  // Throws Error unless the pools' invariants hold. For tests.
  void check() const;

 private:
  struct Pool {  // a reserved piece with the plan that fills it
    Pool(const Plan& plan, std::byte* memory) : base(memory), space(plan), matcher(plan) {}

    bool contains(const void* p) const { return p >= base && p < base + space.size(); }

    std::byte* base;
    StaticPool space;
    Matcher matcher;
  };

  void* allocate_planned(Bytes size, StreamId stream, bool dynamic);
  void* allocate_idle(Bytes size);
  void* allocate_dynamic(std::int32_t group, Bytes size, StreamId stream);
  void* allocate_fallback(Bytes size, StreamId stream, bool dynamic = false);
  bool is_dynamic(NodeSequence node) const;
  std::string out_of_memory_message(Bytes size) const;
  bool release_from(Pool& pool, void* p);
  void free_pool(Pool& pool) noexcept;
  void update_reserved();

  DeviceMemory& device_;
  mutable std::mutex mutex_;
  std::atomic<bool> enabled_{false};
  std::unique_ptr<Pool> active_;
  std::vector<std::unique_ptr<Pool>> retired_;  // disabled, with live blocks
  CachingPool fallback_;
  TrainingThread training_thread_;
  int unplanned_depth_ = 0;
  int dynamic_depth_ = 0;
  bool reuse_ = true;
  // Nodes of dynamic modules, ascending; those of two iterations are kept.
  struct NodeRange {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    std::int64_t iteration = 0;
  };
  std::deque<NodeRange> dynamic_nodes_;
  std::atomic<bool> follows_nodes_{false};
  std::int64_t hits_this_iteration_ = 0;
  Statistics stats_;
};

}  // namespace stalloc
