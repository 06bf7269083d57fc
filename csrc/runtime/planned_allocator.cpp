#include "runtime/planned_allocator.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/format.h"

namespace stalloc {
namespace {

// Iterations in which phases come to be trusted (see Matcher). What the fallback cached in them is
// of no use later.
constexpr std::int64_t kSettling = 4;

// What torch promises of every tensor, and its kernels rely on.
constexpr Bytes kServedAlignment = 64;

}  // namespace

PlannedAllocator::~PlannedAllocator() {
  if (active_) free_pool(*active_);
  for (const auto& pool : retired_) free_pool(*pool);
}

void PlannedAllocator::enable(const Plan& plan, bool reuse) {
  plan.check();
  if (plan.alignment % kServedAlignment != 0) {
    throw PlanError("the plan's addresses are aligned to " + std::to_string(plan.alignment) +
                    " bytes, and tensors need a multiple of " + std::to_string(kServedAlignment) +
                    "; plan again with the default alignment");
  }
  if (device_.alignment() % plan.alignment != 0) {
    throw PlanError("the plan's addresses are aligned to " + std::to_string(plan.alignment) +
                    " bytes, and the device (" + std::string(device_.name()) +
                    ") can place a pool at multiples of " + std::to_string(device_.alignment()) +
                    " only; plan again with an alignment that divides that");
  }
  const std::lock_guard lock(mutex_);
  std::byte* memory = nullptr;
  if (plan.pool > 0) {
    memory = static_cast<std::byte*>(device_.allocate(plan.pool));
    if (!memory && fallback_.release_cached() > 0) {
      memory = static_cast<std::byte*>(device_.allocate(plan.pool));
    }
    if (!memory) {
      throw OutOfMemory(
          "the plan's pool of " + format_bytes(plan.pool) + " cannot be reserved: the device (" +
          std::string(device_.name()) + ") has " + format_bytes(device_.available()) +
          " left. Nothing was changed; free memory, or plan a smaller configuration.");
    }
  }
  std::unique_ptr<Pool> pool;
  try {
    pool = std::make_unique<Pool>(plan, memory);
  } catch (...) {
    if (memory) device_.release(memory, plan.pool);
    throw;
  }
  if (active_) {
    active_->space.leave_group();
    retired_.push_back(std::move(active_));
  }
  active_ = std::move(pool);
  std::erase_if(retired_, [this](const auto& old) {
    if (old->space.live_blocks() > 0) return false;
    free_pool(*old);
    return true;
  });

  const Statistics before = std::exchange(stats_, Statistics{});
  stats_.allocated.add(before.allocated.current);
  stats_.fallback.add(before.fallback.current);
  stats_.dynamic.add(before.dynamic.current);
  stats_.dynamic_region.add(before.dynamic_region.current);
  stats_.dynamic_reused.add(before.dynamic_reused.current);
  stats_.planned = static_cast<std::int64_t>(plan.decisions.size());
  stats_.pool = plan.pool;
  update_reserved();
  hits_this_iteration_ = 0;
  unplanned_depth_ = 0;
  dynamic_depth_ = 0;
  reuse_ = reuse;
  dynamic_nodes_.clear();
  follows_nodes_.store(false, std::memory_order_relaxed);
  training_thread_.set_to_this_thread();
  enabled_.store(true, std::memory_order_release);
}

void PlannedAllocator::disable() {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  enabled_.store(false, std::memory_order_release);
  active_->space.leave_group();
  if (active_->space.live_blocks() > 0) {
    retired_.push_back(std::move(active_));
  } else {
    free_pool(*active_);
    active_.reset();
  }
  fallback_.release_cached();
  update_reserved();
}

void* PlannedAllocator::allocate(Bytes size, StreamId stream, bool for_training,
                                 NodeSequence node) {
  for_training = for_training || training_thread_.is_this_thread();
  const std::lock_guard lock(mutex_);
  if (!active_) return nullptr;
  void* p = nullptr;
  if (for_training) {
    p = unplanned_depth_ > 0
            ? allocate_idle(size)
            : allocate_planned(size, stream, dynamic_depth_ > 0 || is_dynamic(node));
  }
  if (!p) p = allocate_fallback(size, stream);
  stats_.allocated.add(size);
  return p;
}

void* PlannedAllocator::allocate_idle(Bytes size) {
  const Offset offset = active_->space.place_idle(size);
  if (offset == kUnplaced) return nullptr;
  ++stats_.idle_requests;
  return active_->base + offset;
}

void* PlannedAllocator::allocate_planned(Bytes size, StreamId stream, bool dynamic) {
  const auto [decision, group] = active_->matcher.match(size, stream, dynamic);
  if (dynamic || group != kNone) return allocate_dynamic(group, size, stream);
  if (decision == kNone) return nullptr;
  active_->space.leave_group();
  const Offset offset = active_->space.place(decision);
  if (offset == kUnplaced) {
    ++stats_.conflicts;
    return nullptr;
  }
  ++hits_this_iteration_;
  return active_->base + offset;
}

void* PlannedAllocator::allocate_dynamic(std::int32_t group, Bytes size, StreamId stream) {
  const Offset offset =
      reuse_ && group != kNone ? active_->space.place_dynamic(group, size) : kUnplaced;
  void* p = nullptr;
  if (offset == kUnplaced) {
    p = allocate_fallback(size, stream, /*dynamic=*/true);
    ++stats_.dynamic_fallback_requests;
  } else {
    p = active_->base + offset;
    if (active_->space.kind_at(offset) == StaticPool::Kind::kRegion) {
      ++stats_.dynamic_region_requests;
      stats_.dynamic_region.add(size);
    } else {
      ++stats_.dynamic_reused_requests;
      stats_.dynamic_reused.add(size);
    }
  }
  ++stats_.dynamic_requests;
  stats_.dynamic.add(size);
  return p;
}

bool PlannedAllocator::is_dynamic(NodeSequence node) const {
  if (!node || dynamic_nodes_.empty()) return false;
  const auto after =
      std::upper_bound(dynamic_nodes_.begin(), dynamic_nodes_.end(), *node,
                       [](std::uint64_t n, const NodeRange& range) { return n < range.first; });
  return after != dynamic_nodes_.begin() && *node < std::prev(after)->last;
}

void* PlannedAllocator::allocate_fallback(Bytes size, StreamId stream, bool dynamic) {
  void* p = fallback_.allocate(size, stream, dynamic);
  update_reserved();
  if (!p) throw OutOfMemory(out_of_memory_message(size));
  ++stats_.fallback_requests;
  stats_.fallback.add(size);
  return p;
}

std::string PlannedAllocator::out_of_memory_message(Bytes size) const {
  const Bytes planned = stats_.allocated.current - stats_.fallback.current;
  const Bytes hole = std::max(fallback_.largest_hole(), active_->space.largest_hole());
  return "stalloc tried to allocate " + format_bytes(size) + " on " + std::string(device_.name()) +
         ", which has " + format_bytes(device_.available()) + " free after all cached memory was " +
         "given back. The planned pool holds " + format_bytes(planned) + " of its " +
         format_bytes(stats_.pool) + "; requests outside the plan hold " +
         format_bytes(stats_.fallback.current) + " of " + format_bytes(fallback_.reserved()) +
         "; the largest hole is " + format_bytes(hole) +
         ". Profile this configuration anew if it has changed since the plan was made, use a " +
         "smaller microbatch or more recomputation, or free tensors that outlive their step.";
}

bool PlannedAllocator::deallocate(void* p) {
  const std::lock_guard lock(mutex_);
  if (active_ && active_->contains(p)) return release_from(*active_, p);
  for (auto it = retired_.begin(); it != retired_.end(); ++it) {
    if (!(*it)->contains(p)) continue;
    const bool released = release_from(**it, p);
    if ((*it)->space.live_blocks() == 0) {
      free_pool(**it);
      retired_.erase(it);
      update_reserved();
    }
    return released;
  }
  const auto [size, dynamic] = fallback_.deallocate(p, /*keep=*/active_ != nullptr);
  if (size == CachingPool::kNotOurs) return false;
  stats_.allocated.add(-size);
  stats_.fallback.add(-size);
  if (dynamic) stats_.dynamic.add(-size);
  if (!active_) update_reserved();
  return true;
}

bool PlannedAllocator::release_from(Pool& pool, void* p) {
  const auto [size, kind] = pool.space.release(static_cast<std::byte*>(p) - pool.base);
  if (size == StaticPool::kNotLive) return false;
  stats_.allocated.add(-size);
  if (kind == StaticPool::Kind::kRegion || kind == StaticPool::Kind::kReused) {
    stats_.dynamic.add(-size);
    (kind == StaticPool::Kind::kRegion ? stats_.dynamic_region : stats_.dynamic_reused).add(-size);
  }
  return true;
}

void PlannedAllocator::enter_phase(PhaseKind kind, std::int32_t microbatch, std::int32_t chunk) {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  training_thread_.set_to_this_thread();
  active_->space.leave_group();
  active_->matcher.enter_phase(kind, microbatch, chunk);
}

void PlannedAllocator::enter_unplanned() {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  active_->space.leave_group();
  ++unplanned_depth_;
}

void PlannedAllocator::leave_unplanned() {
  const std::lock_guard lock(mutex_);
  if (unplanned_depth_ > 0) --unplanned_depth_;
}

void PlannedAllocator::end_iteration() {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  active_->matcher.end_iteration();
  active_->space.leave_group();
  active_->space.end_iteration();
  ++stats_.iterations;
  stats_.hits += hits_this_iteration_;
  stats_.misses += stats_.planned - hits_this_iteration_;
  hits_this_iteration_ = 0;
  while (!dynamic_nodes_.empty() && dynamic_nodes_.front().iteration + 1 < stats_.iterations) {
    dynamic_nodes_.pop_front();
  }
  if (stats_.iterations <= kSettling) {
    fallback_.release_cached();
    update_reserved();
  }
}

void PlannedAllocator::enter_dynamic() {
  const std::lock_guard lock(mutex_);
  if (active_) ++dynamic_depth_;
}

void PlannedAllocator::leave_dynamic() {
  const std::lock_guard lock(mutex_);
  if (dynamic_depth_ > 0) --dynamic_depth_;
}

void PlannedAllocator::tag_dynamic_nodes(std::uint64_t first, std::uint64_t last) {
  const std::lock_guard lock(mutex_);
  if (!active_ || first >= last) return;
  // Another thread's numbers start anew; its nodes are told apart from ours by nothing.
  if (!dynamic_nodes_.empty() && first < dynamic_nodes_.back().last) return;
  dynamic_nodes_.push_back({first, last, stats_.iterations});
  follows_nodes_.store(true, std::memory_order_relaxed);
}

Statistics PlannedAllocator::statistics() const {
  const std::lock_guard lock(mutex_);
  Statistics result = stats_;
  result.hits += hits_this_iteration_;
  result.fallback_reserved = fallback_.reserved();
  if (active_) {
    result.live_blocks = static_cast<std::int64_t>(active_->space.live_blocks());
    result.strays = static_cast<std::int64_t>(active_->space.strays());
  }
  return result;
}

void PlannedAllocator::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (Gauge* g : {&stats_.allocated, &stats_.reserved, &stats_.fallback, &stats_.dynamic,
                   &stats_.dynamic_region, &stats_.dynamic_reused})
    g->reset_peak();
}

Bytes PlannedAllocator::release_cached() {
  const std::lock_guard lock(mutex_);
  const Bytes released = fallback_.release_cached();
  update_reserved();
  return released;
}

void PlannedAllocator::free_pool(Pool& pool) noexcept {
  if (pool.base) device_.release(pool.base, pool.space.size());
}

void PlannedAllocator::update_reserved() {
  Bytes reserved = fallback_.reserved() + (active_ ? active_->space.size() : 0);
  for (const auto& pool : retired_) reserved += pool->space.size();
  stats_.reserved.add(reserved - stats_.reserved.current);
}

void PlannedAllocator::check() const {
  const std::lock_guard lock(mutex_);
  if (active_) active_->space.check();
  for (const auto& pool : retired_) pool->space.check();
  fallback_.check();
}

}  // namespace stalloc
