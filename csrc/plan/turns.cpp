#include "plan/turns.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "plan/law_sizes.h"

namespace stalloc::plan {

void add_turns(Plan& plan, const profile::IterationProfile& profile,
               std::span<const DecisionIndex> row_of) {
  if (plan.laws.empty()) return;
  const LawSizes largest = largest_sizes(plan);
  for (std::size_t i = 0; i < profile.requests.size(); ++i) {
    const profile::ProfiledRequest& r = profile.requests[i];
    if (row_of[i] == kNone || r.over == 0 || !profile.follows_extents(r.law)) continue;
    Decision& d = plan[row_of[i]];
    d.over = r.over;
    d.phase_end = kNone;  // the next iteration frees it
    d.size = std::max(d.size, largest[d.law]);
    const Bytes before = r.before > 0 ? std::min(r.before, d.size) : d.size;
    plan.turns.push_back({.decision = row_of[i], .size = before});
  }
  std::ranges::sort(plan.turns, {}, &Turn::decision);
}

void check_turns(const Plan& plan) {
  for (std::size_t i = 0; i < plan.turns.size(); ++i) {
    const Turn& t = plan.turns[i];
    const std::string row = "turns, row " + std::to_string(i) + ": ";
    if (!t.decision.points_into(plan.decisions) ||
        (i > 0 && plan.turns[i - 1].decision >= t.decision)) {
      throw PlanError(row + "decision " + to_string(t.decision) + " is out of order");
    }
    for (const Offset place : t.places) {
      if (place < 0 || place % plan.alignment != 0) {
        throw PlanError(row + "a place at " + std::to_string(place) + " bytes");
      }
    }
    const Decision& d = plan[t.decision];
    const bool outlives = d.upper - d.lower == plan.period && d.over > 0;
    if (d.slots != kNone || d.box != kNone || !outlives || d.over > plan.period - d.lower) {
      throw PlanError(row + "decision " + to_string(t.decision) + " lives from tick " +
                      std::to_string(d.lower) + " to " + std::to_string(d.upper) + " and " +
                      std::to_string(d.over) + " beyond, or has a slot");
    }
  }
  const auto turns = std::ranges::count_if(
      plan.decisions, [](const Decision& d) { return d.over > 0 && d.slots == kNone; });
  if (turns != std::ssize(plan.turns)) {
    throw PlanError("turns: " + std::to_string(plan.turns.size()) + " second places for " +
                    std::to_string(turns) + " decisions");
  }
}

}  // namespace stalloc::plan
