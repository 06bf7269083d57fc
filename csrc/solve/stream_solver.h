// One stream's buffers, planned and, where it can be, proven.
//
// They are taken apart without loss (decompose.h). On each part the planners are raced from the
// cheapest on, until one meets the bound or what is left is not worth its while.
#pragma once

#include <string>
#include <vector>

#include "solve/core/planner.h"
#include "solve/core/problem.h"
#include "solve/portfolio_options.h"

namespace stalloc::solve {

struct Solution {
  Layout layout;
  std::string algorithm;
  Bytes bound = 0;  // no layout is lower
};

// All buffers share their addresses, whatever their stream. `warm` is empty, or has an offset for
// every buffer; `problem.capacity` is what this stream may use, 0 for any. The result is valid, but
// perhaps above the capacity. `problem` has passed check(), and what is fixed does not clash.
Solution solve_stream(const Problem& problem, const std::vector<Offset>& warm,
                      const PortfolioOptions& options, const Budget& budget);

bool has_fixed(const Problem& problem);

}  // namespace stalloc::solve
