#include "plan/layout.h"

#include <algorithm>
#include <utility>

#include "base/align.h"
#include "base/error.h"
#include "plan/boxes.h"
#include "plan/covered.h"
#include "plan/late_frees.h"
#include "plan/numbers.h"
#include "plan/reusable.h"
#include "plan/slots.h"
#include "solve/core/bound.h"
#include "solve/portfolio.h"

namespace stalloc::plan {
namespace {

// A pool needs much more than a load if that is more than one part in so many, and without dynamic
// groups also so many bytes.
constexpr Bytes kIdleParts = 50;
constexpr Bytes kLeastIdle = Bytes{8} << 20;

void add_reusable(Plan& plan, const solve::Problem& problem, const solve::Layout& layout) {
  std::vector<Window> windows;
  for (const DynamicGroup& g : plan.groups) windows.push_back({g.lower, g.upper, g.stream});
  auto ranges = reusable_space(problem, layout, windows);
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    plan.groups[i].reusable = std::move(ranges[i]);
  }
}

// The problem of everything above the slots and the numbers, which end at `bottom`. Its offsets
// count from there.
solve::Problem problem_above(const Plan& plan, const LayoutOptions& options,
                             const NumbersApart& numbers, Bytes bottom) {
  solve::Problem problem = problem_of(plan);
  problem.buffers.resize(problem.buffers.size() - plan.slots.size());
  problem.holds = holds_of(plan);
  for (const DecisionIndex d : options.fixed.indices()) {
    problem.buffers[d.position()].fixed = options.fixed[d];
  }
  for (const GroupIndex g : options.fixed_regions.indices()) {
    problem.buffers[plan.decisions.size() + g.position()].fixed = options.fixed_regions[g];
  }
  const std::size_t turns = plan.decisions.size() + plan.groups.size();
  for (const TurnIndex t : options.fixed_turns.indices()) {
    problem.buffers[turns + t.position()].fixed = options.fixed_turns[t];
  }
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    const Decision& d = plan.decisions[i];
    if (d.slots != kNone || numbers.contains(d)) {
      problem.buffers[i].size = 0;
      problem.buffers[i].fixed = kUnplaced;
    }
  }
  for (solve::Buffer b : options.obstacles) {
    // A number that finds its address taken lies elsewhere.
    const Offset end = b.fixed + align_up(b.size, plan.alignment);
    if (b.fixed < bottom && numbers.size() > 0) {
      b.fixed = std::min(bottom, end);
      b.size = end - b.fixed;
    }
    if (b.size > 0) problem.buffers.push_back(b);
  }
  for (solve::Buffer& b : problem.buffers) {
    if (b.fixed == kUnplaced) continue;
    if (b.fixed < bottom) throw PlanError("a fixed offset lies inside the slots");
    b.fixed -= bottom;
  }
  return problem;
}

// The addresses of the buffers of problem_of() with these indices.
RangeSet addresses_of(const Plan& plan, auto is_wanted) {
  const solve::Problem problem = problem_of(plan);
  const solve::Layout layout = layout_of(plan);
  RangeSet taken;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Bytes size = align_up(problem.buffers[i].size, plan.alignment);
    const Range added{layout.offsets[i], layout.offsets[i] + size};
    if (size <= 0 || !is_wanted(i) || taken.holds(added)) continue;
    taken.remove(added);
    taken.insert_merged(added);
  }
  return taken;
}

}  // namespace

std::int64_t lay_out(Plan& plan, const LayoutOptions& options, const solve::Budget& budget) {
  const NumbersApart numbers(plan);
  const Bytes bottom = numbers.place(plan, place_slots(plan));
  const solve::Problem problem = problem_above(plan, options, numbers, bottom);
  solve::Budget above = budget;
  if (budget.target > 0) above.target = std::max<Bytes>(budget.target - bottom, 1);
  const solve::PortfolioResult result = solve::solve(problem,
                                                     {.algorithm = options.algorithm,
                                                      .threads = options.threads,
                                                      .work = options.work,
                                                      .search_steps = options.search_steps},
                                                     above);
  const std::vector<Offset>& offsets = result.layout.offsets;
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    Decision& d = plan.decisions[i];
    if (d.slots == kNone && !numbers.contains(d)) d.offset = bottom + offsets[i];
  }
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    plan.groups[i].offset = bottom + offsets[plan.decisions.size() + i];
  }
  const std::size_t turns = plan.decisions.size() + plan.groups.size();
  for (std::size_t i = 0; i < plan.turns.size(); ++i) {
    plan.turns[i].offset = bottom + offsets[turns + i];
  }
  plan.pool = bottom + result.layout.height;
  make_room_for_late_frees(plan, options.fixed, options.obstacles);
  plan.algorithm = result.algorithm;
  plan.optimal = result.optimal;
  plan.bound = bottom + result.bound;  // without slots: numbers are always live
  if (!plan.slots.empty()) {
    plan.bound = solve::load_bound(real_problem(plan));
    plan.optimal = plan.pool == bound_with_slots(plan);
  }
  add_reusable(plan, problem_of(plan), layout_of(plan));
  return result.work;
}

RangeSet addresses_of(const Plan& plan) {
  return addresses_of(plan, [](std::size_t) { return true; });
}

RangeSet static_addresses_of(const Plan& plan) {
  const std::size_t regions = plan.decisions.size();
  return addresses_of(
      plan, [&](std::size_t i) { return i < regions || i >= regions + plan.groups.size(); });
}

bool exceeds_load(const Plan& plan, Bytes pool) {
  const Bytes load = plan.recorded_load > 0 ? plan.recorded_load : plan.load;
  const Bytes least = plan.groups.empty() ? kLeastIdle : 0;
  return pool + plan.resident > load + std::max(load / kIdleParts, least);
}

bool has_idle(const Plan& plan) {
  const bool changes =
      !plan.groups.empty() || !plan.extents.empty() || plan.recorded_load < plan.load;
  return changes && (plan.recorded_load > 0 || !plan.groups.empty()) &&
         exceeds_load(plan, plan.pool);
}

}  // namespace stalloc::plan
