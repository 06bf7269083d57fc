#include "plan/exact_planner.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "plan/exact_model.h"
#include "plan/exact_search.h"
#include "plan/greedy.h"
#include "plan/order.h"
#include "plan/timeline.h"

namespace stalloc {
namespace {

constexpr std::int64_t kFirstNodes = 4096;  // of the first try of a height; later ones have more

Layout greedy_layout(const Problem& problem, const Budget& budget) {
  const Timeline timeline(problem);
  Layout best;
  for (const Order order : {Order::kPeakRankSize, Order::kSize, Order::kArea}) {
    Layout layout =
        *place_in_order(problem, timeline, ordered(problem, timeline, order), Fit::kFirst, budget);
    if (best.offsets.empty() || layout.height < best.height) best = std::move(layout);
  }
  return best;
}

}  // namespace

// Tries the bound first (it is often met, and nothing is easier to prove), then heights between it
// and the best layout, each with a limited number of nodes; then all over again with more.
Minimum minimise_height(const Problem& problem, const Layout& start, std::int64_t nodes,
                        const Budget& budget) {
  Minimum result{start, 0};
  const ExactModel model(problem);
  result.bound = model.lower_bound();
  if (!model.fits()) return result;
  const auto goal = [&] { return std::max(result.bound, budget.target); };
  ExactSearch search(model);
  for (std::int64_t step = kFirstNodes;; step *= 2) {
    Bytes apart = 0;  // of the next height to try from the bound
    while (result.layout.height > goal()) {
      if (budget.expired() || search.nodes() >= nodes) return result;
      const Bytes highest = result.layout.height - model.unit;
      const Bytes span = highest - std::min(goal(), highest);
      const Bytes height = highest - span + std::min(apart, span);
      const std::int64_t left = std::min(step, nodes - search.nodes());
      const Verdict verdict = search.run(height / model.unit - model.base, left, budget);
      if (verdict == Verdict::kFound) {
        result.layout = model.layout(problem, search.offsets());
        continue;
      }
      if (verdict == Verdict::kInfeasible) {
        result.bound = std::max(result.bound, (height / model.unit + 1) * model.unit);
        continue;
      }
      if (height == highest) break;
      apart = apart > span / 4 ? span : std::max({4 * apart, span / 64, model.unit});
    }
    if (result.layout.height <= goal()) return result;
  }
}

Layout ExactPlanner::plan(const Problem& problem, const Budget& budget) const {
  Budget enough = budget;
  enough.target = std::max(budget.target, problem.capacity);
  const Minimum minimum = minimise_height(problem, greedy_layout(problem, budget),
                                          std::numeric_limits<std::int64_t>::max(), enough);
  if (problem.capacity > 0 && minimum.bound > problem.capacity) {
    throw PlanError("no layout fits a capacity of " + std::to_string(problem.capacity) +
                    " bytes: it is proven that none is lower than " +
                    std::to_string(minimum.bound));
  }
  return minimum.layout;
}

}  // namespace stalloc
