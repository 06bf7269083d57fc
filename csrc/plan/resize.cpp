#include "plan/resize.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/align.h"
#include "base/error.h"
#include "base/range.h"
#include "plan/anchors.h"
#include "plan/covered.h"
#include "plan/slots.h"
#include "plan/startup_slots.h"
#include "solve/core/bound.h"

namespace stalloc::plan {
namespace {

using profile::Extent;
using profile::in_proportion;

// `extents` with the envelope's for the unknown ones.
std::vector<Extent> completed(const Plan& plan, std::span<const Extent> extents) {
  if (extents.size() != plan.extents.size()) {
    throw PlanError("extents: " + std::to_string(extents.size()) + " values, and the plan has " +
                    std::to_string(plan.extents.size()) + " names");
  }
  std::vector<Extent> all(extents.begin(), extents.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] < 0) all[i] = plan.extents[i];
  }
  return all;
}

// The sizes of the laws at the extents of each microbatch.
class Sizes {
 public:
  Sizes(const Plan& plan, std::span<const Extent> extents, const std::vector<OwnExtents>& own)
      : plan_(plan), others_(law_sizes(plan, extents)) {
    for (const OwnExtents& o : own) own_.emplace_back(o.microbatch, law_sizes(plan, o.extents));
  }

  // The size of the law's requests in a phase.
  Bytes of(profile::LawIndex law, PhaseIndex phase) const {
    const profile::LawSource source = plan_[law].source;
    const std::int32_t microbatch =
        source == profile::LawSource::kOwn ? plan_[phase].own : plan_[phase].upcoming;
    Bytes size = others_[law];
    for (const auto& [m, sizes] : own_) {
      if (source == profile::LawSource::kReturning) size = std::max(size, sizes[law]);
      if (source != profile::LawSource::kReturning && m == microbatch) size = sizes[law];
    }
    return size;
  }

 private:
  const Plan& plan_;
  LawSizes others_;
  std::vector<std::pair<std::int32_t, LawSizes>> own_;
};

// The most bytes of decisions and regions that are live at once, not rounded up.
Bytes load_of(const Plan& plan) {
  std::map<Tick, Bytes> changes;
  const auto add = [&](const auto& r) {
    if (r.upper > plan.period) {
      changes[0] += r.size;
      changes[r.upper - plan.period] -= r.size;
    } else {
      changes[r.upper] -= r.size;
    }
    changes[r.lower] += r.size;
  };
  std::ranges::for_each(plan.decisions, add);
  std::ranges::for_each(plan.groups, add);
  for (const Turn& t : plan.turns) {
    changes[plan[t.decision].lower] += t.size;
    changes[plan[t.decision].lower + plan[t.decision].over] -= t.size;
  }
  Bytes live = 0;
  Bytes most = 0;
  for (const auto& [tick, change] : changes) most = std::max(most, live += change);
  return most;
}

// Fixes the addresses of requests that take turns: the block of the iteration before lies where it
// is, and its successor at a place that no such block has, if it fits.
void fix_turns(const Plan& plan, Plan& resized, const ResizeOptions& options,
               LayoutOptions& layout) {
  if (plan.turns.empty()) return;
  layout.fixed.resize(plan.decisions.size(), kUnplaced);
  layout.fixed_turns.resize(plan.turns.size(), kUnplaced);
  const auto range_of = [&](Offset offset, Bytes size) {
    return Range{offset, offset + align_up(size, plan.alignment)};
  };
  const auto is_taken = [&](Range place) {
    return std::ranges::any_of(
               options.live_turns,
               [&](const Turn& t) { return place.overlaps(range_of(t.offset, t.size)); }) ||
           std::ranges::any_of(layout.obstacles, [&](const solve::Buffer& b) {
             return place.overlaps(range_of(b.fixed, b.size));
           });
  };
  for (const TurnIndex i : layout.fixed_turns.indices()) {
    const DecisionIndex d = plan[i].decision;
    const Bytes room = plan[d].size;
    const auto block = std::ranges::find(options.live_turns, d, &Turn::decision);
    if (block != options.live_turns.end()) {
      resized[i].size = block->size;
      layout.fixed_turns[i] = block->offset;
    }
    if (options.free_turns || resized[d].size > room) continue;
    const auto place = std::ranges::find_if(plan[i].places,
                                            [&](Offset p) { return !is_taken(range_of(p, room)); });
    if (place == plan[i].places.end()) continue;
    resized[d].size = room;
    layout.fixed[d] = *place;
  }
}

// Moves the resident region, and the requests in it, with the end of the pool.
void move_startup(Plan& plan, Bytes pool_before, const LawSizes& sizes) {
  for (StartupRequest& r : plan.startup) {
    if (r.offset >= pool_before) {
      r.offset += plan.pool - pool_before;
    } else {
      r.offset = kUnplaced;
      if (r.law != kNone) r.size = sizes[r.law];
    }
  }
}

}  // namespace

Plan sized(const Plan& plan, std::span<const Extent> extents, const std::vector<OwnExtents>& own) {
  const LawSizes before = law_sizes(plan, plan.extents);
  Plan result = plan;
  result.extents = completed(plan, extents);
  const Sizes after(plan, result.extents, own);
  for (Decision& d : result.decisions) {
    if (d.law != kNone) d.size = after.of(d.law, d.phase);
  }
  for (Turn& t : result.turns) {
    t.size = in_proportion(t.size, result[t.decision].size, plan[t.decision].size);
  }
  for (PersistentRequest& r : result.persistent) {
    if (r.law != kNone) r.size = after.of(r.law, r.phase);
  }
  for (DynamicGroup& g : result.groups) {
    if (g.law == kNone || g.size == 0) continue;
    const Bytes size = in_proportion(g.size, after.of(g.law, g.phase), before[g.law]);
    g.size = align_up(size, plan.alignment);
  }
  fit_slots(result);
  return result;
}

Bytes bound_at(const Plan& plan, std::span<const Extent> extents,
               const std::vector<OwnExtents>& own, const std::vector<Turn>& live_turns) {
  Plan at_extents = sized(plan, extents, own);
  for (Turn& t : at_extents.turns) {
    const auto block = std::ranges::find(live_turns, t.decision, &Turn::decision);
    if (block != live_turns.end()) t.size = block->size;
  }
  const solve::Problem problem = problem_of(at_extents);
  problem.check();
  return solve::load_bound(problem);
}

Plan resize(const Plan& plan, std::span<const Extent> extents, const ResizeOptions& options) {
  Plan resized = sized(plan, extents, options.own);
  resized.walls = options.walls;
  LayoutOptions layout = options.layout;
  if (!options.anchors.empty()) layout.fixed.resize(plan.decisions.size(), kUnplaced);
  for (const DecisionIndex d : options.anchors) {
    if (layout.fixed[d] != kUnplaced) continue;
    if (resized[d].size > plan[d].size && !is_small(plan, plan[d].size)) continue;
    resized[d].size = plan[d].size;
    layout.fixed[d] = plan[d].offset;
  }
  fix_turns(plan, resized, options, layout);
  resized.load = std::max<Bytes>(plan.load + load_of(resized) - load_of(plan), 0);
  solve::Budget budget;
  budget.target = options.enough;
  lay_out(resized, layout, budget.within(options.time_limit));
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    if (plan.is_kept(plan.groups[i])) resized.groups[i].reusable.clear();
  }
  move_startup(resized, plan.pool, law_sizes(plan, resized.extents));
  drop_startup_slots(resized);
  drop_uncovered_orders(resized);
  resized.check();
  return resized;
}

bool covers(std::span<const Extent> envelope, std::span<const Extent> extents) {
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] > envelope[i]) return false;
  }
  return true;
}

}  // namespace stalloc::plan
