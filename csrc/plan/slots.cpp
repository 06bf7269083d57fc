#include "plan/slots.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/error.h"

namespace stalloc::plan {
namespace {

// Counts the requests of a class that are live at once, on a line of ticks.
class Occupancy {
 public:
  void add(Tick lower, Tick upper) {
    ++changes_[lower];
    --changes_[upper];
  }

  void remove(Tick lower, Tick upper) {
    --changes_[lower];
    ++changes_[upper];
  }

  std::int32_t most() const {
    std::int32_t live = 0;
    std::int32_t most = 0;
    for (const auto& [tick, change] : changes_) most = std::max(most, live += change);
    return most;
  }

 private:
  std::map<Tick, std::int32_t> changes_;
};

using Occupancies = IndexedVector<SlotClassIndex, Occupancy>;

// The part of a request's lifetime beyond a whole period, as a buffer.
solve::Buffer overlap_of(const Decision& d) {
  return {.size = d.size, .lower = d.lower, .upper = d.lower + d.over, .stream = d.stream};
}

void count_slots(Plan& plan) {
  Occupancies overlaps(plan.slots.size());
  for (SlotClass& c : plan.slots) c.count = 0;
  for (const Decision& d : plan.decisions) {
    if (d.slots == kNone) continue;
    ++plan[d.slots].count;
    const Tick left = plan.period - d.lower;  // of the iteration
    overlaps[d.slots].add(d.lower, d.lower + std::min(d.over, left));
    if (d.over > left) overlaps[d.slots].add(0, d.over - left);
  }
  for (const SlotClassIndex c : overlaps.indices()) plan[c].count += overlaps[c].most();
}

}  // namespace

void add_slots(Plan& plan, const profile::IterationProfile& profile,
               std::span<const DecisionIndex> row_of) {
  std::map<std::pair<Bytes, StreamId>, SlotClassIndex> index;
  for (std::size_t i = 0; i < profile.requests.size(); ++i) {
    const profile::ProfiledRequest& r = profile.requests[i];
    if (row_of[i] == kNone || r.over == 0) continue;
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

void fit_slots(Plan& plan) {
  for (SlotClass& c : plan.slots) c.size = plan.alignment;
  for (const Decision& d : plan.decisions) {
    if (d.slots == kNone || d.box != kNone) continue;
    SlotClass& c = plan[d.slots];
    c.size = std::max(c.size, align_up(d.size, plan.alignment));
  }
}

void add_startup_slots(Plan& plan, const profile::Startup& startup,
                       std::span<const DecisionIndex> row_of) {
  if (plan.slots.empty()) return;
  Occupancies taken(plan.slots.size());
  struct Stay {
    SlotClassIndex slots;
    Tick lower;
    Tick upper;
  };
  std::map<BoxIndex, Stay> boxes;
  for (const profile::StartupStay& stay : startup.stays) {
    const Decision& d = plan[row_of[stay.request]];
    if (d.slots == kNone) continue;
    if (d.box == kNone) {
      taken[d.slots].add(stay.lower, stay.upper);
      continue;
    }
    const auto at = boxes.try_emplace(d.box, Stay{d.slots, stay.lower, stay.upper}).first;
    at->second.lower = std::min(at->second.lower, stay.lower);
    at->second.upper = std::max(at->second.upper, stay.upper);
  }
  for (const auto& [box, stay] : boxes) taken[stay.slots].add(stay.lower, stay.upper);
  for (StartupRequest& r : plan.startup) {
    if (r.stays() || r.offset != kUnplaced) continue;
    const auto fits = [&](const SlotClass& c) {
      return c.stream == r.stream && c.size == align_up(r.size, plan.alignment);
    };
    const auto found = std::ranges::find_if(plan.slots, fits);
    if (found == plan.slots.end()) continue;
    const SlotClassIndex c(found - plan.slots.begin());
    taken[c].add(r.lower, r.upper);
    if (taken[c].most() > found->count) {
      taken[c].remove(r.lower, r.upper);
    } else {
      r.slots = c;
    }
  }
}

void drop_startup_slots(Plan& plan) {
  for (StartupRequest& r : plan.startup) {
    if (r.slots == kNone) continue;
    if (r.size > plan[r.slots].size) r.slots = kNone;
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
    if (d.box != kNone || (d.slots == kNone && d.over == 0)) continue;
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
  for (const StartupRequest& r : plan.startup) {
    if (r.slots == kNone) continue;
    if (!r.slots.points_into(plan.slots) || r.offset != kUnplaced ||
        r.stream != plan[r.slots].stream || r.size > plan[r.slots].size) {
      throw PlanError("startup: a request of " + std::to_string(r.size) +
                      " bytes does not fit the slots " + to_string(r.slots));
    }
  }
}

}  // namespace stalloc::plan
