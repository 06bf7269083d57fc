#include "runtime/static_pool.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "base/align.h"

namespace stalloc::runtime {

StaticPool::StaticPool(const plan::Plan& plan)
    : size_(plan.pool),
      alignment_(plan.alignment),
      walls_(plan.walls),
      planned_(plan.decisions.size()),
      decisions_(plan.decisions.size() + plan.groups.size()),
      groups_(plan.groups.size()) {
  std::size_t n = decisions_.size();
  for (const plan::SlotClass& c : plan.slots) n += c.count;
  slot_bits_ = std::bit_width(std::max<std::size_t>(2 * n, 2) - 1);
  slots_.resize(std::size_t{1} << slot_bits_);

  // Frees come before allocations of the same tick: lifetimes are half-open. A wrap-around
  // decision's free is the one of the turn before, at the start of this one.
  std::vector<std::tuple<Tick, bool, DecisionIndex>> ordered;  // (tick, is allocation, decision)
  ordered.reserve(2 * n);
  const auto add = [&](DecisionIndex i, const auto& d) {
    ordered.emplace_back(d.lower, true, i);
    ordered.emplace_back(d.upper > plan.period ? d.upper - plan.period : d.upper, false, i);
    decisions_[i].offset = d.offset;
    decisions_[i].size = align_up(d.size, alignment_);
    decisions_[i].requested = d.size;
    phase_of_.push_back(d.phase);
  };
  for (DecisionIndex i(0); i < planned_; ++i) {
    const plan::Decision& d = plan[i];
    add(i, d);
    decisions_[i].slot = claim_slot(d.offset);
    decisions_[i].slots = d.slots;
    decisions_[i].box = d.box;
    decisions_[i].stream = static_cast<ShortStreamId>(d.stream);
  }
  for (const GroupIndex g : groups_.indices()) {
    const plan::DynamicGroup& group = plan[g];
    add(planned_ + g.number(), group);
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
    Placed& p = decisions_[index];
    (is_allocation ? p.allocated_at : p.freed_at) = events_.end_index();
    events_.push_back({index, !is_allocation});
  }
  for (const GroupIndex g : groups_.indices()) {
    const auto [after, phase] = std::pair{plan[g].after, plan[g].phase};
    const auto next = after != kNone ? plan.decisions.begin() + after.number() + 1
                                     : std::ranges::lower_bound(plan.decisions, phase, {},
                                                                &plan::Decision::phase);
    const bool follows = next != plan.decisions.end() && next->phase == phase;
    const Tick tick = follows ? next->lower : plan[phase].end;
    const auto passed = std::ranges::lower_bound(ordered, std::tuple{tick, true, DecisionIndex(0)});
    groups_[g].passed_at = Position(passed - ordered.begin());
  }
  for (const profile::ProfiledPhase& phase : plan.phases) {
    const auto begin =
        std::ranges::lower_bound(ordered, std::tuple{phase.begin, false, DecisionIndex(0)});
    phase_begins_.push_back(Position(begin - ordered.begin()));
  }
  add_slot_classes(plan);
  divide(plan);
}

void StaticPool::add_slot_classes(const plan::Plan& plan) {
  for (const plan::SlotClass& c : plan.slots) {
    SlotPlaces places;
    places.whole = {c.offset, c.offset + c.size * c.count};
    places.size = c.size;
    places.stream = c.stream;
    places.keys.resize(c.count);
    places.requested.resize(c.count);
    for (PlaceIndex i(c.count); i > PlaceIndex(0); --i) places.free.push_back(i - 1);
    claim_slot_keys(places);
    slot_classes_.push_back(std::move(places));
  }
  IndexedVector<BoxIndex, std::size_t> members;
  for (const plan::Decision& d : plan.decisions) {
    if (d.box == kNone) continue;
    if (!d.box.points_into(members)) members.resize((d.box + 1).position());
    ++members[d.box];
  }
  boxes_.resize(members.size());
  for (const BoxIndex b : boxes_.indices()) boxes_[b].live.reserve(members[b]);
}

void StaticPool::claim_slot_keys(SlotPlaces& places) {
  for (const PlaceIndex i : places.keys.indices()) {
    places.keys[i] = claim_slot(places.begin_of(i));
  }
}

Offset StaticPool::take_slot(SlotPlaces& places, Bytes size, DecisionIndex d) {
  if (places.free.empty() || size > places.size) return kUnplaced;
  const PlaceIndex place = places.free.back();
  places.free.pop_back();
  places.requested[place] = size;
  if (d != kNone) slots_[places.keys[place]].live = d;
  ++live_;
  return places.begin_of(place);
}

Offset StaticPool::place_in_slots(SlotClassIndex c, Bytes size) {
  SlotPlaces& places = slot_classes_[c];
  const Offset offset = take_slot(places, size, kNone);
  if (offset == kUnplaced) return kUnplaced;
  foreign_[offset] = {.size = places.size,
                      .requested = size,
                      .kind = Kind::kIdle,
                      .slots = c,
                      .stream = static_cast<ShortStreamId>(places.stream)};
  return offset;
}

Offset StaticPool::place_in_box(DecisionIndex d, Bytes size) {
  const Placed& p = decisions_[d];
  Box& box = boxes_[p.box];
  SlotPlaces& places = slot_classes_[p.slots];
  const Range own = range_in_box(p);
  for (const Range& other : box.live) {
    if (other.begin < own.end && own.begin < other.end) return kUnplaced;
  }
  if (box.live.empty()) {
    if (places.free.empty()) return kUnplaced;
    box.place = places.free.back();
    places.free.pop_back();
  }
  box.live.push_back(own);
  const Offset offset = places.begin_of(box.place) + own.begin;
  foreign_[offset] = {.size = p.size,
                      .requested = size,
                      .kind = Kind::kPlanned,
                      .decision = d,
                      .slots = p.slots,
                      .box = p.box,
                      .stream = p.stream};
  ++live_;
  return offset;
}

void StaticPool::free_in_box(const Foreign& block, Offset offset) {
  Box& box = boxes_[block.box];
  SlotPlaces& places = slot_classes_[block.slots];
  const Offset begin = offset - places.begin_of(box.place);
  const auto at = std::ranges::find(box.live, begin, &Range::begin);
  *at = box.live.back();
  box.live.pop_back();
  if (box.live.empty()) places.free.push_back(std::exchange(box.place, kNone));
  --live_;
}

StaticPool::Block StaticPool::block_at(DecisionIndex d, Offset offset) const {
  Block block = block_of(d);
  const SlotClassIndex c = decisions_[d].slots;
  if (c == kNone) return block;
  const SlotPlaces& places = slot_classes_[c];
  block.size = places.requested[places.place_at(offset)];
  return block;
}

void StaticPool::free_slot(SlotClassIndex c, Offset offset) {
  SlotPlaces& places = slot_classes_[c];
  places.free.push_back(places.place_at(offset));
  --live_;
}

bool StaticPool::is_current(const Placed& p) const {
  const bool allocated = p.allocated_at < clock_;
  const bool freed = p.freed_at < clock_;
  return p.allocated_at < p.freed_at ? allocated && !freed : allocated || !freed;
}

Offset StaticPool::place(DecisionIndex d, Bytes size) {
  Placed& p = decisions_[d];
  if (size > p.size) return kUnplaced;
  if (p.allocated_at >= clock_) {
    advance(p.allocated_at + 1);
  } else if (p.slots == kNone && !is_current(p)) {
    return kUnplaced;
  }
  if (p.box != kNone) return place_in_box(d, size);
  if (p.slots != kNone) return take_slot(slot_classes_[p.slots], size, d);
  // Not idle when last iteration's block of this decision is still there.
  if (p.state != State::kIdle) return kUnplaced;
  if (!strays_.empty() && strays_.overlaps(range(p))) return kUnplaced;
  p.state = State::kRegular;
  p.requested = size;
  slots_[p.slot].live = d;
  take_idle(range(p));
  ++live_;
  return p.offset;
}

void StaticPool::advance(Position position) {
  for (; clock_ < position; ++clock_) {
    const Event e = events_[clock_];
    Placed& p = decisions_[e.decision];
    if (e.decision >= planned_) {
      if (e.is_free) close_region(GroupIndex(e.decision - planned_));
    } else if (e.is_free && p.state == State::kRegular) {
      p.state = State::kStray;
      add_stray(range(p));
    } else if (!e.is_free && p.state == State::kStray) {
      p.state = State::kRegular;
      remove_stray(range(p));
    }
  }
}

void StaticPool::retreat(Position position) {
  while (clock_ > position) {
    --clock_;
    const Event e = events_[clock_];
    Placed& p = decisions_[e.decision];
    if (e.decision >= planned_) {
      if (!e.is_free) close_region(GroupIndex(e.decision - planned_));
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
  retreat(phase_begins_[phase]);
}

void StaticPool::end_iteration() {
  advance(events_.end_index());
  clock_ = Position(0);
  ++iteration_;
  idle_known_ = false;  // not to be followed for nothing
  searched_ = 0;
  passed_ = 0;
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
    groups_[reuse.group].reusable.intersect(r,
                                            [&](Range idle) { reuse.space.insert_merged(idle); });
  }
}

StaticPool::Block StaticPool::release(Offset offset) {
  const SlotIndex slot = find_slot(offset);
  const DecisionIndex d = slot == kNone ? kNone : slots_[slot].live;
  if (d != kNone) {
    Placed& p = decisions_[d];
    if (p.slots != kNone) {
      const Block block = block_at(d, offset);
      slots_[slot].live = kNone;
      free_slot(p.slots, offset);
      return block;
    }
    const bool stray = p.state == State::kStray;
    if (stray) remove_stray(range(p));
    p.state = State::kIdle;
    slots_[slot].live = kNone;
    return_idle(range(p));
    --live_;
    return block_of(d);
  }
  const auto it = foreign_.find(offset);
  if (it == foreign_.end()) return {};
  const Foreign block = it->second;
  foreign_.erase(it);
  if (block.box != kNone) {
    free_in_box(block, offset);
    return block_of(block);
  }
  if (block.slots != kNone) {
    free_slot(block.slots, offset);
    return block_of(block);
  }
  --live_;
  const Range freed{offset, offset + block.size};
  if (block.stray) {
    remove_stray(freed);
    return_idle(freed);
  } else {
    Group& group = groups_[block.group];
    group.idle.insert_merged(freed);
    --group.blocks;
  }
  return block_of(block);
}

StaticPool::Block StaticPool::at(Offset offset) const {
  const SlotIndex slot = find_slot(offset);
  const DecisionIndex d = slot == kNone ? kNone : slots_[slot].live;
  if (d != kNone) return block_at(d, offset);
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

StaticPool::SlotIndex StaticPool::hash(Offset offset) const {
  // Fibonacci hashing: offsets are multiples of the alignment, so the low bits say nothing.
  const auto key = static_cast<std::uint64_t>(offset / alignment_);
  return SlotIndex((key * 0x9E3779B97F4A7C15u) >> (64 - slot_bits_));
}

StaticPool::SlotIndex StaticPool::next(SlotIndex slot) const {
  return SlotIndex((slot + 1).position() & (slots_.size() - 1));
}

// Both searches end: at most half of the slots are claimed.
StaticPool::SlotIndex StaticPool::find_slot(Offset offset) const {
  for (SlotIndex i = hash(offset);; i = next(i)) {
    if (slots_[i].offset == offset) return i;
    if (slots_[i].offset == kUnplaced) return kNone;
  }
}

StaticPool::SlotIndex StaticPool::claim_slot(Offset offset) {
  for (SlotIndex i = hash(offset);; i = next(i)) {
    if (slots_[i].offset == kUnplaced) slots_[i].offset = offset;
    if (slots_[i].offset == offset) return i;
  }
}

}  // namespace stalloc::runtime
