// The planner interface: a pure function from a problem to a layout, under a budget.
//
// Each planner has a file of its own; `planners()` lists them by name. A planner sees the buffers
// of one stream only. Time is linear or circular. portfolio.h splits a problem by stream, runs
// several planners, keeps the best layout and proves it optimal if it can.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "solve/core/problem.h"

namespace stalloc::solve {

// The work of a planner, counted in placements of one buffer (a microsecond or less). Unlike
// seconds, it depends neither on the machine nor on its load.
struct Work {
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  std::int64_t done = 0;
};

// When to stop, and where to report progress. Thread-safe, but for the work.
struct Budget {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  Bytes target = 0;  // a layout this low is good enough: the search stops
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(double fraction)> progress = {};  // may be empty; called from any thread
  Work* work = nullptr;  // counts the work of one thread and limits it, if not null

  // The same budget, which ends `seconds` from now at the latest. Decades are no limit.
  Budget within(double seconds) const {
    constexpr double kForever = 1e9;
    Budget limited = *this;
    if (seconds >= kForever) return limited;
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                               std::chrono::duration<double>(seconds));
    limited.deadline = std::min(deadline, end);
    return limited;
  }

  bool cancelled() const { return cancel && cancel->load(std::memory_order_relaxed); }
  // True if even a layout that has been begun is of no use.
  bool is_late() const { return cancelled() || std::chrono::steady_clock::now() >= deadline; }
  // True if nothing else is to be tried.
  bool expired() const { return (work && work->done >= work->limit) || is_late(); }

  void spend(std::int64_t placements) const {
    if (work) work->done += placements;
  }
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
