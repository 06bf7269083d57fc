#include "runtime/static_pool.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "base/align.h"

namespace stalloc::runtime {
namespace {

// Slots that a box of state may have at once: two during a hand-over, and one that is freed late.
constexpr std::size_t kMostFillings = 3;

}  // namespace

StaticPool::StaticPool(const plan::Plan& plan)
    : size_(plan.pool),
      alignment_(plan.alignment),
      alignment_bits_(std::countr_zero(static_cast<std::uint64_t>(plan.alignment))),
      walls_(plan.walls),
      planned_(plan.decisions.size()),
      decisions_(plan.decisions.size() + plan.groups.size()),
      groups_(plan.groups.size()) {
  std::size_t n = decisions_.size();
  for (const plan::SlotClass& c : plan.slots) n += c.count;
  entry_bits_ = std::bit_width(std::max<std::size_t>(2 * n, 2) - 1);
  entries_.resize(std::size_t{1} << entry_bits_);

  // Frees come before allocations of the same tick: lifetimes are half-open. The free of a
  // wrap-around decision belongs to the iteration before, at the start of this one.
  std::vector<std::tuple<Tick, bool, DecisionIndex>> ordered;  // (tick, is allocation, decision)
  ordered.reserve(2 * n);
  const auto add = [&](DecisionIndex i, const auto& d, Tick upper) {
    ordered.emplace_back(d.lower, true, i);
    ordered.emplace_back(upper > plan.period ? upper - plan.period : upper, false, i);
    decisions_[i].offset = d.offset;
    decisions_[i].size = align_up(d.size, alignment_);
    decisions_[i].requested = d.size;
    phase_of_.push_back(d.phase);
  };
  for (DecisionIndex i(0); i < planned_; ++i) {
    const plan::Decision& d = plan[i];
    add(i, d, d.slots == kNone && d.over > 0 ? plan.period : d.upper);
    decisions_[i].entry = claim_entry(d.offset);
    decisions_[i].slot_class = d.slots;
    decisions_[i].box = d.box;
    decisions_[i].stream = static_cast<ShortStreamId>(d.stream);
  }
  for (const GroupIndex g : groups_.indices()) {
    const plan::DynamicGroup& group = plan[g];
    add(planned_ + g.number(), group, group.upper);
    groups_[g].stream = group.stream;
    groups_[g].host = group.host == kNone ? g : group.host;
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
    Group& host = groups_[groups_[g].host];  // an earlier group, or this one
    host.passed_at = std::max(host.passed_at, groups_[g].passed_at);
  }
  for (const profile::ProfiledPhase& phase : plan.phases) {
    const auto begin =
        std::ranges::lower_bound(ordered, std::tuple{phase.begin, false, DecisionIndex(0)});
    phase_begins_.push_back(Position(begin - ordered.begin()));
  }
  add_slot_classes(plan);
  for (const plan::Turn& t : plan.turns) turns_.push_back({.decision = t.decision});
  set_turns(plan);
  divide(plan);
}

void StaticPool::set_turns(const plan::Plan& plan) {
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    turns_[i].offset = plan.turns[i].offset;
    turns_[i].size = round_up(plan.turns[i].size);
  }
}

void StaticPool::add_slot_classes(const plan::Plan& plan) {
  for (const plan::SlotClass& c : plan.slots) {
    SlotClass slots;
    slots.whole = {c.offset, c.offset + c.size * c.count};
    slots.size = c.size;
    slots.stream = c.stream;
    slots.entries.resize(c.count);
    slots.requested.resize(c.count);
    slots.box.resize(c.count);
    for (SlotNumber i(c.count); i > SlotNumber(0); --i) slots.free.push_back(i - 1);
    claim_entries(slots);
    if (slots.whole.size() > 0) slot_space_.insert(slots.whole);
    slot_classes_.push_back(std::move(slots));
  }
  for (const plan::Decision& d : plan.decisions) {
    if (d.box == kNone) continue;
    if (!d.box.points_into(boxes_)) boxes_.resize((d.box + 1).position());
    boxes_[d.box].slots = d.slots;
    boxes_[d.box].fillings.resize(d.over > 0 ? kMostFillings : 1);
  }
}

void StaticPool::claim_entries(SlotClass& slots) {
  for (const SlotNumber i : slots.entries.indices()) {
    slots.entries[i] = claim_entry(slots.begin_of(i));
  }
}

Offset StaticPool::take_slot(SlotClass& slots, Bytes size, DecisionIndex d) {
  if (slots.free.empty() || size > slots.size) return kUnplaced;
  const SlotNumber slot = slots.free.back();
  slots.free.pop_back();
  slots.requested[slot] = size;
  if (d != kNone) entries_[slots.entries[slot]].live = d;
  ++live_;
  return slots.begin_of(slot);
}

Offset StaticPool::place_in_slots(SlotClassIndex c, Bytes size) {
  SlotClass& slots = slot_classes_[c];
  const Offset offset = take_slot(slots, size, kNone);
  if (offset == kUnplaced) return kUnplaced;
  foreign_[offset] = {.size = slots.size,
                      .requested = size,
                      .kind = Kind::kIdle,
                      .slot_class = c,
                      .stream = static_cast<ShortStreamId>(slots.stream)};
  return offset;
}

// The slot of a box in which a request finds its addresses idle: the one of this iteration if
// possible, else a free one, else one that a late free keeps. Null if there is none, or if that of
// this iteration lacks memory there.
StaticPool::Box::Filling* StaticPool::filling_for(const Placed& p, std::int32_t iteration) {
  std::vector<Box::Filling>& fillings = boxes_[p.box].fillings;
  SlotClass& slots = slot_classes_[p.slot_class];
  const auto has_room = [&](const Box::Filling& f) {
    return f.slot != kNone && !f.live.overlaps(in_slot(p));
  };
  const auto has_memory = [&](const Box::Filling& f) {
    return absent_.empty() || !absent_.overlaps(range_in(f, p));
  };
  for (Box::Filling& f : fillings) {
    if (f.iteration == iteration && has_room(f)) return has_memory(f) ? &f : nullptr;
  }
  const auto unused = std::ranges::find(fillings, SlotNumber(kNone), &Box::Filling::slot);
  if (unused != fillings.end() && !slots.free.empty()) {
    unused->slot = slots.free.back();
    slots.free.pop_back();
    slots.box[unused->slot] = p.box;
    return &*unused;
  }
  const auto late = std::ranges::find_if(
      fillings, [&](const Box::Filling& f) { return has_room(f) && has_memory(f); });
  return late == fillings.end() ? nullptr : &*late;
}

Offset StaticPool::fill_box(DecisionIndex d, std::int32_t iteration, const Foreign& block) {
  const Placed& p = decisions_[d];
  Box::Filling* filling = filling_for(p, iteration);
  if (!filling) return kUnplaced;
  filling->iteration = iteration;
  filling->live.insert(in_slot(p));
  const Offset offset = range_in(*filling, p).begin;
  foreign_[offset] = block;
  ++live_;
  return offset;
}

Offset StaticPool::place_in_box(DecisionIndex d, Bytes size) {
  const Placed& p = decisions_[d];
  return fill_box(d, iteration_,
                  {.size = p.size,
                   .requested = size,
                   .kind = Kind::kPlanned,
                   .decision = d,
                   .slot_class = p.slot_class,
                   .box = p.box,
                   .stream = p.stream});
}

Offset StaticPool::place_before(DecisionIndex d, Bytes size) {
  const Placed& p = decisions_[d];
  if (size > p.size) return kUnplaced;
  return fill_box(d, kBefore,
                  {.size = p.size,
                   .requested = size,
                   .kind = Kind::kIdle,
                   .slot_class = p.slot_class,
                   .box = p.box,
                   .stream = p.stream});
}

void StaticPool::free_in_box(const Foreign& block, Offset offset) {
  SlotClass& slots = slot_classes_[block.slot_class];
  const SlotNumber slot = slots.slot_at(offset);
  Box::Filling& filling = *std::ranges::find(boxes_[block.box].fillings, slot, &Box::Filling::slot);
  filling.live.erase(offset - slots.begin_of(slot));
  --live_;
  if (!filling.live.empty()) return;
  filling.slot = kNone;
  slots.box[slot] = kNone;
  if (!absent_.overlaps(slots.range_of(slot))) slots.free.push_back(slot);
}

StaticPool::Block StaticPool::block_at(DecisionIndex d, Offset offset) const {
  Block block = block_of(d);
  const SlotClassIndex c = decisions_[d].slot_class;
  if (c == kNone) return block;
  const SlotClass& slots = slot_classes_[c];
  block.size = slots.requested[slots.slot_at(offset)];
  return block;
}

StaticPool::Block StaticPool::release_slot(EntryIndex entry, Offset offset) {
  const DecisionIndex d = std::exchange(entries_[entry].live, kNone);
  const Block block = block_at(d, offset);
  free_slot(decisions_[d].slot_class, offset);
  return block;
}

void StaticPool::free_slot(SlotClassIndex c, Offset offset) {
  SlotClass& slots = slot_classes_[c];
  slots.free.push_back(slots.slot_at(offset));
  --live_;
}

bool StaticPool::is_current(const Placed& p) const {
  const bool allocated = p.allocated_at < clock_;
  const bool freed = p.freed_at < clock_;
  return p.allocated_at < p.freed_at ? allocated && !freed : allocated || !freed;
}

Bytes StaticPool::left_out() const {
  Bytes bytes = 0;
  for (DecisionIndex d(0); d < planned_; ++d) {
    const Placed& p = decisions_[d];
    const bool is_missing = p.state == State::kIdle && p.slot_class == kNone && is_current(p);
    if (is_missing) bytes += p.size;
  }
  return bytes;
}

Offset StaticPool::place(DecisionIndex d, Bytes size) {
  Placed& p = decisions_[d];
  if (size > p.size) return kUnplaced;
  if (p.allocated_at >= clock_) {
    advance(p.allocated_at + 1);
  } else if (p.slot_class == kNone && !is_current(p)) {
    return kUnplaced;
  }
  if (p.slot_class != kNone) {  // a box has one, too
    return p.box != kNone ? place_in_box(d, size) : take_slot(slot_classes_[p.slot_class], size, d);
  }
  // Not idle if the block of the last iteration is still live.
  if (p.state != State::kIdle) return kUnplaced;
  const Range block{p.offset, p.offset + round_up(size)};
  if (!strays_.empty() && strays_.overlaps(block)) return kUnplaced;
  p.state = State::kRegular;
  p.requested = size;
  entries_[p.entry].live = d;
  take_idle(block);
  ++live_;
  return p.offset;
}

std::vector<Offset> StaticPool::in_the_way(DecisionIndex d, Bytes size) const {
  const Placed& p = decisions_[d];
  if (size > p.size || p.slot_class != kNone || !is_current(p)) return {};
  std::vector<Offset> blocks;
  if (p.state == State::kRegular) blocks.push_back(p.offset);  // else it is a stray
  const Range wanted{p.offset, p.offset + round_up(size)};
  strays_.visit_overlapping(wanted, [&](Range stray) { blocks.push_back(stray.begin); });
  return blocks;
}

void StaticPool::advance(Position position) {
  for (; clock_ < position; ++clock_) {
    const Event e = events_[clock_];
    Placed& p = decisions_[e.decision];
    if (e.decision >= planned_) {
      if (e.is_free) close_region(GroupIndex(e.decision - planned_));
    } else if (e.is_free && p.state == State::kRegular) {
      p.state = State::kStray;
      add_stray(taken(p));
    } else if (!e.is_free && p.state == State::kStray) {
      p.state = State::kRegular;
      remove_stray(taken(p));
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
      remove_stray(taken(p));
    } else if (!e.is_free && p.state == State::kRegular) {
      p.state = State::kStray;
      add_stray(taken(p));
    }
  }
}

void StaticPool::begin_phase(PhaseIndex phase) {
  idle_known_ = false;  // not kept up to date until the next block needs it
  retreat(phase_begins_[phase]);
}

void StaticPool::end_iteration() {
  advance(events_.end_index());
  clock_ = Position(0);
  ++iteration_;
  idle_known_ = false;
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
  const EntryIndex entry = find_entry(offset);
  const DecisionIndex d = entry == kNone ? kNone : entries_[entry].live;
  if (d != kNone) {
    Placed& p = decisions_[d];
    if (p.slot_class != kNone) return release_slot(entry, offset);
    const bool stray = p.state == State::kStray;
    if (stray) remove_stray(taken(p));
    p.state = State::kIdle;
    entries_[entry].live = kNone;
    return_idle(taken(p));
    if (stray) return_to_regions(taken(p));
    --live_;
    Block block = block_of(d);
    block.late = stray;
    return block;
  }
  return release_foreign(offset);
}

StaticPool::Block StaticPool::release_foreign(Offset offset) {
  const auto it = foreign_.find(offset);
  if (it == foreign_.end()) return {};
  const Foreign block = it->second;
  foreign_.erase(it);
  if (block.box != kNone) {
    free_in_box(block, offset);
    return block_of(block);
  }
  if (block.slot_class != kNone) {
    free_slot(block.slot_class, offset);
    return block_of(block);
  }
  --live_;
  const Range freed{offset, offset + block.size};
  if (block.stray) {
    remove_stray(freed);
    return_idle(freed);
    return_to_regions(freed);
  } else {
    Group& group = groups_[block.group];
    group.idle.insert_merged(freed);
    --group.blocks;
  }
  return block_of(block);
}

StaticPool::Block StaticPool::at(Offset offset) const {
  const EntryIndex entry = find_entry(offset);
  const DecisionIndex d = entry == kNone ? kNone : entries_[entry].live;
  if (d != kNone) return block_at(d, offset);
  const auto it = foreign_.find(offset);
  return it == foreign_.end() ? Block{} : block_of(it->second);
}

std::vector<Offset> StaticPool::live() const {
  std::vector<Offset> result;
  for (const Entry& e : entries_) {
    if (e.live != kNone) result.push_back(e.offset);
  }
  for (const auto& [offset, block] : foreign_) result.push_back(offset);
  std::ranges::sort(result);
  return result;
}

StaticPool::EntryIndex StaticPool::hash(Offset offset) const {
  // Fibonacci hashing: consecutive offsets spread over the table.
  const auto key = static_cast<std::uint64_t>(offset >> alignment_bits_);
  return EntryIndex((key * 0x9E3779B97F4A7C15u) >> (64 - entry_bits_));
}

StaticPool::EntryIndex StaticPool::next(EntryIndex entry) const {
  return EntryIndex((entry + 1).position() & (entries_.size() - 1));
}

// Both searches end: at most half of the entries are claimed.
StaticPool::EntryIndex StaticPool::find_entry(Offset offset) const {
  for (EntryIndex i = hash(offset);; i = next(i)) {
    if (entries_[i].offset == offset) return i;
    if (entries_[i].offset == kUnplaced) return kNone;
  }
}

StaticPool::EntryIndex StaticPool::claim_entry(Offset offset) {
  for (EntryIndex i = hash(offset);; i = next(i)) {
    if (entries_[i].offset == kUnplaced) entries_[i].offset = offset;
    if (entries_[i].offset == offset) return i;
  }
}

}  // namespace stalloc::runtime
