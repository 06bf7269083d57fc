// The exact search as a planner: it lowers a greedy layout until no lower one exists.
//
// It suits up to some hundreds of buffers, or any number if they divide into parts in time. It
// handles linear and circular time and fixed offsets exactly. A problem that is too large for it
// (ExactModel::fits()) keeps the greedy layout.
#pragma once

#include <cstdint>

#include "solve/core/planner.h"

namespace stalloc::solve {

// Returns the lowest layout found within `nodes` search nodes, or `start` if none is lower, and the
// proven bound. Stops at max(the bound, budget.target). Deterministic unless the budget expires.
// `problem` has passed check(), and all its buffers may share addresses, whatever their stream.
// `start` is a valid layout of it, but may exceed the capacity.
Minimum minimise_height(const Problem& problem, const Layout& start, std::int64_t nodes,
                        const Budget& budget);

// The same for one height, the budget's target: a layout that is no higher, `start` if none is
// found, or a bound above the target if there is none.
Minimum fit_target(const Problem& problem, const Layout& start, std::int64_t nodes,
                   const Budget& budget);

class ExactPlanner final : public Planner {
 public:
  std::string_view name() const override { return "exact"; }

  // With a capacity, returns the first layout within it. Throws PlanError if it is proven that
  // there is none.
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
