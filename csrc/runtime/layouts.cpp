#include "runtime/layouts.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <utility>

#include "base/align.h"
#include "base/error.h"
#include "plan/anchors.h"

namespace stalloc::runtime {
namespace {

// The number of layouts that are kept besides the plan's own and the current one.
constexpr std::size_t kMostLayouts = 64;

// A layout for both may take so much more memory than one for the new extents alone, in per mille.
constexpr Bytes kTolerance = 5;

// The steps in which an extent of a new layout is raised to what the memory holds.
constexpr int kSteps = 5;

// Seconds of search for a layout in the same memory, and in more. A run needs few of the latter,
// and keeps their memory.
constexpr double kSearch = 0.1;
constexpr double kSearchForMore = 0.5;

void raise(std::vector<profile::Extent>& extents, std::span<const profile::Extent> to) {
  for (std::size_t i = 0; i < extents.size(); ++i) extents[i] = std::max(extents[i], to[i]);
}

// The rest of a decision's lifetime that lies in the iteration, from tick `since` on.
std::pair<Tick, Tick> rest_of(const plan::Decision& d, Tick since, Tick period) {
  if (since + period < d.upper) return {since, d.upper - period};
  return {std::max(since, d.lower), std::min(d.upper, period)};
}

}  // namespace

const Layouts::Extents& Layouts::Layout::extents_of(std::int32_t microbatch) const {
  const auto mine = std::ranges::find(own, microbatch, &plan::OwnExtents::microbatch);
  return mine == own.end() ? plan.extents : mine->extents;
}

Layouts::Layouts(const plan::Plan& plan) : largest_(plan.extents) {
  layouts_.push_back({plan});
  current_ = &layouts_.front();
  for (const Extents& row : plan.seen) raise(largest_, row);
  anchors_ = plan::anchors_of(plan);
  is_anchor_.resize(plan.decisions.size());
  for (const plan::DecisionIndex d : anchors_) is_anchor_[d] = true;
}

void Layouts::use(const plan::Plan* layout) {
  const auto at = std::ranges::find(layouts_, layout, [](const Layout& l) { return &l.plan; });
  at->used = ++uses_;
  current_ = &*at;
}

Layouts::Extents Layouts::complete(std::span<const profile::Extent> extents) const {
  Extents all(extents.begin(), extents.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] < 0) all[i] = current_->plan.extents[i];
  }
  return all;
}

// The extents and those of the current layout.
Layouts::Extents Layouts::together(const Extents& extents) const {
  Extents both = extents;
  raise(both, current_->plan.extents);
  return both;
}

// The extents, each raised as far as the memory allows, but not beyond the largest known.
Layouts::Extents Layouts::widened(const Extents& extents, Bytes memory) const {
  const Bytes limit = memory - memory / 1000 * kTolerance;
  const auto fits = [&](const Extents& wide) {
    try {
      return bound_of({wide}) <= limit;
    } catch (const Error&) {
      return false;  // a law has no size at these extents
    }
  };
  Extents result = extents;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    Extents wide = result;
    wide[i] = largest_[i];
    if (wide[i] > result[i] && fits(wide)) {
      result[i] = wide[i];
      continue;
    }
    profile::Extent too_much = wide[i];
    for (int step = 1; step < kSteps && too_much - result[i] > 1; ++step) {
      wide[i] = std::midpoint(result[i], too_much);
      (fits(wide) ? result[i] : too_much) = wide[i];
    }
  }
  return result;
}

// These extents for one microbatch, and the current layout's for the others. The microbatches
// before it keep what they have: their blocks may still live.
Layouts::Wanted Layouts::for_one(const Extents& extents, std::int32_t microbatch) const {
  Wanted wanted{current_->plan.extents};
  for (const plan::OwnExtents& own : current_->own) {
    if (own.microbatch < microbatch) wanted.own.push_back(own);
  }
  wanted.own.push_back({microbatch, extents});
  return wanted;
}

Bytes Layouts::bound_of(const Wanted& wanted) const {
  return plan::bound_at(base(), wanted.extents, wanted.own);
}

bool Layouts::suits(const plan::Plan& layout, const Memory& memory,
                    const StaticPool::LiveRows& live) const {
  if (layout.pool > memory.size || layout.walls != memory.walls) return false;
  return std::ranges::all_of(live.decisions,
                             [&](const StaticPool::LiveDecision& l) {
                               return layout[l.decision].offset == l.offset;
                             }) &&
         std::ranges::all_of(live.regions, [&](const StaticPool::LiveRegion& l) {
           return layout[l.group].offset == l.offset;
         });
}

bool Layouts::are_anchored(const StaticPool::LiveRows& live) const {
  return live.regions.empty() &&
         std::ranges::all_of(live.decisions, [&](const StaticPool::LiveDecision& l) {
           return is_anchor_[l.decision] && base()[l.decision].offset == l.offset;
         });
}

const plan::Plan* Layouts::find(std::span<const profile::Extent> extents, std::int32_t microbatch,
                                const Memory& memory, const StaticPool::LiveRows& live) try {
  const Extents alone = complete(extents);
  const plan::Plan* found = nullptr;
  for (const Layout& layout : layouts_) {
    if (!plan::covers(layout.extents_of(microbatch), alone)) continue;
    if (!suits(layout.plan, memory, live)) continue;
    if (!found || layout.plan.pool < found->pool) found = &layout.plan;
  }
  if (found) return found;
  raise(largest_, alone);
  std::vector<Wanted> candidates = {{together(alone)}};
  // A layout around live blocks that are no anchors serves no other microbatch, so it need not be
  // wide.
  if (are_anchored(live)) candidates.push_back({widened(alone, memory.size)});
  if (candidates.back().extents != alone) candidates.push_back({alone});
  if (microbatch != kNone) candidates.push_back(for_one(alone, microbatch));
  for (const Wanted& wanted : candidates) {
    if (bound_of(wanted) > memory.size) continue;
    const plan::Plan* layout = make(wanted, memory.walls, live, memory.size, kSearch);
    if (layout && layout->pool <= memory.size) return layout;
  }
  return nullptr;
} catch (const Error&) {
  return nullptr;  // a law has no size at these extents
}

const plan::Plan* Layouts::grow(std::span<const profile::Extent> extents, const Memory& memory,
                                const StaticPool::LiveRows& live, More more) try {
  const Extents alone = complete(extents);
  const Wanted both{together(alone)};
  const Wanted only{alone};
  const Bytes least = bound_of(only);
  const Wanted& wanted = bound_of(both) <= least + least / 1000 * kTolerance ? both : only;
  if (more == More::kNewPool) return make(wanted, {}, live, 0, kSearchForMore);
  std::vector<Offset> walls = memory.walls;
  if (more == More::kBehindWall) walls.push_back(memory.size);
  return make(wanted, std::move(walls), live, 0, kSearchForMore);
} catch (const Error&) {
  return nullptr;  // a law has no size at these extents
}

const plan::Plan* Layouts::in_one_piece() {
  const Extents& extents = current_->plan.extents;
  for (const Layout& layout : layouts_) {
    const bool same = layout.own.empty() && layout.plan.extents == extents;
    if (same && layout.plan.walls.empty()) return &layout.plan;
  }
  return make({extents}, {}, {}, 0, kSearch);
}

// Lets live rows keep their addresses if their sizes stay the same, and keeps the others' free as
// long as they are to live.
void Layouts::keep_places(const plan::Plan& sized, const StaticPool::LiveRows& live,
                          plan::ResizeOptions& options) const {
  const auto aligned = [&](Bytes size) { return align_up(size, sized.alignment); };
  options.anchors = anchors_;
  if (!live.decisions.empty()) options.layout.fixed.assign(sized.decisions.size(), kUnplaced);
  for (const StaticPool::LiveDecision& l : live.decisions) {
    const plan::Decision& d = sized[l.decision];
    if (is_anchor_[l.decision] && l.offset == base()[l.decision].offset) continue;
    if (aligned(d.size) <= aligned(l.size)) {
      options.layout.fixed[l.decision] = l.offset;
    } else if (const auto [lower, upper] = rest_of(d, live.since, sized.period); lower < upper) {
      options.layout.obstacles.push_back(
          {.size = l.size, .lower = lower, .upper = upper, .stream = d.stream, .fixed = l.offset});
    }
  }
  if (!live.regions.empty()) options.layout.fixed_regions.assign(sized.groups.size(), kUnplaced);
  for (const StaticPool::LiveRegion& l : live.regions) {
    if (aligned(sized[l.group].size) <= l.size) options.layout.fixed_regions[l.group] = l.offset;
  }
}

// The layout, without the places of live rows that clash with anchors.
plan::Plan Layouts::resized(const Wanted& wanted, plan::ResizeOptions options) const {
  try {
    return plan::resize(base(), wanted.extents, options);
  } catch (const PlanError&) {
    if (options.layout.obstacles.empty() && options.layout.fixed.empty()) throw;
    options.layout.obstacles.clear();
    for (const plan::DecisionIndex d : anchors_) {
      if (!options.layout.fixed.empty()) options.layout.fixed[d] = kUnplaced;
    }
    return plan::resize(base(), wanted.extents, options);
  }
}

// Null if no layout exists, for example because a size exceeds any device.
const plan::Plan* Layouts::make(const Wanted& wanted, std::vector<Offset> walls,
                                const StaticPool::LiveRows& live, Bytes enough, double seconds) {
  try {
    plan::ResizeOptions options;
    options.time_limit = seconds;
    options.enough = enough;
    options.walls = std::move(walls);
    options.own = wanted.own;
    keep_places(plan::sized(base(), wanted.extents, wanted.own), live, options);
    ++made_;
    plan::Plan layout = resized(wanted, std::move(options));
    // Slots always hold live requests, which do not move.
    const auto same = [](const plan::SlotClass& a, const plan::SlotClass& b) {
      return a.size == b.size && a.offset == b.offset && a.count == b.count;
    };
    if (!std::ranges::equal(layout.slots, base().slots, same)) return nullptr;
    return keep({std::move(layout), wanted.own, ++uses_});
  } catch (const Error&) {
    return nullptr;
  }
}

// Drops the layout that was not used for longest, except the plan's own and the current one.
const plan::Plan* Layouts::keep(Layout layout) {
  if (layouts_.size() <= kMostLayouts) return &layouts_.emplace_back(std::move(layout)).plan;
  Layout* oldest = nullptr;
  for (Layout& l : layouts_ | std::views::drop(1)) {
    if (&l != current_ && (!oldest || l.used < oldest->used)) oldest = &l;
  }
  *oldest = std::move(layout);
  return &oldest->plan;
}

}  // namespace stalloc::runtime
