#include "runtime/planned_allocator.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"

namespace stalloc::runtime {
void* PlannedAllocator::allocate(Bytes size, StreamId stream, bool for_training,
                                 NodeSequence node) {
  for_training = for_training || training_thread_.is_this_thread();
  const std::lock_guard lock(mutex_);
  if (!active_ && (!always_ || abandoned_)) return nullptr;
  if (delayed_ && delayed_->any_waiting()) collect_delayed();
  void* p = nullptr;
  if (active_ && for_training && !away_) {
    if (unplanned_depth_ == 0) {
      p = allocate_planned(size, stream, inside_dynamic() || is_dynamic(node));
    } else if (guide_->guests.admits(Guests::kUnplanned, size)) {
      p = allocate_idle(size, stream, Guests::kUnplanned);
    }
  }
  if (!p) p = allocate_fallback(size, stream);
  return p ? count(size, p) : nullptr;
}

void* PlannedAllocator::count(Bytes size, void* p) {
  stats_.allocated.add(size);
  if (callers_fallback_) {
    gauges_.add_block(size, active_->space.round_up(size));
    if (gauges_.behind()) behind_.store(true, std::memory_order_relaxed);
  }
  return p;
}

void* PlannedAllocator::rescue(Bytes size, StreamId stream) {
  const std::lock_guard lock(mutex_);
  if (!active_ || away_) return nullptr;
  if (delayed_ && delayed_->any_waiting()) collect_all_delayed();
  void* p = allocate_idle(size, stream);
  return p ? count(size, p) : nullptr;
}

// The block at `offset` may be worked on by its stream from now on; else it is gone again.
bool PlannedAllocator::hand_over(Pool& pool, Offset offset) {
  if (!pool.order) return true;
  const StaticPool::Block block = pool.space.at(offset);
  if (pool.order->take(pool.ordered(offset, block), delayed_->capturing())) return true;
  pool.space.release(offset);
  return false;
}

void* PlannedAllocator::allocate_idle(Bytes size, StreamId stream, PhaseIndex origin) {
  const Offset offset = active_->space.place_idle(size, stream, origin);
  if (offset == kUnplaced || !hand_over(*active_, offset)) return nullptr;
  ++stats_.idle_requests;
  return active_->base + offset;
}

void* PlannedAllocator::allocate_planned(Bytes size, StreamId stream, bool dynamic) {
  Matcher& matcher = guide_->now();
  const auto [decision, group, persistent, opening] = matcher.match(size, stream, dynamic);
  if (dynamic || group != kNone) return allocate_dynamic(group, size, stream);
  if (opening != kNone) return allocate_opening(opening);
  if (persistent) return nullptr;
  if (decision == kNone) {
    // What is small shares a segment or two of the fallback; here it might be in a large one's way.
    // So would be what the opening makes for good.
    const bool helps = size >= profile::kSmallRequest && matcher.in_step() && !matcher.wary() &&
                       !guide_->opening && guide_->guests.admits(matcher.phase(), size);
    return helps ? allocate_idle(size, stream, matcher.phase()) : nullptr;
  }
  const Offset offset = active_->space.place(decision);
  if (offset == kUnplaced || !hand_over(*active_, offset)) {
    ++stats_.conflicts;
    // What is gone by the end of the phase may lie anywhere idle; what is not would be in the way
    // of one decision after the other.
    const bool helps = size >= profile::kSmallRequest &&
                       guide_->transient[static_cast<std::size_t>(decision)] &&
                       !guide_->guests.has_stayed(matcher.phase(), size);
    return helps ? allocate_idle(size, stream, matcher.phase()) : nullptr;
  }
  ++hits_this_iteration_;
  return active_->base + offset;
}

void* PlannedAllocator::allocate_opening(std::int32_t i) {
  const auto [in_region, offset] = guide_->opening->place(i, active_->space, resident_->space);
  Pool& pool = in_region ? *resident_ : *active_;
  if (offset == kUnplaced || !hand_over(pool, offset)) return nullptr;
  ++stats_.opening_requests;
  return pool.base + offset;
}

void* PlannedAllocator::allocate_dynamic(std::int32_t group, Bytes size, StreamId stream) {
  const Offset offset =
      reuse_ && group != kNone ? active_->space.place_dynamic(group, size) : kUnplaced;
  void* p = nullptr;
  ++stats_.dynamic_requests;
  if (offset == kUnplaced || !hand_over(*active_, offset)) {
    ++stats_.dynamic_fallback_requests;
    if (callers_fallback_) return nullptr;
    p = allocate_fallback(size, stream, /*dynamic=*/true);
  } else {
    p = active_->base + offset;
    if (active_->space.at(offset).kind == StaticPool::Kind::kRegion) {
      ++stats_.dynamic_region_requests;
      stats_.dynamic_region.add(size);
    } else {
      ++stats_.dynamic_reused_requests;
      stats_.dynamic_reused.add(size);
    }
  }
  stats_.dynamic.add(size);
  return p;
}

bool PlannedAllocator::is_dynamic(NodeSequence node) const {
  if (!node || dynamic_nodes_.empty()) return false;
  const auto after = dynamic_nodes_.upper_bound(*node);
  return after != dynamic_nodes_.begin() && *node < std::prev(after)->second.last;
}

bool PlannedAllocator::inside_dynamic() const {
  return !dynamic_depths_.empty() &&
         std::ranges::find(dynamic_depths_, this_thread_ordinal(), &DynamicDepth::thread) !=
             dynamic_depths_.end();
}

void* PlannedAllocator::allocate_fallback(Bytes size, StreamId stream, bool dynamic) {
  if (callers_fallback_) {
    ++stats_.fallback_requests;
    return nullptr;
  }
  void* p = fallback_.allocate(size, stream, dynamic);
  if (!p && delayed_ && delayed_->any_waiting()) {
    collect_all_delayed();
    p = fallback_.allocate(size, stream, dynamic);
  }
  update_reserved();
  if (!p) {
    // What the plan has no use for now may do; its own requests then make way.
    void* idle = !active_ || dynamic || away_ ? nullptr : allocate_idle(size, stream);
    if (!idle) throw OutOfMemory(describe_shortage(size));
    return idle;
  }
  ++stats_.fallback_requests;
  stats_.fallback.add(size);
  return p;
}

std::string PlannedAllocator::out_of_memory_message(Bytes size) const {
  const std::lock_guard lock(mutex_);
  return describe_shortage(size);
}

std::string PlannedAllocator::describe_shortage(Bytes size) const {
  const Bytes fallback =
      callers_fallback_ ? gauges_.other()[JointGauges::kRequested] : stats_.fallback.current;
  const Bytes reserved =
      callers_fallback_ ? gauges_.other()[JointGauges::kReserved] : fallback_.reserved();
  const Bytes hole = std::max(fallback_.largest_hole(),
                              active_ && !away_ ? active_->space.largest_hole() : Bytes{0});
  return "stalloc tried to allocate " + format_bytes(size) + " on " + name() + ", which has " +
         format_bytes(device_.available()) + " free after all cached memory was given back. The " +
         "planned pool holds " + format_bytes(bytes_in_pool()) + " of its " +
         format_bytes(stats_.pool) + ", of these " + format_bytes(stats_.dynamic.current) +
         " for dynamic requests; requests outside the plan hold " + format_bytes(fallback) +
         " of " + format_bytes(reserved) + "; the largest hole is " + format_bytes(hole) +
         ". Profile this configuration anew if it has changed since the plan was made, use a " +
         "smaller microbatch or more recomputation, or free tensors that outlive their step.";
}

Bytes PlannedAllocator::bytes_in_pool() const {
  Bytes bytes = 0;
  if (!active_) return bytes;
  for (const Offset offset : active_->space.live()) bytes += active_->space.at(offset).size;
  return bytes;
}

PlannedAllocator::Pool* PlannedAllocator::find_pool(const void* p) {
  if (active_ && active_->contains(p)) return active_.get();
  if (resident_ && resident_->contains(p)) return resident_.get();
  for (const auto& pool : retired_) {
    if (pool->contains(p)) return pool.get();
  }
  return nullptr;
}

bool PlannedAllocator::deallocate(void* p) {
  const std::lock_guard lock(mutex_);
  if (delayed_ && delayed_->holds(p)) return delay(p);
  if (active_ && active_->contains(p)) return release_from(*active_, p);
  if (Pool* pool = find_pool(p)) {
    const bool released = release_from(*pool, p);
    drop_empty_pools();
    return released;
  }
  const auto [size, dynamic] = fallback_.deallocate(p, keeps_segments());
  if (size == CachingPool::kNotOurs) return false;
  count_fallback_free(size, dynamic);
  if (!keeps_segments()) update_reserved();
  return true;
}

StaticPool::Block PlannedAllocator::release_block(Pool& pool, void* p) {
  const Offset offset = pool.offset_of(p);
  const StaticPool::Block block = pool.space.release(offset);
  if (pool.order && block.size != StaticPool::kNotLive) {
    pool.order->release(pool.ordered(offset, block), delayed_->capturing());
  }
  return block;
}

bool PlannedAllocator::release_from(Pool& pool, void* p) {
  const StaticPool::Block block = release_block(pool, p);
  if (block.size == StaticPool::kNotLive) return false;
  count_free(pool, block);
  if (callers_fallback_) gauges_.release_block(pool.space.round_up(block.size));
  return true;
}

void PlannedAllocator::count_free(const Pool& pool, StaticPool::Block block) {
  stats_.allocated.add(-block.size);
  if (callers_fallback_) gauges_.free_block(block.size, pool.space.round_up(block.size));
  const bool in_region = block.kind == StaticPool::Kind::kRegion;
  if (in_region || block.kind == StaticPool::Kind::kReused) {
    stats_.dynamic.add(-block.size);
    (in_region ? stats_.dynamic_region : stats_.dynamic_reused).add(-block.size);
  }
}

void PlannedAllocator::count_fallback_free(Bytes size, bool dynamic) {
  stats_.allocated.add(-size);
  stats_.fallback.add(-size);
  if (dynamic) stats_.dynamic.add(-size);
}

// A block that other streams use is freed: it is counted as such, and keeps its place.
bool PlannedAllocator::delay(void* p) {
  if (delayed_->is_waiting(p)) return false;
  if (const Pool* pool = find_pool(p)) {
    count_free(*pool, pool->space.at(pool->offset_of(p)));
  } else {
    const auto [size, dynamic] = fallback_.find(p);
    count_fallback_free(size, dynamic);
  }
  delayed_->wait(p);
  return true;
}

void PlannedAllocator::release_delayed(void* p) {
  Pool* pool = find_pool(p);
  if (!pool) {
    fallback_.deallocate(p, keeps_segments());
    if (!keeps_segments()) update_reserved();
    return;
  }
  const StaticPool::Block block = release_block(*pool, p);
  if (callers_fallback_) gauges_.release_block(pool->space.round_up(block.size));
}

void PlannedAllocator::collect_delayed() {
  while (void* p = delayed_->next_done()) release_delayed(p);
  drop_empty_pools();
}

void PlannedAllocator::collect_all_delayed() {
  delayed_->finish();
  collect_delayed();
}

bool PlannedAllocator::record_stream(void* p, StreamId stream) {
  const std::lock_guard lock(mutex_);
  if (!delayed_ || delayed_->is_waiting(p)) return false;
  StreamId own = kNone;
  if (const Pool* pool = find_pool(p)) {
    const StaticPool::Block block = pool->space.at(pool->offset_of(p));
    if (block.size == StaticPool::kNotLive) return false;
    own = block.stream;
  } else {
    if (fallback_.find(p).size == CachingPool::kNotOurs) return false;
    own = fallback_.stream_of(p);
  }
  if (stream != own && !abandoned_) delayed_->use(p, stream);
  return true;
}

void PlannedAllocator::begin_capture() {
  const std::lock_guard lock(mutex_);
  if (delayed_) delayed_->begin_capture();
}

void PlannedAllocator::end_capture() {
  const std::lock_guard lock(mutex_);
  if (!delayed_) return;
  delayed_->end_capture();
  drop_empty_pools();
}

}  // namespace stalloc::runtime
