#include "runtime/planned_allocator.h"

#include <utility>
#include <vector>

#include "base/error.h"

namespace stalloc::runtime {

void PlannedAllocator::enable(const plan::Plan& plan, Serving::Scope scope) {
  plan.check();
  parts_.pools.check_alignment(plan);
  const std::lock_guard lock(parts_.mutex);
  if (parts_.abandoned) throw Error("a forked process cannot use the parent's " + parts_.name());
  Accounting& accounting = parts_.accounting;
  Serving::Streams streams;
  if (parts_.delayed) streams = {&*parts_.delayed, &*parts_.hand_back};
  if (parts_.device.is_pinned()) scope.hand_back = scope.other_threads = false;
  auto serving = std::make_unique<Serving>(plan, scope, parts_.pools, streams, accounting);
  parts_.pools.enable(plan, serving->has_startup(), scope.filled);
  parts_.serving = std::move(serving);
  parts_.drop_empty_pools();

  accounting.begin();
  Statistics& counts = accounting.counts();
  counts.planned = static_cast<std::int64_t>(plan.decisions.size());
  counts.pool = parts_.pools.active()->space.memory();
  counts.resident = parts_.pools.resident() ? plan.resident : 0;
  counts.startup = parts_.serving->placeable();
  parts_.update_reserved();
  accounting.begin_joint();
  parts_.dynamic_scopes.clear();
  parts_.training_thread.set_to_this_thread();
  parts_.enabled.store(true, std::memory_order_release);
}

void PlannedAllocator::disable() {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.serving) return;
  parts_.enabled.store(false, std::memory_order_release);
  parts_.stop_serving();
  parts_.collect_all_delayed();
  parts_.drop_empty_pools();
  parts_.fallback.release_cached();
  parts_.update_reserved();
}

void PlannedAllocator::drain(bool departed) {
  const std::lock_guard lock(parts_.mutex);
  if (parts_.serving) parts_.serving->drain(departed);
}

void PlannedAllocator::keep_clear() {
  const std::lock_guard lock(parts_.mutex);
  if (parts_.serving) parts_.serving->keep_clear();
}

void PlannedAllocator::keep_pauses_clear(bool on) {
  const std::lock_guard lock(parts_.mutex);
  if (parts_.serving) parts_.serving->keep_pauses_clear(on);
}

void PlannedAllocator::trust_all(bool makes_states) {
  const std::lock_guard lock(parts_.mutex);
  if (parts_.serving) parts_.serving->trust_all(makes_states);
}

void PlannedAllocator::make_states(bool on) {
  const std::lock_guard lock(parts_.mutex);
  if (parts_.serving) parts_.serving->make_states(on);
}

Bytes PlannedAllocator::release_pool(bool partly) {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.serving) throw Error("no plan is enabled, so there is no pool to release");
  if (parts_.pools.is_away()) {
    if (partly && !parts_.capturing() && parts_.pools.release_more()) parts_.update_reserved();
    return parts_.pools.left();
  }
  if (parts_.capturing()) {
    throw Error("the pool cannot be released while a CUDA graph is captured");
  }
  parts_.collect_all_delayed();
  if (partly) parts_.serving->learn_from_kept();
  parts_.pools.release(partly);
  parts_.update_reserved();
  return parts_.pools.left();
}

void PlannedAllocator::acquire_pool() {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.serving) throw Error("no plan is enabled, so there is no pool to acquire");
  if (!parts_.pools.is_away() || parts_.pools.is_left()) return;
  parts_.pools.acquire();
  // Addresses that lacked memory have come back with it.
  parts_.accounting.counts().pool = parts_.pools.active()->space.memory();
  parts_.update_reserved();
}

void PlannedAllocator::abandon() {
  const std::lock_guard lock(parts_.mutex);
  parts_.abandoned = true;
  parts_.enabled.store(false, std::memory_order_release);
  parts_.pools.abandon();
  if (parts_.delayed) {
    parts_.delayed->abandon();
    parts_.collect_delayed();
  }
  if (!parts_.serving) return;
  parts_.stop_serving();
  parts_.drop_empty_pools();
}

void* PlannedAllocator::allocate(Bytes size, StreamId stream, bool for_training,
                                 NodeSequence node) {
  for_training = for_training || parts_.training_thread.is_this_thread();
  const std::lock_guard lock(parts_.mutex);
  Serving* const serving = parts_.serving.get();
  if (!serving && (!parts_.always || parts_.abandoned)) return nullptr;
  if (parts_.delayed && parts_.delayed->any_waiting()) parts_.collect_delayed();
  Serving::Place place;
  if (serving && !parts_.pools.is_away()) {
    if (for_training) {
      place = serving->allocate(size, stream, parts_.dynamic_scopes.covers(node));
      if (place.awaits_layout) {
        place.p = loop_.fit_upcoming() ? serving->allocate_upcoming(size, stream)
                                       : serving->allocate_outgrown(size, stream);
      }
    } else {
      place.p = serving->allocate_for_other_thread(size, stream);
    }
    if (serving->is_resized()) parts_.update_reserved();
  }
  if (!place.p) {
    place.p = allocate_fallback(size, stream, place.dynamic);
    if (place.p && serving && for_training && !parts_.pools.is_away()) {
      serving->served_beside(place.p);
    }
  }
  return place.p ? count(size, place.p) : nullptr;
}

void* PlannedAllocator::count(Bytes size, void* p) {
  const Bytes rounded =
      parts_.callers_fallback ? parts_.pools.active()->space.round_up(size) : size;
  parts_.accounting.add_block(size, rounded);
  return p;
}

bool PlannedAllocator::wants_cached_for(Bytes size) {
  const std::lock_guard lock(parts_.mutex);
  return parts_.serving && parts_.callers_fallback && parts_.serving->wants_cached_for(size);
}

bool PlannedAllocator::fills_beyond_most(Bytes size) {
  const std::lock_guard lock(parts_.mutex);
  const Serving* const serving = parts_.serving.get();
  return serving && parts_.callers_fallback && serving->fills() && serving->exceeds_most(size);
}

bool PlannedAllocator::would_give_way(Bytes growth) {
  const std::lock_guard lock(parts_.mutex);
  Serving* const serving = parts_.serving.get();
  return parts_.callers_fallback && serving &&
         (serving->has_extra() || serving->would_give_way(growth));
}

void PlannedAllocator::give_way_to_caller(Bytes growth) {
  const std::lock_guard lock(parts_.mutex);
  if (parts_.callers_fallback) make_way(growth, /*stream=*/0, growth);
}

// Idle space of the pool, which may get memory for it.
void* PlannedAllocator::allocate_idle(Bytes size, StreamId stream) {
  void* p = parts_.serving->allocate_idle(size, stream);
  if (parts_.serving->is_resized()) parts_.update_reserved();
  return p;
}

void* PlannedAllocator::rescue(Bytes size, StreamId stream) {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.serving || parts_.pools.is_away()) return nullptr;
  parts_.collect_all_delayed();
  void* p = allocate_idle(size, stream);
  return p ? count(size, p) : nullptr;
}

Bytes PlannedAllocator::give_idle(Bytes size) {
  const std::lock_guard lock(parts_.mutex);
  return give_idle_memory(size);
}

Bytes PlannedAllocator::give_idle_memory(Bytes size) {
  Bytes gone = parts_.trim_retired();
  if (!parts_.serving) return gone;
  gone += parts_.serving->give_idle(size);
  if (parts_.serving->is_resized()) parts_.update_reserved();
  return gone;
}

// The fallback is to take `growth` bytes of the device for a request of `size` bytes. Memory that
// the pool has for departures, and what is idle in it, would come on top.
void PlannedAllocator::make_way(Bytes size, StreamId stream, Bytes growth) {
  Serving* const serving = parts_.serving.get();
  if (!serving) return;
  if (serving->has_extra() && serving->return_extra(size)) parts_.update_reserved();
  serving->give_way(growth, size, stream);
  if (serving->is_resized()) parts_.update_reserved();
}

void* PlannedAllocator::allocate_fallback(Bytes size, StreamId stream, bool dynamic) {
  Statistics& counts = parts_.accounting.counts();
  if (parts_.callers_fallback) {
    ++counts.fallback_requests;
    return nullptr;
  }
  // No memory may be returned during a capture. On a device with streams the host would wait for
  // them, which is too slow once training has settled.
  CachingPool& fallback = parts_.fallback;
  fallback.set_thrifty(parts_.serving && !parts_.capturing(), !parts_.delayed ||
                                                                  counts.iterations < kSettling ||
                                                                  !parts_.returns_unused());
  if (parts_.serving && parts_.serving->hands_back() && parts_.hand_back->possible() &&
      !fallback.holds(size, stream)) {
    parts_.hand_back->free_one_beside_pool(size, stream);
  }
  if (!fallback.holds(size, stream)) {
    fallback.set_moves(parts_.serving && !parts_.capturing() && !parts_.pools.is_away() &&
                       parts_.pools.can_grow());
    make_way(size, stream, fallback.growth(size, stream));
  }
  void* p = fallback.allocate(size, stream, dynamic);
  if (!p && parts_.delayed && parts_.delayed->any_waiting()) {
    parts_.collect_all_delayed();
    p = fallback.allocate(size, stream, dynamic);
  }
  parts_.update_fallback();
  if (!p) {
    // The last resort is idle space of the pool. Planned requests then give way.
    const bool may_lie_idle = parts_.serving && !dynamic && !parts_.pools.is_away();
    void* idle = may_lie_idle ? allocate_idle(size, stream) : nullptr;
    if (idle) return idle;
    give_idle_memory(size);
    p = fallback.allocate(size, stream, dynamic);
    parts_.update_fallback();
    if (!p) throw OutOfMemory(figures_.describe_shortage(size));
  }
  ++counts.fallback_requests;
  counts.fallback.add(size);
  if (dynamic) counts.dynamic.add(size);
  return p;
}

bool PlannedAllocator::deallocate(void* p, bool for_training) {
  const std::lock_guard lock(parts_.mutex);
  if (parts_.delayed && parts_.delayed->holds(p)) return delay(p);
  if (Pool* pool = parts_.pools.find(p)) return release_from(*pool, p, for_training);
  const auto [size, dynamic] = parts_.release_fallback(p);
  if (size == CachingPool::kNotOurs) return false;
  parts_.accounting.free_fallback_block(size, dynamic);
  if (parts_.serving) parts_.serving->released(p);
  return true;
}

bool PlannedAllocator::release_from(Pool& pool, void* p, bool for_training) {
  const StaticPool::Block block = pool.release(p, parts_.capturing());
  if (block.size == StaticPool::kNotLive) return false;
  const Bytes rounded = pool.space.round_up(block.size);
  parts_.accounting.free_block(block, rounded);
  parts_.accounting.release_block(rounded);
  if (parts_.serving) parts_.serving->released(p);
  if (block.late) [[unlikely]]
    note_late(block, pool, for_training);
  if (parts_.pools.is_left(pool)) {
    parts_.note_freed(pool, rounded);
    parts_.drop_empty_pools();
  }
  return true;
}

// `block` was freed after its planned end. A thread that does not train may do so at any moment.
void PlannedAllocator::note_late(const StaticPool::Block& block, const Pool& pool,
                                 bool for_training) {
  if (!parts_.serving || &pool != parts_.pools.active()) return;
  if (for_training || parts_.training_thread.is_this_thread()) return;
  parts_.serving->freed_late_elsewhere(block.decision, block.size);
}

// Frees a block that other streams still use: it counts as freed, and keeps its addresses.
bool PlannedAllocator::delay(void* p) {
  DelayedFrees& delayed = *parts_.delayed;
  if (delayed.is_waiting(p)) return false;
  if (Pool* pool = parts_.pools.find(p)) {
    const Offset offset = pool->offset_of(p);
    const StaticPool::Block block = pool->space.at(offset);
    parts_.accounting.free_block(block, pool->space.round_up(block.size));
    if (pool->order && delayed.has_lasting_users(p)) {
      pool->order->note_free(pool->ordered(offset, block), parts_.capturing());
    }
  } else {
    const auto [size, dynamic] = parts_.fallback.find(p);
    parts_.accounting.free_fallback_block(size, dynamic);
  }
  delayed.wait(p);
  return true;
}

bool PlannedAllocator::record_stream(void* p, StreamId stream) {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.delayed || parts_.delayed->is_waiting(p)) return false;
  StreamId own = kNone;
  if (const Pool* pool = parts_.pools.find(p)) {
    const StaticPool::Block block = pool->space.at(pool->offset_of(p));
    if (block.size == StaticPool::kNotLive) return false;
    own = block.stream;
  } else {
    if (parts_.fallback.find(p).size == CachingPool::kNotOurs) return false;
    own = parts_.fallback.stream_of(p);
  }
  if (stream != own && !parts_.abandoned) parts_.delayed->use(p, stream);
  return true;
}

void PlannedAllocator::begin_capture() {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.delayed) return;
  parts_.delayed->begin_capture();
  parts_.fallback.set_capturing(true);
}

void PlannedAllocator::end_capture() {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.delayed) return;
  parts_.delayed->end_capture();
  parts_.fallback.set_capturing(parts_.capturing());
  parts_.drop_empty_pools();
}

void PlannedAllocator::prepare(std::span<const Bytes> sizes) {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.serving) return;
  parts_.fallback.set_thrifty(/*thrifty=*/true, /*returns=*/false);
  std::vector<void*> blocks;
  for (const Bytes size : sizes) blocks.push_back(parts_.fallback.allocate(size, /*stream=*/0));
  for (void* p : blocks) {
    if (p) parts_.fallback.deallocate(p);
  }
  parts_.update_fallback();
}

Bytes PlannedAllocator::release_cached() {
  const std::lock_guard lock(parts_.mutex);
  parts_.collect_all_delayed();
  const Bytes released = parts_.fallback.release_cached();
  parts_.update_reserved();
  return released;
}

}  // namespace stalloc::runtime
