// Anchors: decisions with the same address in all layouts of a plan.
//
// A run may change the layout when a microbatch begins. Blocks that are live then do not move: the
// gradients that several microbatches accumulate, the inputs, scores that the loop keeps. If each
// layout had its own place for them, the next one would have to fit around the places of the one
// before. Anchors lie at the bottom of the pool in all layouts, so that any layout can follow any
// other:
//
//   few long rows                  many short rows
//   |       act        |           |                  |
//   |------------------|           |---------------   |
//   | act 1 | act 2    |           | act 1 |  act 2|  |
//   |-------+----------|           |-------+----------|
//   |   gradients______|           |   gradients______|   anchors
//   +------------------+           +------------------+
//
// An anchor whose size varies has the room of the largest profiled one in all layouts. If that
// costs too much, only small ones are anchors.
#pragma once

#include <vector>

#include "plan/layout.h"
#include "plan/plan.h"
#include "solve/core/planner.h"

namespace stalloc::plan {

// The anchors of a plan that has a layout; none if its layout has none.
std::vector<DecisionIndex> anchors_of(const Plan& plan);

// True if a varying request of `size` bytes costs next to nothing. As an anchor it has the same
// room in all layouts, and a block that is larger departs from the plan.
bool is_small(const Plan& plan, Bytes size);

// Lays the plan out with anchors if that costs next to nothing, else as lay_out() does. Gives
// anchors their room. Throws as lay_out().
void lay_out_anchored(Plan& plan, const LayoutOptions& options, const solve::Budget& budget);

}  // namespace stalloc::plan
