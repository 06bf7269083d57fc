// Options of a portfolio run. Every stream of a problem is solved with the same ones.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "solve/core/problem.h"

namespace stalloc::solve {

struct PortfolioOptions {
  std::string algorithm = {};  // the only planner to run, on undivided streams; empty: all planners
  int threads = 0;             // 0: one for each core
  // The most work (planner.h) of all planners together, but for the first. Unlike a deadline, it
  // gives the same layout on any machine, under any load and on any number of threads.
  std::int64_t work = std::numeric_limits<std::int64_t>::max();
  // The most steps of each search on each part.
  std::int64_t search_steps = std::numeric_limits<std::int64_t>::max();
  // An older layout to begin with: one offset a buffer, kUnplaced for an unknown one. It need not
  // be valid. If it is, the result is no higher. May be null.
  const Layout* warm_start = nullptr;
};

}  // namespace stalloc::solve
