// The exchange of a pool's layout for another of the same plan, with or without live blocks.
//
// Both layouts have the same decisions and the same events, so the clock stays where it is. No
// block moves. A live decision that has the same address and enough bytes in the new layout stays a
// decision: it is in P(clock) of both. Any other live decision becomes a stray block that the plan
// does not know, and the new layout's decisions are checked against it. So do the blocks of open
// regions; a region that keeps its addresses opens again around them.
#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "runtime/departures.h"
#include "runtime/static_pool.h"

namespace stalloc::runtime {
// Makes the live decision `d` a stray block that the plan does not know.
void StaticPool::disown(DecisionIndex d) {
  Placed& p = decisions_[d];
  if (p.state == State::kStray) remove_stray(taken(p));
  const Range block = taken(p);
  const auto turning = std::ranges::find(turns_, d, &Turning::decision);
  if (turning != turns_.end()) turning->disowned = p.offset;
  // A decision that takes turns becomes a stray when its iteration ends.
  const std::int32_t iteration = p.state == State::kStray ? iteration_ - 1 : iteration_;
  p.state = State::kIdle;
  entries_[p.entry].live = kNone;
  foreign_[p.offset] = {.size = block.size(),
                        .requested = p.requested,
                        .kind = Kind::kPlanned,
                        .stray = true,
                        .decision = d,
                        .iteration = iteration,
                        .stream = p.stream};
  add_stray(block);
}

// The block of the iteration before of a decision that takes turns.
std::optional<plan::Turn> StaticPool::before(const Turning& t) const {
  const Placed& p = decisions_[t.decision];
  if (p.state == State::kStray) return plan::Turn{t.decision, p.offset, p.requested};
  const auto block = foreign_.find(t.disowned);
  if (block == foreign_.end()) return {};
  const Foreign& f = block->second;
  if (f.decision != t.decision || f.iteration == iteration_) return {};
  return plan::Turn{t.decision, t.disowned, f.requested};
}

bool StaticPool::awaits_turn() const {
  return std::ranges::any_of(turns_, [this](const Turning& t) {
    const auto block = before(t);
    return block && (block->offset != t.offset || round_up(block->size) > t.size);
  });
}

void StaticPool::relayout(const plan::Plan& plan, Bytes memory) {
  if (plan.decisions.size() != planned_.position() || plan.groups.size() != groups_.size() ||
      plan.turns.size() != turns_.size() || plan.alignment != alignment_ || plan.pool > memory) {
    throw Error("a layout of another plan, or for more memory");
  }
  bool same_slots = plan.slots.size() == slot_classes_.size();
  for (SlotClassIndex c(0); same_slots && c < slot_classes_.end_index(); ++c) {
    const plan::SlotClass& next = plan[c];
    const SlotClass& slots = slot_classes_[c];
    same_slots = next.size == slots.size && next.offset == slots.whole.begin &&
                 SlotNumber(next.count) == slots.entries.end_index();
  }
  for (DecisionIndex i(0); same_slots && i < planned_; ++i) {
    const plan::Decision& d = plan[i];
    const Placed& p = decisions_[i];
    same_slots =
        d.slots == p.slot_class && d.box == p.box && (d.box == kNone || d.offset == p.offset);
  }
  if (!same_slots) throw Error("a layout with other slots");
  while (!open_.empty()) close_region(open_.back());
  close_zone();
  const auto keeps = [&](const Placed& p, const plan::Decision& d) {
    return p.state == State::kRegular && p.offset == d.offset &&
           round_up(p.requested) <= round_up(d.size);
  };
  std::vector<DecisionIndex> kept;
  for (DecisionIndex d(0); d < planned_; ++d) {
    if (decisions_[d].state == State::kIdle) continue;
    if (keeps(decisions_[d], plan[d])) {
      kept.push_back(d);
    } else {
      disown(d);
    }
  }

  size_ = memory;
  walls_ = plan.walls;
  const IndexedVector<EntryIndex, Entry> before = entries_;
  std::ranges::fill(entries_, Entry{});
  for (SlotClass& slots : slot_classes_) {
    const IndexedVector<SlotNumber, EntryIndex> entries = slots.entries;
    claim_entries(slots);
    for (const SlotNumber i : entries.indices()) {
      entries_[slots.entries[i]].live = before[entries[i]].live;
    }
  }
  for (DecisionIndex i(0); i < planned_; ++i) {
    Placed& p = decisions_[i];
    const plan::Decision& d = plan[i];
    p.offset = d.offset;
    p.size = round_up(d.size);
    if (p.state == State::kIdle) p.requested = d.size;
    p.entry = claim_entry(d.offset);
  }
  for (const DecisionIndex d : kept) {
    entries_[decisions_[d].entry].live = d;
  }
  for (const GroupIndex g : groups_.indices()) {
    const plan::DynamicGroup& group = plan[g];
    Placed& p = region(g);
    p.offset = group.offset;
    p.size = round_up(group.size);
    groups_[g].reusable = RangeSet{};
    for (const plan::AddressRange& r : group.reusable) groups_[g].reusable.insert({r.begin, r.end});
  }
  for (Reuse& reuse : reuse_) reuse = Reuse{};
  streams_.clear();
  homes_.clear();
  set_turns(plan);
  divide(plan);
  needs_.clear();
  planned_space_.clear();
  idle_known_ = false;
}

std::vector<StaticPool::Leftover> StaticPool::leftovers() const {
  std::vector<Leftover> result;
  for (const auto& [offset, block] : foreign_) {
    const bool is_turn = std::ranges::any_of(turns_, [&](const Turning& t) {
      return t.disowned == offset && t.decision == block.decision;
    });
    const bool is_old = block.iteration < iteration_ || block.origin == Departures::kUnplanned;
    if (!is_old || is_turn || !block.stray || block.slot_class != kNone) continue;
    // A smaller one is not worth a layout.
    if (block.size < memory() / kSmallPart) continue;
    const bool is_new = block.iteration + 1 >= iteration_;
    result.push_back({offset, block.size, block.stream, is_new});
  }
  std::ranges::sort(result, {}, &Leftover::offset);
  return result;
}

std::vector<Range> StaticPool::unplanned() const {
  std::vector<Range> result;
  for (const auto& [offset, block] : foreign_) {
    if (block.slot_class == kNone) result.push_back({offset, offset + block.size});
  }
  return result;
}

StaticPool::LiveRows StaticPool::live_rows() const {
  LiveRows result;
  for (const Turning& t : turns_) {
    if (const auto block = before(t)) result.turns.push_back(*block);
  }
  const auto is_turn = [&](DecisionIndex d) {
    return decisions_[d].state == State::kStray &&
           std::ranges::find(result.turns, d, &plan::Turn::decision) != result.turns.end();
  };
  for (DecisionIndex d(0); d < planned_; ++d) {
    const Placed& p = decisions_[d];
    if (p.state == State::kIdle || is_turn(d)) continue;
    result.decisions.push_back({d, p.offset, p.requested});
  }
  std::set<GroupIndex> groups;
  for (const auto& [offset, block] : foreign_) {
    if (block.group == kNone) continue;
    const Range whole = range(region(block.group));
    if (offset >= whole.begin && offset < whole.end) groups.insert(block.group);
  }
  for (const GroupIndex g : groups) {
    result.regions.push_back({g, region(g).offset, region(g).size});
  }
  return result;
}

}  // namespace stalloc::runtime
