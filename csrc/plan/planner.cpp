#include "plan/planner.h"

#include "base/error.h"
#include "plan/greedy.h"

namespace stalloc {

const std::vector<const Planner*>& planners() {
  static const GreedyPlanner peak_rank_end(Order::kPeakRankEnd, Fit::kFirst);
  static const GreedyPlanner peak_rank_start(Order::kPeakRankStart, Fit::kFirst);
  static const GreedyPlanner peak_rank_size(Order::kPeakRankSize, Fit::kFirst);
  static const GreedyPlanner centre_out_end(Order::kCentreOutEnd, Fit::kFirst);
  static const GreedyPlanner centre_out_size(Order::kCentreOutSize, Fit::kFirst);
  static const GreedyPlanner best_centre_out_end(Order::kCentreOutEnd, Fit::kBest);
  static const GreedyPlanner start(Order::kStart, Fit::kFirst);
  static const GreedyPlanner lifetime(Order::kLifetime, Fit::kFirst);
  static const GreedyPlanner area(Order::kArea, Fit::kFirst);
  static const GreedyPlanner size(Order::kSize, Fit::kFirst);
  static const GreedyPlanner best_size(Order::kSize, Fit::kBest);
  static const std::vector<const Planner*> all = {
      &peak_rank_end,  &peak_rank_start, &peak_rank_size,
      &centre_out_end, &centre_out_size, &best_centre_out_end,
      &start,          &lifetime,        &area,
      &size,           &best_size};
  return all;
}

const Planner& planner(std::string_view name) {
  std::string known;
  for (const Planner* candidate : planners()) {
    if (candidate->name() == name) return *candidate;
    known += known.empty() ? "" : ", ";
    known += candidate->name();
  }
  throw PlanError("there is no planner \"" + std::string(name) + "\"; there are " + known);
}

}  // namespace stalloc
