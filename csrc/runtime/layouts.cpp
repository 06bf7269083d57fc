#include "runtime/layouts.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <utility>

#include "base/align.h"
#include "base/error.h"
#include "plan/anchors.h"
#include "plan/layout.h"
#include "plan/numbers.h"

namespace stalloc::runtime {
namespace {

// The number of layouts that are kept besides the plan's own and the current one.
constexpr std::size_t kMostLayouts = 64;

// A layout for both may take so much more memory than one for the new extents alone, in per mille.
constexpr Bytes kTolerance = 5;

// Layouts that cover more than a batch are tried so often, each smaller than the one before.
constexpr int kMostWide = 3;

// The steps in which an extent of a new layout is raised to what the memory holds.
constexpr int kSteps = 5;

// The work of a search for a layout in the same memory, and in more: about 0.2 and 1 to 3 seconds
// of one processor at most. A run needs few of the latter, and keeps their memory. Not a time
// limit: a busy processor must not change the layout.
constexpr std::int64_t kSearch = 400'000;
constexpr std::int64_t kSearchForMore = 2'000'000;

void raise(std::vector<profile::Extent>& extents, std::span<const profile::Extent> to) {
  for (std::size_t i = 0; i < extents.size(); ++i) extents[i] = std::max(extents[i], to[i]);
}

// The addresses that a layout uses at any time, but those of numbers: no layout has others for
// them.
RangeSet movable_addresses(const plan::Plan& plan) {
  RangeSet addresses = plan::addresses_of(plan);
  const plan::NumbersApart numbers(plan);
  if (numbers.size() > 0) addresses.remove({numbers.begin(), numbers.begin() + numbers.size()});
  return addresses;
}

// The rest of a decision's lifetime that lies in the iteration, from tick `since` on.
std::pair<Tick, Tick> rest_of(const plan::Decision& d, Tick since, Tick period) {
  if (since + period < d.upper) return {since, d.upper - period};
  return {std::max(since, d.lower), std::min(d.upper, period)};
}

// Collects all that a search depends on. Each list begins with its length, so that equal keys mean
// equal searches.
class Key {
 public:
  template <typename... T>
  void add(T... values) {
    (values_.push_back(static_cast<std::int64_t>(values)), ...);
  }
  void add_all(std::span<const std::int64_t> values) {
    add(values.size());
    values_.insert(values_.end(), values.begin(), values.end());
  }
  void add_turns(std::span<const plan::Turn> turns) {
    add(turns.size());
    for (const plan::Turn& t : turns) {
      add(t.decision.number(), t.offset, t.size, t.places[0], t.places[1]);
    }
  }
  void add_rows(const StaticPool::LiveRows& live) {
    add(live.since, live.decisions.size());
    for (const StaticPool::LiveDecision& l : live.decisions) {
      add(l.decision.number(), l.offset, l.size);
    }
    add_turns(live.turns);
    add(live.leftovers.size());
    for (const StaticPool::Leftover& l : live.leftovers) add(l.offset, l.size, l.stream);
    add(live.regions.size());
    for (const StaticPool::LiveRegion& l : live.regions) add(l.group.number(), l.offset, l.size);
  }
  std::vector<std::int64_t> take() { return std::move(values_); }

 private:
  std::vector<std::int64_t> values_;
};

void add(RangeSet& set, Range r) {
  set.remove(r);
  set.insert_merged(r);
}

}  // namespace

const Layouts::Extents& Layouts::Layout::extents_of(std::int32_t microbatch) const {
  const auto mine = std::ranges::find(own, microbatch, &plan::OwnExtents::microbatch);
  return mine == own.end() ? plan.extents : mine->extents;
}

Layouts::Layouts(const plan::Plan& plan) : largest_(plan.extents) {
  layouts_.push_back({plan, {}, 0, movable_addresses(plan)});
  current_ = &layouts_.front();
  for (const Extents& row : plan.seen) raise(largest_, row);
  for (std::size_t i = 0; i < plan.extent_names.size(); ++i) {
    const profile::DerivedExtent extent = profile::parse_extent(plan.extent_names[i]);
    const auto base = std::ranges::find(plan.extent_names, extent.base);
    const bool derived = base != plan.extent_names.end();
    bases_.push_back(derived ? static_cast<std::size_t>(base - plan.extent_names.begin()) : i);
    forms_.push_back(derived ? extent.form : profile::ExtentForm{});
  }
  anchors_ = plan::anchors_of(plan);
  is_anchor_.resize(plan.decisions.size());
  for (const plan::DecisionIndex d : anchors_) {
    is_anchor_[d] = true;
    add(anchored_, {plan[d].offset, plan[d].offset + align_up(plan[d].size, plan.alignment)});
  }
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
Layouts::Extents Layouts::widened(const Extents& extents, const Turns& turns, Bytes memory) const {
  const Bytes limit = memory - memory / 1000 * kTolerance;
  const auto fits = [&](const Extents& wide) {
    try {
      return bound_of({wide}, turns) <= limit;
    } catch (const Error&) {
      return false;  // a law has no size at these extents
    }
  };
  Extents result = extents;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    // Those that are derived from it grow with it.
    const auto raised_to = [&](profile::Extent value) {
      Extents wide = result;
      for (std::size_t d = 0; d < wide.size(); ++d) {
        if (bases_[d] == i) wide[d] = std::max(wide[d], std::min(forms_[d].of(value), largest_[d]));
      }
      return wide;
    };
    if (bases_[i] != i || largest_[i] <= result[i]) continue;
    if (const Extents wide = raised_to(largest_[i]); fits(wide)) {
      result = wide;
      continue;
    }
    profile::Extent too_much = largest_[i];
    for (int step = 1; step < kSteps && too_much - result[i] > 1; ++step) {
      const Extents wide = raised_to(std::midpoint(result[i], too_much));
      if (fits(wide)) {
        result = wide;
      } else {
        too_much = wide[i];
      }
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

Bytes Layouts::bound_of(const Wanted& wanted, const Turns& turns) const {
  return plan::bound_at(base(), wanted.extents, wanted.own, turns);
}

bool Layouts::leaves_alone(const Layout& layout,
                           const std::vector<StaticPool::Leftover>& leftovers) {
  return std::ranges::none_of(leftovers, [&](const StaticPool::Leftover& l) {
    return layout.taken.overlaps({l.offset, l.offset + l.size});
  });
}

bool Layouts::suits(const Layout& made, const Memory& memory,
                    const StaticPool::LiveRows& live) const {
  const plan::Plan& layout = made.plan;
  if (layout.walls != memory.walls || !leaves_alone(made, live.leftovers)) return false;
  return std::ranges::all_of(live.decisions,
                             [&](const StaticPool::LiveDecision& l) {
                               return layout[l.decision].offset == l.offset;
                             }) &&
         std::ranges::all_of(
             live.regions,
             [&](const StaticPool::LiveRegion& l) { return layout[l.group].offset == l.offset; }) &&
         std::ranges::all_of(live.turns, [&](const plan::Turn& l) {
           const auto t = std::ranges::find(layout.turns, l.decision, &plan::Turn::decision);
           return t->offset == l.offset && t->size >= l.size;
         });
}

bool Layouts::has_place(const plan::Turn& block) const {
  const auto t = std::ranges::find(base().turns, block.decision, &plan::Turn::decision);
  return block.size <= base()[block.decision].size &&
         std::ranges::find(t->places, block.offset) != t->places.end();
}

// The part of the memory that leftovers do not occupy.
Bytes Layouts::room_in(const Memory& memory, const StaticPool::LiveRows& live) {
  Bytes room = memory.size;
  for (const StaticPool::Leftover& l : live.leftovers) room -= l.size;
  return room;
}

// The blocks, with the room of the place that they have.
Layouts::Turns Layouts::roomy(Turns turns) const {
  for (plan::Turn& block : turns) {
    if (has_place(block)) block.size = base()[block.decision].size;
  }
  return turns;
}

bool Layouts::are_anchored(const StaticPool::LiveRows& live) const {
  return live.regions.empty() &&
         std::ranges::all_of(live.turns, [this](const plan::Turn& t) { return has_place(t); }) &&
         std::ranges::all_of(live.decisions, [&](const StaticPool::LiveDecision& l) {
           return is_anchor_[l.decision] && base()[l.decision].offset == l.offset;
         });
}

// The layout with the smallest pool among those that serve the extents now.
const plan::Plan* Layouts::known(const Extents& extents, std::int32_t microbatch,
                                 const Memory& memory, const StaticPool::LiveRows& live) const {
  const plan::Plan* found = nullptr;
  for (const Layout& layout : layouts_) {
    if (layout.plan.pool > memory.size || (found && layout.plan.pool >= found->pool)) continue;
    if (!plan::covers(layout.extents_of(microbatch), extents)) continue;
    if (suits(layout, memory, live)) found = &layout.plan;
  }
  return found;
}

// The layout that make() has made with room for any block that takes turns. It may be too large.
const plan::Plan* Layouts::roomy_layout(const Extents& extents, const Memory& memory,
                                        const StaticPool::LiveRows& live) {
  const Turns turns = roomy(live.turns);
  if (bound_of({extents}, turns) > room_in(memory, live)) return nullptr;
  StaticPool::LiveRows with_room = live;
  with_room.turns = turns;
  for (const Layout& layout : layouts_) {
    if (!layout.own.empty() || layout.plan.extents != extents) continue;
    if (suits(layout, memory, with_room)) return &layout.plan;
  }
  return make({extents}, memory.walls, live, {turns}, memory.size, kSearch);
}

// A layout that covers as much beyond the extents as the memory holds.
const plan::Plan* Layouts::wide_layout(const Extents& extents, const Memory& memory,
                                       const StaticPool::LiveRows& live) {
  Bytes limit = room_in(memory, live);
  for (int i = 0; i < kMostWide; ++i) {
    const Extents wide = widened(extents, roomy(live.turns), limit);
    const plan::Plan* layout = roomy_layout(wide, memory, live);
    if (!layout || layout->pool <= memory.size || wide == extents) return layout;
    // The search leaves a gap to the bound, which is about the same for the next one.
    limit = profile::in_proportion(limit, memory.size, layout->pool);
  }
  return nullptr;
}

const plan::Plan* Layouts::find(std::span<const profile::Extent> extents, std::int32_t microbatch,
                                const Memory& memory, const StaticPool::LiveRows& live) try {
  const Extents alone = complete(extents);
  if (const plan::Plan* layout = known(alone, microbatch, memory, live)) return layout;
  raise(largest_, alone);
  const auto fits = [&](const plan::Plan* layout) { return layout && layout->pool <= memory.size; };
  const plan::Plan* layout = roomy_layout(together(alone), memory, live);
  // A layout around live blocks that are no anchors serves no other microbatch, so it need not be
  // wide.
  if (!fits(layout) && are_anchored(live)) layout = wide_layout(alone, memory, live);
  if (!fits(layout)) layout = roomy_layout(alone, memory, live);
  if (fits(layout)) return layout;
  std::vector<std::pair<Wanted, bool>> exact;  // and whether requests may leave their places
  if (!live.turns.empty()) exact = {{{alone}, false}, {{alone}, true}};
  const bool outgrows = !plan::covers(current_->extents_of(microbatch), alone);
  if (outgrows && microbatch != kNone) exact.emplace_back(for_one(alone, microbatch), false);
  for (const auto& [wanted, free] : exact) {
    if (bound_of(wanted, live.turns) > room_in(memory, live)) continue;
    layout = make(wanted, memory.walls, live, {live.turns, free}, memory.size, kSearch);
    if (fits(layout)) return layout;
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
  const Bytes least = bound_of(only, live.turns);
  const Wanted& wanted =
      bound_of(both, live.turns) <= least + least / 1000 * kTolerance ? both : only;
  if (more == More::kNewPool) return make(wanted, {}, live, {live.turns, true}, 0, kSearchForMore);
  std::vector<Offset> walls = memory.walls;
  if (more == More::kBehindWall) walls.push_back(memory.size);
  return make(wanted, std::move(walls), live, {live.turns, true}, 0, kSearchForMore);
} catch (const Error&) {
  return nullptr;  // a law has no size at these extents
}

const plan::Plan* Layouts::in_one_piece() {
  const Extents& extents = current_->plan.extents;
  for (const Layout& layout : layouts_) {
    const bool same = layout.own.empty() && layout.plan.extents == extents;
    if (same && layout.plan.walls.empty()) return &layout.plan;
  }
  return make({extents}, {}, {}, {}, 0, kSearch);
}

// Lets live rows keep their addresses if their sizes stay the same, and keeps the others' free as
// long as they are to live.
void Layouts::keep_places(const plan::Plan& sized, const StaticPool::LiveRows& live,
                          plan::ResizeOptions& options) const {
  const auto aligned = [&](Bytes size) { return align_up(size, sized.alignment); };
  for (const plan::DecisionIndex d : anchors_) {
    const Offset begin = base()[d].offset;
    const Range place{begin, begin + aligned(base()[d].size)};
    const bool meets = std::ranges::any_of(live.leftovers, [&](const StaticPool::Leftover& l) {
      return place.overlaps({l.offset, l.offset + l.size});
    });
    if (!meets) options.anchors.push_back(d);
  }
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
  for (const StaticPool::Leftover& l : live.leftovers) {
    options.layout.obstacles.push_back(
        {.size = l.size, .upper = sized.period, .stream = l.stream, .fixed = l.offset});
  }
  if (!live.regions.empty()) options.layout.fixed_regions.assign(sized.groups.size(), kUnplaced);
  for (const StaticPool::LiveRegion& l : live.regions) {
    if (aligned(sized[l.group].size) <= l.size) options.layout.fixed_regions[l.group] = l.offset;
  }
}

// The layout. If places of live rows clash with anchors or each other, it goes without the places
// of anchors' blocks, then without those of all decisions, and at last without those of turns.
plan::Plan Layouts::resized(const Wanted& wanted, plan::ResizeOptions options) const {
  plan::LayoutOptions& layout = options.layout;
  for (int failed = 0;; ++failed) {
    try {
      return plan::resize(base(), wanted.extents, options);
    } catch (const PlanError&) {
      const bool keeps_rows = !layout.obstacles.empty() || !layout.fixed.empty();
      if (!keeps_rows && options.live_turns.empty()) throw;
      if (failed == 0) {
        layout.obstacles.clear();
        for (const plan::DecisionIndex d : anchors_) {
          if (!layout.fixed.empty()) layout.fixed[d] = kUnplaced;
        }
      } else if (failed == 1) {
        layout.fixed.clear();
      } else {
        options.live_turns.clear();
      }
    }
  }
}

Layouts::Search Layouts::search_for(const Wanted& wanted, const std::vector<Offset>& walls,
                                    const StaticPool::LiveRows& live, const PlannedTurns& turns,
                                    Bytes enough, std::int64_t work) {
  Key key;
  key.add(enough, work, turns.free);
  key.add_all(wanted.extents);
  key.add(wanted.own.size());
  for (const plan::OwnExtents& o : wanted.own) {
    key.add(o.microbatch);
    key.add_all(o.extents);
  }
  key.add_all(walls);
  key.add_turns(turns.live);
  key.add_rows(live);
  return key.take();
}

// Null if no layout exists, for example because a size exceeds any device.
const plan::Plan* Layouts::make(const Wanted& wanted, std::vector<Offset> walls,
                                const StaticPool::LiveRows& live, const PlannedTurns& turns,
                                Bytes enough, std::int64_t work) {
  Search search = search_for(wanted, walls, live, turns, enough, work);
  const auto made = std::ranges::find(layouts_, search, &Layout::search);
  if (made != layouts_.end()) {
    made->used = ++uses_;
    return &made->plan;
  }
  try {
    plan::ResizeOptions options;
    options.layout.work = work;
    options.enough = enough;
    options.walls = std::move(walls);
    options.own = wanted.own;
    options.live_turns = turns.live;
    options.free_turns = turns.free;
    keep_places(plan::sized(base(), wanted.extents, wanted.own), live, options);
    ++made_;
    plan::Plan layout = resized(wanted, std::move(options));
    // Slots always hold live requests, which do not move.
    const auto same = [](const plan::SlotClass& a, const plan::SlotClass& b) {
      return a.size == b.size && a.offset == b.offset && a.count == b.count;
    };
    if (!std::ranges::equal(layout.slots, base().slots, same)) return nullptr;
    return keep({std::move(layout), wanted.own, ++uses_, {}, std::move(search)});
  } catch (const Error&) {
    return nullptr;
  }
}

// Drops the layout that was not used for longest, except the plan's own and the current one.
const plan::Plan* Layouts::keep(Layout layout) {
  layout.taken = movable_addresses(layout.plan);
  if (layouts_.size() <= kMostLayouts) return &layouts_.emplace_back(std::move(layout)).plan;
  Layout* oldest = nullptr;
  for (Layout& l : layouts_ | std::views::drop(1)) {
    if (&l != current_ && (!oldest || l.used < oldest->used)) oldest = &l;
  }
  *oldest = std::move(layout);
  return &oldest->plan;
}

}  // namespace stalloc::runtime
