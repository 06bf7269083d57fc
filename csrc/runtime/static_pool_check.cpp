// The invariants of the pool, for tests.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "runtime/static_pool.h"

namespace stalloc::runtime {

void StaticPool::check() const {
  const auto fail = [](const std::string& what) { throw Error("static pool: " + what); };
  std::vector<Range> taken = strays_.ranges();
  for (DecisionIndex i(0); i < planned_; ++i) {
    const Placed& p = decisions_[i];
    if (p.slot_class != kNone) continue;
    const bool live = p.state != State::kIdle;
    if (live != (entries_[p.entry].live == i)) {
      fail("decision " + to_string(i) + " and its slot disagree about being live");
    }
    if (p.state == State::kRegular) {
      taken.push_back(this->taken(p));
      if (!is_current(p)) fail("regular decision " + to_string(i) + " is past its time");
    }
    if (p.state == State::kStray) {
      if (!(strays_.find(p.offset) == this->taken(p))) {
        fail("stray decision " + to_string(i) + " is not among the strays");
      }
      if (is_current(p)) fail("stray decision " + to_string(i) + " is in its time");
    }
  }
  IndexedVector<GroupIndex, std::int32_t> blocks(groups_.size());
  check_slots(taken);
  for (const auto& [offset, block] : foreign_) {
    if (block.box != kNone) {
      check_box(block, offset);
      taken.push_back({offset, offset + block.size});
      continue;
    }
    if (block.slot_class != kNone) continue;
    if (block.stray) {
      if (strays_.find(offset).size() != block.size)
        fail("a foreign block is not among the strays");
      continue;
    }
    const GroupIndex g = block.group;
    const Range whole = range(region(g));
    const Range own{offset, offset + block.size};
    if (!groups_[g].open || own.begin < whole.begin || own.end > whole.end) {
      fail("a dynamic block lies outside its region");
    }
    taken.push_back(own);
    ++blocks[g];
  }
  if (taken.size() != live_ + absent_.count()) fail("the count of live blocks is off");
  for (const Offset wall : walls_) taken.push_back({wall, wall + alignment_});
  std::ranges::sort(taken, {}, &Range::begin);
  Offset at = 0;
  for (const Range& t : taken) {
    if (t.begin < at) fail("two live blocks share the address " + std::to_string(t.begin));
    at = t.end;
  }
  if (at > size_) fail("a live block ends at " + std::to_string(at) + ", past the pool");
  for (const Range& t : taken) {
    const bool in_zone = has_zone() && t.begin < zone_.end && zone_.begin < t.end;
    if (in_zone && !(strays_.find(t.begin) == t)) fail("a block of the plan lies in the zone");
  }
  check_regions(taken, blocks);
  for (const Reuse& reuse : reuse_) {
    if (reuse.group == kNone) continue;
    RangeSet expected = groups_[reuse.group].reusable;
    for (const Range& stray : strays_.ranges()) expected.remove(stray);
    if (!(expected.ranges() == reuse.space.ranges())) {
      fail("a group's reusable space is not what the strays leave of it");
    }
  }
  if (!idle_known_) return;
  const std::vector<HoleSet> idle = find_idle();
  for (const Level& level : levels_) {
    for (std::size_t i = 0; i < idle.size(); ++i) {
      HoleSet expected = idle[i];
      for (const Range& r : level.needed.ranges()) expected.remove(r);
      if (!(expected.ranges() == level.idle[i].ranges())) {
        fail("the idle space of a level is not what is left of the pool");
      }
    }
  }
}

// Checks that a block of a box lies in one of the box's slots.
void StaticPool::check_box(const Foreign& block, Offset offset) const {
  const auto fail = [](const std::string& what) { throw Error("static pool: " + what); };
  const SlotClass& slots = slot_classes_[block.slot_class];
  if (offset < slots.whole.begin || offset >= slots.whole.end) {
    fail("a block of a box lies outside its class");
  }
  const SlotNumber slot = slots.slot_at(offset);
  const std::vector<Box::Filling>& fillings = boxes_[block.box].fillings;
  const auto filling = std::ranges::find(fillings, slot, &Box::Filling::slot);
  if (filling == fillings.end()) fail("a block lies in a slot that its box does not have");
  const Offset begin = offset - slots.begin_of(slot);
  if (begin + block.size > slots.size) fail("a block lies outside its box's slot");
  if (!(filling->live.find(begin) == Range{begin, begin + block.size})) {
    fail("a box does not know a block of its own");
  }
}

// Checks the slots, and adds their live blocks to `taken`, except those in boxes.
void StaticPool::check_slots(std::vector<Range>& taken) const {
  const auto fail = [](const std::string& what) { throw Error("static pool: " + what); };
  for (const SlotClassIndex c : slot_classes_.indices()) {
    const SlotClass& slots = slot_classes_[c];
    IndexedVector<SlotNumber, bool> is_free(slots.entries.size());
    for (const SlotNumber slot : slots.free) {
      if (is_free[slot]) fail("a slot is free twice");
      is_free[slot] = true;
    }
    IndexedVector<SlotNumber, BoxIndex> box_in(slots.entries.size());
    for (const Placed& p : decisions_) {
      if (p.box == kNone || p.slot_class != c) continue;
      for (const Box::Filling& filling : boxes_[p.box].fillings) {
        if (filling.live.empty() != (filling.slot == kNone)) fail("an empty box has a slot");
        if (filling.slot == kNone) continue;
        BoxIndex& known = box_in[filling.slot];
        if (known != kNone && known != p.box) fail("two boxes have one slot");
        known = p.box;
      }
    }
    for (const SlotNumber i : slots.entries.indices()) {
      const Offset offset = slots.begin_of(i);
      const Entry& entry = entries_[slots.entries[i]];
      const auto stray = foreign_.find(offset);
      const bool has_stray = stray != foreign_.end() && stray->second.box == kNone;
      if (has_stray && stray->second.slot_class != c) {
        fail("a block that has no slot lies in one");
      }
      if (entry.live != kNone && decisions_[entry.live].slot_class != c) {
        fail("a decision lies in a slot that is not of its class");
      }
      const int users = (entry.live != kNone) + has_stray + (box_in[i] != kNone);
      if (users > 1) fail("a slot has two users");
      if (box_in[i] != slots.box[i]) fail("a slot and its box disagree");
      // A box may lack the memory of addresses without a block.
      const bool absent = box_in[i] == kNone && absent_.overlaps(slots.range_of(i));
      if (users + is_free[i] + absent != 1) fail("a slot and its block disagree");
      if (users == 1 && box_in[i] == kNone) taken.push_back({offset, offset + slots.size});
    }
  }
}

// `taken`: all live blocks, ascending. `blocks`: the number of blocks in each group's region.
void StaticPool::check_regions(const std::vector<Range>& taken,
                               const IndexedVector<GroupIndex, std::int32_t>& blocks) const {
  const auto fail = [](const std::string& what) { throw Error("static pool: " + what); };
  std::size_t open = 0;
  for (const GroupIndex g : groups_.indices()) {
    const Placed& p = region(g);
    if (groups_[g].open != (p.state != State::kIdle)) fail("a region and its group disagree");
    if (groups_[g].blocks != blocks[g]) fail("the count of a region's blocks is off");
    if (!groups_[g].open) continue;
    ++open;
    if (!is_current(p)) fail("an open region is past its time");
    HoleSet idle;
    idle.insert(range(p));
    for (const Range& t : taken) idle.remove(t);
    if (!(idle.ranges() == groups_[g].idle.ranges())) {
      fail("a region's idle space is not what its blocks and the strays leave of it");
    }
  }
  if (open != open_.size()) fail("the count of open regions is off");
}

}  // namespace stalloc::runtime
