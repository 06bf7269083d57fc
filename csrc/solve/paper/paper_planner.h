// The paper's planner: static allocation planning (section 5.1).
//
// 1. Temporal regularity: requests born in one phase and freed in another form HomoPhase groups.
//    Each group is packed into one block, with addresses relative to the block. Consecutive groups
//    are fused if that lowers the memory reserved over time.
// 2. Spatial regularity: blocks and single requests of equal size form HomoSize groups. They are
//    planned in descending order of size into memory layers: strips of addresses that one size
//    reuses over time.
//
// Details that the paper leaves open follow the authors' implementation. Requests that are born and
// freed in one phase are planned singly: packed side by side, they could not reuse one another's
// memory. Requests of unknown phase are planned singly too. A group is fused at most once. If the
// smaller of two fused groups is the earlier one, the procedure is mirrored in time.
#pragma once

#include "solve/core/planner.h"

namespace stalloc::solve {

// O(n log n) plus the search for idle intervals (placement.h). The origin of circular time moves to
// where the fewest bytes cross, and buffers that cross it get layers of their own. Throws PlanError
// if a buffer is fixed: layers cannot respect that.
class PaperPlanner final : public Planner {
 public:
  std::string_view name() const override { return "paper"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
