// The allocator of a planned run: a facade with one lock over its parts.
//
//   Pools          reserves, releases and retires the memory of plans
//   Serving        follows the training loop and finds a request its place in the pool
//   CachingPool    the own fallback, for what the pool does not serve
//   DelayedFrees   blocks that were freed while other streams use them; captures of graphs
//   DynamicScopes  tells which requests come from dynamic modules
//   Accounting     statistics and joint figures
//
// Note [Streams]
// A block is of the stream it was asked for. Its address goes only to requests of that stream: by
// the plan, whose streams share no address, by the pool's division of idle space, and by the
// caching pool's shelves. So a freed address needs no wait. A plan may let its streams share
// addresses: then whoever gets one is made to wait (StreamOrder). Where record_stream() said that
// other streams use a block too, it keeps its place after it was freed until their work is done, as
// a stray if the plan has it gone: then its next user is a conflict, and served by the fallback.
//
// Thread-safe. One mutex, held for the few operations of a request; the device is asked for memory
// under it, which only the fallback does and rarely, and for events, which only blocks need that
// several streams use. The caller's own allocator is never called.
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
  // Serves requests that the pool does not: a caching pool here, while a plan is enabled or always,
  // or the caller, told by null.
  enum class Fallback : std::uint8_t { kOwn, kAlways, kCallers };

  explicit PlannedAllocator(device::DeviceMemory& device)
      : PlannedAllocator(device, nullptr, nullptr, Fallback::kOwn) {}

  // On a device with streams. Both outlive this.
  PlannedAllocator(device::DeviceMemory& device, device::DeviceStreams& streams,
                   const StreamTable& table, Fallback fallback)
      : PlannedAllocator(device, &streams, &table, fallback) {
    delayed_.emplace(streams, table);
  }
  PlannedAllocator(const PlannedAllocator&) = delete;
  PlannedAllocator& operator=(const PlannedAllocator&) = delete;

  using Scope = Serving::Scope;

  // Reserves the pool of `plan` and serves from it from now on; a plan that was enabled before is
  // retired. Statistics start anew. Throws PlanError when the plan is not sound and OutOfMemory
  // when the pool cannot be reserved; then nothing has changed.
  void enable(const plan::Plan& plan, Scope scope);
  void enable(const plan::Plan& plan) { enable(plan, Scope{}); }

  // Serves nothing more. Blocks that are still live stay valid; the pool goes back to the device
  // with the last of them. No-op when nothing is enabled.
  void disable();

  // From now on, the fallback serves what lives on into the next iteration, so that the pool comes
  // to be empty where iterations end. The plan tells which requests these are. Of those that depart
  // from the plan nothing is known; with `departed`, the fallback serves them, too. No-op when
  // nothing is enabled.
  void drain(bool departed);

  bool enabled() const { return enabled_.load(std::memory_order_acquire); }

  // `size` > 0 bytes. `for_training`: the calling thread runs the training thread's graph. `node`:
  // the autograd node that runs on it; needed only if follows_nodes(). Null when no plan is
  // enabled (unless the fallback is always there), or with the caller's fallback when the pool does
  // not serve it: the caller's own allocator has to. Throws OutOfMemory.
  void* allocate(Bytes size, StreamId stream, bool for_training, NodeSequence node = {});

  // For a caller whose own allocator has run out: a block in the pool's idle space, whatever the
  // phase. Null when there is no room either.
  void* rescue(Bytes size, StreamId stream);

  // Describes the memory held, for the caller's message about a request that could not be served.
  std::string out_of_memory_message(Bytes size) const;

  // Takes a block back; false when `p` is not a live block of this allocator.
  bool deallocate(void* p);

  // Work on `stream` uses the live block `p`, too: once freed it is not handed out again before
  // what that stream has been given by then is done. False when `p` is no live block of this
  // allocator. Needs a device with streams.
  bool record_stream(void* p, StreamId stream);

  // While a graph is captured (calls nest) no event is recorded or asked after.
  void begin_capture();
  void end_capture();

  // True if `p` may lie in a pool of this allocator: when not, it is the caller's, where the caller
  // has the fallback. Takes no lock.
  bool may_own(const void* p) const {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    return address >= low_.load(std::memory_order_acquire) &&
           address < high_.load(std::memory_order_acquire);
  }

  // The pool, or segment of the own fallback, that holds `p`: its beginning and size. Null
  // beginning when none does.
  struct Piece {
    void* begin = nullptr;
    Bytes size = 0;
  };
  Piece pool_of(const void* p) const;

  // The bytes that the live block `p` of a pool occupies; 0 when it is none.
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
  // training thread. No-ops when nothing is enabled.
  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  // The sizes of the dimensions of a microbatch's inputs: of the forward that is on if it has none
  // yet, else of the next one. `values` are as many as `names`.
  void set_extents(std::span<const std::string> names, std::span<const std::int64_t> values);
  void enter_unplanned();
  void leave_unplanned();
  void end_iteration();

  // The modules whose requests are dynamic: entered and left by the calling thread, whose requests
  // alone are meant, and which autograd nodes they made. Backward requests of these nodes are
  // dynamic as well, on whatever thread.
  void enter_dynamic();
  void leave_dynamic();
  void tag_dynamic_nodes(std::uint64_t first, std::uint64_t last);
  bool follows_nodes() const { return dynamic_scopes_.follows_nodes(); }

  Statistics statistics() const;
  // The pools' part of the figures that the caller's fallback has the rest of.
  JointGauges joint_gauges() const;
  // With the caller's fallback: what its allocator holds now. To be told after each of its
  // allocations, and when figures_are_behind() after one of ours. The caller takes its figures
  // without a lock of ours, so peaks may be off by what other threads do meanwhile.
  void note_fallback(const JointGauges::Values& figures);
  bool figures_are_behind() const { return accounting_.is_behind(); }
  void reset_peaks();
  // Gives cached fallback segments back to the device, after waiting for the streams that blocks in
  // them wait for. Returns how many bytes.
  Bytes release_cached();

  // Gives the pool's memory back for a while, and keeps its addresses where the device can;
  // requests go to the fallback meanwhile. Throws Error when no plan is enabled, or blocks lie in
  // the pool, after waiting for those that are only waiting for streams. No-op when the pool is
  // gone already.
  void release_pool();
  // Takes it again. Throws OutOfMemory when it cannot be had; then nothing has changed. No-op when
  // it is there.
  void acquire_pool();

  // For fork handlers: between the two, no other thread is inside.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }
  // In the child, where the device is out of reach: serves nothing more, and never touches the
  // device again. Blocks that were inherited can still be freed.
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
  // The same after each request that the fallback serves or frees: cheap when it holds what it did.
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
  Bytes counted_fallback_ = 0;  // what it held when update_reserved() last ran
  Pools pools_;
  std::optional<DelayedFrees> delayed_;  // on a device with streams
  Accounting accounting_;
  DynamicScopes dynamic_scopes_;
  std::unique_ptr<Serving> serving_;  // of the active pool's plan
  TrainingThread training_thread_;
};

}  // namespace stalloc::runtime
