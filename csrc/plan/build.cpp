#include "plan/build.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "plan/anchors.h"
#include "plan/boxes.h"
#include "plan/generations.h"
#include "plan/hosts.h"
#include "plan/layout.h"
#include "plan/numbers.h"
#include "plan/regions.h"
#include "plan/shared.h"
#include "plan/slots.h"
#include "plan/startup.h"
#include "plan/startup_slots.h"
#include "plan/turns.h"
#include "solve/core/bound.h"

namespace stalloc::plan {
namespace {

// One region for several groups may cost one part in so many of the pool, according to the profile.
// It pays once the run drifts away from the profile.
constexpr Bytes kSharingCosts = 64;

solve::Budget budget_of(const PlanOptions& options, const std::atomic<bool>* cancel,
                        const std::function<void(double)>& progress) {
  solve::Budget budget;
  budget.cancel = cancel;
  budget.progress = progress;
  if (!options.time_limit) return budget;
  if (!(*options.time_limit >= 0)) {
    throw PlanError("the time limit must be a number of seconds from 0 up, and is " +
                    std::to_string(*options.time_limit));
  }
  return budget.within(*options.time_limit);
}

// The planned phases, and the plan's phase of each phase of the profile.
std::pair<std::vector<profile::ProfiledPhase>, PhaseMap> planned_phases(
    const profile::IterationProfile& profile) {
  std::vector<profile::ProfiledPhase> phases;
  PhaseMap index;
  for (const profile::ProfiledPhase& phase : profile.phases) {
    const bool planned = phase.key.kind != trace::PhaseKind::kUnplanned;
    index.push_back(planned ? PhaseIndex(phases.size()) : kNone);
    if (planned) phases.push_back(phase);
  }
  return {std::move(phases), std::move(index)};
}

void add_laws(Plan& plan, const profile::IterationProfile& profile) {
  plan.extent_names = profile.extent_names;
  plan.extents = profile.envelope;
  plan.seen = profile.seen;
  plan.fixed_extents = {profile.fixed.begin(), profile.fixed.end()};
  plan.laws = profile.laws;
}

// Adds the decisions, without offsets. Returns the row of each of the profile's requests, or kNone.
std::vector<DecisionIndex> add_decisions(Plan& plan, const profile::IterationProfile& profile,
                                         const PhaseMap& phase_of) {
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
  std::vector<DecisionIndex> row_of(profile.requests.size());
  for (const std::int32_t i : requests) {
    const profile::ProfiledRequest& r = profile.requests[i];
    row_of[i] = DecisionIndex(plan.decisions.size());
    plan.decisions.push_back({.size = r.size,
                              .lower = r.lower,
                              .upper = r.upper,
                              .phase = phase_of[r.phase_begin],
                              .phase_end = phase_of[r.phase_end],
                              .stream = r.stream,
                              .law = profile.varying(r.law)});
  }
  return row_of;
}

void add_persistent(Plan& plan, const profile::IterationProfile& profile,
                    const PhaseMap& phase_of) {
  std::vector<const profile::ProfiledRequest*> requests;
  for (const profile::ProfiledRequest& r : profile.requests) {
    if (profile.is_recognisable(r)) requests.push_back(&r);
  }
  std::ranges::stable_sort(requests, {},
                           [](const auto* r) { return std::pair{r->phase_begin, r->lower}; });
  DecisionIndex next(0);  // the first decision that comes later
  for (const profile::ProfiledRequest* r : requests) {
    const PhaseIndex phase = phase_of[r->phase_begin];
    while (next.points_into(plan.decisions) &&
           std::pair{plan[next].phase, plan[next].lower} < std::pair{phase, r->lower}) {
      ++next;
    }
    const DecisionIndex last = next - 1;  // kNone before the first
    const bool follows = last != kNone && plan[last].phase == phase;
    plan.persistent.push_back(
        {phase, follows ? last : kNone, r->size, r->stream, profile.varying(r->law)});
  }
}

// The plan's problem, with the buffers of the regions last.
solve::Problem regions_last(const Plan& plan) {
  solve::Problem problem = problem_of(plan);
  const auto groups = problem.buffers.begin() + std::ssize(plan.decisions);
  std::rotate(groups, groups + std::ssize(plan.groups), problem.buffers.end());
  return problem;
}

// Lets groups share regions, where that pays.
class RegionSharing {
 public:
  RegionSharing(const profile::IterationProfile& profile, const PhaseMap& phase_of)
      : profile_(profile), phase_of_(phase_of), groups_(profile.groups) {}

  // Sets the sizes of the regions of `plan`, whose last rows are the profile's groups.
  void run(Plan& plan) {
    Regions sized = size_regions(groups_, profile_.phases, regions_last(plan));
    if (!attempt(Sharing::kKept, kSharingCosts, plan, sized)) {
      attempt(Sharing::kKeptOfSite, kSharingCosts, plan, sized);
    }
    attempt(Sharing::kTemporaries, kNoCosts, plan, sized);
    attempt(Sharing::kAll, kNoCosts, plan, sized);
    for (std::size_t i = 0; i < plan.groups.size(); ++i) plan.groups[i].size = sized.sizes[i];
    plan.headroom = sized.headroom;
    plan.headroom_cost = sized.cost;
    plan.headroom_saves = sized.saves;
  }

 private:
  static constexpr Bytes kNoCosts = std::numeric_limits<Bytes>::max();

  // Keeps a kind of sharing if it costs at most one part in `costs` of the pool. True if it does.
  bool attempt(Sharing sharing, Bytes costs, Plan& plan, Regions& sized) {
    // Groups that share a region already have one host.
    const std::span<const profile::ProfiledGroup> sharers =
        sharing == Sharing::kAll ? groups_ : profile_.groups;
    const std::vector<GroupIndex> hosts = find_hosts(sharers, plan.period, sharing);
    if (std::ranges::all_of(hosts, [](GroupIndex host) { return host == kNone; })) return false;
    std::vector<profile::ProfiledGroup> groups = with_hosts(groups_, hosts);
    Plan shared = plan;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      DynamicGroup& group = shared.groups[i];
      const GroupIndex before = group.host == kNone ? GroupIndex(i) : group.host;
      if (hosts[i] != kNone) {
        group.host = hosts[i];
      } else if (hosts[before.position()] != kNone) {
        group.host = hosts[before.position()];
      }
      group.lower = groups[i].lower;
      group.upper = groups[i].upper;
      group.phase_end = phase_of_[groups[i].phase_end];
      group.law = profile_.varying(groups[i].law);
    }
    Regions jointly = size_regions(groups, profile_.phases, regions_last(shared));
    if (jointly.total > sized.total + sized.total / costs) return false;
    plan = std::move(shared);
    sized = std::move(jointly);
    groups_ = std::move(groups);
    return true;
  }

  const profile::IterationProfile& profile_;
  const PhaseMap& phase_of_;
  std::vector<profile::ProfiledGroup> groups_;  // as their regions see them
};

// Adds the groups, without offsets and reusable space.
void add_groups(Plan& plan, const profile::IterationProfile& profile, const PhaseMap& phase_of,
                const std::vector<DecisionIndex>& row_of, bool regions) {
  for (const profile::ProfiledGroup& profiled : profile.groups) {
    DynamicGroup group;
    group.phase = phase_of[profiled.phase];
    group.after = profiled.after == kNone ? kNone : row_of[profiled.after];
    group.lower = profiled.lower;
    group.upper = profiled.upper;
    group.phase_end = phase_of[profiled.phase_end];
    group.stream = profiled.stream;
    group.law = profile.varying(profiled.law);
    group.contexts = profiled.contexts;
    plan.groups.push_back(std::move(group));
  }
  if (!regions) return;
  RegionSharing(profile, phase_of).run(plan);
}

// Adds the groups of kept requests. They sort last within their site.
void add_kept(Plan& plan, const profile::IterationProfile& profile, const PhaseMap& phase_of,
              const std::vector<DecisionIndex>& row_of) {
  if (plan.period == 0) return;
  for (const profile::KeptGroup& kept : profile.kept) {
    DynamicGroup group;
    group.phase = group.phase_end = phase_of[kept.phase];
    group.after = kept.after == kNone ? kNone : row_of[kept.after];
    group.lower = group.after == kNone ? std::min(profile[kept.phase].begin, plan.period - 1)
                                       : plan[group.after].lower;
    group.upper = group.lower + plan.period;
    group.stream = kept.stream;
    group.contexts = kept.contexts;
    plan.groups.push_back(std::move(group));
  }
  std::vector<GroupIndex> order;
  for (GroupIndex g(0); g.points_into(plan.groups); ++g) order.push_back(g);
  std::ranges::stable_sort(order, {}, [&](GroupIndex g) {
    return std::tuple{plan[g].phase, plan[g].after, plan[g].stream};
  });
  std::vector<GroupIndex> row_after(order.size());
  std::vector<DynamicGroup> sorted;
  for (const GroupIndex g : order) {
    row_after[g.position()] = GroupIndex(sorted.size());
    sorted.push_back(std::move(plan[g]));
  }
  for (DynamicGroup& g : sorted) {
    if (g.host != kNone) g.host = row_after[g.host.position()];
  }
  plan.groups = std::move(sorted);
}

// Lays the plan out with requests in idle slots. Boxes restrict the other offsets, so the plan
// keeps the layout without boxes if that is lower.
void lay_out_with_boxes(Plan& plan, const LayoutOptions& options, const solve::Budget& budget) {
  Plan boxed = plan;
  add_boxes(boxed);
  const bool has_boxes =
      std::ranges::any_of(boxed.decisions, [](const Decision& d) { return d.box != kNone; });
  if (has_boxes) {
    lay_out_anchored(boxed, options, budget);
    if (boxed.pool <= solve::load_bound(problem_of(plan))) {
      plan = std::move(boxed);
      return;
    }
  }
  lay_out_anchored(plan, options, budget);
  if (has_boxes && boxed.pool < plan.pool) plan = std::move(boxed);
}

// True if generations are worth their price: a late free keeps the slot of a whole generation.
bool saves(Bytes with_generations, Bytes without) {
  return with_generations < without - without / 1000;
}

// The same budget with three quarters of the time that is left.
solve::Budget most_of(const solve::Budget& budget) {
  solve::Budget most = budget;
  const auto now = std::chrono::steady_clock::now();
  if (most.deadline > now) most.deadline -= (most.deadline - now) / 4;
  return most;
}

}  // namespace

Plan make_plan(const profile::IterationProfile& profile, const PlanOptions& options,
               const std::atomic<bool>* cancel, const std::function<void(double)>& progress) {
  const solve::Budget budget = budget_of(options, cancel, progress);
  LayoutOptions layout{.algorithm = options.algorithm};
  if (!options.time_limit) layout.work = kLayoutWork;
  Plan plan;
  plan.alignment = options.alignment;
  plan.streams = options.streams;
  plan.load = profile.load;
  plan.recorded_load = profile.recorded_load;
  plan.period = profile.period;
  plan.dynamic = profile.dynamic_modules;
  PhaseMap phase_of;
  std::tie(plan.phases, phase_of) = planned_phases(profile);
  add_laws(plan, profile);
  const std::vector<DecisionIndex> row_of = add_decisions(plan, profile, phase_of);
  add_slots(plan, profile, row_of);
  add_turns(plan, profile, row_of);
  set_numbers_apart(plan);
  add_persistent(plan, profile, phase_of);
  const auto complete = [&](Plan& draft, const solve::Budget& time) {
    if (options.dynamic) add_groups(draft, profile, phase_of, row_of, options.regions);
    lay_out_with_boxes(draft, layout, time);
  };
  Plan together = plan;
  const bool may_join = join_generations(together);
  complete(plan, may_join || options.share ? most_of(budget) : budget);
  if (may_join && saves(plan.bound, plan.pool)) {
    complete(together, budget);
    if (saves(together.pool, plan.pool)) plan = std::move(together);
  }
  if (options.share) share_addresses(plan, profile.orders, layout, budget);
  if (options.dynamic) add_kept(plan, profile, phase_of, row_of);
  add_startup(plan, profile.startup, phase_of, row_of);
  add_startup_slots(plan, profile.startup, row_of);
  plan.check();
  return plan;
}

}  // namespace stalloc::plan
