// The invariants of the pool, for tests.
#include <algorithm>
#include <iterator>
#include <string>

#include "base/error.h"
#include "runtime/static_pool.h"

namespace stalloc::runtime {

void StaticPool::check() const {
  const auto fail = [](const std::string& what) { throw Error("static pool: " + what); };
  std::vector<Range> taken = strays_.ranges();
  for (DecisionIndex i(0); i < planned_; ++i) {
    const Placed& p = decisions_[i];
    if (p.slots != kNone) continue;
    const bool live = p.state != State::kIdle;
    if (live != (slots_[p.slot].live == i)) {
      fail("decision " + to_string(i) + " and its slot disagree about being live");
    }
    if (p.state == State::kRegular) {
      taken.push_back(range(p));
      if (!is_current(p)) fail("regular decision " + to_string(i) + " is past its time");
    }
    if (p.state == State::kStray) {
      if (!(strays_.find(p.offset) == range(p))) {
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
    if (block.slots != kNone) continue;
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
  if (taken.size() != live_) fail("the count of live blocks is off");
  for (const Offset wall : walls_) taken.push_back({wall, wall + alignment_});
  std::ranges::sort(taken, {}, &Range::begin);
  Offset at = 0;
  for (const Range& t : taken) {
    if (t.begin < at) fail("two live blocks share the address " + std::to_string(t.begin));
    at = t.end;
  }
  if (at > size_) fail("a live block ends at " + std::to_string(at) + ", past the pool");
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

// Checks that a block in a box lies where the box does.
void StaticPool::check_box(const Foreign& block, Offset offset) const {
  const auto fail = [](const std::string& what) { throw Error("static pool: " + what); };
  const Box& box = boxes_[block.box];
  const SlotPlaces& places = slot_classes_[block.slots];
  if (box.place == kNone) fail("a block lies in a box that has no slot");
  const Offset begin = offset - places.begin_of(box.place);
  if (begin < 0 || begin + block.size > places.size) fail("a block lies outside its box's slot");
  if (std::ranges::find(box.live, Range{begin, begin + block.size}) == box.live.end()) {
    fail("a box does not know a block of its own");
  }
}

// Adds the live blocks in slots to `taken`, but for those in boxes.
void StaticPool::check_slots(std::vector<Range>& taken) const {
  const auto fail = [](const std::string& what) { throw Error("static pool: " + what); };
  for (const SlotClassIndex c : slot_classes_.indices()) {
    const SlotPlaces& places = slot_classes_[c];
    IndexedVector<PlaceIndex, bool> is_free(places.keys.size());
    for (const PlaceIndex place : places.free) {
      if (is_free[place]) fail("a slot is free twice");
      is_free[place] = true;
    }
    IndexedVector<PlaceIndex, BoxIndex> box_in(places.keys.size());
    for (const Placed& p : decisions_) {
      if (p.box == kNone || p.slots != c) continue;
      const Box& box = boxes_[p.box];
      if (box.live.empty() != (box.place == kNone)) fail("an empty box has a slot");
      if (box.place == kNone) continue;
      BoxIndex& known = box_in[box.place];
      if (known != kNone && known != p.box) fail("two boxes have one slot");
      known = p.box;
    }
    for (const PlaceIndex i : places.keys.indices()) {
      const Offset offset = places.begin_of(i);
      const Slot& slot = slots_[places.keys[i]];
      const auto guest = foreign_.find(offset);
      const bool has_guest = guest != foreign_.end() && guest->second.box == kNone;
      if (has_guest && guest->second.slots != c) {
        fail("a block that has no slot lies in one");
      }
      if (slot.live != kNone && decisions_[slot.live].slots != c) {
        fail("a decision lies in a slot that is not of its class");
      }
      const int users = (slot.live != kNone) + has_guest + (box_in[i] != kNone);
      if (users > 1) fail("a slot has two users");
      if (is_free[i] == (users == 1)) fail("a slot and its block disagree");
      if (!is_free[i] && box_in[i] == kNone) taken.push_back({offset, offset + places.size});
    }
  }
}

// `taken`: all live blocks, ascending. `blocks`: how many each group has in its region.
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
    for (const Range& idle : groups_[g].idle.ranges()) {
      if (idle.begin < p.offset || idle.end > p.offset + p.size) {
        fail("a region takes for idle what is not its own");
      }
      const auto next = std::ranges::lower_bound(taken, idle.end, {}, &Range::begin);
      if (next != taken.begin() && std::prev(next)->end > idle.begin) {
        fail("a region takes the place of a live block for idle");
      }
    }
  }
  if (open != open_.size()) fail("the count of open regions is off");
}

}  // namespace stalloc::runtime
