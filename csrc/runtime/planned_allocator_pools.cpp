// The life of a plan's pool: enabled, released and acquired, retired with its last block.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "runtime/planned_allocator.h"

namespace stalloc::runtime {
namespace {

// What torch promises of every tensor in the host's memory, and its kernels rely on. On other
// devices it gives kDefaultAlignment.
constexpr Bytes kHostAlignment = 64;

}  // namespace

PlannedAllocator::~PlannedAllocator() {
  if (active_) free_pool(*active_);
  if (resident_) free_pool(*resident_);
  for (const auto& pool : retired_) free_pool(*pool);
}

PlannedAllocator::Guide::Guide(const plan::Plan& plan) : matcher(plan), guests(plan) {
  transient.reserve(plan.decisions.size());
  for (const plan::Decision& d : plan.decisions) transient.push_back(d.phase == d.phase_end);
}

void PlannedAllocator::enable(const plan::Plan& plan, Scope scope) {
  plan.check();
  const Bytes needed = delayed_ ? kDefaultAlignment : kHostAlignment;
  if (plan.alignment % needed != 0) {
    throw PlanError("the plan's addresses are aligned to " + std::to_string(plan.alignment) +
                    " bytes, and tensors need a multiple of " + std::to_string(needed) +
                    "; plan again with the default alignment");
  }
  if (device_.alignment() % plan.alignment != 0) {
    throw PlanError("the plan's addresses are aligned to " + std::to_string(plan.alignment) +
                    " bytes, and the device (" + name() + ") can place a pool at multiples of " +
                    std::to_string(device_.alignment()) +
                    " only; plan again with an alignment that divides that");
  }
  const std::lock_guard lock(mutex_);
  if (abandoned_) throw Error("a forked process cannot use the parent's " + name());
  auto guide = std::make_unique<Guide>(plan);
  if (scope.opening && !plan.opening.empty()) guide->opening.emplace(plan);
  std::unique_ptr<Pool> pool = make_pool(plan);
  std::unique_ptr<Pool> resident;
  if (guide->opening) {
    try {
      resident = make_pool(resident_region(plan));
    } catch (...) {
      free_pool(*pool);
      throw;
    }
  }
  retire(std::move(active_));
  retire(std::move(resident_));
  active_ = std::move(pool);
  resident_ = std::move(resident);
  guide_ = std::move(guide);
  away_ = false;
  drop_empty_pools();

  const Statistics before = std::exchange(stats_, Statistics{});
  stats_.allocated.add(before.allocated.current);
  stats_.fallback.add(before.fallback.current);
  stats_.dynamic.add(before.dynamic.current);
  stats_.dynamic_region.add(before.dynamic_region.current);
  stats_.dynamic_reused.add(before.dynamic_reused.current);
  stats_.planned = static_cast<std::int64_t>(plan.decisions.size());
  stats_.pool = plan.pool;
  stats_.resident = resident_ ? plan.resident : 0;
  stats_.opening = resident_ ? guide_->opening->placeable() : 0;
  update_reserved();
  gauges_.begin();
  hits_this_iteration_ = 0;
  unplanned_depth_ = 0;
  dynamic_depths_.clear();
  reuse_ = scope.reuse;
  dynamic_nodes_.clear();
  follows_nodes_.store(false, std::memory_order_relaxed);
  training_thread_.set_to_this_thread();
  enabled_.store(true, std::memory_order_release);
}

void PlannedAllocator::disable() {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  enabled_.store(false, std::memory_order_release);
  retire(std::move(active_));
  retire(std::move(resident_));
  guide_.reset();
  away_ = false;
  if (delayed_ && delayed_->any_waiting()) collect_all_delayed();
  drop_empty_pools();
  fallback_.release_cached();
  update_reserved();
}

std::unique_ptr<PlannedAllocator::Pool> PlannedAllocator::make_pool(const plan::Plan& plan) {
  std::byte* memory = reserve(plan.pool);
  try {
    auto pool = std::make_unique<Pool>(plan, memory);
    if (streams_ && plan.streams == solve::Streams::kOrdered) {
      pool->order.emplace(plan, *streams_, *stream_table_);
    }
    return pool;
  } catch (...) {
    if (memory) device_.release(memory, plan.pool);
    throw;
  }
}

std::byte* PlannedAllocator::reserve(Bytes size) {
  if (size == 0) return nullptr;
  void* memory = device_.allocate_pool(size);
  if (!memory && fallback_.release_cached() > 0) memory = device_.allocate_pool(size);
  if (!memory) throw_no_room(size);
  return static_cast<std::byte*>(memory);
}

void PlannedAllocator::throw_no_room(Bytes pool) const {
  throw OutOfMemory("the plan's pool of " + format_bytes(pool) +
                    " cannot be reserved: the device (" + name() + ") has " +
                    format_bytes(device_.available()) +
                    " left. Nothing was changed; free memory, or plan a smaller configuration.");
}

void PlannedAllocator::release_pool() {
  const std::lock_guard lock(mutex_);
  if (!active_) throw Error("no plan is enabled, so there is no pool to release");
  if (away_) return;
  if (delayed_ && delayed_->capturing()) {
    throw Error("the pool cannot be released while a CUDA graph is captured");
  }
  if (delayed_ && delayed_->any_waiting()) collect_all_delayed();
  if (active_->space.live_blocks() > 0) {
    throw Error("the pool cannot be released: " + std::to_string(active_->space.live_blocks()) +
                " tensors lie in it, of " + format_bytes(bytes_in_pool()) +
                "; delete them, or move them to the CPU, first");
  }
  if (active_->base && !device_.suspend(active_->base, active_->space.size())) {
    free_pool(*active_);
    active_->base = nullptr;
  }
  away_ = true;
  update_reserved();
}

void PlannedAllocator::acquire_pool() {
  const std::lock_guard lock(mutex_);
  if (!active_) throw Error("no plan is enabled, so there is no pool to acquire");
  if (!away_) return;
  if (!active_->base) {
    active_->base = reserve(active_->space.size());
  } else {
    const auto resume = [&] { return device_.resume(active_->base, active_->space.size()); };
    if (!resume() && !(fallback_.release_cached() > 0 && resume())) {
      throw_no_room(active_->space.size());
    }
  }
  away_ = false;
  update_reserved();
}

void PlannedAllocator::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  enabled_.store(false, std::memory_order_release);
  if (active_ && active_->order) active_->order->abandon();
  if (delayed_) {
    delayed_->abandon();
    collect_delayed();
  }
  if (!active_) return;
  retire(std::move(active_));
  retire(std::move(resident_));
  guide_.reset();
  drop_empty_pools();
}

// The region's blocks outlive the opening; what would have been served from it, had it come, is not
// coming any more.
void PlannedAllocator::end_opening() {
  guide_->matcher.trust_like(guide_->opening->matcher());
  guide_->opening.reset();
  retire(std::move(resident_));
  drop_empty_pools();
}

void PlannedAllocator::retire(std::unique_ptr<Pool> pool) {
  if (!pool) return;
  pool->order.reset();  // its addresses go to nobody any more
  retired_.push_back(std::move(pool));
}

// Not during a capture: memory goes only when the device is idle, and waiting for that would spoil
// the capture.
void PlannedAllocator::drop_empty_pools() {
  if (delayed_ && delayed_->capturing()) return;
  const auto is_empty = [](const auto& pool) { return pool->space.live_blocks() == 0; };
  if (std::ranges::none_of(retired_, is_empty)) return;
  std::erase_if(retired_, [&](const auto& pool) {
    if (!is_empty(pool)) return false;
    free_pool(*pool);
    return true;
  });
  update_reserved();
}

void PlannedAllocator::free_pool(Pool& pool) noexcept {
  if (pool.base && !abandoned_) device_.release(pool.base, pool.space.size());
}

void PlannedAllocator::update_reserved() {
  Bytes reserved = 0;
  std::int64_t segments = 0;
  std::uintptr_t low = ~std::uintptr_t{0};
  std::uintptr_t high = 0;
  const auto add = [&](const Pool& pool) {
    if (!pool.base) return;
    const bool is_away = away_ && &pool == active_.get();
    if (!is_away) reserved += pool.space.size();
    if (!is_away) ++segments;
    const auto begin = reinterpret_cast<std::uintptr_t>(pool.base);
    low = std::min(low, begin);
    high = std::max(high, begin + static_cast<std::uintptr_t>(pool.space.size()));
  };
  if (active_) add(*active_);
  if (resident_) add(*resident_);
  for (const auto& pool : retired_) add(*pool);
  stats_.reserved.add(reserved + fallback_.reserved() - stats_.reserved.current);
  if (!callers_fallback_) return;
  low_.store(low, std::memory_order_release);
  high_.store(high, std::memory_order_release);
  gauges_.set_reserved(reserved, segments);
  if (gauges_.behind()) behind_.store(true, std::memory_order_relaxed);
}

}  // namespace stalloc::runtime
