#include "runtime/allocator_parts.h"

namespace stalloc::runtime {

void AllocatorParts::stop_serving() {
  accounting.counts().hits += serving->hits_now();
  pools.disable();
  serving.reset();
}

// Does nothing during a capture: returning memory waits for the device, which would invalidate the
// capture.
void AllocatorParts::drop_empty_pools() {
  if (capturing()) return;
  const bool dropped = pools.drop_empty();
  if (pools.trim() || dropped) update_reserved();
}

void AllocatorParts::note_freed(const Pool& pool, Bytes size) {
  if (!pools.is_left(pool)) return;
  pools.note_freed(size);
  // A pool that serves has room for the requests of this iteration.
  const bool is_serving = serving && !pools.is_left();
  if (!is_serving) pools.review_retired();
}

Bytes AllocatorParts::trim_retired() {
  if (capturing()) return 0;
  const Bytes before = pools.held().reserved;
  pools.review_retired(/*least=*/1);
  if (pools.trim()) update_reserved();
  return before - pools.held().reserved;
}

void AllocatorParts::update_reserved() {
  const Pools::Held held = pools.held();
  if (serving && pools.is_left()) accounting.counts().pool = pools.left();
  counted_fallback = fallback.reserved();
  accounting.set_reserved(held.reserved, held.segments, counted_fallback);
  if (!callers_fallback) return;
  low.store(held.low, std::memory_order_release);
  high.store(held.high, std::memory_order_release);
  const bool moves = serving && !pools.is_away() && pools.can_grow();
  moves_memory.store(moves, std::memory_order_relaxed);
  lacks_memory.store(moves && !pools.active()->space.absent().empty(), std::memory_order_relaxed);
}

CachingPool::Freed AllocatorParts::release_fallback(void* p) {
  const CachingPool::Freed freed = fallback.deallocate(p, keeps_segments());
  update_fallback();
  return freed;
}

void AllocatorParts::collect_delayed() {
  while (void* p = delayed->next_done()) {
    if (Pool* pool = pools.find(p)) {
      const StaticPool::Block block = pool->release(p, capturing());
      const Bytes rounded = pool->space.round_up(block.size);
      accounting.release_block(rounded);
      note_freed(*pool, rounded);
    } else {
      release_fallback(p);
    }
  }
  drop_empty_pools();
}

void AllocatorParts::collect_all_delayed() {
  if (!delayed || !delayed->any_waiting()) return;
  delayed->finish();
  collect_delayed();
}

}  // namespace stalloc::runtime
