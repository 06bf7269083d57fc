#include "plan/resize.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/align.h"
#include "base/error.h"
#include "plan/anchors.h"
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
  Bytes live = 0;
  Bytes most = 0;
  for (const auto& [tick, change] : changes) most = std::max(most, live += change);
  return most;
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
               const std::vector<OwnExtents>& own) {
  const solve::Problem problem = problem_of(sized(plan, extents, own));
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
  resized.load = std::max<Bytes>(plan.load + load_of(resized) - load_of(plan), 0);
  solve::Budget budget;
  budget.target = options.enough;
  lay_out(resized, layout, budget.within(options.time_limit));
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    if (plan.is_kept(plan.groups[i])) resized.groups[i].reusable.clear();
  }
  move_startup(resized, plan.pool, law_sizes(plan, resized.extents));
  drop_startup_slots(resized);
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
