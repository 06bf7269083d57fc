// Greedy placement: buffers one after another, each where it fits best at that moment.
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

// One order and one fit, and as many rounds of repair (repair.h) as the problem's size allows.
class GreedyPlanner final : public Planner {
 public:
  GreedyPlanner(Order order, Fit fit, bool repairs);

  // "first-fit-size", "best-fit-size", "repaired-first-fit-size", ...
  std::string_view name() const override { return name_; }
  Layout plan(const Problem& problem, const Budget& budget) const override;

  // Whether its order means anything there: without phases, nothing is carried into another.
  bool suits(const Problem& problem) const;

  // What planning so many buffers costs at most, in first-fit placements of one.
  std::int64_t placements(std::int64_t buffers) const;

  // The same with a timeline that is there already, and a limit as place_in_order() takes it.
  std::optional<Layout> attempt(const Problem& problem, const Timeline& timeline,
                                const Budget& budget, const std::atomic<Bytes>* limit) const;

 private:
  Order order_;
  Fit fit_;
  bool repairs_;
  std::string name_;
};

// Those worth trying, cheapest and most promising first.
const std::vector<GreedyPlanner>& greedy_planners();

}  // namespace stalloc::solve
