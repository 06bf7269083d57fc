// The parts of the planned allocator, the lock that guards them, and the steps that several of its
// faces take.
//
//   Pools          reserves, releases and retires the memory of plans
//   Serving        follows the training loop and finds the address of a request in the pool
//   CachingPool    the own fallback, for requests outside the pool
//   DelayedFrees   blocks that were freed while other streams use them; captures of graphs
//   HandBack       frees such a block before these streams are done
//   DynamicScopes  recognizes requests of dynamic modules
//   Accounting     statistics and joint figures
//
// Thread-safety is the callers': each public call of PlannedAllocator, TrainingLoop, Figures and
// Inspection holds `mutex` once. No step here takes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/types.h"
#include "device/memory.h"
#include "runtime/accounting.h"
#include "runtime/caching_pool.h"
#include "runtime/delayed_frees.h"
#include "runtime/dynamic_scopes.h"
#include "runtime/hand_back.h"
#include "runtime/pools.h"
#include "runtime/serving.h"
#include "runtime/stream_table.h"
#include "runtime/threads.h"

namespace stalloc::runtime {

// Phases become trusted in these first iterations (see Matcher). The fallback's cache of that time
// is useless later.
inline constexpr std::int64_t kSettling = 4;

// The allocator that serves requests outside the pool: the own caching pool while a plan is enabled
// (kOwn), the own caching pool always (kAlways), or the caller (kCallers).
enum class Fallback : std::uint8_t { kOwn, kAlways, kCallers };

struct AllocatorParts {
  AllocatorParts(device::DeviceMemory& memory, device::DeviceStreams* streams,
                 const StreamTable* table, Fallback serves_rest)
      : device(memory),
        callers_fallback(serves_rest == Fallback::kCallers),
        always(serves_rest == Fallback::kAlways),
        fallback(memory),
        pools(memory, fallback, streams, table),
        accounting(callers_fallback) {
    if (!streams) return;
    delayed.emplace(*streams, *table);
    hand_back.emplace(*delayed, *table, pools, fallback, accounting);
  }

  // True if freed fallback segments are worth keeping.
  bool keeps_segments() const { return serving || always; }
  // True if fallback memory that is unused for a while goes back to the device. Pinned memory only
  // goes back when there is too little for a request, which takes long anyway.
  bool returns_unused() const { return !device.is_pinned(); }
  bool capturing() const { return delayed && delayed->capturing(); }
  std::string name() const { return std::string(device.name()); }

  // Ends the serving of the active plan, and retires its pool.
  void stop_serving();
  // Returns the memory of retired pools without a live block.
  void drop_empty_pools();
  // A block of `size` was freed in `pool`. If that is retired or left, its memory is to go.
  void note_freed(const Pool& pool, Bytes size);
  // Gives back whatever lies idle in retired pools, for a request that would fail. Returns the
  // bytes.
  Bytes trim_retired();
  // Notes the memory that the pools and the own fallback hold.
  void update_reserved();
  // The same after each request that the fallback serves or frees. Cheap if its memory is
  // unchanged.
  void update_fallback() {
    if (fallback.reserved() != counted_fallback) update_reserved();
  }

  CachingPool::Freed release_fallback(void* p);
  // Releases the blocks that no stream uses any more.
  void collect_delayed();
  // The same for all blocks that wait: waits for their streams.
  void collect_all_delayed();

  device::DeviceMemory& device;
  const bool callers_fallback;
  const bool always;  // the fallback serves without a plan too
  mutable std::mutex mutex;
  // The addresses between which all pools lie; empty while there are none.
  std::atomic<std::uintptr_t> low{~std::uintptr_t{0}};
  std::atomic<std::uintptr_t> high{0};
  std::atomic<bool> enabled{false};
  // With the caller's fallback: if memory of the active pool can go and come, and if some has gone.
  std::atomic<bool> moves_memory{false};
  std::atomic<bool> lacks_memory{false};
  bool abandoned = false;  // this is a forked child
  CachingPool fallback;
  Bytes counted_fallback = 0;  // its reserved bytes when update_reserved() last ran
  Pools pools;
  std::optional<DelayedFrees> delayed;  // on a device with streams
  Accounting accounting;
  std::optional<HandBack> hand_back;  // on a device with streams
  DynamicScopes dynamic_scopes;
  std::unique_ptr<Serving> serving;  // of the active pool's plan
  TrainingThread training_thread;
};

}  // namespace stalloc::runtime
