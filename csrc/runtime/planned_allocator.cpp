#include "runtime/planned_allocator.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/format.h"

namespace stalloc::runtime {
namespace {

// Phases become trusted in these first iterations (see Matcher). The fallback's cache of that time
// is useless later.
constexpr std::int64_t kSettling = 4;

}  // namespace

void PlannedAllocator::enable(const plan::Plan& plan, Scope scope) {
  plan.check();
  pools_.check_alignment(plan);
  const std::lock_guard lock(mutex_);
  if (abandoned_) throw Error("a forked process cannot use the parent's " + name());
  auto serving = std::make_unique<Serving>(plan, scope, pools_, delayed_ ? &*delayed_ : nullptr,
                                           accounting_.counts());
  pools_.enable(plan, serving->has_startup());
  serving_ = std::move(serving);
  drop_empty_pools();

  accounting_.begin();
  Statistics& counts = accounting_.counts();
  counts.planned = static_cast<std::int64_t>(plan.decisions.size());
  counts.pool = plan.pool;
  counts.resident = pools_.resident() ? plan.resident : 0;
  counts.startup = serving_->placeable();
  update_reserved();
  accounting_.begin_joint();
  dynamic_scopes_.clear();
  training_thread_.set_to_this_thread();
  enabled_.store(true, std::memory_order_release);
}

void PlannedAllocator::disable() {
  const std::lock_guard lock(mutex_);
  if (!serving_) return;
  enabled_.store(false, std::memory_order_release);
  stop_serving();
  if (delayed_ && delayed_->any_waiting()) collect_all_delayed();
  drop_empty_pools();
  fallback_.release_cached();
  update_reserved();
}

void PlannedAllocator::drain(bool departed) {
  const std::lock_guard lock(mutex_);
  if (serving_) serving_->drain(departed);
}

void PlannedAllocator::release_pool() {
  const std::lock_guard lock(mutex_);
  if (!serving_) throw Error("no plan is enabled, so there is no pool to release");
  if (pools_.is_away()) return;
  if (capturing()) throw Error("the pool cannot be released while a CUDA graph is captured");
  if (delayed_ && delayed_->any_waiting()) collect_all_delayed();
  pools_.release();
  update_reserved();
}

void PlannedAllocator::acquire_pool() {
  const std::lock_guard lock(mutex_);
  if (!serving_) throw Error("no plan is enabled, so there is no pool to acquire");
  if (!pools_.is_away()) return;
  pools_.acquire();
  update_reserved();
}

void PlannedAllocator::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  enabled_.store(false, std::memory_order_release);
  pools_.abandon();
  if (delayed_) {
    delayed_->abandon();
    collect_delayed();
  }
  if (!serving_) return;
  stop_serving();
  drop_empty_pools();
}

void PlannedAllocator::stop_serving() {
  accounting_.counts().hits += serving_->hits_now();
  pools_.disable();
  serving_.reset();
}

// Does nothing during a capture: returning memory waits for the device, which would invalidate the
// capture.
void PlannedAllocator::drop_empty_pools() {
  if (!capturing() && pools_.drop_empty()) update_reserved();
}

void PlannedAllocator::update_reserved() {
  const Pools::Held held = pools_.held();
  counted_fallback_ = fallback_.reserved();
  accounting_.set_reserved(held.reserved, held.segments, counted_fallback_);
  if (!callers_fallback_) return;
  low_.store(held.low, std::memory_order_release);
  high_.store(held.high, std::memory_order_release);
}

void PlannedAllocator::update_fallback() {
  if (fallback_.reserved() != counted_fallback_) update_reserved();
}

void* PlannedAllocator::allocate(Bytes size, StreamId stream, bool for_training,
                                 NodeSequence node) {
  for_training = for_training || training_thread_.is_this_thread();
  const std::lock_guard lock(mutex_);
  if (!serving_ && (!always_ || abandoned_)) return nullptr;
  if (delayed_ && delayed_->any_waiting()) collect_delayed();
  Serving::Place place;
  if (serving_ && !pools_.is_away()) {
    if (for_training) {
      place = serving_->allocate(size, stream, dynamic_scopes_.covers(node));
    } else {
      place.p = serving_->allocate_for_other_thread(size, stream);
    }
  }
  if (!place.p) place.p = allocate_fallback(size, stream, place.dynamic);
  return place.p ? count(size, place.p) : nullptr;
}

void* PlannedAllocator::count(Bytes size, void* p) {
  accounting_.add_block(size, callers_fallback_ ? pools_.active()->space.round_up(size) : size);
  return p;
}

void* PlannedAllocator::rescue(Bytes size, StreamId stream) {
  const std::lock_guard lock(mutex_);
  if (!serving_ || pools_.is_away()) return nullptr;
  if (delayed_ && delayed_->any_waiting()) collect_all_delayed();
  void* p = serving_->allocate_idle(size, stream);
  return p ? count(size, p) : nullptr;
}

void* PlannedAllocator::allocate_fallback(Bytes size, StreamId stream, bool dynamic) {
  Statistics& counts = accounting_.counts();
  if (callers_fallback_) {
    ++counts.fallback_requests;
    return nullptr;
  }
  // No memory may be returned during a capture. On a device with streams the host would wait for
  // them, which is too slow once training has settled.
  fallback_.set_thrifty(serving_ && !capturing(), !delayed_ || counts.iterations < kSettling);
  void* p = fallback_.allocate(size, stream, dynamic);
  if (!p && delayed_ && delayed_->any_waiting()) {
    collect_all_delayed();
    p = fallback_.allocate(size, stream, dynamic);
  }
  update_fallback();
  if (!p) {
    // The last resort is idle space of the pool. Planned requests then give way.
    const bool may_lie_idle = serving_ && !dynamic && !pools_.is_away();
    void* idle = may_lie_idle ? serving_->allocate_idle(size, stream) : nullptr;
    if (!idle) throw OutOfMemory(describe_shortage(size));
    return idle;
  }
  ++counts.fallback_requests;
  counts.fallback.add(size);
  if (dynamic) counts.dynamic.add(size);
  return p;
}

std::string PlannedAllocator::out_of_memory_message(Bytes size) const {
  const std::lock_guard lock(mutex_);
  return describe_shortage(size);
}

std::string PlannedAllocator::describe_shortage(Bytes size) const {
  const Statistics& counts = accounting_.counts();
  const JointGauges::Values& other = accounting_.gauges().other();
  const Bytes fallback =
      callers_fallback_ ? other[JointGauges::kRequested] : counts.fallback.current;
  const Bytes reserved = callers_fallback_ ? other[JointGauges::kReserved] : fallback_.reserved();
  const Bytes hole = std::max(fallback_.largest_hole(), pools_.largest_hole());
  return "stalloc tried to allocate " + format_bytes(size) + " on " + name() + ", which has " +
         format_bytes(device_.available()) + " free after all cached memory was given back. The " +
         "planned pool holds " + format_bytes(pools_.live_bytes()) + " of its " +
         format_bytes(counts.pool) + ", of these " + format_bytes(counts.dynamic.current) +
         " for dynamic requests; requests outside the plan hold " + format_bytes(fallback) +
         " of " + format_bytes(reserved) + "; the largest hole is " + format_bytes(hole) +
         ". Profile this configuration anew if it has changed since the plan was made, use a " +
         "smaller microbatch or more recomputation, or free tensors that outlive their step.";
}

bool PlannedAllocator::deallocate(void* p) {
  const std::lock_guard lock(mutex_);
  if (delayed_ && delayed_->holds(p)) return delay(p);
  if (Pool* pool = pools_.find(p)) {
    const StaticPool::Block block = pool->release(p, capturing());
    if (block.size == StaticPool::kNotLive) return false;
    const Bytes rounded = pool->space.round_up(block.size);
    accounting_.free_block(block, rounded);
    accounting_.release_block(rounded);
    if (pool != pools_.active()) drop_empty_pools();
    return true;
  }
  const auto [size, dynamic] = release_fallback(p);
  if (size == CachingPool::kNotOurs) return false;
  accounting_.free_fallback_block(size, dynamic);
  return true;
}

CachingPool::Freed PlannedAllocator::release_fallback(void* p) {
  const CachingPool::Freed freed = fallback_.deallocate(p, keeps_segments());
  update_fallback();
  return freed;
}

// Frees a block that other streams still use: it counts as freed, and keeps its addresses.
bool PlannedAllocator::delay(void* p) {
  if (delayed_->is_waiting(p)) return false;
  if (const Pool* pool = pools_.find(p)) {
    const StaticPool::Block block = pool->space.at(pool->offset_of(p));
    accounting_.free_block(block, pool->space.round_up(block.size));
  } else {
    const auto [size, dynamic] = fallback_.find(p);
    accounting_.free_fallback_block(size, dynamic);
  }
  delayed_->wait(p);
  return true;
}

void PlannedAllocator::release_delayed(void* p) {
  if (Pool* pool = pools_.find(p)) {
    const StaticPool::Block block = pool->release(p, capturing());
    accounting_.release_block(pool->space.round_up(block.size));
  } else {
    release_fallback(p);
  }
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
  if (const Pool* pool = pools_.find(p)) {
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

void PlannedAllocator::enter_phase(trace::PhaseKind kind, std::int32_t microbatch,
                                   std::int32_t chunk) {
  const std::lock_guard lock(mutex_);
  if (!serving_) return;
  training_thread_.set_to_this_thread();
  serving_->enter_phase(kind, microbatch, chunk);
  fit_layout();
}

void PlannedAllocator::set_extents(std::span<const std::string> names,
                                   std::span<const std::int64_t> values) {
  const std::lock_guard lock(mutex_);
  if (!serving_) return;
  serving_->set_extents(names, values);
  fit_layout();
}

// Exchanges the layout if the new microbatch exceeds it. Not during a capture, whose addresses must
// stay the same, and not while the pool's memory is released.
void PlannedAllocator::fit_layout() {
  if (!serving_->outgrows() || pools_.is_away() || capturing()) return;
  if (delayed_ && delayed_->any_waiting()) collect_all_delayed();
  fallback_.release_cached();
  serving_->fit_layout();
  accounting_.counts().pool = pools_.active()->space.size();
  update_reserved();
}

void PlannedAllocator::enter_unplanned() {
  const std::lock_guard lock(mutex_);
  if (serving_) serving_->enter_unplanned();
}

void PlannedAllocator::leave_unplanned() {
  const std::lock_guard lock(mutex_);
  if (serving_) serving_->leave_unplanned();
}

void PlannedAllocator::end_iteration() {
  const std::lock_guard lock(mutex_);
  if (!serving_) return;
  if (serving_->end_iteration()) {
    pools_.retire_resident();
    drop_empty_pools();
  }
  if (!pools_.is_away() && !capturing() && serving_->join_pieces()) {
    accounting_.counts().pool = pools_.active()->space.size();
    update_reserved();
  }
  if (delayed_ && delayed_->any_lost()) collect_all_delayed();
  const std::int64_t iterations = accounting_.counts().iterations;
  dynamic_scopes_.forget_nodes_before(iterations - 1);
  const Bytes released =
      iterations <= kSettling ? fallback_.release_cached() : fallback_.release_unused();
  if (released > 0) update_reserved();
}

void PlannedAllocator::enter_dynamic() {
  const std::lock_guard lock(mutex_);
  if (serving_) dynamic_scopes_.enter();
}

void PlannedAllocator::leave_dynamic() {
  const std::lock_guard lock(mutex_);
  dynamic_scopes_.leave();
}

void PlannedAllocator::tag_dynamic_nodes(std::uint64_t first, std::uint64_t last) {
  const std::lock_guard lock(mutex_);
  if (serving_) dynamic_scopes_.tag_nodes(first, last, accounting_.counts().iterations);
}

Statistics PlannedAllocator::statistics() const {
  const std::lock_guard lock(mutex_);
  Statistics result = accounting_.statistics();
  if (!callers_fallback_) result.fallback_reserved = fallback_.reserved();
  if (!serving_) return result;
  result.hits += serving_->hits_now();
  const Pool& pool = *pools_.active();
  result.live_blocks = static_cast<std::int64_t>(pool.space.live_blocks());
  result.strays = static_cast<std::int64_t>(pool.space.strays());
  if (pool.order) result.stream_waits = pool.order->waits();
  return result;
}

JointGauges PlannedAllocator::joint_gauges() const {
  const std::lock_guard lock(mutex_);
  return accounting_.gauges();
}

void PlannedAllocator::note_fallback(const JointGauges::Values& figures) {
  const std::lock_guard lock(mutex_);
  accounting_.note_fallback(figures);
}

void PlannedAllocator::reset_peaks() {
  const std::lock_guard lock(mutex_);
  accounting_.reset_peaks();
}

PlannedAllocator::Piece PlannedAllocator::pool_of(const void* p) const {
  const std::lock_guard lock(mutex_);
  if (const Pool* pool = pools_.find(p)) {
    for (const Pool::Piece& piece : pool->pieces()) {
      if (p >= piece.memory && p < piece.memory + piece.size) return {piece.memory, piece.size};
    }
  }
  const auto [begin, size] = fallback_.segment_of(p);
  return {begin, size};
}

Bytes PlannedAllocator::block_size(const void* p) const {
  const std::lock_guard lock(mutex_);
  const Pool* pool = pools_.find(p);
  if (!pool) return 0;
  const Bytes size = pool->space.at(pool->offset_of(p)).size;
  return size == StaticPool::kNotLive ? 0 : pool->space.round_up(size);
}

std::vector<PlannedAllocator::LivePool> PlannedAllocator::pools() const {
  const std::lock_guard lock(mutex_);
  std::vector<LivePool> result;
  pools_.visit([&](const Pool& pool) {
    const std::vector<Offset> offsets = pool.space.live();
    for (const Pool::Piece& piece : pool.pieces()) {
      LivePool live{{piece.memory, piece.size}, {}};
      for (const Offset offset : offsets) {
        if (offset < piece.begin || offset >= piece.begin + piece.size) continue;
        const StaticPool::Block block = pool.space.at(offset);
        std::byte* begin = pool.address(offset);
        live.blocks.push_back({begin, block.size, pool.space.round_up(block.size), block.stream,
                               delayed_ && delayed_->is_waiting(begin)});
      }
      result.push_back(std::move(live));
    }
  });
  const void* segment = nullptr;
  for (const CachingPool::BlockInfo& block : fallback_.blocks()) {
    if (block.segment != segment) {
      segment = block.segment;
      result.push_back({{block.segment, fallback_.segment_of(segment).size}, {}});
    }
    if (block.requested == 0) continue;
    result.back().blocks.push_back({block.begin, block.requested, block.size, block.stream,
                                    delayed_ && delayed_->is_waiting(block.begin)});
  }
  return result;
}

Bytes PlannedAllocator::release_cached() {
  const std::lock_guard lock(mutex_);
  if (delayed_ && delayed_->any_waiting()) collect_all_delayed();
  const Bytes released = fallback_.release_cached();
  update_reserved();
  return released;
}

void PlannedAllocator::check() const {
  const std::lock_guard lock(mutex_);
  pools_.check();
  fallback_.check();
}

}  // namespace stalloc::runtime
