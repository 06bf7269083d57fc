// Places the requests that only start-up and the first iteration make.
//
// Permanent requests are packed in the order in which they come. Temporaries are placed, largest
// first, where pool and region are idle meanwhile. They never make the two larger: the fallback
// serves those that find no room, and gives its memory back.
//
// Cost: O(n log n) for n requests of start-up and the decisions that are live beside those that
// go again, at a few intervals each.
#pragma once

#include <span>

#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::plan {

// The plan's phase of each phase of the profile; kNone for one that is not planned.
using PhaseMap = IndexedVector<PhaseIndex, PhaseIndex>;

// Fills `startup`, `absent` and `resident` of a plan that is complete otherwise. `phase_of` and
// `row_of` lead from the profile's phases and requests to the plan's. Throws OverflowError where
// sizes do not fit in Bytes.
void add_startup(Plan& plan, const profile::Startup& startup, const PhaseMap& phase_of,
                 std::span<const DecisionIndex> row_of);

// Throws PlanError that names the row unless `startup` is as plan.h says: in order, inside the pool
// or the region, and without two that share a moment and an address; nothing of another stream's
// ever does, decisions and groups included.
void check_startup(const Plan& plan);

}  // namespace stalloc::plan
