// Greedy placement: buffers one after another, each where it fits best at that moment.
#pragma once

#include <string>
#include <vector>

#include "plan/order.h"
#include "plan/planner.h"
#include "plan/timeline.h"

namespace stalloc {

enum class Fit : std::uint8_t {
  kFirst,  // the lowest hole that is large enough
  kBest,   // the smallest such hole
};

// Places fixed buffers first, then the rest in the order given. When the budget expires, what is
// left is stacked on top. Buffers without size or lifetime lie at 0, where they are not fixed.
Layout place_in_order(const Problem& problem, const Timeline& timeline,
                      const std::vector<BufferIndex>& order, Fit fit, const Budget& budget);

class GreedyPlanner final : public Planner {
 public:
  GreedyPlanner(Order order, Fit fit);

  std::string_view name() const override { return name_; }  // "first-fit-size", ...
  Layout plan(const Problem& problem, const Budget& budget) const override;

 private:
  Order order_;
  Fit fit_;
  std::string name_;
};

}  // namespace stalloc
