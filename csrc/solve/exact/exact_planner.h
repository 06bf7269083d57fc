// The exact search as a planner: from a greedy layout downwards, until nothing lower exists.
//
// For up to some hundreds of buffers, and for any number of those that fall apart in time. Linear
// and circular time, fixed offsets: all are searched exactly. What is too large to be searched
// (ExactModel::fits()) keeps the greedy layout.
#pragma once

#include <cstdint>

#include "solve/core/planner.h"

namespace stalloc::solve {

// The lowest layout found within `nodes` search nodes, `start` if there is none lower, and what is
// proven. Stops at max(the bound, budget.target). Deterministic unless the budget expires.
// `problem` has passed check(), all its buffers share their addresses whatever their stream, and
// `start` is a valid layout of it, capacity aside.
Minimum minimise_height(const Problem& problem, const Layout& start, std::int64_t nodes,
                        const Budget& budget);

class ExactPlanner final : public Planner {
 public:
  std::string_view name() const override { return "exact"; }

  // With a capacity, the first layout within it is good enough. Throws PlanError when it is proven
  // that there is none.
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
