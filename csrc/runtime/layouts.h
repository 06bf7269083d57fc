// The layouts of one plan for different extents, and the choice of the one that serves a
// microbatch.
//
// A layout for the largest extents serves all smaller ones. One microbatch of the iteration may
// have extents of its own in it. If the current layout does not cover the extents of a microbatch,
// Layouts tries in this order:
//
//   1  an earlier layout that covers them and fits the memory
//   2  a new layout for these extents and the current ones together, if it fits
//   3  a new layout for these extents alone, if it fits: batches that obey a budget (many short
//      rows, or few long ones) share the memory; one layout for the largest of both would need far
//      more. It covers as much beyond these extents as the memory holds, so that few layouts serve
//      all batches
//   4  a new layout for these extents alone that fits the very blocks that take turns now
//   5  a new layout with these extents for this microbatch alone, and the current ones for the rest
//      of the iteration, if it fits: one iteration seldom has two batches of the largest size
//   6  more memory: for both together, unless one layout for both needs more than for these alone
//
// Requests that take turns (plan/turns.h) have one of two places in a layout, and the live block of
// the iteration before has the other. So there is a layout for either order.
//
// Blocks that the plan does not know and that are live when an iteration begins, such as what an
// evaluation has left, may live for long. A layout leaves their addresses alone.
//
// Anchors (plan/anchors.h) have their address in all layouts. In a new layout, other live decisions
// and the regions of live blocks keep their addresses if their sizes stay the same. Nothing else is
// planned there as long as they live.
//
// Cost: O(layouts) to find one, plan::resize()'s to make one. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/range_set.h"
#include "base/types.h"
#include "plan/plan.h"
#include "plan/resize.h"
#include "profile/derived_extent.h"
#include "runtime/static_pool.h"

namespace stalloc::runtime {

class Layouts {
 public:
  explicit Layouts(const plan::Plan& plan);

  // The current layout.
  const plan::Plan& current() const { return current_->plan; }
  // True if it covers a microbatch (profile::ProfiledPhase::own) of these extents.
  bool covers(std::span<const profile::Extent> extents, std::int32_t microbatch) const {
    return plan::covers(current_->extents_of(microbatch), extents);
  }

  // The bound of the plan's own layout.
  Bytes planned_bound() const { return base().bound; }
  // True if the profile had a microbatch of at least these extents.
  bool was_profiled(std::span<const profile::Extent> extents) const {
    return std::ranges::any_of(base().seen,
                               [&](const Extents& row) { return plan::covers(row, extents); });
  }

  // The addresses of the anchors.
  const RangeSet& anchored() const { return anchored_; }

  // The memory of the pool: bytes of addresses, and the walls in it.
  struct Memory {
    Bytes size = 0;
    std::vector<Offset> walls;
  };

  // True if the current layout uses addresses of these blocks.
  bool is_obstructed(const std::vector<StaticPool::Leftover>& leftovers) const {
    return !leaves_alone(*current_, leftovers);
  }

  // True if all layouts can hold the live rows where they are.
  bool are_anchored(const StaticPool::LiveRows& live) const;

  // A layout that covers `extents` (by the plan's names; negative ones as in the current layout)
  // and fits the memory; null if there is none. It is valid until the next call.
  const plan::Plan* find(std::span<const profile::Extent> extents, std::int32_t microbatch,
                         const Memory& memory, const StaticPool::LiveRows& live);

  // The bound of a layout for these extents alone. Throws Error if a law has no size at them.
  Bytes bound_at(std::span<const profile::Extent> extents, const StaticPool::LiveRows& live) const {
    return bound_of({complete(extents)}, live.turns);
  }

  // The place of additional memory.
  enum class More {
    kNewPool,     // nothing is live: one new piece
    kBehindPool,  // the last piece grows
    kBehindWall,  // another piece, behind a new wall at the end
  };

  // A layout that covers `extents` in more memory than there is.
  const plan::Plan* grow(std::span<const profile::Extent> extents, const Memory& memory,
                         const StaticPool::LiveRows& live, More more);

  // A layout for the current extents in one piece.
  const plan::Plan* in_one_piece();

  // Makes a layout that find() or grow() returned the current one.
  void use(const plan::Plan* layout);

  // The number of layouts that were made.
  std::size_t made() const { return made_; }

 private:
  using Extents = std::vector<profile::Extent>;
  using Turns = std::vector<plan::Turn>;

  // All that the result of a search depends on, besides the plan.
  using Search = std::vector<std::int64_t>;

  struct Layout {
    plan::Plan plan;
    std::vector<plan::OwnExtents> own = {};
    std::int64_t used = 0;  // the time of the last use
    RangeSet taken = {};    // the addresses that it uses at any time, but those of numbers
    Search search = {};     // that made it

    const Extents& extents_of(std::int32_t microbatch) const;
  };

  // The extents of a layout to be made.
  struct Wanted {
    Extents extents;
    std::vector<plan::OwnExtents> own = {};
  };

  struct PlannedTurns {
    Turns live;
    bool free = false;  // as plan::ResizeOptions::free_turns
  };

  Extents complete(std::span<const profile::Extent> extents) const;
  Extents together(const Extents& extents) const;
  Extents widened(const Extents& extents, const Turns& turns, Bytes memory) const;
  Wanted for_one(const Extents& extents, std::int32_t microbatch) const;
  // True if the layout has the live rows where they are.
  bool suits(const Layout& layout, const Memory& memory, const StaticPool::LiveRows& live) const;
  static bool leaves_alone(const Layout& layout,
                           const std::vector<StaticPool::Leftover>& leftovers);
  const plan::Plan* known(const Extents& extents, std::int32_t microbatch, const Memory& memory,
                          const StaticPool::LiveRows& live) const;
  const plan::Plan* roomy_layout(const Extents& extents, const Memory& memory,
                                 const StaticPool::LiveRows& live);
  const plan::Plan* wide_layout(const Extents& extents, const Memory& memory,
                                const StaticPool::LiveRows& live);
  // True if the block has one of its two places.
  bool has_place(const plan::Turn& block) const;
  static Bytes room_in(const Memory& memory, const StaticPool::LiveRows& live);
  Turns roomy(Turns turns) const;
  void keep_places(const plan::Plan& sized, const StaticPool::LiveRows& live,
                   plan::ResizeOptions& options) const;
  plan::Plan resized(const Wanted& wanted, plan::ResizeOptions options) const;
  Bytes bound_of(const Wanted& wanted, const Turns& turns) const;
  // `work` limits the search, which ends with a layout of at most `enough` bytes. A search that has
  // been made is not made again: the caller may refuse its layout in each iteration.
  const plan::Plan* make(const Wanted& wanted, std::vector<Offset> walls,
                         const StaticPool::LiveRows& live, const PlannedTurns& turns, Bytes enough,
                         std::int64_t work);
  static Search search_for(const Wanted& wanted, const std::vector<Offset>& walls,
                           const StaticPool::LiveRows& live, const PlannedTurns& turns,
                           Bytes enough, std::int64_t work);
  const plan::Plan* keep(Layout layout);
  const plan::Plan& base() const { return layouts_.front().plan; }

  std::deque<Layout> layouts_;  // the plan's own first
  std::vector<plan::DecisionIndex> anchors_;
  IndexedVector<plan::DecisionIndex, bool> is_anchor_;
  RangeSet anchored_;  // their addresses
  const Layout* current_;
  Extents largest_;  // of each extent, as far as is known
  // By extent: the one that it is derived from, itself for an input's, and how.
  std::vector<std::size_t> bases_;
  std::vector<profile::ExtentForm> forms_;
  std::size_t made_ = 0;
  std::int64_t uses_ = 0;
};

}  // namespace stalloc::runtime
