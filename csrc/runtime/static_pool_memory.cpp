// The memory behind the pool's addresses: see Note [Absent memory].
#include <algorithm>

#include "runtime/static_pool.h"

namespace stalloc::runtime {

Bytes StaticPool::missing_at_end(Bytes size, StreamId stream) {
  const std::size_t owner = owner_of(stream);
  if (owner == streams_.size()) return kUnplaced;
  Bytes idle = 0;
  levels_.back().idle[owner].intersect({0, size_}, [&](Range r) {
    if (r.end == size_) idle = r.size();
  });
  return std::max<Bytes>(0, round_up(size) - idle);
}

void StaticPool::extend(Bytes size, StreamId stream) {
  const std::size_t owner = owner_of(stream);
  const Range added{size_, size_ + size};
  size_ = added.end;
  if (homes_.back().owner != owner) homes_.push_back({added.begin, owner});
  for (Level& level : levels_) level.idle[owner].insert_merged(added);
}

std::vector<Range> StaticPool::idle_ranges(std::size_t level) {
  if (owner_of(streams_.front()) == streams_.size()) return {};
  RangeSet all;
  for (const HoleSet& holes : levels_[level].idle) {
    for (const Range& r : holes.ranges()) all.insert_merged(r);
  }
  if (level + 1 == levels_.size()) {
    add_unused_slots(all);
    return all.ranges();
  }
  // The next requests of these decisions may need the memory of all of their addresses.
  for (const Entry& e : entries_) {
    if (e.live == kNone) continue;
    const Placed& p = decisions_[e.live];
    if (p.state == State::kRegular && p.slot_class == kNone)
      all.remove({taken(p).end, range(p).end});
  }
  return all.ranges();
}

void StaticPool::add_unused_slots(RangeSet& idle) const {
  for (const SlotClass& slots : slot_classes_) {
    for (const SlotNumber slot : slots.free) idle.insert_merged(slots.range_of(slot));
    // No request gets a slot that lacks some of its memory: the rest of it is idle, too.
    SlotNumber next(0);
    absent_.intersect(slots.whole, [&](Range absent) {
      const SlotNumber last = slots.slot_at(absent.end - 1);
      for (SlotNumber i = std::max(next, slots.slot_at(absent.begin)); i <= last; ++i) {
        if (slots.box[i] != kNone) continue;
        visit_outside(absent_, slots.range_of(i), [&](Range r) { idle.insert_merged(r); });
        next = i + 1;
      }
    });
  }
}

std::vector<Range> StaticPool::idle_in_boxes() const {
  std::vector<Range> idle;
  for (const Box& box : boxes_) {
    const SlotClass& slots = slot_classes_[box.slots];
    for (const Box::Filling& f : box.fillings) {
      if (f.slot == kNone) continue;
      const Offset begin = slots.begin_of(f.slot);
      visit_outside(f.live, {0, slots.size}, [&](Range r) {
        visit_outside(absent_, {begin + r.begin, begin + r.end},
                      [&](Range part) { idle.push_back(part); });
      });
    }
  }
  std::ranges::sort(idle, {}, &Range::begin);
  return idle;
}

std::vector<Range> StaticPool::vacate() {
  while (!open_.empty()) close_region(open_.back());
  close_zone();
  RangeSet all;
  for (const HoleSet& holes : find_idle()) {
    for (const Range& r : holes.ranges()) all.insert_merged(r);
  }
  add_unused_slots(all);
  return all.ranges();
}

std::vector<Range> StaticPool::claimable(StreamId stream) {
  const std::size_t owner = owner_of(stream);
  if (owner == streams_.size()) return {};
  RangeSet all;
  for (const Range& r : levels_.back().idle[owner].ranges()) all.insert(r);
  for (const Range& absent : absent_.ranges()) {
    visit_outside(slot_space_, absent, [&](Range unslotted) {
      visit_outside(open_ranges_, unslotted, [&](Range outside) {
        visit_homes(outside, [&](std::size_t home, Range part) {
          if (home == owner) all.insert_merged(part);
        });
      });
    });
  }
  RangeSet merged;
  for (const Range& r : all.ranges()) merged.insert_merged(r);
  return merged.ranges();
}

const RangeSet& StaticPool::planned() const {
  if (!planned_space_.empty()) return planned_space_;
  const auto add = [this](Range r) {
    if (r.size() <= 0 || planned_space_.holds(r)) return;
    planned_space_.remove(r);
    planned_space_.insert_merged(r);
  };
  for (const Placed& p : decisions_) {
    if (p.slot_class == kNone) add(range(p));
  }
  for (const Range& r : slot_space_.ranges()) add(r);
  for (const Group& group : groups_) {
    for (const Range& r : group.reusable.ranges()) add(r);
  }
  return planned_space_;
}

// The slot that lacks the least of its memory, of those without a block that lack any.
Range StaticPool::least_lacking(const SlotClass& slots) const {
  Range found;
  Bytes least = 0;
  for (const SlotNumber i : slots.entries.indices()) {
    if (slots.box[i] != kNone) continue;
    Bytes lacking = 0;
    absent_.intersect(slots.range_of(i), [&](Range r) { lacking += r.size(); });
    if (lacking == 0 || (found.size() > 0 && lacking >= least)) continue;
    found = slots.range_of(i);
    least = lacking;
  }
  return found;
}

Range StaticPool::lacking_memory(DecisionIndex d, Bytes size) const {
  const Placed& p = decisions_[d];
  if (absent_.empty()) return {};
  if (p.slot_class != kNone) {
    const SlotClass& slots = slot_classes_[p.slot_class];
    if (p.box != kNone) {
      for (const Box::Filling& f : boxes_[p.box].fillings) {
        if (f.slot == kNone || f.iteration != iteration_ || f.live.overlaps(in_slot(p))) continue;
        if (absent_.overlaps(range_in(f, p))) return range_in(f, p);
      }
    }
    return slots.free.empty() ? least_lacking(slots) : Range{};
  }
  if (p.state != State::kIdle || !is_current(p)) return {};
  return lacking_memory({p.offset, p.offset + round_up(size)});
}

Range StaticPool::lacking_memory(Range r) const {
  bool blocked = false;
  bool lacks = false;
  strays_.visit_overlapping(r, [&](Range stray) {
    const bool is_absent = absent_.holds(stray);
    lacks = lacks || is_absent;
    blocked = blocked || !is_absent;
  });
  return lacks && !blocked ? r : Range{};
}

Range StaticPool::lacking_memory(GroupIndex g, Bytes size) const {
  const Group& host = groups_[groups_[g].host];
  const Range all = range(region(groups_[g].host));
  const Bytes rounded = round_up(size);
  if (absent_.empty() || !absent_.overlaps(all)) return {};
  if (host.open && host.idle.largest() >= rounded) return {};
  HoleSet idle;
  if (host.open) {
    idle.assign(host.idle);
  } else {
    visit_outside(strays_, all, [&](Range r) { idle.insert_merged(r); });
  }
  if (idle.largest() >= rounded) return {};
  absent_.intersect(all, [&](Range r) { idle.insert_merged(r); });
  const Offset found = idle.best_fit(rounded);
  return found == kUnplaced ? Range{} : Range{found, found + rounded};
}

std::vector<Range> StaticPool::upcoming() const {
  const auto next = std::ranges::lower_bound(phase_begins_, std::max(clock_, Position(1)));
  const Position end = next == phase_begins_.end() ? events_.end_index() : *next;
  std::vector<Range> result;
  for (Position i = clock_; i < end; ++i) {
    const Event e = events_[i];
    const Placed& p = decisions_[e.decision];
    if (!e.is_free && e.decision < planned_ && p.slot_class == kNone) result.push_back(range(p));
  }
  return result;
}

std::vector<Range> StaticPool::idle_in_regions() const {
  RangeSet all;
  for (const GroupIndex g : open_) {
    for (const Range& r : groups_[g].idle.ranges()) all.insert_merged(r);
  }
  return all.ranges();
}

void StaticPool::remove_memory(Range r) {
  take_idle(r);
  for (const GroupIndex g : open_) groups_[g].idle.remove(r);
  add_stray(r);
  absent_.insert(r);
  absent_bytes_ += r.size();
  visit_slots(r, [](SlotClass& slots, SlotNumber slot) { std::erase(slots.free, slot); });
}

void StaticPool::return_memory(Range r) {
  Range whole;
  absent_.visit_overlapping(r, [&](Range range) { whole = range; });
  absent_.erase(whole.begin);
  remove_stray(whole);
  for (const Range rest : {Range{whole.begin, r.begin}, Range{r.end, whole.end}}) {
    if (rest.size() <= 0) continue;
    absent_.insert(rest);
    add_stray(rest);
  }
  absent_bytes_ -= r.size();
  visit_outside(slot_space_, r, [this](Range outside) { return_idle(outside); });
  return_to_regions(r);
  visit_slots(r, [this](SlotClass& slots, SlotNumber slot) {
    const bool is_free = slots.box[slot] == kNone && !absent_.overlaps(slots.range_of(slot));
    if (is_free) slots.free.push_back(slot);
  });
}

void StaticPool::make_solid() {
  close_zone();
  const Offset end = planned().empty() ? 0 : planned().ranges().back().end;
  for (const Range& r : absent_.ranges()) {
    if (r.begin < end) return_memory({r.begin, std::min(r.end, end)});
  }
  std::vector<Range> behind;
  visit_outside(absent_, {end, size_}, [&](Range r) { behind.push_back(r); });
  for (const Range& r : behind) remove_memory(r);
  shrink(end);
}

void StaticPool::shrink(Offset least) {
  while (!absent_.empty()) {
    const Range last = absent_.ranges().back();
    if (last.end < size_ || last.begin < least) break;
    return_memory(last);
    take_idle(last);
    size_ = last.begin;
  }
  while (homes_.size() > 1 && homes_.back().begin >= size_) homes_.pop_back();
}

}  // namespace stalloc::runtime
