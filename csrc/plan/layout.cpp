#include "plan/layout.h"

#include <utility>

#include "plan/reusable.h"
#include "plan/slots.h"
#include "solve/portfolio.h"

namespace stalloc::plan {
namespace {

void add_reusable(Plan& plan, const solve::Problem& problem, const solve::Layout& layout) {
  std::vector<Window> windows;
  for (const DynamicGroup& g : plan.groups) windows.push_back({g.lower, g.upper, g.stream});
  auto ranges = reusable_space(problem, layout, windows);
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    plan.groups[i].reusable = std::move(ranges[i]);
  }
}

}  // namespace

void lay_out(Plan& plan, const LayoutOptions& options, const solve::Budget& budget) {
  solve::Problem problem = problem_of(plan);
  for (std::size_t i = 0; i < options.fixed.size(); ++i) {
    problem.buffers[i].fixed = options.fixed[i];
  }
  const solve::PortfolioResult result = solve::solve(problem,
                                                     {.algorithm = options.algorithm,
                                                      .threads = options.threads,
                                                      .search_steps = options.search_steps},
                                                     budget);
  const std::vector<Offset>& offsets = result.layout.offsets;
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) plan.decisions[i].offset = offsets[i];
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    plan.groups[i].offset = offsets[plan.decisions.size() + i];
  }
  plan.algorithm = result.algorithm;
  plan.optimal = result.optimal;
  plan.pool = result.layout.height;
  plan.bound = result.bound;
  if (!plan.slots.empty()) {
    place_slots(plan, result.layout);
    plan.bound = bound_with_slots(plan, problem);
    plan.optimal = plan.pool == plan.bound;
  }
  add_reusable(plan, problem, result.layout);
}

}  // namespace stalloc::plan
