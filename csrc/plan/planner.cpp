#include "plan/planner.h"

#include "base/error.h"
#include "plan/chain.h"
#include "plan/exact_planner.h"
#include "plan/greedy.h"
#include "plan/paper_planner.h"
#include "plan/peak_core.h"
#include "plan/two_stacks.h"
#include "plan/walk.h"
#include "plan/windows.h"

namespace stalloc {

const std::vector<const Planner*>& planners() {
  static const PaperPlanner paper;
  static const ChainPlanner chain;
  static const ExactPlanner exact;
  static const TwoStacksPlanner two_stacks;
  static const WalkPlanner walk;
  static const WindowsPlanner windows;
  static const PeakCorePlanner peak_core;
  static const std::vector<const Planner*> all = [] {
    std::vector<const Planner*> list;
    for (const GreedyPlanner& greedy : greedy_planners()) list.push_back(&greedy);
    list.push_back(&paper);
    list.push_back(&chain);
    list.push_back(&two_stacks);
    list.push_back(&walk);
    list.push_back(&peak_core);
    list.push_back(&windows);
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

}  // namespace stalloc
