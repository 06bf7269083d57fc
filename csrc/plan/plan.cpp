#include "plan/plan.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "plan/opening.h"
#include "plan/regions.h"
#include "plan/reusable.h"
#include "profile/roles.h"
#include "solve/portfolio.h"
#include "verify/idle_validator.h"
#include "verify/validator.h"

namespace stalloc::plan {
namespace {

std::string named(std::string_view table, std::size_t row) {
  return std::string(table) + ", row " + std::to_string(row) + ": ";
}

solve::Budget budget_of(const PlanOptions& options, const std::atomic<bool>* cancel,
                        const std::function<void(double)>& progress) {
  if (!(options.time_limit >= 0)) {
    throw PlanError("the time limit must be a number of seconds from 0 up, and is " +
                    std::to_string(options.time_limit));
  }
  constexpr double kForever = 1e9;
  solve::Budget budget;
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
std::pair<std::vector<profile::ProfiledPhase>, std::vector<PhaseIndex>> planned_phases(
    const profile::IterationProfile& profile) {
  std::vector<profile::ProfiledPhase> phases;
  std::vector<PhaseIndex> index;
  for (const profile::ProfiledPhase& phase : profile.phases) {
    const bool planned = phase.key.kind != trace::PhaseKind::kUnplanned;
    index.push_back(planned ? static_cast<PhaseIndex>(phases.size()) : kNone);
    if (planned) phases.push_back(phase);
  }
  return {std::move(phases), std::move(index)};
}

void check_phases(const Plan& plan) {
  std::set<trace::PhaseKey> seen;
  for (std::size_t i = 0; i < plan.phases.size(); ++i) {
    const auto& [key, begin, end] = plan.phases[i];
    if (key.kind == trace::PhaseKind::kUnplanned) {
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

// Of a decision or a group.
void check_lifetime(const Plan& plan, const auto& d, std::string_view table, std::size_t row) {
  const auto phases = static_cast<PhaseIndex>(plan.phases.size());
  if (d.phase < 0 || d.phase >= phases || d.phase_end < kNone || d.phase_end >= phases) {
    throw PlanError(named(table, row) + "lives from phase " + std::to_string(d.phase) + " to " +
                    std::to_string(d.phase_end) + ", but there are " + std::to_string(phases) +
                    " phases");
  }
  if (d.stream < 0) throw PlanError(named(table, row) + "a negative stream");
  if (d.lower < 0 || d.lower >= plan.period || d.upper <= d.lower ||
      d.upper - d.lower > plan.period) {
    throw PlanError(named(table, row) + "lives from tick " + std::to_string(d.lower) + " to " +
                    std::to_string(d.upper) + ", which an iteration of " +
                    std::to_string(plan.period) + " ticks cannot hold");
  }
}

void check_decisions(const Plan& plan) {
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    const Decision& d = plan.decisions[i];
    if (d.size <= 0) {
      throw PlanError(named("decisions", i) + "a size of " + std::to_string(d.size) +
                      " bytes is not positive");
    }
    check_lifetime(plan, d, "decisions", i);
    if (i == 0) continue;
    const Decision& before = plan.decisions[i - 1];
    if (std::pair{before.phase, before.lower} >= std::pair{d.phase, d.lower}) {
      throw PlanError(named("decisions", i) + "out of order: they go by phase, then by tick");
    }
  }
}

void check_reusable(const Plan& plan, std::size_t row) {
  Offset last = kNone;  // where the range before it ends
  for (const auto& [begin, end] : plan.groups[row].reusable) {
    if (begin <= last || end <= begin || end > plan.pool || begin % plan.alignment != 0) {
      throw PlanError(named("groups", row) + "the reusable range from " + std::to_string(begin) +
                      " to " + std::to_string(end) +
                      " is out of order, empty, not aligned or outside the pool");
    }
    last = end;
  }
}

void check_contexts(const Plan& plan, std::size_t row) {
  const auto& contexts = plan.groups[row].contexts;
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const auto& [size, before, earlier] = contexts[i];
    const auto is_one_before = [](Bytes of) {
      return of >= profile::DynamicContext::kIgnored || of == profile::DynamicContext::kUnsure ||
             profile::Ratio::is_code(of);
    };
    const bool is_size = size >= profile::DynamicContext::kVaries ||
                         size == profile::DynamicContext::kSmall ||
                         size == profile::DynamicContext::kUnsure || profile::Ratio::is_code(size);
    if (!is_size || !is_one_before(before) || !is_one_before(earlier)) {
      throw PlanError(named("groups", row) + "a context's sizes are " + std::to_string(size) +
                      ", " + std::to_string(before) + " and " + std::to_string(earlier));
    }
    if (i > 0 && contexts[i - 1] >= contexts[i]) {
      throw PlanError(named("groups", row) + "its contexts are out of order");
    }
  }
}

// Of a group or a persistent request.
void check_after(const Plan& plan, const auto& r, std::string_view table, std::size_t row) {
  const auto decisions = static_cast<std::int32_t>(plan.decisions.size());
  if (r.after < kNone || r.after >= decisions ||
      (r.after != kNone && plan.decisions[r.after].phase != r.phase)) {
    throw PlanError(named(table, row) + "comes after decision " + std::to_string(r.after) +
                    ", which is none of its phase");
  }
}

void check_groups(const Plan& plan) {
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const DynamicGroup& g = plan.groups[i];
    if (g.size < 0 || g.size % plan.alignment != 0) {
      throw PlanError(named("groups", i) + "a region of " + std::to_string(g.size) +
                      " bytes is negative or no multiple of " + std::to_string(plan.alignment));
    }
    check_lifetime(plan, g, "groups", i);
    check_after(plan, g, "groups", i);
    check_contexts(plan, i);
    check_reusable(plan, i);
    if (i == 0) continue;
    const DynamicGroup& before = plan.groups[i - 1];
    if (std::tie(before.phase, before.after, before.stream) >
        std::tie(g.phase, g.after, g.stream)) {
      throw PlanError(named("groups", i) +
                      "out of order: they go by phase, then by decision, then by stream");
    }
  }
}

void check_persistent(const Plan& plan) {
  for (std::size_t i = 0; i < plan.persistent.size(); ++i) {
    const PersistentRequest& r = plan.persistent[i];
    if (r.phase < 0 || r.phase >= static_cast<PhaseIndex>(plan.phases.size())) {
      throw PlanError(named("persistent", i) + "belongs to phase " + std::to_string(r.phase) +
                      ", but there are " + std::to_string(plan.phases.size()) + " phases");
    }
    if (r.size <= 0 || r.stream < 0) {
      throw PlanError(named("persistent", i) + "a size of " + std::to_string(r.size) +
                      " bytes on stream " + std::to_string(r.stream));
    }
    check_after(plan, r, "persistent", i);
    if (i == 0) continue;
    const PersistentRequest& before = plan.persistent[i - 1];
    if (std::tie(before.phase, before.after) > std::tie(r.phase, r.after)) {
      throw PlanError(named("persistent", i) + "out of order: they go by phase, then by decision");
    }
  }
}

// That nothing lies in the reusable space.
void check_idle(const Plan& plan, const solve::Problem& problem, const solve::Layout& layout) {
  std::vector<verify::IdleClaim> claims;
  for (const DynamicGroup& g : plan.groups) {
    for (const auto& [begin, end] : g.reusable) {
      claims.push_back({begin, end, g.lower, g.upper, g.stream});
    }
  }
  try {
    verify::validate_idle(problem, layout, claims);
  } catch (const PlanError& error) {
    throw PlanError("groups, reusable ranges (as claims on buffers: decisions, then groups): " +
                    std::string(error.what()));
  }
}

// The decisions, without offsets, and for each of the profile's requests its row or kNone.
std::vector<std::int32_t> add_decisions(Plan& plan, const profile::IterationProfile& profile,
                                        const std::vector<PhaseIndex>& phase_of) {
  std::vector<std::int32_t> requests;
  for (std::size_t i = 0; i < profile.requests.size(); ++i) {
    if (profile.is_plannable(profile.requests[i])) {
      requests.push_back(static_cast<std::int32_t>(i));
    }
  }
  std::ranges::sort(requests, {}, [&](std::int32_t i) {
    const profile::ProfiledRequest& r = profile.requests[i];
    return std::pair{r.phase_begin, r.lower};
  });
  std::vector<std::int32_t> row_of(profile.requests.size(), kNone);
  for (const std::int32_t i : requests) {
    const profile::ProfiledRequest& r = profile.requests[i];
    row_of[i] = static_cast<std::int32_t>(plan.decisions.size());
    plan.decisions.push_back({.size = r.size,
                              .lower = r.lower,
                              .upper = r.upper,
                              .phase = phase_of[r.phase_begin],
                              .phase_end = phase_of[r.phase_end],
                              .stream = r.stream});
  }
  return row_of;
}

void add_persistent(Plan& plan, const profile::IterationProfile& profile,
                    const std::vector<PhaseIndex>& phase_of) {
  std::vector<const profile::ProfiledRequest*> requests;
  for (const profile::ProfiledRequest& r : profile.requests) {
    if (profile.is_recognisable(r)) requests.push_back(&r);
  }
  std::ranges::stable_sort(requests, {},
                           [](const auto* r) { return std::pair{r->phase_begin, r->lower}; });
  std::int32_t next = 0;  // the first decision that comes later
  const auto decisions = static_cast<std::int32_t>(plan.decisions.size());
  for (const profile::ProfiledRequest* r : requests) {
    const PhaseIndex phase = phase_of[r->phase_begin];
    while (next < decisions && std::pair{plan.decisions[next].phase, plan.decisions[next].lower} <
                                   std::pair{phase, r->lower}) {
      ++next;
    }
    const bool first = next == 0 || plan.decisions[next - 1].phase != phase;
    plan.persistent.push_back({phase, first ? kNone : next - 1, r->size, r->stream});
  }
}

// The groups, without offsets and reusable space.
void add_groups(Plan& plan, const profile::IterationProfile& profile,
                const std::vector<PhaseIndex>& phase_of, const std::vector<std::int32_t>& row_of,
                bool regions) {
  for (const profile::DynamicPlace& place : profile.places) {
    DynamicGroup group;
    group.phase = phase_of[place.phase];
    group.after = place.after == kNone ? kNone : row_of[place.after];
    group.lower = place.lower;
    group.upper = place.upper;
    group.phase_end = phase_of[place.phase_end];
    group.stream = place.stream;
    group.contexts = place.contexts;
    plan.groups.push_back(std::move(group));
  }
  if (!regions) return;
  const Regions sized = size_regions(profile.places, profile.phases, problem_of(plan));
  for (std::size_t i = 0; i < plan.groups.size(); ++i) plan.groups[i].size = sized.sizes[i];
  plan.headroom = sized.headroom;
  plan.headroom_cost = sized.cost;
  plan.headroom_saves = sized.saves;
}

// The groups of what is kept: of its place the last.
void add_kept(Plan& plan, const profile::IterationProfile& profile,
              const std::vector<PhaseIndex>& phase_of, const std::vector<std::int32_t>& row_of) {
  if (plan.period == 0) return;
  for (const profile::KeptPlace& place : profile.kept) {
    DynamicGroup group;
    group.phase = group.phase_end = phase_of[place.phase];
    group.after = place.after == kNone ? kNone : row_of[place.after];
    group.lower = group.after == kNone
                      ? std::min(profile.phases[place.phase].begin, plan.period - 1)
                      : plan.decisions[group.after].lower;
    group.upper = group.lower + plan.period;
    group.stream = place.stream;
    group.contexts = place.contexts;
    plan.groups.push_back(std::move(group));
  }
  std::ranges::stable_sort(plan.groups, {}, [](const DynamicGroup& g) {
    return std::tuple{g.phase, g.after, g.stream};
  });
}

void add_reusable(Plan& plan, const solve::Problem& problem, const solve::Layout& layout) {
  std::vector<Window> windows;
  for (const DynamicGroup& g : plan.groups) windows.push_back({g.lower, g.upper, g.stream});
  auto ranges = reusable_space(problem, layout, windows);
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    plan.groups[i].reusable = std::move(ranges[i]);
  }
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
                               .upper = d.upper,
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
  return problem;
}

solve::Layout layout_of(const Plan& plan) {
  solve::Layout layout;
  layout.height = plan.pool;
  layout.offsets.reserve(plan.decisions.size() + plan.groups.size());
  for (const Decision& d : plan.decisions) layout.offsets.push_back(d.offset);
  for (const DynamicGroup& g : plan.groups) layout.offsets.push_back(g.offset);
  return layout;
}

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
  check_groups(*this);
  check_persistent(*this);
  if (headroom < 0) throw PlanError("headroom: " + std::to_string(headroom) + " per cent");
  const solve::Problem problem = problem_of(*this);
  problem.check();
  const solve::Layout layout = layout_of(*this);
  try {
    verify::validate(problem, layout);
  } catch (const PlanError& error) {
    throw PlanError("decisions, then groups (as buffers, by row): " + std::string(error.what()));
  }
  check_idle(*this, problem, layout);
  check_opening(*this);
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

std::vector<ReusableRow> reusable_rows(const Plan& plan) {
  std::vector<ReusableRow> rows;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    for (const AddressRange& range : plan.groups[i].reusable) {
      rows.push_back({static_cast<std::int32_t>(i), range});
    }
  }
  return rows;
}

Plan make_plan(const profile::IterationProfile& profile, const PlanOptions& options,
               const std::atomic<bool>* cancel, const std::function<void(double)>& progress) {
  const solve::Budget budget = budget_of(options, cancel, progress);
  Plan plan;
  plan.alignment = options.alignment;
  plan.streams = options.streams;
  plan.load = profile.load;
  plan.period = profile.period;
  std::vector<PhaseIndex> phase_of;
  std::tie(plan.phases, phase_of) = planned_phases(profile);
  const std::vector<std::int32_t> row_of = add_decisions(plan, profile, phase_of);
  add_persistent(plan, profile, phase_of);
  if (options.dynamic) add_groups(plan, profile, phase_of, row_of, options.regions);

  const solve::Problem problem = problem_of(plan);
  const solve::PortfolioResult result =
      solve::solve(problem, {.algorithm = options.algorithm}, budget);
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    plan.decisions[i].offset = result.layout.offsets[i];
  }
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    plan.groups[i].offset = result.layout.offsets[plan.decisions.size() + i];
  }
  add_reusable(plan, problem, result.layout);
  if (options.dynamic) add_kept(plan, profile, phase_of, row_of);
  plan.algorithm = result.algorithm;
  plan.optimal = result.optimal;
  plan.pool = result.layout.height;
  plan.bound = result.bound;
  add_opening(plan, profile.opening, phase_of, row_of);
  plan.check();
  return plan;
}

}  // namespace stalloc::plan
