#include "runtime/training_loop.h"

#include "base/error.h"

namespace stalloc::runtime {

void TrainingLoop::enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk) {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.serving) return;
  parts_.training_thread.set_to_this_thread();
  parts_.serving->enter_phase(kind, microbatch, chunk);
  fit_layout();
}

void TrainingLoop::set_extents(std::span<const std::string> names,
                               std::span<const std::int64_t> values) {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.serving) return;
  parts_.serving->set_extents(names, values);
  fit_layout();
}

// Exchanges the layout if the new microbatch needs another one. Not during a capture, whose
// addresses must stay the same, and not while the pool's memory is released.
void TrainingLoop::fit_layout() {
  if (!parts_.serving->awaits_layout() || parts_.pools.is_away() || parts_.capturing()) return;
  if (parts_.serving->outgrows()) make_room();
  parts_.serving->fit_layout();
  note_pool();
}

void TrainingLoop::make_room() {
  parts_.collect_all_delayed();
  parts_.fallback.release_cached();
}

void TrainingLoop::note_pool() {
  parts_.accounting.counts().pool = parts_.pools.active()->space.memory();
  parts_.update_reserved();
}

bool TrainingLoop::fit_upcoming() {
  if (parts_.pools.is_away() || parts_.capturing()) return false;
  make_room();
  const bool fits = parts_.serving->fit_upcoming();
  note_pool();
  return fits;
}

bool TrainingLoop::wants_cached() {
  if (!parts_.callers_fallback || !parts_.enabled.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(parts_.mutex);
  return parts_.serving && parts_.serving->wants_cached();
}

void TrainingLoop::enter_unplanned() {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.serving) return;
  parts_.serving->enter_unplanned();
  if (parts_.serving->is_resized()) parts_.update_reserved();
}

void TrainingLoop::begin_evaluation() {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.serving) return;
  parts_.serving->begin_evaluation();
  if (parts_.serving->is_resized()) parts_.update_reserved();
}

void TrainingLoop::end_evaluation_forward() {
  const std::lock_guard lock(parts_.mutex);
  if (parts_.serving) parts_.serving->end_evaluation_forward();
}

void TrainingLoop::leave_unplanned() {
  const std::lock_guard lock(parts_.mutex);
  if (parts_.serving) parts_.serving->leave_unplanned();
}

void TrainingLoop::end_iteration() {
  std::unique_lock lock(parts_.mutex);
  if (!parts_.serving) return;
  if (parts_.serving->end_iteration()) parts_.pools.retire_resident();
  parts_.pools.review_retired();
  parts_.drop_empty_pools();
  if (parts_.serving->loses() && !parts_.pools.is_away() && !parts_.capturing()) leave_pool();
  if (!parts_.pools.is_away() && !parts_.capturing() && parts_.serving->join_pieces()) {
    note_pool();
  }
  const std::int64_t iterations = parts_.accounting.counts().iterations;
  parts_.dynamic_scopes.forget_nodes_before(iterations - 1);
  if (parts_.returns_unused()) {
    CachingPool& fallback = parts_.fallback;
    const Bytes released =
        iterations <= kSettling ? fallback.release_cached() : fallback.release_unused();
    if (released > 0) parts_.update_reserved();
  }
  if (parts_.delayed && parts_.delayed->any_lost() && !parts_.capturing()) find_lost(lock);
}

// The fallback serves everything from now on. A pool of which no part can go stays.
void TrainingLoop::leave_pool() {
  parts_.collect_all_delayed();
  parts_.serving->learn_from_kept();
  try {
    parts_.pools.leave();
  } catch (const Error&) {
    return;
  }
  ++parts_.accounting.counts().pools_left;
  parts_.update_reserved();
}

// Waits for all devices that may use a block. Other threads go on meanwhile: work that is waited
// for may need what they are about to submit.
void TrainingLoop::find_lost(std::unique_lock<std::mutex>& lock) {
  DelayedFrees& delayed = *parts_.delayed;
  const std::vector<DelayedFrees::Lost> blocks = delayed.lost();
  lock.unlock();
  const bool idle = delayed.wait_for_devices();
  lock.lock();
  if (!idle || parts_.abandoned) return;
  delayed.found(blocks);
  parts_.collect_delayed();
}

void TrainingLoop::enter_dynamic() {
  const std::lock_guard lock(parts_.mutex);
  if (parts_.serving) parts_.dynamic_scopes.enter();
}

void TrainingLoop::leave_dynamic() {
  const std::lock_guard lock(parts_.mutex);
  parts_.dynamic_scopes.leave();
}

void TrainingLoop::tag_dynamic_nodes(std::uint64_t first, std::uint64_t last) {
  const std::lock_guard lock(parts_.mutex);
  if (!parts_.serving) return;
  parts_.dynamic_scopes.tag_nodes(first, last, parts_.accounting.counts().iterations);
}

}  // namespace stalloc::runtime
