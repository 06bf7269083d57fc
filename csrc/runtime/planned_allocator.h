// The allocator of a planned run: a facade with one lock over its parts.
//
//   Pools          reserves, releases and retires the memory of plans
//   Serving        follows the training loop and finds the address of a request in the pool
//   CachingPool    the own fallback, for requests outside the pool
//   DelayedFrees   blocks that were freed while other streams use them; captures of graphs
//   DynamicScopes  recognizes requests of dynamic modules
//   Accounting     statistics and joint figures
//
// Note [Streams]
// A block belongs to the stream of its request. Its addresses go only to requests of that stream:
// the streams of a plan share no address, the pool divides its idle space among the streams, and
// the caching pool keeps the free blocks of each stream apart. So a freed address needs no wait. A
// plan may let its streams share addresses: then the stream that gets one waits (StreamOrder). A
// block that record_stream() reports keeps its addresses after the free until these streams are
// done. If its planned lifetime has ended by then, it is a stray, and the next decision there is a
// conflict.
//
// Thread-safe. One mutex guards each call. Under it the fallback rarely asks the device for memory,
// and blocks that several streams use ask it for events. The caller's own allocator is never
// called.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "device/memory.h"
#include "plan/plan.h"
#include "runtime/accounting.h"
#include "runtime/caching_pool.h"
#include "runtime/delayed_frees.h"
#include "runtime/dynamic_scopes.h"
#include "runtime/joint_gauges.h"
#include "runtime/pools.h"
#include "runtime/serving.h"
#include "runtime/statistics.h"
#include "runtime/stream_table.h"
#include "runtime/threads.h"

namespace stalloc::runtime {

class PlannedAllocator {
 public:
  // The allocator that serves requests outside the pool: the own caching pool while a plan is
  // enabled (kOwn), the own caching pool always (kAlways), or the caller (kCallers: null is
  // returned).
  enum class Fallback : std::uint8_t { kOwn, kAlways, kCallers };

  explicit PlannedAllocator(device::DeviceMemory& device)
      : PlannedAllocator(device, nullptr, nullptr, Fallback::kOwn) {}

  // For a device with streams. Both outlive this object.
  PlannedAllocator(device::DeviceMemory& device, device::DeviceStreams& streams,
                   const StreamTable& table, Fallback fallback)
      : PlannedAllocator(device, &streams, &table, fallback) {
    delayed_.emplace(streams, table);
  }
  PlannedAllocator(const PlannedAllocator&) = delete;
  PlannedAllocator& operator=(const PlannedAllocator&) = delete;

  using Scope = Serving::Scope;

  // Reserves the pool of `plan` and serves from it; a plan that was enabled before is retired.
  // Statistics start anew. Throws PlanError if the plan is invalid and OutOfMemory if the pool
  // cannot be reserved; then nothing has changed.
  void enable(const plan::Plan& plan, Scope scope);
  void enable(const plan::Plan& plan) { enable(plan, Scope{}); }

  // Stops serving. Live blocks stay valid; the pool goes back to the device with the last of them.
  // No-op if no plan is enabled.
  void disable();

  // Empties the pool by the end of iterations: from now on the fallback serves requests that live
  // into the next iteration. The plan knows these. With `departed`, the fallback also serves
  // requests that depart from the plan, whose lifetimes are unknown. No-op if no plan is enabled.
  void drain(bool departed);

  bool enabled() const { return enabled_.load(std::memory_order_acquire); }

  // Serves a request of `size` > 0 bytes. `for_training`: the calling thread runs the training
  // thread's graph. `node`: the autograd node that runs on it; needed only if follows_nodes(). Null
  // if no plan is enabled (except with kAlways), or if the caller's own allocator must serve the
  // request (kCallers). Throws OutOfMemory.
  void* allocate(Bytes size, StreamId stream, bool for_training, NodeSequence node = {});

  // Returns a block in the pool's idle space, in any phase, for a caller whose own allocator has
  // run out of memory. Null if no idle range is large enough.
  void* rescue(Bytes size, StreamId stream);

  // Describes the memory held, for the caller's message about a request that cannot be served.
  std::string out_of_memory_message(Bytes size) const;

  // Frees a block; false if `p` is no live block of this allocator.
  bool deallocate(void* p);

  // Records that `stream` also uses the live block `p`: after the free, the block is reused only
  // when all work submitted to `stream` before the free is done. False if `p` is no live block of
  // this allocator. Needs a device with streams.
  bool record_stream(void* p, StreamId stream);

  // Between these calls, which nest, a graph is captured: no event is recorded or queried.
  void begin_capture();
  void end_capture();

  // True if `p` may lie in a pool of this allocator. If false, `p` belongs to the caller's
  // fallback. Only with kCallers. Takes no lock.
  bool may_own(const void* p) const {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    return address >= low_.load(std::memory_order_acquire) &&
           address < high_.load(std::memory_order_acquire);
  }

  // The beginning and size of the pool, or segment of the own fallback, that holds `p`. The
  // beginning is null if none does.
  struct Piece {
    void* begin = nullptr;
    Bytes size = 0;
  };
  Piece pool_of(const void* p) const;

  // The bytes that the live block `p` of a pool occupies; 0 if `p` is no such block.
  Bytes block_size(const void* p) const;

  // The pools, and the segments of the own fallback, with their live blocks, ascending, for
  // snapshots.
  struct LiveBlock {
    void* begin = nullptr;
    Bytes size = 0;  // as asked for
    Bytes rounded = 0;
    StreamId stream = 0;
    bool waiting = false;  // freed; other streams still use it
  };
  struct LivePool {
    Piece piece;
    std::vector<LiveBlock> blocks;
  };
  std::vector<LivePool> pools() const;

  // Events of the training loop; see Matcher and hooks.py. The calling thread becomes the
  // training thread. No-ops if no plan is enabled.
  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  // Sets the extents of a microbatch's inputs: of the current forward if it has none yet, else of
  // the next one. There is one value for each name.
  void set_extents(std::span<const std::string> names, std::span<const std::int64_t> values);
  void enter_unplanned();
  void leave_unplanned();
  void end_iteration();

  // The calling thread enters or leaves a dynamic module: its requests in between are dynamic.
  // Requests of autograd nodes [first, last), which the module made, are dynamic on any thread.
  void enter_dynamic();
  void leave_dynamic();
  void tag_dynamic_nodes(std::uint64_t first, std::uint64_t last);
  bool follows_nodes() const { return dynamic_scopes_.follows_nodes(); }

  Statistics statistics() const;
  // The pools' part of the joint figures; the caller's fallback has the other part.
  JointGauges joint_gauges() const;
  // With the caller's fallback: its allocator holds `figures` now. Call it after each of its
  // allocations, and after one of ours if figures_are_behind(). The caller reads its figures
  // without our lock, so concurrent requests of other threads may make peaks inexact.
  void note_fallback(const JointGauges::Values& figures);
  bool figures_are_behind() const { return accounting_.is_behind(); }
  void reset_peaks();
  // Returns cached fallback segments to the device, after it has waited for the streams that still
  // use blocks in them. Returns their bytes.
  Bytes release_cached();

  // Returns the pool's memory to the device until acquire_pool(), and keeps its addresses if the
  // device can; meanwhile requests go to the fallback. First waits for blocks that only wait for
  // streams. Throws Error if no plan is enabled, or if a block lies in the pool. No-op if the
  // memory is released already.
  void release_pool();
  // Reserves the memory again. Throws OutOfMemory and changes nothing if the device lacks it. No-op
  // if the pool has its memory.
  void acquire_pool();

  // For fork handlers: between the two calls, no other thread is in a call of this object.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }
  // For the child of a fork, where the device is out of reach: serves no request and never uses the
  // device again. The child can still free the blocks that it inherited.
  void abandon();

  // Throws Error unless the pools' invariants hold. For tests.
  void check() const;

 private:
  PlannedAllocator(device::DeviceMemory& device, device::DeviceStreams* streams,
                   const StreamTable* table, Fallback fallback)
      : device_(device),
        callers_fallback_(fallback == Fallback::kCallers),
        always_(fallback == Fallback::kAlways),
        fallback_(device),
        pools_(device, fallback_, streams, table),
        accounting_(callers_fallback_) {}

  void* count(Bytes size, void* p);
  void* allocate_fallback(Bytes size, StreamId stream, bool dynamic);
  std::string describe_shortage(Bytes size) const;
  // True if freed fallback segments are worth keeping.
  bool keeps_segments() const { return serving_ || always_; }
  CachingPool::Freed release_fallback(void* p);
  void stop_serving();
  void fit_layout();
  bool capturing() const { return delayed_ && delayed_->capturing(); }
  bool delay(void* p);
  void release_delayed(void* p);
  void collect_delayed();
  void collect_all_delayed();
  void drop_empty_pools();
  void update_reserved();
  // The same after each request that the fallback serves or frees. Cheap if its memory is
  // unchanged.
  void update_fallback();
  std::string name() const { return std::string(device_.name()); }

  device::DeviceMemory& device_;
  const bool callers_fallback_ = false;
  const bool always_ = false;  // the fallback serves without a plan too
  mutable std::mutex mutex_;
  // The addresses between which all pools lie; empty while there are none.
  std::atomic<std::uintptr_t> low_{~std::uintptr_t{0}};
  std::atomic<std::uintptr_t> high_{0};
  std::atomic<bool> enabled_{false};
  bool abandoned_ = false;  // this is a forked child
  CachingPool fallback_;
  Bytes counted_fallback_ = 0;  // its reserved bytes when update_reserved() last ran
  Pools pools_;
  std::optional<DelayedFrees> delayed_;  // on a device with streams
  Accounting accounting_;
  DynamicScopes dynamic_scopes_;
  std::unique_ptr<Serving> serving_;  // of the active pool's plan
  TrainingThread training_thread_;
};

}  // namespace stalloc::runtime
