// Late frees: small requests make room for blocks that a short iteration frees late.
//
// The next microbatch frees the loss and the batch of the one before, when it replaces them. If an
// iteration ends earlier than planned, they stay live until the next one, and each request that has
// one of their addresses departs from the plan. Solvers prefer low addresses, so hundreds of
// requests of a few bytes may have the address of one loss:
//
//   |  loss 1 ........................~ ~ ~ ~ ~ ~    the second microbatch is missing
//   |             | loss 2 | a | b | c | d | e |     all of them need the address of loss 1
//   | forward 1   | forward 2      | optimizer
//
// They move to addresses that are idle anyway. The pool stays as large as it is.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "solve/core/problem.h"

namespace stalloc::plan {

// Moves small requests of a plan that has a layout. Those with an offset in `fixed` stay, and
// nothing moves to the addresses of obstacles. Nothing moves in a plan with several streams or with
// groups, whose reusable space is worth more. O(n log n).
void make_room_for_late_frees(Plan& plan, const IndexedVector<DecisionIndex, Offset>& fixed,
                              const std::vector<solve::Buffer>& obstacles);

}  // namespace stalloc::plan
