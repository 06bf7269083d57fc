// The pools of plans, from their reservation to the return of their memory.
//
//   enable            disable, or the next enable          last block freed
//   ------> active ----------------------------> retired ------------------> gone
//             |  ^
//     release |  | acquire      (away: the device has the memory, the addresses stay reserved)
//             v  |
//            away
//
// If blocks lie in a pool that is away, their memory has stayed (PartialRelease).
//
// The resident region (see StartupGuide) is a pool beside the active one during start-up.
// It is retired afterwards. A retired pool serves no request.
//
// Not thread-safe: PlannedAllocator locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/types.h"
#include "device/memory.h"
#include "device/streams.h"
#include "plan/plan.h"
#include "runtime/caching_pool.h"
#include "runtime/moving_memory.h"
#include "runtime/partial_release.h"
#include "runtime/pool.h"
#include "runtime/stream_table.h"

namespace stalloc::runtime {

class Pools {
 public:
  // `fallback` returns cached segments if the device lacks the memory for a pool. `streams` and
  // `table` are null on a device without streams. All outlive this object.
  Pools(device::DeviceMemory& device, CachingPool& fallback, device::DeviceStreams* streams,
        const StreamTable* table)
      : device_(device), fallback_(fallback), streams_(streams), table_(table) {}
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;
  ~Pools();

  Pool* active() const { return active_.get(); }
  Pool* resident() const { return resident_.get(); }
  bool is_away() const { return away_; }
  // The calls that have moved memory within a pool, and waited for the device.
  std::int64_t moves() const { return moves_; }

  // Throws PlanError if the device cannot align a pool as `plan` requires.
  void check_alignment(const plan::Plan& plan) const;

  // Reserves the pool of `plan`, in memory that can grow if the device has such, and if asked its
  // resident region, whose addresses get memory with their first requests if the device can add it
  // later; see provide_resident(). Retires the previous ones. `filled`: the static
  // addresses of the pool have their memory at once; else, like the regions of dynamic groups, if
  // the device can add it later, they get it with their first requests, see provide().
  // Throws OutOfMemory and changes nothing if either cannot be reserved.
  void enable(const plan::Plan& plan, bool with_resident, bool filled = true);

  // Retires the active pool and the resident region.
  void disable();
  void retire_resident() { retire(std::move(resident_)); }

  // Returns the memory of retired pools without a live block. False if there are none.
  bool drop_empty();
  // Gives back the memory in which no block lies of pools that are retired or left, if there is a
  // new one since the last call, or review_retired() says so: no request gets it any more. Waits
  // for the device. Returns true if there was any.
  bool trim();
  // A block of a pool that is retired or left was freed.
  void note_freed(Bytes size) { freed_ += size; }
  // Lets trim() look at all these pools again once `least` bytes were freed in them, such as the
  // weights of a model that others have replaced.
  void review_retired(Bytes least);
  void review_retired() { review_retired(worth_a_wait()); }

  // Returns the active pool's memory to the device, and keeps its addresses if the device can. If a
  // block lies in the pool: throws Error, or if `partly`, returns the rest; see PartialRelease.
  void release(bool partly);
  // Returns more of a pool that was released with blocks in it, if some have gone since. True if
  // any memory went.
  bool release_more();
  // Releases it for good, until another plan is enabled: what is freed in it later goes, too, with
  // trim(), and acquire() takes nothing back.
  void leave() {
    release(/*partly=*/true);
    is_left_ = true;
  }
  // True since leave().
  bool is_left() const { return is_left_; }
  // True if no request gets memory of `pool` any more.
  bool is_left(const Pool& pool) const { return is_left_ || &pool != active_.get(); }
  // The bytes of the active pool that release() has left.
  Bytes left() const { return partial_.is_partial() ? active_->space.memory() : 0; }
  // Reserves the memory again. Throws OutOfMemory and changes nothing if the device lacks it.
  void acquire();
  // True if `pool` has no memory until acquire().
  bool is_gone(const Pool& pool) const {
    return away_ && !partial_.is_partial() && &pool == active_.get();
  }

  // Lays the active pool out anew, in the present memory; see StaticPool::relayout().
  void relayout(const plan::Plan& layout);
  // Returns the memory of the active pool, in which nothing is live, and reserves as much as
  // `layout` needs. If that fails, reserves the old size again and returns false. If that fails
  // too, the pool is released.
  bool exchange(const plan::Plan& layout);
  // True if memory can be added behind the active pool, so that it stays one piece.
  bool can_grow() const;
  // Lays the active pool out anew, and adds the addresses behind it that `layout` needs: they get
  // memory with their first requests, see provide(). Changes nothing and returns false if there are
  // not so many.
  bool grow(const plan::Plan& layout);
  // See MovingMemory, for the active pool, which can grow, and the addresses of its layout.
  bool make_room(MovingMemory::Room room, MovingMemory::Means means);
  Bytes give_back(Bytes size);
  // The bytes that the device can give.
  Bytes available() const { return device_.available(); }
  // True if the device could give so much at the cost of the whole pool.
  bool could_make_way(Bytes size) const {
    return size <= device_.available() + active_->space.memory();
  }
  // The fallback returns what it caches. Returns the bytes.
  Bytes release_cached() { return fallback_.release_cached(); }
  // See CachingPool::give_back().
  Bytes give_back_beside(Bytes size, Bytes next, StreamId stream) {
    return fallback_.give_back(size, next, stream);
  }
  // Gives memory to the chunks of the resident region that hold `r`, as far as the device has it,
  // at the cost of what the fallback caches. False if none of them lacks any, or the device does.
  bool provide_resident(Range r);
  // The bytes that the resident region still lacks.
  Bytes promised() const {
    return resident_ ? resident_->space.size() - resident_->space.memory() : 0;
  }
  // `wish` may be empty. `release_cached`: at the cost of memory that the fallback caches.
  bool provide(Range r, Range wish, MovingMemory::Means means, bool release_cached);
  void return_end() {
    move([&](MovingMemory& memory) {
      memory.return_end(active_->space.planned());
      return true;
    });
  }
  // The memory of the active pool if grow() succeeds.
  Bytes memory_with(const plan::Plan& layout) const;
  // Adds a piece of memory to the active pool for `layout`, whose last wall is at the pool's end.
  // Changes nothing and returns false if the device lacks the memory.
  bool extend(const plan::Plan& layout);

  // After a fork the device is out of reach: no memory is returned from now on.
  void abandon();

  // The pool that holds `p`; null if none does.
  Pool* find(const void* p) const {
    return active_ && active_->contains(p) ? active_.get() : find_other(p);
  }

  // Calls visit(pool) for each pool that has memory or addresses.
  void visit(auto visit) const {
    if (active_) visit(*active_);
    if (resident_) visit(*resident_);
    for (const auto& pool : retired_) visit(*pool);
  }

  // The device memory that the pools hold, and the addresses between which all of them lie.
  struct Held {
    Bytes reserved = 0;
    std::int64_t segments = 0;
    std::uintptr_t low = ~std::uintptr_t{0};
    std::uintptr_t high = 0;
  };
  Held held() const;

  // The requested bytes that are live in the active pool. O(n log n), for messages.
  Bytes live_bytes() const;
  // The largest hole of the active pool. O(n).
  Bytes largest_hole() const { return active_ && !away_ ? active_->space.largest_hole() : 0; }

  // Throws Error unless the pools' invariants hold. For tests.
  void check() const;

 private:
  Pool* find_other(const void* p) const;
  bool move(auto call) {
    MovingMemory memory(device_, *active_);
    const bool done = call(memory);
    moves_ += memory.moved() ? 1 : 0;
    return done;
  }
  std::byte* reserve(Bytes size, bool grows);
  bool has_memory(Bytes size);
  bool attach(Pool& pool, Range r);
  std::byte* try_reserve(Bytes size, bool grows);
  bool add_behind(std::byte* memory, Bytes& before, Bytes size);
  void adopt(const plan::Plan& layout, Bytes memory);
  std::unique_ptr<Pool> make_resident(const plan::Plan& region);
  std::unique_ptr<Pool> make_pool(const plan::Plan& plan, bool grows, bool filled);
  void retire(std::unique_ptr<Pool> pool);
  Bytes worth_a_wait() const;  // of what was freed in pools that are retired or left
  void free_pool(Pool& pool) noexcept;
  [[noreturn]] void throw_out_of_memory(Bytes pool) const;
  std::string name() const { return std::string(device_.name()); }

  device::DeviceMemory& device_;
  CachingPool& fallback_;
  device::DeviceStreams* const streams_;
  const StreamTable* const table_;
  std::unique_ptr<Pool> active_;
  std::unique_ptr<Pool> resident_;
  std::vector<std::unique_ptr<Pool>> retired_;
  std::int64_t moves_ = 0;
  bool untrimmed_ = false;           // a pool that is retired or left may have idle memory
  Bytes freed_ = 0;                  // in these pools since trim()
  bool away_ = false;                // the active pool's memory is released
  bool is_left_ = false;             // and stays so
  PartialRelease partial_{device_};  // if blocks lie in it, the part of that memory without
  std::size_t blocks_left_ = 0;      // in it, as its memory last went in part
  bool abandoned_ = false;           // this is a forked child
};

}  // namespace stalloc::runtime
