// Slots: interchangeable places for state that is replaced in every iteration.
//
// An optimizer that writes m = beta * m + ... makes the new state before it frees the old one. Such
// a request lives longer than one iteration, so its successor cannot have the same address, and a
// fixed address for each request cannot serve two iterations in a row. The requests of one size and
// stream share the slots of a class instead. Each takes whichever slot is free:
//
//   slot 2 | m2 ........|   m1' .....................    m1' takes the free slot, then m1 goes;
//   slot 1 | m1 ...........|   m2' ..................    m2' takes the slot of m1, then m2 goes;
//   slot 0 |          (free)            |  m1'' ....     the free slot moves on with each iteration
//                     optimizer                          optimizer
//
// A class has as many slots as requests of it are ever live at once, and no more: n requests, and
// those that are made before as many old ones are freed. An optimizer that replaces two states of
// one size before it frees both has n + 2 of them live, so no plan has fewer slots. Hence a free
// slot exists for each request, whichever slots the others have: the count alone proves every
// assignment (verify/slots_validator.h). A longer period needs more: in a plan of K iterations, n
// requests need n / (K - 1) spare places. State that is handed over as a whole may share slots
// (generations.h).
//
// Slots lie at the bottom of the pool, and everything else is laid out above them as if there were
// none. So they cost what their requests would need beside the pool, and never more, and a layout
// for other extents leaves them where they are.
//
// Cost: O(n log n).
#pragma once

#include <span>
#include <vector>

#include "plan/plan.h"
#include "profile/lifetimes.h"
#include "verify/slots_validator.h"

namespace stalloc::plan {

// Adds the classes, without offsets, and their requests. `row_of` leads from the profile's requests
// to decisions.
void add_slots(Plan& plan, const profile::IterationProfile& profile,
               std::span<const DecisionIndex> row_of);

// State as its class sees it: a request with a slot of its own, or a box of state, from its first
// allocation to its last free.
struct StateUse {
  SlotClassIndex slots = kNone;
  Tick lower = 0;
  Tick upper = 0;  // at most two periods after `lower`
};

std::vector<StateUse> state_uses(const Plan& plan);

// Sets the number of slots of each class to the most uses that are live at once.
void count_slots(Plan& plan);

// Makes slots as large as the largest request that has one for itself: after sizes have changed.
void fit_slots(Plan& plan);

// Puts the slots one above the other at the bottom of the pool, and their requests into the first
// of each class. Returns the bytes below the rest.
Bytes place_slots(Plan& plan);

// The requests of problem_of(plan) with their real lifetimes, those in slots too, and no slots. No
// pool is smaller than the bound of this problem.
solve::Problem real_problem(const Plan& plan);

// The validator's index of a class. Its classes are those of Plan::slots, in the same order.
inline verify::SlotRangeIndex range_of(SlotClassIndex c) {
  return verify::SlotRangeIndex(c.number());
}

// Throws PlanError unless validate_slots() finds every assignment possible. `boxes`: what
// check_boxes() returns.
void check_slots(const Plan& plan, std::vector<verify::SlotUse> boxes);

}  // namespace stalloc::plan
