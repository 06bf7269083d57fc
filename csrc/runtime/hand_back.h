// Hands back a block that was freed while other streams still use it (record_stream), before they
// are done.
//
// Such a block keeps its addresses until its streams are found done (DelayedFrees). If the plan
// has its addresses for the next request, or if memory would grow otherwise, the block's own stream
// waits on the device for these streams, and the block is freed at once:
//
//   own stream     [ block ] free     wait [ next block, at its addresses ]
//   other stream         [ uses it ] event
//
// From then on the block is like any that its own stream alone has used: its addresses are safe for
// that stream, and for others as StreamOrder says. If the plan has the addresses for another
// stream, that one waits, for the work up to the free, and the block's own stream goes on. The host
// never waits. Nothing is handed back during a capture, or if an event of the block could not be
// recorded.
//
// The price: a producer that is far ahead of its consumer waits here, instead of taking more
// memory. So the caller of enable() may turn it off (Serving::Scope). Not thread-safe:
// PlannedAllocator locks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "runtime/accounting.h"
#include "runtime/caching_pool.h"
#include "runtime/delayed_frees.h"
#include "runtime/pools.h"
#include "runtime/stream_table.h"

namespace stalloc::runtime {

class HandBack {
 public:
  // All outlive this object.
  HandBack(DelayedFrees& delayed, const StreamTable& table, Pools& pools, CachingPool& fallback,
           Accounting& accounting)
      : delayed_(delayed),
        table_(table),
        pools_(pools),
        fallback_(fallback),
        accounting_(accounting) {}

  // True if a block may be handed back.
  bool possible() const { return delayed_.any_waiting() && !delayed_.capturing(); }

  // Frees the blocks of the active pool that begin at `blocks`, for a request on `stream`. Returns
  // false, and frees none, unless all of them only wait for streams, and there is one.
  // O(blocks x log of those that wait).
  bool free(const std::vector<Offset>& blocks, StreamId stream);

  // Frees the block of the active pool with at least `size` bytes that has waited longest, of those
  // whose own stream is `stream`. Returns false if there is none. O(blocks that wait).
  bool free_one(Bytes size, StreamId stream);

  // The same for a block of the own fallback. Only while possible().
  bool free_one_beside_pool(Bytes size, StreamId stream);

 private:
  bool may_free(Offset offset, StreamId stream) const;
  bool free(Offset offset, StreamId stream);
  bool order(void* p, StreamId own);

  DelayedFrees& delayed_;
  const StreamTable& table_;
  Pools& pools_;
  CachingPool& fallback_;
  Accounting& accounting_;
};

}  // namespace stalloc::runtime
