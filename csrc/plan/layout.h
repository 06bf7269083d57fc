// Gives a plan its addresses: solves its problem, and derives from the layout what groups may
// reuse.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "solve/core/planner.h"

namespace stalloc::plan {

struct LayoutOptions {
  std::string algorithm = {};  // empty: the portfolio
  int threads = 0;             // 0: as many as the machine has
  // A limit for the searches that does not depend on the machine.
  std::int64_t search_steps = std::numeric_limits<std::int64_t>::max();
  // By decision: where it must lie, kUnplaced for anywhere. Empty: no decision is fixed.
  std::vector<Offset> fixed = {};
};

// Fills the offsets, `reusable`, `pool`, `bound`, `algorithm` and `optimal` of a plan whose sizes,
// lifetimes and walls are complete. Throws PlanError where fixed offsets or walls clash.
void lay_out(Plan& plan, const LayoutOptions& options, const solve::Budget& budget);

}  // namespace stalloc::plan
