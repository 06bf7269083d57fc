// The opening's part of a plan: where what start-up and the first iteration make for good lies, and
// what else they ask for.
//
// What stays is packed in the order in which it comes. What goes again is placed, largest first,
// where pool and region are idle meanwhile; it never makes them larger: what finds no room there is
// left to the fallback, which gives its memory back.
//
// Cost: O(n log n) for n requests of the opening and the decisions that are live beside those that
// go again, at a few intervals each.
#pragma once

#include <span>

#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::plan {

// Fills `opening`, `absent` and `resident` of a plan that is complete otherwise. `phase_of` and
// `row_of` lead from the profile's phases and requests to the plan's. Throws OverflowError where
// sizes do not fit in Bytes.
void add_opening(Plan& plan, const profile::Opening& opening, std::span<const PhaseIndex> phase_of,
                 std::span<const std::int32_t> row_of);

// Throws PlanError that names the row unless `opening` is as plan.h says: in order, inside the pool
// or the region, and without two that share a moment and an address; nothing of another stream's
// ever does, decisions and groups included.
void check_opening(const Plan& plan);

}  // namespace stalloc::plan
