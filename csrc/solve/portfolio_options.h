// Options of a portfolio run. Every stream of a problem is solved with the same ones.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "solve/core/problem.h"

namespace stalloc::solve {

struct PortfolioOptions {
  std::string algorithm = {};  // the planner to run alone, on a stream as it is; empty: all of them
  int threads = 0;             // 0: as many as the machine has
  // Steps that each of the searches may take on each part: a limit that, unlike a deadline, does
  // not depend on the machine.
  std::int64_t search_steps = std::numeric_limits<std::int64_t>::max();
  // An older layout to begin with: one offset a buffer, kUnplaced where it knew none. It need not
  // be valid; where it is, the result is no higher. May be null.
  const Layout* warm_start = nullptr;
};

}  // namespace stalloc::solve
