// Plans one stream's buffers, and proves the layout optimal if it can.
//
// The problem is divided into parts (decompose.h). On each part the planners run in parallel, the
// cheapest first, until one meets the bound or the rest is not worth its cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "solve/core/planner.h"
#include "solve/core/problem.h"
#include "solve/portfolio_options.h"

namespace stalloc::solve {

struct Solution {
  Layout layout;
  std::string algorithm;
  Bytes bound = 0;        // no layout is lower
  std::int64_t work = 0;  // of all planners, but for the first
};

// All buffers may share addresses, whatever their stream. `warm` is empty or has an offset for
// every buffer. `problem.capacity` is the most that this stream may use, 0 for no limit. The result
// is valid but perhaps above the capacity. `problem` has passed check(), and its fixed buffers do
// not clash.
Solution solve_stream(const Problem& problem, const std::vector<Offset>& warm,
                      const PortfolioOptions& options, const Budget& budget);

bool has_fixed(const Problem& problem);

}  // namespace stalloc::solve
