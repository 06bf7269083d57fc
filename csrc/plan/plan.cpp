#include "plan/plan.h"

#include <string>

#include "base/error.h"

namespace stalloc::plan {

solve::Problem problem_of(const Plan& plan) {
  solve::Problem problem;
  problem.period = plan.period;
  problem.alignment = plan.alignment;
  problem.streams = plan.streams;
  problem.buffers.reserve(plan.decisions.size() + plan.groups.size());
  for (const Decision& d : plan.decisions) {
    problem.buffers.push_back({.size = d.size,
                               .lower = d.lower,
                               .upper = d.slots == kNone ? d.upper : d.lower,
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

solve::Layout layout_of(const Plan& plan) {
  solve::Layout layout;
  layout.height = plan.pool;
  layout.offsets.reserve(plan.decisions.size() + plan.groups.size());
  for (const Decision& d : plan.decisions) layout.offsets.push_back(d.offset);
  for (const DynamicGroup& g : plan.groups) layout.offsets.push_back(g.offset);
  layout.offsets.insert(layout.offsets.end(), plan.walls.begin(), plan.walls.end());
  for (const SlotClass& c : plan.slots) layout.offsets.push_back(c.offset);
  return layout;
}

std::vector<ContextRow> context_rows(const Plan& plan) {
  std::vector<ContextRow> rows;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    for (const profile::DynamicContext& context : plan.groups[i].contexts) {
      rows.push_back({static_cast<std::int32_t>(i), context});
    }
  }
  return rows;
}

std::vector<LawTermRow> law_term_rows(const Plan& plan) {
  std::vector<LawTermRow> rows;
  for (std::size_t i = 0; i < plan.laws.size(); ++i) {
    for (const auto& [coefficient, factors] : plan.laws[i].terms) {
      rows.push_back(
          {static_cast<profile::LawIndex>(i), coefficient, factors[0], factors[1], factors[2]});
    }
  }
  return rows;
}

std::vector<ReusableRow> reusable_rows(const Plan& plan) {
  std::vector<ReusableRow> rows;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    for (const AddressRange& range : plan.groups[i].reusable) {
      rows.push_back({static_cast<std::int32_t>(i), range});
    }
  }
  return rows;
}

std::vector<SlotRow> slot_decision_rows(const Plan& plan) {
  std::vector<SlotRow> rows;
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    const Decision& d = plan.decisions[i];
    if (d.slots != kNone) rows.push_back({static_cast<std::int32_t>(i), d.slots, d.over, d.box});
  }
  return rows;
}

std::vector<SlotRow> slot_startup_rows(const Plan& plan) {
  std::vector<SlotRow> rows;
  for (std::size_t i = 0; i < plan.startup.size(); ++i) {
    const StartupRequest& r = plan.startup[i];
    if (r.slots != kNone) rows.push_back({.row = static_cast<std::int32_t>(i), .slots = r.slots});
  }
  return rows;
}

}  // namespace stalloc::plan
