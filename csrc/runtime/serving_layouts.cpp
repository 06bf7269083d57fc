// Exchanges layouts of a plan where the extents or live blocks ask for another one, see Layouts.
#include <algorithm>
#include <utility>

#include "runtime/serving.h"

namespace stalloc::runtime {
namespace {

// A layout around walls and live blocks may exceed its bound by one part in so many.
constexpr Bytes kMostForFixed = 10;

// A layout for extents that the profile had may be so many times as large as its need.
constexpr Bytes kMostNeeds = 2;

// A layout is tight if its addresses exceed its bound by less than one part in so many.
constexpr Bytes kTightParts = 50;

}  // namespace

void Serving::set_extents(std::span<const std::string> names,
                          std::span<const std::int64_t> values) {
  microbatches_.set(names, values);
  use_extents();
}

void Serving::use_extents() {
  const Microbatches::Row& row = microbatches_.now();
  matcher().use_extents(row.extents, row.shares, microbatches_.is_told());
  outgrows_ = !layouts_.covers(row.extents, microbatch_now());
  const bool begins = matcher().kind() == trace::PhaseKind::kForward && microbatches_.is_told() &&
                      !microbatches_.knows_next();
  const StaticPool& space = pools_.active()->space;
  const bool may_turn = failed_turns_ < kMostFailures;
  is_cramped_ = begins && !outgrows_ && is_cramped();
  is_rearranged_ = begins && ((may_turn && space.awaits_turn()) || is_obstructed());
  began_ = began_ || begins;
}

// True if blocks from before this iteration are in the way of the layout.
bool Serving::is_obstructed() const {
  const StaticPool& space = pools_.active()->space;
  return !began_ && failed_leftovers_ < kMostFailures && space.strays() > 0 &&
         layouts_.is_obstructed(space.leftovers());
}

// The plan's microbatch whose extents the current phase follows.
std::int32_t Serving::microbatch_now() {
  const PhaseIndex phase = matcher().phase();
  return phase == kNone ? kNone : layouts_.current()[phase].own;
}

// True if the layout has more addresses than the pool has memory, and may be exchanged. A larger
// microbatch may follow one whose blocks live on: then a layout for the smaller one is of no use.
bool Serving::is_cramped() const {
  return !overlaps_ && !is_enlarged_ && failed_memory_ < kMostFailures && pools_.can_grow() &&
         layouts_.current().pool > pools_.active()->space.memory();
}

void Serving::fit_layout() {
  const bool outgrows = outgrows_;
  if (std::exchange(is_cramped_, false) && !is_rearranged_) return fit_memory();
  outgrows_ = is_rearranged_ = false;
  refused_ = !fit(microbatches_.now().extents, microbatch_now(), outgrows);
}

bool Serving::fit_upcoming() {
  upcoming_refused_ = !fit(matcher().upcoming(), kNone, /*outgrows=*/true);
  return !upcoming_refused_;
}

// A layout for the extents that needs no more memory than there is; null if none is found.
const plan::Plan* Serving::find_in_memory(std::span<const profile::Extent> extents,
                                          std::int32_t microbatch,
                                          const StaticPool::LiveRows& live) {
  if (failed_memory_ >= kMostFailures) return nullptr;
  const Layouts::Memory memory{pools_.active()->space.memory(), layouts_.current().walls};
  const plan::Plan* layout = layouts_.find(extents, microbatch, memory, live);
  failed_memory_ = layout ? 0 : failed_memory_ + 1;
  return layout;
}

// A layout for the extents in at most `room` bytes that needs little more memory than any does;
// null if none is found.
const plan::Plan* Serving::find_tight(std::span<const profile::Extent> extents,
                                      std::int32_t microbatch, const StaticPool::LiveRows& live,
                                      Bytes room) try {
  const Bytes least = layouts_.bound_at(extents, live);
  const Bytes most = std::max(pools_.active()->space.memory(), least + least / kTightParts);
  if (most >= room) return nullptr;
  return layouts_.find(extents, microbatch, {most, layouts_.current().walls}, live);
} catch (const Error&) {
  return nullptr;  // a law has no size at these extents
}

// Continues with such a layout, if there is one.
void Serving::fit_memory() {
  const Pool& pool = *pools_.active();
  const PhaseIndex phase = matcher().phase();
  StaticPool::LiveRows live = pool.space.live_rows();
  if (phase != kNone) live.since = layouts_.current()[phase].begin;
  if (!layouts_.are_anchored(live)) return;
  const plan::Plan* layout = find_in_memory(microbatches_.now().extents, microbatch_now(), live);
  if (!layout) return;
  pools_.relayout(*layout);
  adopt(layout);
}

// Lets the layout cover the extents. True if it does. `outgrows`: the current one does not; else
// requests are to lie elsewhere.
bool Serving::fit(std::span<const profile::Extent> extents, std::int32_t microbatch,
                  bool outgrows) {
  Pool& pool = *pools_.active();
  const PhaseIndex phase = matcher().phase();
  StaticPool::LiveRows live = pool.space.live_rows();
  if (phase != kNone) live.since = layouts_.current()[phase].begin;
  if (failed_leftovers_ < kMostFailures) live.leftovers = pool.space.leftovers();
  Bytes room = pool.space.solid_end();
  if (pools_.can_grow()) room = std::max(room, std::min(most_addresses_, pool.space.size()));
  const Layouts::Memory memory{room, layouts_.current().walls};
  // A layout that needs no memory besides is better than one that does.
  const plan::Plan* found = nullptr;
  if (pool.space.memory() < room) {
    found = find_in_memory(extents, microbatch, live);
    if (!found && !overlaps_) found = find_tight(extents, microbatch, live, room);
  }
  if (!found) found = layouts_.find(extents, microbatch, memory, live);
  if (const plan::Plan* layout = found) {
    pools_.relayout(*layout);
    adopt(layout);
    note_rearranged(live, true);
    return true;
  }
  // Requests that cannot take turns lie beside the pool. That is better than a second piece.
  if (!outgrows && !pools_.can_grow()) {
    note_rearranged(live, false);
    return false;
  }
  // Results of an evaluation may go as soon as the next ones replace them.
  const auto is_new = [](const StaticPool::Leftover& l) { return l.is_new; };
  if (!outgrows && std::ranges::any_of(live.leftovers, is_new)) return false;
  const bool empty = pool.space.live_blocks() == 0;
  using enum Layouts::More;
  const auto more = pools_.can_grow() ? kBehindPool : empty ? kNewPool : kBehindWall;
  const plan::Plan* layout = layouts_.grow(extents, memory, live, more);
  // The profile had such batches, and all of its microbatches together needed far less.
  const Bytes need = std::max(profiled_load_, layouts_.planned_bound());
  const bool needs_more = layout && layout->bound > kMostNeeds * need;
  if (needs_more && layouts_.was_profiled(extents)) layout = nullptr;
  // Pieces of memory that no request may straddle can need far more than one, and so can live
  // blocks that do not move. Then the rest of this iteration's requests that do not fit lie beside
  // the pool, which costs at least what the pool lacks.
  Bytes left = 0;
  for (const StaticPool::Leftover& l : live.leftovers) left += l.size;
  if (!empty && layout) {
    const Bytes bound = layout->bound + left;
    const Bytes beside = more == kBehindPool ? bound - pool.space.memory() : 0;
    const Bytes most = bound + std::max(bound / kMostForFixed, beside);
    if (pools_.memory_with(*layout) > most) layout = nullptr;
  }
  if (!outgrows && layout) {
    Bytes beside = left;
    for (const plan::Turn& t : live.turns) beside += t.size;
    if (pools_.memory_with(*layout) > pool.space.memory() + beside) layout = nullptr;
  }
  const bool fits = layout && add_memory(*layout, more);
  if (fits) {
    adopt(layout);
    is_enlarged_ = took_memory_ = true;
    failed_memory_ = 0;
  }
  note_rearranged(live, fits);
  return fits;
}

// Counts the searches that failed. Leftovers that no layout can avoid do not keep requests from
// taking turns.
void Serving::note_rearranged(const StaticPool::LiveRows& live, bool found) {
  if (!live.leftovers.empty()) {
    failed_leftovers_ = found ? 0 : failed_leftovers_ + 1;
  } else if (!live.turns.empty()) {
    failed_turns_ = found ? 0 : failed_turns_ + 1;
  }
}

bool Serving::add_memory(const plan::Plan& layout, Layouts::More more) {
  switch (more) {
    case Layouts::More::kBehindPool:
      return pools_.grow(layout);
    case Layouts::More::kNewPool:
      return pools_.exchange(layout);
    case Layouts::More::kBehindWall:
      return pools_.extend(layout);
  }
  return false;
}

bool Serving::join_pieces() {
  const Pool& pool = *pools_.active();
  if (pool.more.empty() || pool.space.live_blocks() > 0) return false;
  const plan::Plan* layout = layouts_.in_one_piece();
  if (!layout || layout->pool > pool.space.size() || !pools_.exchange(*layout)) return false;
  adopt(layout);
  return true;
}

// Continues with `layout`, by which the pools have been laid out.
void Serving::adopt(const plan::Plan* layout) {
  most_addresses_ = std::max(most_addresses_, layout->pool);
  layouts_.use(layout);
  is_beyond_profile_ = !layouts_.was_profiled(layout->extents);
  ++counts_.relayouts;
  matcher_.relayout(*layout);
  if (!startup_) return;
  startup_->relayout(*layout);
  startup_->matcher().relayout(*layout);
}
}  // namespace stalloc::runtime
