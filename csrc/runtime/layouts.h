// The layouts of one plan for different extents, and which of them serves a microbatch.
//
// A layout for the largest extents serves all smaller ones. Where extents come that the present
// layout does not cover, in this order:
//
//   1  a layout made before that covers them and fits the memory there is
//   2  one for these extents and the present ones together, if it fits
//   3  one for these extents alone, if it fits: batches that obey a budget (many short rows, or few
//      long ones) share the memory, where one layout for the longest of both would need far more
//   4  more memory, for both together unless that takes more than these alone
//
// Decisions that are live keep their address in what is made anew, as far as their size stays.
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

  // The present layout.
  const plan::Plan& current() const { return *current_; }
  bool covers(std::span<const profile::Extent> extents) const {
    return plan::covers(current_->extents, extents);
  }

  // The memory of the pool: bytes of addresses, and the walls in it.
  struct Memory {
    Bytes size = 0;
    std::vector<Offset> walls;
  };

  // A layout that covers `extents` (by the plan's names; negative ones as at present) and fits the
  // memory; null when there is none. It is valid until the next call.
  const plan::Plan* find(std::span<const profile::Extent> extents, const Memory& memory,
                         std::span<const StaticPool::LiveDecision> live);

  // One that covers them in more memory than there is: behind a new wall at its end if something
  // is live in it, else in one piece.
  const plan::Plan* grow(std::span<const profile::Extent> extents, const Memory& memory,
                         std::span<const StaticPool::LiveDecision> live, bool in_place);

  // One for the present extents in one piece.
  const plan::Plan* in_one_piece();

  // Makes a layout that find() or grow() returned the present one.
  void use(const plan::Plan* layout) { current_ = layout; }

  // The number of layouts that were made.
  std::size_t made() const { return made_; }

 private:
  using Extents = std::vector<profile::Extent>;

  Extents complete(std::span<const profile::Extent> extents) const;
  bool suits(const plan::Plan& layout, std::span<const profile::Extent> extents,
             const Memory& memory, std::span<const StaticPool::LiveDecision> live) const;
  const plan::Plan* make(const Extents& extents, std::vector<Offset> walls,
                         std::span<const StaticPool::LiveDecision> live);

  std::deque<plan::Plan> layouts_;  // the plan's own first; the newest last
  const plan::Plan* current_;
  std::size_t made_ = 0;
};

}  // namespace stalloc::runtime
