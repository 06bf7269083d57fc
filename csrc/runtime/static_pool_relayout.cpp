// The exchange of a pool's layout for another of the same plan, with blocks live or not.
//
// Both layouts have the same decisions and the same events, so the clock stays where it is. No
// block moves. A live decision that the new layout has at the same address, with room enough, goes
// on as it is: it is in P(clock) of both. Any other live decision becomes a stray block that the
// plan does not know, and the new layout's decisions are checked against it.
#include <algorithm>

#include "base/error.h"
#include "runtime/static_pool.h"

namespace stalloc::runtime {

// Turns the live decision `d` into a block that the plan does not know.
void StaticPool::disown(std::int32_t d) {
  Placed& p = decisions_[static_cast<std::size_t>(d)];
  if (p.state == State::kStray) remove_stray(range(p));
  const Range block{p.offset, p.offset + round_up(p.requested)};
  p.state = State::kIdle;
  slots_[static_cast<std::size_t>(p.slot)].live = kNone;
  foreign_[p.offset] = {.size = block.size(),
                        .requested = p.requested,
                        .kind = Kind::kPlanned,
                        .stray = true,
                        .decision = d,
                        .stream = p.stream};
  add_stray(block);
}

void StaticPool::relayout(const plan::Plan& plan, Bytes memory) {
  if (plan.decisions.size() != planned_ || plan.groups.size() != groups_.size() ||
      plan.alignment != alignment_ || plan.pool > memory) {
    throw Error("a layout of another plan, or for more memory");
  }
  while (!open_.empty()) close_region(open_.back());
  const auto keeps = [&](const Placed& p, const plan::Decision& d) {
    return p.state == State::kRegular && p.offset == d.offset &&
           round_up(p.requested) <= round_up(d.size);
  };
  std::vector<std::int32_t> kept;
  for (std::size_t i = 0; i < planned_; ++i) {
    if (decisions_[i].state == State::kIdle) continue;
    if (keeps(decisions_[i], plan.decisions[i])) {
      kept.push_back(static_cast<std::int32_t>(i));
    } else {
      disown(static_cast<std::int32_t>(i));
    }
  }
  // A kept decision has the whole of its new range, in which no stray may lie. Each that goes may
  // be in the range of another.
  for (bool again = true; again;) {
    again = std::erase_if(kept, [&](std::int32_t d) {
              const plan::Decision& next = plan.decisions[static_cast<std::size_t>(d)];
              if (!strays_.overlaps({next.offset, next.offset + round_up(next.size)})) return false;
              disown(d);
              return true;
            }) > 0;
  }

  size_ = memory;
  walls_ = plan.walls;
  std::ranges::fill(slots_, Slot{});
  for (std::size_t i = 0; i < planned_; ++i) {
    Placed& p = decisions_[i];
    const plan::Decision& d = plan.decisions[i];
    p.offset = d.offset;
    p.size = round_up(d.size);
    if (p.state == State::kIdle) p.requested = d.size;
    p.slot = claim_slot(d.offset);
  }
  for (const std::int32_t d : kept) {
    slots_[static_cast<std::size_t>(decisions_[static_cast<std::size_t>(d)].slot)].live = d;
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const plan::DynamicGroup& group = plan.groups[g];
    Placed& p = decisions_[planned_ + g];
    p.offset = group.offset;
    p.size = round_up(group.size);
    groups_[g].reusable = RangeSet{};
    for (const plan::AddressRange& r : group.reusable) groups_[g].reusable.insert({r.begin, r.end});
  }
  for (Reuse& reuse : reuse_) reuse = Reuse{};
  streams_.clear();
  homes_.clear();
  divide(plan);
  needs_.clear();
  idle_known_ = false;
}

std::vector<StaticPool::LiveDecision> StaticPool::live_decisions() const {
  std::vector<LiveDecision> result;
  for (std::size_t i = 0; i < planned_; ++i) {
    const Placed& p = decisions_[i];
    if (p.state == State::kIdle) continue;
    result.push_back({static_cast<std::int32_t>(i), p.offset, p.requested});
  }
  return result;
}

}  // namespace stalloc::runtime
