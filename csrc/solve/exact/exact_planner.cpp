#include "solve/exact/exact_planner.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "solve/core/order.h"
#include "solve/core/timeline.h"
#include "solve/exact/exact_model.h"
#include "solve/exact/exact_search.h"
#include "solve/greedy/greedy.h"

namespace stalloc::solve {
namespace {

constexpr std::int64_t kFirstNodes = 4096;  // for the first try of a height; later tries have more

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

// Tries the bound first, which is often met. Then halves the interval between the bound and the
// best layout, with a limited number of nodes for each try. Then repeats all that with more nodes.
Minimum minimise_height(const Problem& problem, const Layout& start, std::int64_t nodes,
                        const Budget& budget) {
  Minimum result{start, 0};
  const ExactModel model(problem);
  result.bound = model.lower_bound();
  if (!model.fits()) return result;
  const auto goal = [&] { return std::max(result.bound, budget.target); };
  ExactSearch search(model);
  for (std::int64_t step = kFirstNodes; result.layout.height > goal(); step *= 2) {
    Units low = goal() / model.unit;
    Units high = (result.layout.height - 1) / model.unit;
    for (Units height = low; low <= high; height = low + (high - low) / 2) {
      if (budget.expired() || search.nodes() >= nodes) return result;
      const std::int64_t left = std::min(step, nodes - search.nodes());
      const Verdict verdict = search.run(height - model.base, left, budget);
      if (verdict == Verdict::kFound) {
        result.layout = model.layout(problem, search.offsets());
        high = (result.layout.height - 1) / model.unit;
      } else if (verdict == Verdict::kInfeasible) {
        result.bound = std::max(result.bound, (height + 1) * model.unit);
      }
      if (verdict == Verdict::kUnknown) low = height + 1;
      low = std::max(low, goal() / model.unit);
      if (result.layout.height <= goal()) break;
    }
  }
  return result;
}

Minimum fit_target(const Problem& problem, const Layout& start, std::int64_t nodes,
                   const Budget& budget) {
  Minimum result{start, 0};
  const ExactModel model(problem);
  result.bound = model.lower_bound();
  if (!model.fits() || result.bound > budget.target) return result;
  ExactSearch search(model);
  const Units height = budget.target / model.unit;
  const Verdict verdict = search.run(height - model.base, nodes, budget, ExactSearch::Focus::kHard);
  if (verdict == Verdict::kFound) result.layout = model.layout(problem, search.offsets());
  if (verdict == Verdict::kInfeasible) result.bound = (height + 1) * model.unit;
  return result;
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

}  // namespace stalloc::solve
