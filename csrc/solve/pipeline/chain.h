// The tight moments one after another: what a steady pipeline needs to meet its bound.
//
// Where every turn of a loop comes up to the bound, all of these moments have to be packed without
// a gap, hundreds of them. Between two, as much is freed as comes after; what comes has to fill the
// holes exactly, and the holes have to suit what comes next:
//
//   offset ^          tight         tight
//          |  ----------+  +----------|--     f is as large as two of the others. It cannot be born
//          |      c     |  |     f    |       until a and b have died: they had better lie
//          together, |  ----+-----+  |          |       though a died a little earlier than b, and
//          what dies |    a |    b   |          |       next after them next to them. |
//          ----+-----+--+----------|--
//          +------------------------------> tick
//
// Three rules do it. Of what comes between two tight moments, the last to be born goes first: it
// alone can use what is freed late, and covers as much of that as it can. Everything else goes to
// the hole whose neighbour dies at nearly the same time, so that holes grow together; what lives at
// one tight moment only, to the lowest, so that one place serves all of these. And what is left at
// last fills the holes, largest first, each the smallest it fits. At the first moment, the buffers
// are stacked in the order in which they die, the first of these half at the bottom and half at the
// top: so the last to die has a neighbour whose place is taken by the next turn, and the circle is
// closed.
//
// No search: a step costs its buffers times the holes, a handful.
#pragma once

#include <atomic>
#include <optional>

#include "solve/core/planner.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

// What lives at the tight moments by these rules, and the rest around it by first fit. Nothing when
// time is circular, buffers are fixed, or the rules leave something tight without a place.
// With a `limit`, gives up as place_in_order() does.
std::optional<Layout> plan_chain(const Problem& problem, const Timeline& timeline,
                                 const Budget& budget, const std::atomic<Bytes>* limit = nullptr);

// By peak rank, where there is no chain.
class ChainPlanner final : public Planner {
 public:
  std::string_view name() const override { return "chain"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
