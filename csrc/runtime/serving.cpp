#include "runtime/serving.h"

#include <utility>

namespace stalloc::runtime {

Serving::Serving(const plan::Plan& plan, Scope scope, Pools& pools, const DelayedFrees* delayed,
                 Statistics& counts)
    : pools_(pools),
      delayed_(delayed),
      counts_(counts),
      layouts_(plan),
      microbatches_(plan),
      matcher_(plan),
      guests_(plan),
      reuse_(scope.reuse) {
  if (scope.opening && !plan.opening.empty()) opening_.emplace(plan);
  transient_.reserve(plan.decisions.size());
  for (const plan::Decision& d : plan.decisions) transient_.push_back(d.phase == d.phase_end);
}

Serving::Place Serving::allocate(Bytes size, StreamId stream, bool tagged) {
  if (unplanned_depth_ > 0) {
    if (!guests_.admits(Guests::kUnplanned, size)) return {};
    return {allocate_idle(size, stream, Guests::kUnplanned)};
  }
  Matcher& matcher = this->matcher();
  const auto [decision, group, persistent, opening, outgrows] = matcher.match(size, stream, tagged);
  if (tagged || group != kNone) return {allocate_dynamic(group, size), true};
  if (opening != kNone) return {allocate_opening(opening, size)};
  // Beside the pool, which is to be exchanged when the batch's extents are told.
  if (persistent || outgrows) return {};
  if (decision != kNone) return {allocate_planned(decision, size, stream)};
  // Small requests share a segment or two of the fallback; in the pool they might be in a large
  // one's way. The same applies to permanent requests of the opening.
  const bool helps = size >= profile::kSmallRequest && matcher.in_step() && !matcher.wary() &&
                     !opening_ && guests_.admits(matcher.phase(), size);
  return {helps ? allocate_idle(size, stream, matcher.phase()) : nullptr};
}

void* Serving::allocate_planned(std::int32_t decision, Bytes size, StreamId stream) {
  Pool& pool = *pools_.active();
  const Offset offset = pool.space.place(decision, size);
  if (offset != kUnplaced && pool.hand_over(offset, capturing())) {
    ++hits_;
    return pool.address(offset);
  }
  ++counts_.conflicts;
  // A block that is gone by the end of the phase may lie anywhere idle. Any other would be in the
  // way of one decision after the other.
  const PhaseIndex phase = matcher().phase();
  const bool helps = size >= profile::kSmallRequest &&
                     transient_[static_cast<std::size_t>(decision)] &&
                     !guests_.has_stayed(phase, size);
  return helps ? allocate_idle(size, stream, phase) : nullptr;
}

void* Serving::allocate_idle(Bytes size, StreamId stream, PhaseIndex origin) {
  Pool& pool = *pools_.active();
  const Offset offset = pool.space.place_idle(size, stream, origin);
  if (offset == kUnplaced || !pool.hand_over(offset, capturing())) return nullptr;
  ++counts_.idle_requests;
  return pool.address(offset);
}

void* Serving::allocate_opening(std::int32_t i, Bytes size) {
  const auto [in_region, offset] =
      opening_->place(i, size, pools_.active()->space, pools_.resident()->space);
  Pool& pool = in_region ? *pools_.resident() : *pools_.active();
  if (offset == kUnplaced || !pool.hand_over(offset, capturing())) return nullptr;
  ++counts_.opening_requests;
  return pool.address(offset);
}

void* Serving::allocate_dynamic(std::int32_t group, Bytes size) {
  Pool& pool = *pools_.active();
  const Offset offset =
      reuse_ && group != kNone ? pool.space.place_dynamic(group, size) : kUnplaced;
  ++counts_.dynamic_requests;
  if (offset == kUnplaced || !pool.hand_over(offset, capturing())) {
    ++counts_.dynamic_fallback_requests;
    return nullptr;
  }
  if (pool.space.at(offset).kind == StaticPool::Kind::kRegion) {
    ++counts_.dynamic_region_requests;
    counts_.dynamic_region.add(size);
  } else {
    ++counts_.dynamic_reused_requests;
    counts_.dynamic_reused.add(size);
  }
  counts_.dynamic.add(size);
  return pool.address(offset);
}

void Serving::enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk) {
  learn_from_guests(matcher().phase());
  matcher().enter_phase(kind, microbatch, chunk);
  microbatches_.enter_phase(kind, microbatch, chunk);
  use_extents();
}

void Serving::set_extents(std::span<const std::string> names,
                          std::span<const std::int64_t> values) {
  microbatches_.set(names, values);
  use_extents();
}

void Serving::use_extents() {
  const Microbatches::Row& row = microbatches_.now();
  matcher().use_extents(row.extents, row.shares, microbatches_.is_told());
  outgrows_ = !layouts_.covers(row.extents);
}

void Serving::fit_layout() {
  outgrows_ = false;
  Pool& pool = *pools_.active();
  const Microbatches::Row& row = microbatches_.now();
  const std::vector<StaticPool::LiveDecision> live = pool.space.live_decisions();
  const Layouts::Memory memory{pool.space.size(), layouts_.current().walls};
  if (const plan::Plan* layout = layouts_.find(row.extents, memory, live)) {
    pools_.relayout(*layout);
    adopt(layout);
    return;
  }
  const bool empty = pool.space.live_blocks() == 0;
  const plan::Plan* layout = layouts_.grow(row.extents, memory, live, !empty);
  refused_ = !layout || !(empty ? pools_.exchange(*layout) : pools_.extend(*layout));
  if (!refused_) adopt(layout);
}

bool Serving::join_pieces() {
  const Pool& pool = *pools_.active();
  if (pool.more.empty() || pool.space.live_blocks() > 0) return false;
  const plan::Plan* layout = layouts_.in_one_piece();
  if (!layout || layout->pool > pool.space.size() || !pools_.exchange(*layout)) return false;
  adopt(layout);
  return true;
}

// The pools are laid out by `layout`.
void Serving::adopt(const plan::Plan* layout) {
  layouts_.use(layout);
  ++counts_.relayouts;
  matcher_.relayout(*layout);
  if (!opening_) return;
  opening_->relayout(*layout);
  opening_->matcher().relayout(*layout);
}

bool Serving::end_iteration() {
  const std::int64_t absent = opening_ ? opening_->absent() : 0;
  learn_from_guests(matcher().phase());
  matcher().end_iteration();
  microbatches_.end_iteration();
  refused_ = false;
  pools_.active()->space.end_iteration();
  learn_from_guests(Guests::kUnplanned);
  ++counts_.iterations;
  counts_.hits += hits_;
  counts_.misses += counts_.planned - absent - hits_;
  hits_ = 0;
  if (!opening_) return false;
  matcher_.trust_like(opening_->matcher());
  opening_.reset();
  return true;
}

// Learns from the guests of `origin` that are still live, now that they were to be gone. A block
// that only waits for streams is gone.
void Serving::learn_from_guests(PhaseIndex origin) {
  for (const StaticPool::Guest& g : pools_.active()->space.guests()) {
    const bool waits = delayed_ && delayed_->is_waiting(pools_.active()->address(g.offset));
    if (g.origin != origin || waits) continue;
    guests_.note_stayed(g.origin, g.size);
  }
}

}  // namespace stalloc::runtime
