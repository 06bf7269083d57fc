// The whole planner: several algorithms side by side, the best plan, and a proof where there is
// one.
//
// A problem is split by stream (each gets addresses of its own, unless they are ordered) and taken
// apart without loss (decompose.h); the planners are run cheapest first, and as soon as one meets
// the lower bound its plan is known to be optimal and the rest is spared. Where none does, it goes
// on for as long as there is hope: the smaller the gap and the larger the problem, the sooner it
// gives up. The time limit is for those who will not wait that long. What comes out has passed the
// independent validator.
#pragma once

#include <string>

#include "solve/core/planner.h"
#include "solve/core/problem.h"
#include "solve/portfolio_options.h"

namespace stalloc::solve {

struct PortfolioResult {
  Layout layout;
  std::string algorithm;  // the planner the layout came from; several streams: "a+b"
  Bytes bound = 0;        // no layout is lower
  bool optimal = false;   // proven: the layout meets the bound, or the search was complete
  double seconds = 0;     // it took

  double gap() const {
    return bound > 0 ? static_cast<double>(layout.height) / static_cast<double>(bound) - 1.0 : 0.0;
  }
};

// Throws PlanError when the problem is malformed, when its fixed offsets clash, and when no layout
// within the capacity was found: the message says whether there is none.
// The same problem and options give the same result, unless the budget cuts a planner short.
PortfolioResult solve(const Problem& problem, const PortfolioOptions& options,
                      const Budget& budget);

}  // namespace stalloc::solve
