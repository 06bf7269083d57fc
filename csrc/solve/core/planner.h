// The planner interface: a pure function from a problem to a layout, under a budget.
//
// Each planner has a file of its own; `planners()` lists them by name. A planner sees the buffers
// of one stream only. Time is linear or circular. portfolio.h splits a problem by stream, runs
// several planners, keeps the best layout and proves it optimal if it can.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "solve/core/problem.h"

namespace stalloc::solve {

// When to stop, and where to report progress. Thread-safe.
struct Budget {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  Bytes target = 0;  // a layout this low is good enough: the search stops
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(double fraction)> progress = {};  // may be empty; called from any thread

  // The same budget, which ends `seconds` from now at the latest.
  Budget within(double seconds) const {
    Budget limited = *this;
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                               std::chrono::duration<double>(seconds));
    limited.deadline = std::min(deadline, end);
    return limited;
  }

  bool cancelled() const { return cancel && cancel->load(std::memory_order_relaxed); }
  bool expired() const { return cancelled() || std::chrono::steady_clock::now() >= deadline; }
};

// The result of a search.
struct Minimum {
  Layout layout;
  Bytes bound = 0;  // proven: no layout is lower. 0: nothing is proven
};

class Planner {
 public:
  virtual ~Planner() = default;
  virtual std::string_view name() const = 0;

  // Returns a valid layout. `problem` has passed check(). Deterministic unless the budget expires
  // first. Throws PlanError if it finds no layout with the fixed offsets and within the capacity.
  virtual Layout plan(const Problem& problem, const Budget& budget) const = 0;
};

// Every planner, cheapest first. The references live as long as the program.
const std::vector<const Planner*>& planners();

// The planner of that name. If there is none, throws a PlanError that lists the known names.
const Planner& planner(std::string_view name);

}  // namespace stalloc::solve
