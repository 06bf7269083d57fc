// Anchors: decisions with the same address in all layouts of a plan.
//
// A run may change the layout when a microbatch begins. Blocks that are live then do not move: the
// gradients that several microbatches accumulate, the inputs, scores that the loop keeps. If each
// layout had its own place for them, the next one would have to fit around the places of the one
// before. Anchors lie where the plan has them in all layouts, so that any layout can follow any
// other. That is at the bottom of the pool unless it costs too much:
//
//   few long rows                  many short rows
//   |       act        |           |                  |
//   |------------------|           |---------------   |
//   | act 1 | act 2    |           | act 1 |  act 2|  |
//   |-------+----------|           |-------+----------|
//   |   gradients______|           |   gradients______|   anchors
//   +------------------+           +------------------+
//
// Small decisions that are live when the optimizer's step ends, such as the loss, are anchors, too.
// An evaluation may come there, and in the middle they would divide the space that it uses.
//
// A plan without laws has one layout, unless a run leaves blocks in its pool. There, all decisions
// that are live when the optimizer's step ends lie at the bottom if that costs nothing.
//
// An anchor whose size varies has the room of the largest profiled one in all layouts. A large one
// is no anchor if the plan has no such room for it.
#pragma once

#include <vector>

#include "plan/layout.h"
#include "plan/plan.h"
#include "solve/core/planner.h"

namespace stalloc::plan {

// The anchors of a plan that has a layout. None without laws, since the plan has one layout then,
// and none if it has streams that share no addresses.
std::vector<DecisionIndex> anchors_of(const Plan& plan);

// Lays the plan out with its anchors at the bottom if that costs next to nothing, else as lay_out()
// does. Gives small anchors their room, and large ones at the bottom. Throws as lay_out().
void lay_out_anchored(Plan& plan, const LayoutOptions& options, const solve::Budget& budget);

}  // namespace stalloc::plan
