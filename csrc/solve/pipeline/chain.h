// Packs the tight moments one after another, so that a steady pipeline meets its bound.
//
// A moment is tight if its load is near the bound. In a steady pipeline each microbatch has one:
// hundreds of moments have to be packed without holes. Between two of them, as much is born as was
// freed before. The new buffers have to fill the holes exactly, and leave holes that suit the next:
//
// clang-format off
//
//   offset ^    tight          tight
//          |  ----|----+         |
//          |   b  |    |   +-----|---     f is as large as a and b together. It fits only if a and b
//          |  ----|--+-+   |  f  |        are neighbours. So buffers that die at nearly the same time
//          |   a  |  |     |     |        lie next to each other.
//          |  ----|--+-----+-----|---
//          +--------------------------> tick
//
// clang-format on
//
// Three rules suffice for the buffers between two tight moments:
// 1. The last one to be born goes first. It alone can use addresses that are freed late, and covers
//    as many of them as it can.
// 2. Each other buffer goes to the hole whose neighbour dies at nearly the same time, so that holes
//    grow together. A buffer of a single tight moment goes to the lowest hole, so that all such
//    buffers share addresses.
// 3. The remaining buffers fill the holes, the largest first, each the smallest hole that fits.
//
// At the first tight moment, buffers are stacked in the order in which they die. Half of those that
// die first lie at the bottom and half at the top. So the last to die has a neighbour whose
// addresses the next microbatch takes, and the pattern repeats.
//
// There is no search. A step costs its number of buffers times the number of holes, which are few.
#pragma once

#include <atomic>
#include <optional>

#include "solve/core/planner.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

// Places the buffers of tight moments by these rules, and the rest around them by first fit.
// Returns nothing if time is circular, buffers are fixed, or the rules do not place all buffers of
// tight moments. With a `limit`, gives up as place_in_order() does.
std::optional<Layout> plan_chain(const Problem& problem, const Timeline& timeline,
                                 const Budget& budget, const std::atomic<Bytes>* limit = nullptr);

// The planner "chain". It places buffers by peak rank if there is no chain.
class ChainPlanner final : public Planner {
 public:
  std::string_view name() const override { return "chain"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
