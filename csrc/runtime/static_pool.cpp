#include "runtime/static_pool.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "base/align.h"

namespace stalloc::runtime {

StaticPool::StaticPool(const plan::Plan& plan)
    : size_(plan.pool),
      alignment_(plan.alignment),
      walls_(plan.walls),
      planned_(plan.decisions.size()),
      decisions_(plan.decisions.size() + plan.groups.size()),
      groups_(plan.groups.size()) {
  const std::size_t n = decisions_.size();
  slot_bits_ = std::bit_width(std::max<std::size_t>(2 * n, 2) - 1);
  slots_.resize(std::size_t{1} << slot_bits_);

  // Frees come before allocations of the same tick: lifetimes are half-open. A wrap-around
  // decision's free is the one of the turn before, at the start of this one.
  std::vector<std::tuple<Tick, bool, std::int32_t>> ordered;  // (tick, is allocation, decision)
  ordered.reserve(2 * n);
  const auto add = [&](std::size_t i, Bytes size, Offset offset, Tick lower, Tick upper) {
    const auto index = static_cast<std::int32_t>(i);
    ordered.emplace_back(lower, true, index);
    ordered.emplace_back(upper > plan.period ? upper - plan.period : upper, false, index);
    decisions_[i].offset = offset;
    decisions_[i].size = align_up(size, alignment_);
    decisions_[i].requested = size;
  };
  for (std::size_t i = 0; i < planned_; ++i) {
    const plan::Decision& d = plan.decisions[i];
    add(i, d.size, d.offset, d.lower, d.upper);
    phase_of_.push_back(d.phase);
    decisions_[i].slot = claim_slot(d.offset);
    decisions_[i].stream = static_cast<ShortStreamId>(d.stream);
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const plan::DynamicGroup& group = plan.groups[g];
    add(planned_ + g, group.size, group.offset, group.lower, group.upper);
    phase_of_.push_back(group.phase);
    groups_[g].stream = group.stream;
    groups_[g].passing = group.phase_end == group.phase && group.upper <= plan.period;
    for (const plan::AddressRange& r : group.reusable) groups_[g].reusable.insert({r.begin, r.end});
    for (const profile::DynamicContext& context : group.contexts) {
      if (context.size > 0) groups_[g].recurring.push_back(context.size);
    }
    std::ranges::sort(groups_[g].recurring);
  }
  std::sort(ordered.begin(), ordered.end());
  events_.reserve(ordered.size());
  for (const auto& [tick, is_allocation, index] : ordered) {
    Placed& p = decisions_[static_cast<std::size_t>(index)];
    (is_allocation ? p.allocated_at : p.freed_at) = static_cast<std::int32_t>(events_.size());
    events_.push_back({index, !is_allocation});
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto [after, phase] = std::pair{plan.groups[g].after, plan.groups[g].phase};
    const auto next = after != kNone ? plan.decisions.begin() + after + 1
                                     : std::ranges::lower_bound(plan.decisions, phase, {},
                                                                &plan::Decision::phase);
    const bool follows = next != plan.decisions.end() && next->phase == phase;
    const Tick tick = follows ? next->lower : plan.phases[static_cast<std::size_t>(phase)].end;
    const auto passed = std::ranges::lower_bound(ordered, std::tuple{tick, true, std::int32_t{0}});
    groups_[g].passed_at = static_cast<std::int32_t>(passed - ordered.begin());
  }
  for (const profile::ProfiledPhase& phase : plan.phases) {
    const auto begin =
        std::ranges::lower_bound(ordered, std::tuple{phase.begin, false, std::int32_t{0}});
    phase_begins_.push_back(static_cast<std::int32_t>(begin - ordered.begin()));
  }
  divide(plan);
}

bool StaticPool::is_current(const Placed& p) const {
  const bool allocated = p.allocated_at < clock_;
  const bool freed = p.freed_at < clock_;
  return p.allocated_at < p.freed_at ? allocated && !freed : allocated || !freed;
}

Offset StaticPool::place(std::int32_t d, Bytes size) {
  Placed& p = decisions_[static_cast<std::size_t>(d)];
  if (size > p.size) return kUnplaced;
  if (p.allocated_at >= clock_) {
    advance(p.allocated_at + 1);
  } else if (!is_current(p)) {
    return kUnplaced;
  }
  // Not idle when last iteration's block of this decision is still there.
  if (p.state != State::kIdle) return kUnplaced;
  if (!strays_.empty() && strays_.overlaps(range(p))) return kUnplaced;
  p.state = State::kRegular;
  p.requested = size;
  slots_[static_cast<std::size_t>(p.slot)].live = d;
  take_idle(range(p));
  ++live_;
  return p.offset;
}

void StaticPool::advance(std::int32_t position) {
  for (; clock_ < position; ++clock_) {
    const Event e = events_[static_cast<std::size_t>(clock_)];
    Placed& p = decisions_[static_cast<std::size_t>(e.decision)];
    if (static_cast<std::size_t>(e.decision) >= planned_) {
      if (e.is_free) close_region(e.decision - static_cast<std::int32_t>(planned_));
    } else if (e.is_free && p.state == State::kRegular) {
      p.state = State::kStray;
      add_stray(range(p));
    } else if (!e.is_free && p.state == State::kStray) {
      p.state = State::kRegular;
      remove_stray(range(p));
    }
  }
}

void StaticPool::retreat(std::int32_t position) {
  while (clock_ > position) {
    --clock_;
    const Event e = events_[static_cast<std::size_t>(clock_)];
    Placed& p = decisions_[static_cast<std::size_t>(e.decision)];
    if (static_cast<std::size_t>(e.decision) >= planned_) {
      if (!e.is_free) close_region(e.decision - static_cast<std::int32_t>(planned_));
    } else if (e.is_free && p.state == State::kStray) {
      p.state = State::kRegular;
      remove_stray(range(p));
    } else if (!e.is_free && p.state == State::kRegular) {
      p.state = State::kStray;
      add_stray(range(p));
    }
  }
}

void StaticPool::begin_phase(PhaseIndex phase) {
  idle_known_ = false;  // not to be followed for nothing
  retreat(phase_begins_[static_cast<std::size_t>(phase)]);
}

void StaticPool::end_iteration() {
  advance(static_cast<std::int32_t>(events_.size()));
  clock_ = 0;
  ++iteration_;
  idle_known_ = false;  // not to be followed for nothing
  searched_ = 0;
}

void StaticPool::add_stray(Range r) {
  strays_.insert(r);
  for (Reuse& reuse : reuse_) {
    if (reuse.group != kNone) reuse.space.remove(r);
  }
}

void StaticPool::remove_stray(Range r) {
  strays_.erase(r.begin);
  for (Reuse& reuse : reuse_) {
    if (reuse.group == kNone) continue;
    groups_[static_cast<std::size_t>(reuse.group)].reusable.intersect(
        r, [&](Range idle) { reuse.space.insert_merged(idle); });
  }
}

StaticPool::Block StaticPool::release(Offset offset) {
  const std::int32_t slot = find_slot(offset);
  const std::int32_t d = slot == kNone ? kNone : slots_[static_cast<std::size_t>(slot)].live;
  if (d != kNone) {
    Placed& p = decisions_[static_cast<std::size_t>(d)];
    const bool stray = p.state == State::kStray;
    if (stray) remove_stray(range(p));
    p.state = State::kIdle;
    slots_[static_cast<std::size_t>(slot)].live = kNone;
    return_idle(range(p), stray);
    --live_;
    return block_of(d);
  }
  const auto it = foreign_.find(offset);
  if (it == foreign_.end()) return {};
  const Foreign block = it->second;
  foreign_.erase(it);
  --live_;
  const Range freed{offset, offset + block.size};
  if (block.stray) {
    remove_stray(freed);
    return_idle(freed, /*stray=*/true);
  } else {
    Group& group = groups_[static_cast<std::size_t>(block.group)];
    group.idle.insert_merged(freed);
    --group.blocks;
  }
  return block_of(block);
}

StaticPool::Block StaticPool::at(Offset offset) const {
  const std::int32_t slot = find_slot(offset);
  const std::int32_t d = slot == kNone ? kNone : slots_[static_cast<std::size_t>(slot)].live;
  if (d != kNone) return block_of(d);
  const auto it = foreign_.find(offset);
  return it == foreign_.end() ? Block{} : block_of(it->second);
}

std::vector<Offset> StaticPool::live() const {
  std::vector<Offset> result;
  for (const Slot& s : slots_) {
    if (s.live != kNone) result.push_back(s.offset);
  }
  for (const auto& [offset, block] : foreign_) result.push_back(offset);
  std::ranges::sort(result);
  return result;
}

std::size_t StaticPool::hash(Offset offset) const {
  // Fibonacci hashing: offsets are multiples of the alignment, so the low bits say nothing.
  const auto key = static_cast<std::uint64_t>(offset / alignment_);
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> (64 - slot_bits_));
}

// Both searches end: at most half of the slots are claimed.
std::int32_t StaticPool::find_slot(Offset offset) const {
  for (std::size_t i = hash(offset);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].offset == offset) return static_cast<std::int32_t>(i);
    if (slots_[i].offset == kUnplaced) return kNone;
  }
}

std::int32_t StaticPool::claim_slot(Offset offset) {
  for (std::size_t i = hash(offset);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].offset == kUnplaced) slots_[i].offset = offset;
    if (slots_[i].offset == offset) return static_cast<std::int32_t>(i);
  }
}

}  // namespace stalloc::runtime
