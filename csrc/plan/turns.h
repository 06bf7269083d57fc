// Turns: two places for a request whose size varies and that lives until its successor exists.
//
// A loop variable holds the scores of a batch until those of the next one have been made. So the
// request lives longer than an iteration, and its successor cannot have the same address. If its
// size is constant it has a slot (slots.h). A slot has one size, and boxes in it have fixed
// offsets, which suit no batches that change. Here the layout changes instead:
//
//   place 2 |      |  scores of batch 2 ........................|           | scores of batch 4
//   place 1 |  scores of batch 1 ...|           |  scores of batch 3 ...........|
//           | forward 1  | forward 2            | forward 3     | forward 4
//
// Each layout has a decision at one of its places, and the block of the iteration before at the
// other, until that is freed. Everything else is laid out around both, in idle parts of them, too.
// The next iteration has them the other way round, in a layout of its own. The layout is exchanged
// when a forward begins, so a request that the iteration makes before its first forward takes no
// turns.
//
// Both places have room for the largest profiled batch. The plan's own layout expects there what
// the largest batch of the profile found: two of the largest in a row may never come, and would
// need more memory. A larger request is laid out wherever a layout for it has room, and the next
// layout leaves that place alone until the block is freed.
#pragma once

#include <span>

#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::plan {

// Adds the decisions that take turns, without places. `row_of` leads from the profile's requests to
// decisions.
void add_turns(Plan& plan, const profile::IterationProfile& profile,
               std::span<const DecisionIndex> row_of);

// Throws PlanError unless each decision that takes turns has a second place, and lives until its
// successor has been made, but not for two iterations.
void check_turns(const Plan& plan);

}  // namespace stalloc::plan
