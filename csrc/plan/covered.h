// Plans whose streams keep to the program's own order (Plan::orders): a stream gets another's
// addresses only once the program has ordered it after all others, so its wait is covered.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "solve/core/problem.h"

namespace stalloc::plan {

// The holds of the plan's problem that Plan::orders ask for; none without orders. O(n x streams).
std::vector<solve::Hold> holds_of(const Plan& plan);

// True if Plan::orders cover all waits of the plan's layout. O(n log n + waits x streams).
bool is_covered(const Plan& plan);

// Takes the orders of a plan away if its layout does not keep to them.
void drop_uncovered_orders(Plan& plan);

// Throws PlanError unless Plan::orders, where there are any, cover all waits of the plan.
void check_covered(const Plan& plan);

}  // namespace stalloc::plan
