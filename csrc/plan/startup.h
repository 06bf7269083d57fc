// Places the requests that only start-up and the first iteration make.
//
// Permanent requests are packed in program order, in the resident region. Temporaries follow, see
// startup_temporaries.h.
#pragma once

#include <span>

#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::plan {

// The plan's phase of each phase of the profile; kNone for one that is not planned.
using PhaseMap = IndexedVector<PhaseIndex, PhaseIndex>;

// Fills `startup`, `absent` and `resident` of a plan that is complete otherwise. `phase_of` and
// `row_of` map the profile's phases and requests to the plan's. Throws OverflowError if sizes do
// not fit in Bytes.
void add_startup(Plan& plan, const profile::Startup& startup, const PhaseMap& phase_of,
                 std::span<const DecisionIndex> row_of);

// Throws PlanError that names the row unless `startup` is as plan.h says: in order, and inside the
// pool or the region. No two requests share a tick and an address. No address of a start-up request
// ever belongs to another stream's request, decision or group.
void check_startup(const Plan& plan);

}  // namespace stalloc::plan
