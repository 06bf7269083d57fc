#include "base/error.h"
#include "solve/core/planner.h"
#include "solve/exact/exact_planner.h"
#include "solve/exact/peak_core.h"
#include "solve/greedy/greedy.h"
#include "solve/paper/paper_planner.h"
#include "solve/pipeline/chain.h"
#include "solve/pipeline/two_stacks.h"
#include "solve/pipeline/walk.h"
#include "solve/search/multilevel.h"
#include "solve/search/tight_moments.h"

namespace stalloc::solve {

const std::vector<const Planner*>& planners() {
  static const PaperPlanner paper;
  static const ChainPlanner chain;
  static const ExactPlanner exact;
  static const TwoStacksPlanner two_stacks;
  static const WalkPlanner walk;
  static const MultilevelPlanner multilevel;
  static const TightMomentsPlanner tight_moments;
  static const PeakCorePlanner peak_core;
  static const std::vector<const Planner*> all = [] {
    std::vector<const Planner*> list;
    for (const GreedyPlanner& greedy : greedy_planners()) list.push_back(&greedy);
    list.push_back(&paper);
    list.push_back(&chain);
    list.push_back(&two_stacks);
    list.push_back(&walk);
    list.push_back(&peak_core);
    list.push_back(&multilevel);
    list.push_back(&tight_moments);
    list.push_back(&exact);
    return list;
  }();
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

}  // namespace stalloc::solve
