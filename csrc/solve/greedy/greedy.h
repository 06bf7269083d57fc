// The greedy planners: place buffers one after another, each where it fits best at that moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "solve/core/order.h"
#include "solve/core/planner.h"
#include "solve/core/timeline.h"
#include "solve/greedy/place_in_order.h"

namespace stalloc::solve {

// A planner with one order and one fit, and as many rounds of repair (repair.h) as the problem's
// size allows.
class GreedyPlanner final : public Planner {
 public:
  GreedyPlanner(Order order, Fit fit, bool repairs);

  // "first-fit-size", "best-fit-size", "repaired-first-fit-size", ...
  std::string_view name() const override { return name_; }
  Layout plan(const Problem& problem, const Budget& budget) const override;

  // True if the planner's order applies to the problem: some orders need phases.
  bool suits(const Problem& problem) const;

  // The highest cost of planning so many buffers, in first-fit placements of one buffer.
  std::int64_t placements(std::int64_t buffers) const;

  // The same with an existing timeline, and a limit as in place_in_order().
  std::optional<Layout> attempt(const Problem& problem, const Timeline& timeline,
                                const Budget& budget, const std::atomic<Bytes>* limit) const;

 private:
  Order order_;
  Fit fit_;
  bool repairs_;
  std::string name_;
};

// The combinations that are worth trying, the cheapest and most promising first.
const std::vector<GreedyPlanner>& greedy_planners();

}  // namespace stalloc::solve
