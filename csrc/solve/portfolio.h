// The portfolio: runs several planners and returns the lowest layout, with a proof if there is one.
//
// The portfolio splits a problem by stream (each has addresses of its own, unless the streams are
// ordered) and into independent parts (decompose.h). It runs the cheapest planners first. A layout
// that meets the lower bound is optimal and ends the search. Otherwise the search goes on while an
// improvement is likely: it gives up sooner for a small gap and for a large problem. A time limit
// can end it earlier. The independent validator has checked the result.
#pragma once

#include <string>

#include "solve/core/planner.h"
#include "solve/core/problem.h"
#include "solve/portfolio_options.h"

namespace stalloc::solve {

struct PortfolioResult {
  Layout layout;
  std::string algorithm;  // the planner that found the layout; for several streams "a+b"
  Bytes bound = 0;        // no layout is lower
  bool optimal = false;   // proven: the layout meets the bound, or the search was complete
  std::int64_t work = 0;  // of all planners, but for the first
  double seconds = 0;     // of wall time

  double gap() const {
    return bound > 0 ? static_cast<double>(layout.height) / static_cast<double>(bound) - 1.0 : 0.0;
  }
};

// Throws PlanError if the problem is malformed, if its fixed offsets clash, or if it finds no
// layout within the capacity. The message then says if it is proven that there is none. The same
// problem and options give the same result, unless the budget ends a planner early.
PortfolioResult solve(const Problem& problem, const PortfolioOptions& options,
                      const Budget& budget);

}  // namespace stalloc::solve
