#include "plan/anchors.h"

#include <algorithm>
#include <utility>

#include "base/align.h"
#include "base/range.h"
#include "plan/law_sizes.h"
#include "plan/numbers.h"
#include "solve/core/bound.h"
#include "solve/portfolio.h"

namespace stalloc::plan {
namespace {

// Anchors may raise the pool by one part in so many.
constexpr Bytes kMostCosts = 1000;

// A layout with anchors may take one part in so many of the work of the layout without, or so much
// if that is more.
constexpr std::int64_t kWorkPart = 2;
constexpr std::int64_t kLeastWork = 400'000;  // 0.2 seconds
constexpr std::int64_t kLeastWorkWithoutLaws = 50'000;

struct Anchor {
  DecisionIndex decision = kNone;
  Bytes room = 0;
};

enum class Size { kAny, kSmall };

// True if the decision is live when one of the forwards begins.
bool lives_on(const Plan& plan, const Decision& d) {
  return std::ranges::any_of(plan.phases, [&](const profile::ProfiledPhase& phase) {
    if (phase.key.kind != trace::PhaseKind::kForward) return false;
    return (d.lower < phase.begin && phase.begin < d.upper) || phase.begin + plan.period < d.upper;
  });
}

// The end of the last optimizer's step; kNever if there is none.
Tick end_of_step(const Plan& plan) {
  Tick end = kNever;
  for (const profile::ProfiledPhase& phase : plan.phases) {
    if (phase.key.kind == trace::PhaseKind::kOptimizer) end = phase.end;
  }
  return end;
}

bool shares_addresses(const Plan& plan) {
  const auto of_other_stream = [](const auto& r) { return r.stream != 0; };
  return plan.streams == solve::Streams::kOrdered ||
         !(std::ranges::any_of(plan.decisions, of_other_stream) ||
           std::ranges::any_of(plan.groups, of_other_stream));
}

// The candidates of a size. The room of a small one that varies is half as large again as the
// largest profiled one: a block that is larger departs from the plan. Without laws, evaluations are
// the only reason. Throws PlanError if a law has no size.
std::vector<Anchor> candidates(const Plan& plan, Size size) {
  if (!shares_addresses(plan)) return {};
  const LawSizes largest = largest_sizes(plan);
  const NumbersApart numbers(plan);
  const Tick step = end_of_step(plan);
  std::vector<Anchor> anchors;
  for (const DecisionIndex i : indices<DecisionIndex>(plan.decisions)) {
    const Decision& d = plan[i];
    if (d.slots != kNone || d.over > 0 || numbers.contains(d)) continue;
    // Such as the loss, which the loop's variable holds until the next iteration.
    const bool outlives_step = step != kNever && d.lower < step && step < d.upper;
    const bool lives = plan.laws.empty() ? outlives_step : lives_on(plan, d);
    if (!lives && !outlives_step) continue;
    const bool varies = d.law != kNone;
    Bytes room = varies ? largest[d.law] : d.size;
    const bool small = is_small(plan, room + room / 2);
    if (!lives && !small) continue;
    if (varies && small) room += room / 2;
    if (!varies || small || size == Size::kAny) anchors.push_back({i, room});
  }
  return anchors;
}

// The anchors alone, then both places of each turn, which other anchors never have: in the next
// layout they are in use at other times.
solve::Problem problem_of(const Plan& plan, const std::vector<Anchor>& anchors) {
  solve::Problem problem;
  problem.period = plan.period;
  problem.alignment = plan.alignment;
  for (const Anchor& a : anchors) {
    const Decision& d = plan[a.decision];
    problem.buffers.push_back({.size = a.room, .lower = d.lower, .upper = d.upper});
  }
  for (const Turn& t : plan.turns) {
    problem.buffers.insert(problem.buffers.end(), 2,
                           {.size = plan[t.decision].size, .upper = plan.period});
  }
  return problem;
}

// True if some of the addresses belong to a place of a turn.
bool meets_turn(const Plan& plan, Range addresses) {
  return std::ranges::any_of(plan.turns, [&](const Turn& t) {
    const Bytes room = align_up(plan[t.decision].size, plan.alignment);
    return std::ranges::any_of(
        t.places, [&](Offset place) { return addresses.overlaps({place, place + room}); });
  });
}

// The end of the slots and of the numbers above them.
Offset bottom_of(const Plan& plan) {
  Bytes slots = 0;
  for (const SlotClass& c : plan.slots) slots = std::max(slots, c.offset + c.size * c.count);
  return slots + NumbersApart(plan).size();
}

// True if the anchors have their room there, too.
bool lie_at_bottom(const Plan& plan, const std::vector<Anchor>& anchors) {
  const Bytes load = solve::load_bound(problem_of(plan, anchors));
  const Offset end = bottom_of(plan) + load + load / kMostCosts;
  return std::ranges::all_of(anchors, [&](const Anchor& a) {
    return plan[a.decision].size >= a.room &&
           plan[a.decision].offset + align_up(a.room, plan.alignment) <= end;
  });
}

// Requests that take turns lie at their places in this layout, too, or anywhere.
enum class Turning { kAtPlaces, kAnywhere };

// Lays the plan out around the anchors. False if it then needs more than `most` bytes.
bool lay_out_around(Plan& plan, const std::vector<Anchor>& anchors, Turning turning, Bytes most,
                    const LayoutOptions& options, const solve::Budget& budget) {
  for (const Anchor& a : anchors) plan[a.decision].size = a.room;
  if (solve::load_bound(plan::problem_of(plan)) > most) return false;
  const solve::PortfolioResult bottom = solve::solve(
      problem_of(plan, anchors), {.threads = options.threads, .work = options.work}, budget);
  const Offset begin = bottom_of(plan);
  LayoutOptions around = options;
  around.fixed.assign(plan.decisions.size(), kUnplaced);
  for (std::size_t i = 0; i < anchors.size(); ++i) {
    around.fixed[anchors[i].decision] = begin + bottom.layout.offsets[i];
  }
  around.fixed_turns.assign(plan.turns.size(), kUnplaced);
  const Offset* next = bottom.layout.offsets.data() + anchors.size();
  for (const TurnIndex t : around.fixed_turns.indices()) {
    for (Offset& place : plan[t].places) place = begin + *next++;
    if (turning == Turning::kAnywhere) continue;
    around.fixed[plan[t].decision] = plan[t].places[0];
    around.fixed_turns[t] = plan[t].places[1];
  }
  lay_out(plan, around, budget);
  return plan.pool <= most;
}

// Gives turns places of their own above the slots and the numbers, whatever else lies there.
void place_turns(Plan& plan) {
  Offset end = bottom_of(plan);
  for (Turn& t : plan.turns) {
    for (Offset& place : t.places) {
      place = std::exchange(end, end + align_up(plan[t.decision].size, plan.alignment));
    }
  }
}

}  // namespace

std::vector<DecisionIndex> anchors_of(const Plan& plan) {
  std::vector<DecisionIndex> anchors;
  if (plan.laws.empty()) return anchors;
  for (const Anchor& a : candidates(plan, Size::kAny)) {
    const Decision& d = plan[a.decision];
    const Range room{d.offset, d.offset + a.room};
    if (d.size >= a.room && !meets_turn(plan, room)) anchors.push_back(a.decision);
  }
  return anchors;
}

void lay_out_anchored(Plan& plan, const LayoutOptions& options, const solve::Budget& budget) {
  for (const Anchor& a : candidates(plan, Size::kSmall)) plan[a.decision].size = a.room;
  const std::int64_t work = lay_out(plan, options, budget);
  // A plan without laws can do without anchors, and the planner that the caller has chosen may not
  // keep any.
  if (plan.laws.empty() && !options.algorithm.empty()) return;
  LayoutOptions limited = options;
  limited.work = std::max(work / kWorkPart, plan.laws.empty() ? kLeastWorkWithoutLaws : kLeastWork);
  limited.work = std::min(options.work, limited.work);
  // No layout follows a plan without laws, so anchors are not worth more memory there.
  const Bytes most = plan.pool + (plan.laws.empty() ? 0 : plan.pool / kMostCosts);
  solve::Budget enough = budget;
  enough.target = most;
  for (const Turning turning : {Turning::kAtPlaces, Turning::kAnywhere}) {
    for (const Size size : {Size::kAny, Size::kSmall}) {
      const std::vector<Anchor> anchors = candidates(plan, size);
      if (plan.turns.empty() && (anchors.empty() || lie_at_bottom(plan, anchors))) return;
      Plan anchored = plan;
      if (lay_out_around(anchored, anchors, turning, most, limited, enough)) {
        plan = std::move(anchored);
        return;
      }
    }
    if (plan.turns.empty()) return;
  }
  place_turns(plan);
}

}  // namespace stalloc::plan
