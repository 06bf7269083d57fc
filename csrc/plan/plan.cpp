#include "plan/plan.h"

#include <string>

#include "base/error.h"

namespace stalloc::plan {

namespace {

// A request of at most one part in so many of the load is small.
constexpr Bytes kSmallPart = 4000;

// The end of a decision's lifetime in the problem. One that takes turns has its place until the end
// of its iteration, and is a turn's block from then on.
Tick end_of(const Decision& d, Tick period) {
  if (d.slots != kNone) return d.lower;
  return d.over > 0 ? period : d.upper;
}

}  // namespace

solve::Problem problem_of(const Plan& plan) {
  solve::Problem problem;
  problem.period = plan.period;
  problem.alignment = plan.alignment;
  problem.streams = plan.streams;
  problem.buffers.reserve(plan.decisions.size() + plan.groups.size());
  for (const Decision& d : plan.decisions) {
    problem.buffers.push_back({.size = d.size,
                               .lower = d.lower,
                               .upper = end_of(d, plan.period),
                               .stream = d.stream,
                               .phase_begin = d.phase,
                               .phase_end = d.phase_end});
  }
  for (const DynamicGroup& g : plan.groups) {
    problem.buffers.push_back({.size = g.size,
                               .lower = g.lower,
                               .upper = g.upper,
                               .stream = g.stream,
                               .phase_begin = g.phase,
                               .phase_end = g.phase_end});
  }
  for (const Turn& t : plan.turns) {
    const Decision& d = plan[t.decision];
    problem.buffers.push_back({.size = t.size, .upper = d.lower + d.over, .stream = d.stream});
  }
  for (const Offset wall : plan.walls) {
    problem.buffers.push_back({.size = plan.alignment, .upper = plan.period, .fixed = wall});
  }
  for (const SlotClass& c : plan.slots) {
    Bytes size = 0;
    if (__builtin_mul_overflow(c.size, Bytes{c.count}, &size)) {
      throw PlanError("slots: " + std::to_string(c.count) + " of " + std::to_string(c.size) +
                      " bytes are too many");
    }
    problem.buffers.push_back({.size = size, .upper = plan.period, .stream = c.stream});
  }
  return problem;
}

Bytes largest_small(const Plan& plan) { return plan.load / kSmallPart; }

solve::Layout layout_of(const Plan& plan) {
  solve::Layout layout;
  layout.height = plan.pool;
  layout.offsets.reserve(plan.decisions.size() + plan.groups.size());
  for (const Decision& d : plan.decisions) layout.offsets.push_back(d.offset);
  for (const DynamicGroup& g : plan.groups) layout.offsets.push_back(g.offset);
  for (const Turn& t : plan.turns) layout.offsets.push_back(t.offset);
  layout.offsets.insert(layout.offsets.end(), plan.walls.begin(), plan.walls.end());
  for (const SlotClass& c : plan.slots) layout.offsets.push_back(c.offset);
  return layout;
}

std::vector<TurnRow> turn_rows(const Plan& plan) {
  std::vector<TurnRow> rows;
  for (const Turn& t : plan.turns) {
    const auto [first, second] = t.places;
    rows.push_back({t.decision, plan[t.decision].over, t.offset, t.size, first, second});
  }
  return rows;
}

std::vector<ContextRow> context_rows(const Plan& plan) {
  std::vector<ContextRow> rows;
  for (const GroupIndex g : indices<GroupIndex>(plan.groups)) {
    for (const profile::DynamicContext& context : plan[g].contexts) {
      rows.push_back({g, context});
    }
  }
  return rows;
}

std::vector<LawTermRow> law_term_rows(const Plan& plan) {
  std::vector<LawTermRow> rows;
  for (const profile::LawIndex l : indices<profile::LawIndex>(plan.laws)) {
    for (const auto& [coefficient, factors] : plan[l].terms) {
      rows.push_back({l, coefficient, factors[0], factors[1], factors[2]});
    }
  }
  return rows;
}

std::vector<ReusableRow> reusable_rows(const Plan& plan) {
  std::vector<ReusableRow> rows;
  for (const GroupIndex g : indices<GroupIndex>(plan.groups)) {
    for (const AddressRange& range : plan[g].reusable) {
      rows.push_back({g, range});
    }
  }
  return rows;
}

std::vector<SlotDecisionRow> slot_decision_rows(const Plan& plan) {
  std::vector<SlotDecisionRow> rows;
  for (const DecisionIndex i : indices<DecisionIndex>(plan.decisions)) {
    const Decision& d = plan[i];
    if (d.slots != kNone) rows.push_back({i, d.slots, d.over, d.box});
  }
  return rows;
}

std::vector<SlotStartupRow> slot_startup_rows(const Plan& plan) {
  std::vector<SlotStartupRow> rows;
  for (const StartupIndex i : indices<StartupIndex>(plan.startup)) {
    if (plan[i].slots != kNone) rows.push_back({i, plan[i].slots, plan[i].decision});
  }
  return rows;
}

}  // namespace stalloc::plan
