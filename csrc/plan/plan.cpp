#include "plan/plan.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "plan/portfolio.h"
#include "plan/validator.h"

namespace stalloc {
namespace {

std::string named(std::string_view table, std::size_t row) {
  return std::string(table) + ", row " + std::to_string(row) + ": ";
}

Budget budget_of(const PlanOptions& options, const std::atomic<bool>* cancel,
                 const std::function<void(double)>& progress) {
  if (!(options.time_limit >= 0)) {
    throw PlanError("the time limit must be a number of seconds from 0 up, and is " +
                    std::to_string(options.time_limit));
  }
  constexpr double kForever = 1e9;
  Budget budget;
  budget.cancel = cancel;
  budget.progress = progress;
  if (options.time_limit < kForever) {
    budget.deadline =
        std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                               std::chrono::duration<double>(options.time_limit));
  }
  return budget;
}

// The profile's phases but the unplanned ones, and where each of the profile's went.
std::pair<std::vector<ProfiledPhase>, std::vector<PhaseIndex>> planned_phases(
    const IterationProfile& profile) {
  std::vector<ProfiledPhase> phases;
  std::vector<PhaseIndex> index;
  for (const ProfiledPhase& phase : profile.phases) {
    const bool planned = phase.key.kind != PhaseKind::kUnplanned;
    index.push_back(planned ? static_cast<PhaseIndex>(phases.size()) : kNone);
    if (planned) phases.push_back(phase);
  }
  return {std::move(phases), std::move(index)};
}

// What the plan's decisions answer.
Problem problem_of(const Plan& plan) {
  Problem problem;
  problem.period = plan.period;
  problem.alignment = plan.alignment;
  problem.buffers.reserve(plan.decisions.size());
  for (const Decision& d : plan.decisions) {
    problem.buffers.push_back({.size = d.size,
                               .lower = d.lower,
                               .upper = d.upper,
                               .stream = d.stream,
                               .phase_begin = d.phase,
                               .phase_end = d.phase_end});
  }
  return problem;
}

void check_phases(const Plan& plan) {
  std::set<PhaseKey> seen;
  for (std::size_t i = 0; i < plan.phases.size(); ++i) {
    const auto& [key, begin, end] = plan.phases[i];
    if (key.kind == PhaseKind::kUnplanned) {
      throw PlanError(named("phases", i) + "an unplanned phase in a plan");
    }
    if (key.microbatch < kNone || key.chunk < 0 || key.occurrence < 0) {
      throw PlanError(named("phases", i) + "a negative microbatch, chunk or occurrence");
    }
    if (begin < 0 || end < begin || end > plan.period) {
      throw PlanError(named("phases", i) + "runs from tick " + std::to_string(begin) + " to " +
                      std::to_string(end) + ", outside the iteration's " +
                      std::to_string(plan.period));
    }
    if (!seen.insert(key).second) throw PlanError(named("phases", i) + "the phase is there twice");
  }
}

void check_decisions(const Plan& plan) {
  const auto phases = static_cast<PhaseIndex>(plan.phases.size());
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    const Decision& d = plan.decisions[i];
    if (d.size <= 0) {
      throw PlanError(named("decisions", i) + "a size of " + std::to_string(d.size) +
                      " bytes is not positive");
    }
    if (d.phase < 0 || d.phase >= phases || d.phase_end < kNone || d.phase_end >= phases) {
      throw PlanError(named("decisions", i) + "lives from phase " + std::to_string(d.phase) +
                      " to " + std::to_string(d.phase_end) + ", but there are " +
                      std::to_string(phases) + " phases");
    }
    if (d.stream < 0) throw PlanError(named("decisions", i) + "a negative stream");
    if (d.lower < 0 || d.lower >= plan.period || d.upper <= d.lower ||
        d.upper - d.lower > plan.period) {
      throw PlanError(named("decisions", i) + "lives from tick " + std::to_string(d.lower) +
                      " to " + std::to_string(d.upper) + ", which an iteration of " +
                      std::to_string(plan.period) + " ticks cannot hold");
    }
    if (i == 0) continue;
    const Decision& before = plan.decisions[i - 1];
    if (std::pair{before.phase, before.lower} >= std::pair{d.phase, d.lower}) {
      throw PlanError(named("decisions", i) + "out of order: they go by phase, then by tick");
    }
  }
}

}  // namespace

void Plan::check() const {
  if (alignment <= 0) throw PlanError("alignment: " + std::to_string(alignment) + " bytes");
  if (period < 0) throw PlanError("period: " + std::to_string(period) + " ticks");
  if (load < 0) throw PlanError("load: " + std::to_string(load) + " bytes");
  if (bound < 0 || pool < bound) {
    throw PlanError("pool: " + std::to_string(pool) + " bytes, less than the bound of " +
                    std::to_string(bound));
  }
  check_phases(*this);
  check_decisions(*this);
  const Problem problem = problem_of(*this);
  problem.check();
  Layout layout;
  layout.height = pool;
  layout.offsets.reserve(decisions.size());
  for (const Decision& d : decisions) layout.offsets.push_back(d.offset);
  try {
    validate(problem, layout);
  } catch (const PlanError& error) {
    throw PlanError("decisions (as buffers, by row): " + std::string(error.what()));
  }
}

Plan make_plan(const IterationProfile& profile, const PlanOptions& options,
               const std::atomic<bool>* cancel, const std::function<void(double)>& progress) {
  const Budget budget = budget_of(options, cancel, progress);
  Plan plan;
  plan.alignment = options.alignment;
  plan.load = profile.load;
  plan.period = profile.period;
  std::vector<PhaseIndex> phase_of;
  std::tie(plan.phases, phase_of) = planned_phases(profile);
  for (const ProfiledRequest& r : profile.requests) {
    if (!profile.is_plannable(r)) continue;
    plan.decisions.push_back({.size = r.size,
                              .lower = r.lower,
                              .upper = r.upper,
                              .phase = phase_of[r.phase_begin],
                              .phase_end = phase_of[r.phase_end],
                              .stream = r.stream});
  }
  std::ranges::sort(plan.decisions, {},
                    [](const Decision& d) { return std::pair{d.phase, d.lower}; });

  const PortfolioResult result = solve(problem_of(plan), {.algorithm = options.algorithm}, budget);
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    plan.decisions[i].offset = result.layout.offsets[i];
  }
  plan.algorithm = result.algorithm;
  plan.optimal = result.optimal;
  plan.pool = result.layout.height;
  plan.bound = result.bound;
  plan.check();
  return plan;
}

}  // namespace stalloc
