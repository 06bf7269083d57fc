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

  std::int64_t most() const {
    std::int64_t live = 0;
    std::int64_t most = 0;
    for (const auto& [tick, change] : changes_) most = std::max(most, live += change);
    return most;
  }

 private:
  std::map<Tick, std::int64_t> changes_;
};

// The part of a request's lifetime beyond a whole period, as a buffer.
solve::Buffer overlap_of(const Decision& d) {
  return {.size = d.size, .lower = d.lower, .upper = d.lower + d.over, .stream = d.stream};
}

void count_slots(Plan& plan) {
  std::vector<Occupancy> overlaps(plan.slots.size());
  for (SlotClass& c : plan.slots) c.count = 0;
  for (const Decision& d : plan.decisions) {
    if (d.slots == kNone) continue;
    const auto c = static_cast<std::size_t>(d.slots);
    ++plan.slots[c].count;
    const Tick left = plan.period - d.lower;  // of the iteration
    overlaps[c].add(d.lower, d.lower + std::min(d.over, left));
    if (d.over > left) overlaps[c].add(0, d.over - left);
  }
  for (std::size_t c = 0; c < plan.slots.size(); ++c) {
    plan.slots[c].count += static_cast<std::int32_t>(overlaps[c].most());
  }
}

}  // namespace

void add_slots(Plan& plan, const profile::IterationProfile& profile,
               std::span<const std::int32_t> row_of) {
  std::map<std::pair<Bytes, StreamId>, std::int32_t> index;
  for (std::size_t i = 0; i < profile.requests.size(); ++i) {
    const profile::ProfiledRequest& r = profile.requests[i];
    if (row_of[i] == kNone || r.over == 0) continue;
    Decision& d = plan.decisions[static_cast<std::size_t>(row_of[i])];
    const Bytes size = align_up(d.size, plan.alignment);
    const auto [it, is_new] =
        index.try_emplace({size, d.stream}, static_cast<std::int32_t>(plan.slots.size()));
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
    SlotClass& c = plan.slots[static_cast<std::size_t>(d.slots)];
    c.size = std::max(c.size, align_up(d.size, plan.alignment));
  }
}

void add_startup_slots(Plan& plan, const profile::Startup& startup,
                       std::span<const std::int32_t> row_of) {
  if (plan.slots.empty()) return;
  std::vector<Occupancy> taken(plan.slots.size());
  struct Stay {
    std::int32_t slots;
    Tick lower;
    Tick upper;
  };
  std::map<std::int32_t, Stay> boxes;
  for (const profile::StartupStay& stay : startup.stays) {
    const std::int32_t row = row_of[static_cast<std::size_t>(stay.request)];
    const Decision& d = plan.decisions[static_cast<std::size_t>(row)];
    if (d.slots == kNone) continue;
    if (d.box == kNone) {
      taken[static_cast<std::size_t>(d.slots)].add(stay.lower, stay.upper);
      continue;
    }
    const auto at = boxes.try_emplace(d.box, Stay{d.slots, stay.lower, stay.upper}).first;
    at->second.lower = std::min(at->second.lower, stay.lower);
    at->second.upper = std::max(at->second.upper, stay.upper);
  }
  for (const auto& [box, stay] : boxes) {
    taken[static_cast<std::size_t>(stay.slots)].add(stay.lower, stay.upper);
  }
  for (StartupRequest& r : plan.startup) {
    if (r.stays() || r.offset != kUnplaced) continue;
    const auto fits = [&](const SlotClass& c) {
      return c.stream == r.stream && c.size == align_up(r.size, plan.alignment);
    };
    const auto found = std::ranges::find_if(plan.slots, fits);
    if (found == plan.slots.end()) continue;
    Occupancy& occupancy = taken[static_cast<std::size_t>(found - plan.slots.begin())];
    occupancy.add(r.lower, r.upper);
    if (occupancy.most() > found->count) {
      occupancy.remove(r.lower, r.upper);
    } else {
      r.slots = static_cast<std::int32_t>(found - plan.slots.begin());
    }
  }
}

void drop_startup_slots(Plan& plan) {
  for (StartupRequest& r : plan.startup) {
    if (r.slots == kNone) continue;
    if (r.size > plan.slots[static_cast<std::size_t>(r.slots)].size) r.slots = kNone;
  }
}

Bytes place_slots(Plan& plan) {
  std::vector<Offset> moved;
  Bytes end = 0;
  for (SlotClass& c : plan.slots) {
    moved.push_back(end - c.offset);
    c.offset = end;
    end += c.size * c.count;
  }
  for (Decision& d : plan.decisions) {
    if (d.slots == kNone) continue;
    const auto c = static_cast<std::size_t>(d.slots);
    d.offset = d.box == kNone ? plan.slots[c].offset : d.offset + moved[c];
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
    uses.push_back({.slots = d.slots,
                    .size = d.size,
                    .lower = d.lower,
                    .upper = d.upper + d.over,
                    .stream = d.stream});
  }
  verify::validate_slots(classes, uses, plan.period, plan.alignment, plan.pool);
  for (const StartupRequest& r : plan.startup) {
    if (r.slots == kNone) continue;
    if (r.slots < 0 || static_cast<std::size_t>(r.slots) >= plan.slots.size() ||
        r.offset != kUnplaced || r.stream != plan.slots[static_cast<std::size_t>(r.slots)].stream ||
        r.size > plan.slots[static_cast<std::size_t>(r.slots)].size) {
      throw PlanError("startup: a request of " + std::to_string(r.size) +
                      " bytes does not fit the slots " + std::to_string(r.slots));
    }
  }
}

}  // namespace stalloc::plan
