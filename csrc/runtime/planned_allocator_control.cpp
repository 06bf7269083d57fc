// What the training loop says, and what is told about the run.
#include <algorithm>
#include <utility>

#include "runtime/planned_allocator.h"

namespace stalloc::runtime {
namespace {

// Iterations in which phases come to be trusted (see Matcher). What the fallback cached in them is
// of no use later.
constexpr std::int64_t kSettling = 4;

}  // namespace

void PlannedAllocator::enter_phase(trace::PhaseKind kind, std::int32_t microbatch,
                                   std::int32_t chunk) {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  training_thread_.set_to_this_thread();
  learn_from_guests(guide_->now().phase());
  guide_->now().enter_phase(kind, microbatch, chunk);
}

void PlannedAllocator::enter_unplanned() {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  ++unplanned_depth_;
}

void PlannedAllocator::leave_unplanned() {
  const std::lock_guard lock(mutex_);
  if (unplanned_depth_ > 0) --unplanned_depth_;
}

void PlannedAllocator::end_iteration() {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  const std::int64_t absent = guide_->opening ? guide_->opening->absent() : 0;
  const std::int64_t expected = stats_.planned - absent;
  learn_from_guests(guide_->now().phase());
  guide_->now().end_iteration();
  active_->space.end_iteration();
  learn_from_guests(Guests::kUnplanned);
  if (guide_->opening) end_opening();
  ++stats_.iterations;
  stats_.hits += hits_this_iteration_;
  stats_.misses += expected - hits_this_iteration_;
  hits_this_iteration_ = 0;
  if (delayed_ && delayed_->any_lost()) collect_all_delayed();
  std::erase_if(dynamic_nodes_, [this](const auto& nodes) {
    return nodes.second.iteration + 1 < stats_.iterations;
  });
  const Bytes released =
      stats_.iterations <= kSettling ? fallback_.release_cached() : fallback_.release_unused();
  if (released > 0) update_reserved();
}

// Of what came in that phase and was to go with it. What is only waiting for streams has gone.
void PlannedAllocator::learn_from_guests(PhaseIndex origin) {
  for (const StaticPool::Guest& g : active_->space.guests()) {
    const bool waits = delayed_ && delayed_->is_waiting(active_->base + g.offset);
    if (g.origin != origin || waits) continue;
    guide_->guests.note_stayed(g.origin, g.size);
  }
}

void PlannedAllocator::enter_dynamic() {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  const auto mine =
      std::ranges::find(dynamic_depths_, this_thread_ordinal(), &DynamicDepth::thread);
  if (mine == dynamic_depths_.end()) {
    dynamic_depths_.push_back({this_thread_ordinal(), 1});
  } else {
    ++mine->depth;
  }
}

void PlannedAllocator::leave_dynamic() {
  const std::lock_guard lock(mutex_);
  const auto mine =
      std::ranges::find(dynamic_depths_, this_thread_ordinal(), &DynamicDepth::thread);
  if (mine != dynamic_depths_.end() && --mine->depth == 0) dynamic_depths_.erase(mine);
}

void PlannedAllocator::tag_dynamic_nodes(std::uint64_t first, std::uint64_t last) {
  const std::lock_guard lock(mutex_);
  if (!active_ || first >= last) return;
  // What it overlaps becomes a part of it.
  auto at = dynamic_nodes_.upper_bound(first);
  if (at != dynamic_nodes_.begin() && std::prev(at)->second.last >= first) --at;
  while (at != dynamic_nodes_.end() && at->first <= last) {
    first = std::min(first, at->first);
    last = std::max(last, at->second.last);
    at = dynamic_nodes_.erase(at);
  }
  dynamic_nodes_[first] = {last, stats_.iterations};
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
    if (active_->order) result.stream_waits = active_->order->waits();
  }
  if (callers_fallback_) {
    const auto joint = [this](JointGauges::Quantity q) {
      return Gauge{gauges_.ours()[q] + gauges_.other()[q], gauges_.peaks()[q]};
    };
    result.allocated = joint(JointGauges::kRequested);
    result.reserved = joint(JointGauges::kReserved);
    result.fallback.current = gauges_.other()[JointGauges::kRequested];
    result.fallback_reserved = gauges_.other()[JointGauges::kReserved];
  }
  return result;
}

JointGauges PlannedAllocator::joint_gauges() const {
  const std::lock_guard lock(mutex_);
  return gauges_;
}

void PlannedAllocator::note_fallback(const JointGauges::Values& figures) {
  const std::lock_guard lock(mutex_);
  gauges_.note(figures);
  Gauge& fallback = stats_.fallback;
  fallback.add(figures[JointGauges::kRequested] - fallback.current);
  behind_.store(false, std::memory_order_relaxed);
}

void PlannedAllocator::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (Gauge* g : {&stats_.allocated, &stats_.reserved, &stats_.fallback, &stats_.dynamic,
                   &stats_.dynamic_region, &stats_.dynamic_reused}) {
    g->reset_peak();
  }
  gauges_.reset_peaks();
}

PlannedAllocator::Piece PlannedAllocator::pool_of(const void* p) const {
  const std::lock_guard lock(mutex_);
  if (const Pool* pool = find_pool(p)) return {pool->base, pool->space.size()};
  const auto [begin, size] = fallback_.segment_of(p);
  return {begin, size};
}

Bytes PlannedAllocator::block_size(const void* p) const {
  const std::lock_guard lock(mutex_);
  const Pool* pool = find_pool(p);
  if (!pool) return 0;
  const Bytes size = pool->space.at(pool->offset_of(p)).size;
  return size == StaticPool::kNotLive ? 0 : pool->space.round_up(size);
}

std::vector<PlannedAllocator::LivePool> PlannedAllocator::pools() const {
  const std::lock_guard lock(mutex_);
  std::vector<LivePool> result;
  const auto add = [&](const Pool& pool) {
    if (!pool.base) return;
    LivePool live{{pool.base, pool.space.size()}, {}};
    for (const Offset offset : pool.space.live()) {
      const StaticPool::Block block = pool.space.at(offset);
      std::byte* begin = pool.base + offset;
      live.blocks.push_back({begin, block.size, pool.space.round_up(block.size), block.stream,
                             delayed_ && delayed_->is_waiting(begin)});
    }
    result.push_back(std::move(live));
  };
  if (active_) add(*active_);
  if (resident_) add(*resident_);
  for (const auto& pool : retired_) add(*pool);
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
  if (active_) active_->space.check();
  if (resident_) resident_->space.check();
  for (const auto& pool : retired_) pool->space.check();
  fallback_.check();
}

}  // namespace stalloc::runtime
