// The allocator of a planned run: requests, the plan that is in force, and its memory. The training
// loop reports to loop(), figures() counts, and inspect() shows the memory as it lies. All share
// one lock and the parts in AllocatorParts.
//
// Note [Streams]
// A block belongs to the stream of its request. Its addresses go only to requests of that stream:
// the streams of a plan share no address, the pool divides its idle space among the streams, and
// the caching pool keeps the free blocks of each stream apart. So a freed address needs no wait. A
// plan may let its streams share addresses: then the stream that gets one waits (StreamOrder). A
// block that record_stream() reports keeps its addresses after the free until these streams are
// done. If its planned lifetime has ended by then, it is a stray. The next decision there gets the
// addresses nevertheless, and its stream waits (HandBack); without that it is a conflict.
//
// Thread-safe. Under the lock the fallback rarely asks the device for memory, and blocks that
// several streams use ask it for events. The caller's own allocator is never called.
#pragma once

#include <span>

#include "base/types.h"
#include "device/memory.h"
#include "device/streams.h"
#include "plan/plan.h"
#include "runtime/allocator_parts.h"
#include "runtime/figures.h"
#include "runtime/inspection.h"
#include "runtime/serving.h"
#include "runtime/stream_table.h"
#include "runtime/threads.h"
#include "runtime/training_loop.h"

namespace stalloc::runtime {

class PlannedAllocator {
 public:
  explicit PlannedAllocator(device::DeviceMemory& device, Fallback fallback = Fallback::kOwn)
      : parts_(device, nullptr, nullptr, fallback) {}
  // For a device with streams. All outlive this object.
  PlannedAllocator(device::DeviceMemory& device, device::DeviceStreams& streams,
                   const StreamTable& table, Fallback fallback)
      : parts_(device, &streams, &table, fallback) {}
  PlannedAllocator(const PlannedAllocator&) = delete;
  PlannedAllocator& operator=(const PlannedAllocator&) = delete;

  TrainingLoop& loop() { return loop_; }
  Figures& figures() { return figures_; }
  const Figures& figures() const { return figures_; }
  const Inspection& inspect() const { return inspection_; }

  // Reserves the pool of `plan` and serves from it; a plan that was enabled before is retired.
  // Statistics start anew. Throws PlanError if the plan is invalid and OutOfMemory if the pool
  // cannot be reserved; then nothing has changed.
  void enable(const plan::Plan& plan, Serving::Scope scope);
  void enable(const plan::Plan& plan) { enable(plan, Serving::Scope{}); }

  // Stops serving. Live blocks stay valid; the pool goes back to the device with the last of them.
  // No-op if no plan is enabled.
  void disable();

  // Empties the pool by the end of iterations: from now on the fallback serves requests that live
  // into the next iteration. The plan knows these. With `departed`, the fallback also serves
  // requests that depart from the plan, whose lifetimes are unknown. No-op if no plan is enabled.
  void drain(bool departed);

  // Another plan may replace this one once its pool is empty: between phases, copies that may stay
  // for good lie beside the pool. No-op if no plan is enabled.
  void keep_clear();

  // With `on`, the fallback serves the requests between the planned phases that depart from the
  // plan, such as the data of the next batch: the pool is to be empty where an iteration begins.
  // No-op if no plan is enabled.
  void keep_pauses_clear(bool on);

  // The plan was made of the run's latest iterations, so the next one makes no states that outlive
  // it; or of an earlier run of the program, so the first one `makes_states`. No-op if no plan is
  // enabled.
  void trust_all(bool makes_states);

  // With `on`, the fallback serves all requests of the training thread: an optimizer makes states,
  // which stay for good. No-op if no plan is enabled.
  void make_states(bool on);

  bool enabled() const { return parts_.enabled.load(std::memory_order_acquire); }

  // Serves a request of `size` > 0 bytes. `for_training`: the calling thread runs the training
  // thread's graph. `node`: the autograd node that runs on it; needed only if
  // loop().follows_nodes(). Null if no plan is enabled (except with Fallback::kAlways), or if the
  // caller's own allocator must serve the request (kCallers). Throws OutOfMemory.
  void* allocate(Bytes size, StreamId stream, bool for_training, NodeSequence node = {});

  // Returns a block in the pool's idle space, in any phase, for a caller whose own allocator has
  // run out of memory. Null if no idle range is large enough.
  void* rescue(Bytes size, StreamId stream);
  // After that, gives all idle memory of pools to the device, so that the caller's own allocator
  // can take it; that of the plan in force only if it suffices. Returns the bytes.
  Bytes give_idle(Bytes size);

  // Frees a block; false if `p` is no live block of this allocator. `for_training`: as above.
  bool deallocate(void* p, bool for_training = false);

  // Records that `stream` also uses the live block `p`: after the free, the block is reused only
  // when all work submitted to `stream` before the free is done. False if `p` is no live block of
  // this allocator. Needs a device with streams.
  bool record_stream(void* p, StreamId stream);

  // Between these calls, which nest, a graph is captured: no event is recorded or queried.
  void begin_capture();
  void end_capture();

  // For a caller whose own allocator serves the rest. True if that is to give back what it caches
  // before it asks for a request of `size` bytes here: the pool may need memory for it, and the run
  // would hold more than ever. Without a lock if the pool has all its memory.
  bool wants_callers_cache(Bytes size) {
    return parts_.lacks_memory.load(std::memory_order_relaxed) && wants_cached_for(size);
  }
  // True if the pool began without memory, and the request may be one that makes a new peak. The
  // caller first tells what it holds, for blocks may have been freed. Without a lock, as above.
  bool fills_to_new_peak(Bytes size) {
    return parts_.lacks_memory.load(std::memory_order_relaxed) && fills_beyond_most(size);
  }
  // The caller's allocator is to serve a request, and takes `growth` bytes of the device if none of
  // its cached blocks fits. It first tells what it holds (Figures::note_fallback()), for blocks may
  // have been freed. What is idle in the pool gives way where the run would hold more than ever.
  // `fits` says whether a cached block fits; it is called without a lock, and only if it matters.
  // Not needed unless moves_memory().
  template <typename Fits>
  void make_way_for_caller(Bytes growth, Fits fits) {
    give_way_to_caller(would_give_way(growth) && !fits() ? growth : 0);
  }
  bool moves_memory() const { return parts_.moves_memory.load(std::memory_order_relaxed); }

  // True if `p` may lie in a pool of this allocator. If false, `p` belongs to the caller's
  // fallback. Only with kCallers. Takes no lock.
  bool may_own(const void* p) const {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    return address >= parts_.low.load(std::memory_order_acquire) &&
           address < parts_.high.load(std::memory_order_acquire);
  }

  // Lets the own fallback have memory for blocks of these sizes (> 0 bytes) at once, as far as the
  // device gives it. No-op if no plan is enabled.
  void prepare(std::span<const Bytes> sizes);

  // Returns cached fallback segments to the device, after it has waited for the streams that still
  // use blocks in them. Returns their bytes.
  Bytes release_cached();

  // Returns the pool's memory to the device until acquire_pool(), and keeps its addresses if the
  // device can; meanwhile requests go to the fallback. First waits for blocks that only wait for
  // streams. If a block lies in the pool: throws Error, or if `partly`, returns the rest, see
  // PartialRelease, and throws only if there is none. If the memory is released already: no-op, or
  // if `partly`, returns that of blocks that have gone since. Throws Error if no plan is enabled.
  // Returns the bytes of the pool that stay.
  Bytes release_pool(bool partly = false);
  // Reserves the memory again. Throws OutOfMemory and changes nothing if the device lacks it. No-op
  // if the pool has its memory.
  void acquire_pool();

  // For fork handlers: between the two calls, no other thread is in a call of this object.
  void lock_for_fork() { parts_.mutex.lock(); }
  void unlock_after_fork() { parts_.mutex.unlock(); }
  // For the child of a fork, where the device is out of reach: serves no request and never uses the
  // device again. The child can still free the blocks that it inherited.
  void abandon();

 private:
  void* count(Bytes size, void* p);
  void* allocate_fallback(Bytes size, StreamId stream, bool dynamic);
  void make_way(Bytes size, StreamId stream, Bytes growth);
  bool would_give_way(Bytes growth);
  void give_way_to_caller(Bytes growth);
  bool wants_cached_for(Bytes size);
  bool fills_beyond_most(Bytes size);
  void* allocate_idle(Bytes size, StreamId stream);
  Bytes give_idle_memory(Bytes size);
  bool delay(void* p);
  bool release_from(Pool& pool, void* p, bool for_training);
  void note_late(const StaticPool::Block& block, const Pool& pool, bool for_training);

  AllocatorParts parts_;
  TrainingLoop loop_{parts_};
  Figures figures_{parts_};
  Inspection inspection_{parts_};
};

}  // namespace stalloc::runtime
