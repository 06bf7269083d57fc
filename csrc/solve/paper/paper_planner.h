// The paper's planner: static allocation planning (section 5.1).
//
// Temporal regularity first: requests born in one phase and freed in another form HomoPhase groups,
// each packed into one block with addresses relative to it; groups that follow one another are
// fused where that lowers the memory-time reserved. Spatial regularity second: blocks and single
// requests of equal size form HomoSize groups, planned in descending order of size into memory
// layers, strips of addresses that one size reuses over time.
//
// Where the paper leaves room, as the authors' implementation has it: requests that are born and
// freed in one phase are not packed side by side, which would forbid them to reuse one another's
// memory, but planned singly; so are requests of unknown phase. A group is fused once at most. The
// smaller of two fused groups may be the earlier one; the procedure is then mirrored in time.
#pragma once

#include "solve/core/planner.h"

namespace stalloc::solve {

// O(n log n) but for the search for idle intervals, which is the placement engine's. Time may be
// circular: it is cut open where least crosses, and what crosses gets a layer of its own.
// Throws PlanError when a buffer is fixed: layers leave no room for that.
class PaperPlanner final : public Planner {
 public:
  std::string_view name() const override { return "paper"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
