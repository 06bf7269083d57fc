// What a planner is: a pure function from a problem to a layout, under a budget.
//
// One planner a file; `planners()` lists them by name. Planners see the buffers of one stream
// only, linear or circular; portfolio.h splits a problem by stream, runs several, keeps the best
// and proves it where it can.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "solve/core/problem.h"

namespace stalloc::solve {

// When to stop and whom to tell. Thread-safe.
struct Budget {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  Bytes target = 0;  // a layout this low is good enough: stop there
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(double fraction)> progress = {};  // may be empty; called from any thread

  bool cancelled() const { return cancel && cancel->load(std::memory_order_relaxed); }
  bool expired() const { return cancelled() || std::chrono::steady_clock::now() >= deadline; }
};

// The result of a search.
struct Minimum {
  Layout layout;
  Bytes bound = 0;  // proven: no layout is lower. 0: the search proves nothing
};

class Planner {
 public:
  virtual ~Planner() = default;
  virtual std::string_view name() const = 0;

  // A valid layout; `problem` has passed check(). Deterministic unless the budget expires first.
  // Throws PlanError when fixed offsets or the capacity leave no layout it can find.
  virtual Layout plan(const Problem& problem, const Budget& budget) const = 0;
};

// Every planner, cheapest first. The references live as long as the program.
const std::vector<const Planner*>& planners();

// Throws PlanError that lists the known names.
const Planner& planner(std::string_view name);

}  // namespace stalloc::solve
