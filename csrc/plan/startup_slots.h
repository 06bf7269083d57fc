// Slots for the state that start-up makes and the first step replaces.
//
// It is live while the slots of its class wait for the first hand-over. Requests that the first
// iteration makes have their slots at the same time; together they never need more than there are.
//
// Cost: O(n) for each such request.
#pragma once

#include <span>

#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::plan {

// Gives requests of start-up that are freed later, and have the size of state, a slot of its class
// or a place in one of its generation, where one is left. `row_of` leads from the profile's
// requests to decisions.
void add_startup_slots(Plan& plan, const profile::Startup& startup,
                       std::span<const DecisionIndex> row_of);

// Takes requests of start-up out of slots that have become too small for them.
void drop_startup_slots(Plan& plan);

// Throws PlanError unless each request of start-up that has a slot fits it, and no two have the
// place of one decision.
void check_startup_slots(const Plan& plan);

}  // namespace stalloc::plan
