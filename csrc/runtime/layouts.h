// The layouts of one plan for different extents, and the choice of the one that serves a
// microbatch.
//
// A layout for the largest extents serves all smaller ones. If the current layout does not cover
// the extents of a microbatch, Layouts tries in this order:
//
//   1  an earlier layout that covers them and fits the memory
//   2  a new layout for these extents and the current ones together, if it fits
//   3  a new layout for these extents alone, if it fits: batches that obey a budget (many short
//      rows, or few long ones) share the memory; one layout for the largest of both would need far
//      more. It covers as much beyond these extents as the memory holds, so that few layouts serve
//      all batches
//   4  more memory: for both together, unless one layout for both needs more than for these alone
//
// In a new layout, live decisions and the regions of live blocks keep their addresses if their
// sizes stay the same.
//
// Cost: O(layouts) to find one, plan::resize()'s to make one. Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"
#include "plan/resize.h"
#include "runtime/static_pool.h"

namespace stalloc::runtime {

class Layouts {
 public:
  explicit Layouts(const plan::Plan& plan);

  // The current layout.
  const plan::Plan& current() const { return *current_; }
  bool covers(std::span<const profile::Extent> extents) const {
    return plan::covers(current_->extents, extents);
  }

  // The memory of the pool: bytes of addresses, and the walls in it.
  struct Memory {
    Bytes size = 0;
    std::vector<Offset> walls;
  };

  // A layout that covers `extents` (by the plan's names; negative ones as in the current layout)
  // and fits the memory; null if there is none. It is valid until the next call.
  const plan::Plan* find(std::span<const profile::Extent> extents, const Memory& memory,
                         const StaticPool::LiveRows& live);

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
  void use(const plan::Plan* layout) { current_ = layout; }

  // The number of layouts that were made.
  std::size_t made() const { return made_; }

 private:
  using Extents = std::vector<profile::Extent>;

  Extents complete(std::span<const profile::Extent> extents) const;
  Extents widened(const Extents& extents, Bytes memory) const;
  bool suits(const plan::Plan& layout, std::span<const profile::Extent> extents,
             const Memory& memory, const StaticPool::LiveRows& live) const;
  // `seconds` limit the search, which ends with a layout of at most `enough` bytes.
  const plan::Plan* make(const Extents& extents, std::vector<Offset> walls,
                         const StaticPool::LiveRows& live, Bytes enough, double seconds);

  std::deque<plan::Plan> layouts_;  // the plan's own first; the newest last
  const plan::Plan* current_;
  Extents largest_;  // of each extent, as far as is known
  std::size_t made_ = 0;
};

}  // namespace stalloc::runtime
