#include "runtime/layouts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/align.h"
#include "base/error.h"

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

}  // namespace

Layouts::Layouts(const plan::Plan& plan) : largest_(plan.extents) {
  layouts_.push_back(plan);
  current_ = &layouts_.front();
  for (const Extents& row : plan.seen) raise(largest_, row);
}

Layouts::Extents Layouts::complete(std::span<const profile::Extent> extents) const {
  Extents all(extents.begin(), extents.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] < 0) all[i] = current_->extents[i];
  }
  return all;
}

// The extents, each raised as far as the memory allows, but not beyond the largest known.
Layouts::Extents Layouts::widened(const Extents& extents, Bytes memory) const {
  const Bytes limit = memory - memory / 1000 * kTolerance;
  const auto fits = [&](const Extents& wide) {
    try {
      return plan::bound_at(layouts_.front(), wide) <= limit;
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

bool Layouts::suits(const plan::Plan& layout, std::span<const profile::Extent> extents,
                    const Memory& memory, const StaticPool::LiveRows& live) const {
  if (layout.pool > memory.size || layout.walls != memory.walls) return false;
  if (!plan::covers(layout.extents, extents)) return false;
  return std::ranges::all_of(live.decisions,
                             [&](const StaticPool::LiveDecision& l) {
                               return layout[l.decision].offset == l.offset;
                             }) &&
         std::ranges::all_of(live.regions, [&](const StaticPool::LiveRegion& l) {
           return layout[l.group].offset == l.offset;
         });
}

const plan::Plan* Layouts::find(std::span<const profile::Extent> extents, const Memory& memory,
                                const StaticPool::LiveRows& live) try {
  const Extents alone = complete(extents);
  const plan::Plan* found = nullptr;
  for (const plan::Plan& layout : layouts_) {
    const bool better = suits(layout, alone, memory, live) && (!found || layout.pool < found->pool);
    if (better) found = &layout;
  }
  if (found) return found;
  raise(largest_, alone);
  Extents both = alone;
  raise(both, current_->extents);
  std::vector<Extents> candidates = {both};
  // A layout around live decisions serves no other microbatch, so it need not be wide.
  if (live.decisions.empty()) candidates.push_back(widened(alone, memory.size));
  if (candidates.back() != alone) candidates.push_back(alone);
  for (const Extents& wanted : candidates) {
    if (plan::bound_at(layouts_.front(), wanted) > memory.size) continue;
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
  Extents both = alone;
  raise(both, current_->extents);
  const Bytes least = plan::bound_at(layouts_.front(), alone);
  const Bytes for_both = plan::bound_at(layouts_.front(), both);
  const Extents& wanted = for_both <= least + least / 1000 * kTolerance ? both : alone;
  if (more == More::kNewPool) return make(wanted, {}, live, 0, kSearchForMore);
  std::vector<Offset> walls = memory.walls;
  if (more == More::kBehindWall) walls.push_back(memory.size);
  return make(wanted, std::move(walls), live, 0, kSearchForMore);
} catch (const Error&) {
  return nullptr;  // a law has no size at these extents
}

const plan::Plan* Layouts::in_one_piece() {
  for (const plan::Plan& layout : layouts_) {
    if (layout.walls.empty() && layout.extents == current_->extents) return &layout;
  }
  return make(current_->extents, {}, {}, 0, kSearch);
}

// Null if no layout exists, for example because a size exceeds any device.
const plan::Plan* Layouts::make(const Extents& extents, std::vector<Offset> walls,
                                const StaticPool::LiveRows& live, Bytes enough, double seconds) {
  const plan::Plan& base = layouts_.front();
  try {
    const plan::LawSizes sizes = plan::law_sizes(base, extents);
    plan::ResizeOptions options;
    options.time_limit = seconds;
    options.enough = enough;
    options.walls = std::move(walls);
    if (!live.decisions.empty()) options.layout.fixed.assign(base.decisions.size(), kUnplaced);
    for (const StaticPool::LiveDecision& l : live.decisions) {
      const plan::Decision& d = base[l.decision];
      const Bytes planned = d.law == kNone ? d.size : sizes[d.law];
      const bool keeps = align_up(planned, base.alignment) <= align_up(l.size, base.alignment);
      if (keeps) options.layout.fixed[l.decision] = l.offset;
    }
    plan::LawSizes before;
    if (!live.regions.empty()) {
      before = plan::law_sizes(base, base.extents);
      options.layout.fixed_regions.assign(base.groups.size(), kUnplaced);
    }
    for (const StaticPool::LiveRegion& l : live.regions) {
      const plan::DynamicGroup& g = base[l.group];
      const Bytes planned =
          g.law == kNone ? g.size : profile::in_proportion(g.size, sizes[g.law], before[g.law]);
      const bool keeps = align_up(planned, base.alignment) <= l.size;
      if (keeps) options.layout.fixed_regions[l.group] = l.offset;
    }
    ++made_;
    plan::Plan layout = plan::resize(base, extents, options);
    // Slots always hold live requests, which do not move.
    const auto same = [](const plan::SlotClass& a, const plan::SlotClass& b) {
      return a.size == b.size && a.offset == b.offset && a.count == b.count;
    };
    if (!std::ranges::equal(layout.slots, base.slots, same)) return nullptr;
    // Drops the oldest, except the plan's own and the current one.
    for (auto at = std::next(layouts_.begin());
         layouts_.size() > kMostLayouts && at != layouts_.end(); ++at) {
      if (&*at == current_) continue;
      plan::Plan& slot = *at;
      slot = std::move(layout);
      return &slot;
    }
    layouts_.push_back(std::move(layout));
    return &layouts_.back();
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace stalloc::runtime
