#include "plan/slots.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "plan/occupancy.h"

namespace stalloc::plan {
namespace {

// The part of a request's lifetime beyond a whole period, as a buffer.
solve::Buffer overlap_of(const Decision& d) {
  return {.size = d.size, .lower = d.lower, .upper = d.lower + d.over, .stream = d.stream};
}

}  // namespace

void add_slots(Plan& plan, const profile::IterationProfile& profile,
               std::span<const DecisionIndex> row_of) {
  std::map<std::pair<Bytes, StreamId>, SlotClassIndex> index;
  for (std::size_t i = 0; i < profile.requests.size(); ++i) {
    const profile::ProfiledRequest& r = profile.requests[i];
    if (row_of[i] == kNone || r.over == 0 || profile.follows_extents(r.law)) continue;
    Decision& d = plan[row_of[i]];
    const Bytes size = align_up(d.size, plan.alignment);
    const auto [it, is_new] = index.try_emplace({size, d.stream}, plan.slots.size());
    if (is_new) plan.slots.push_back({.size = size, .stream = d.stream});
    d.slots = it->second;
    d.over = r.over;
    d.phase_end = kNone;  // it is not one that its own phase frees
  }
  count_slots(plan);
}

std::vector<StateUse> state_uses(const Plan& plan) {
  std::vector<StateUse> uses;
  std::map<BoxIndex, std::size_t> use_of;
  for (const Decision& d : plan.decisions) {
    if (d.slots == kNone || d.over == 0) continue;
    const StateUse use{d.slots, d.lower, d.upper + d.over};
    const auto [it, is_new] =
        d.box == kNone ? std::pair{use_of.end(), true} : use_of.try_emplace(d.box, uses.size());
    if (is_new) {
      uses.push_back(use);
      continue;
    }
    StateUse& box = uses[it->second];
    box.lower = std::min(box.lower, use.lower);
    box.upper = std::max(box.upper, use.upper);
  }
  return uses;
}

void count_slots(Plan& plan) {
  Occupancies parts(plan.slots.size());  // of uses, beyond whole periods
  for (SlotClass& c : plan.slots) c.count = 0;
  for (const StateUse& use : state_uses(plan)) {
    const Tick ticks = use.upper - use.lower;
    plan[use.slots].count += static_cast<std::int32_t>(ticks / plan.period);
    const Tick part = ticks % plan.period;
    const Tick left = plan.period - use.lower;  // of the iteration
    parts[use.slots].add(use.lower, use.lower + std::min(part, left));
    if (part > left) parts[use.slots].add(0, part - left);
  }
  for (const SlotClassIndex c : parts.indices()) plan[c].count += parts[c].most();
}

void fit_slots(Plan& plan) {
  IndexedVector<SlotClassIndex, Bytes> largest(plan.slots.size());
  for (const Decision& d : plan.decisions) {
    if (d.slots == kNone || d.box != kNone) continue;
    largest[d.slots] = std::max(largest[d.slots], align_up(d.size, plan.alignment));
  }
  for (const SlotClassIndex c : largest.indices()) {
    if (largest[c] > 0)
      plan[c].size = largest[c];  // else it holds boxes, whose sizes do not change
  }
}

Bytes place_slots(Plan& plan) {
  IndexedVector<SlotClassIndex, Offset> moved;
  Bytes end = 0;
  for (SlotClass& c : plan.slots) {
    moved.push_back(end - c.offset);
    c.offset = end;
    end += c.size * c.count;
  }
  for (Decision& d : plan.decisions) {
    if (d.slots == kNone) continue;
    d.offset = d.box == kNone ? plan[d.slots].offset : d.offset + moved[d.slots];
  }
  return end;
}

solve::Problem real_problem(const Plan& plan) {
  solve::Problem problem = problem_of(plan);
  problem.buffers.resize(problem.buffers.size() - plan.slots.size());
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    const Decision& d = plan.decisions[i];
    if (d.slots == kNone) continue;
    problem.buffers[i].upper = d.upper;
    if (d.over > 0) problem.buffers.push_back(overlap_of(d));
  }
  for (solve::Buffer& b : problem.buffers) b.fixed = kUnplaced;
  return problem;
}

void check_slots(const Plan& plan, std::vector<verify::SlotUse> boxes) {
  std::vector<verify::SlotRange> classes;
  for (const SlotClass& c : plan.slots) {
    classes.push_back({.size = c.size, .offset = c.offset, .count = c.count, .stream = c.stream});
  }
  std::vector<verify::SlotUse> uses = std::move(boxes);
  for (const Decision& d : plan.decisions) {
    if (d.box != kNone || d.slots == kNone) continue;
    if (d.over <= 0 || d.over > plan.period || d.upper - d.lower != plan.period) {
      throw PlanError("slot uses, row " + std::to_string(uses.size()) + ": lives " +
                      std::to_string(d.over) + " ticks beyond its period");
    }
    uses.push_back({.slots = range_of(d.slots),
                    .size = d.size,
                    .lower = d.lower,
                    .upper = d.upper + d.over,
                    .stream = d.stream});
  }
  verify::validate_slots(classes, uses, plan.period, plan.alignment, plan.pool);
}

}  // namespace stalloc::plan
