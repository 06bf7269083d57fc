// Many microbatches in flight, and a hole that walks along what they free.
//
//   offset ^                                In a pipeline's steady state each backward pass begins
//          |            [  needed 2   ]     by freeing a buffer, and at once needs that and all
//          that |            | f2          |     is idle in one piece: the freed one has to touch
//          the |  [ needed 1 ]  f3 saved  |     hole. Which passes follow each other is known, so
//          the |  | f1       | hole  2    |     buffers that they free first are laid out side by
//          side |  | hole  1  | saved again      in just that order, whenever they are saved; and
//          what
//          +--------------------------> tick  one turn has freed is the next one's hole.
//
// All that a pass saves is a chunk, and a chunk lies in the slot of the one whose end made room for
// it: some of the walk's cells, and a region of its own. A turn takes one cell from its slot, for
// the next hole, and gives it the last hole in exchange: a slot always has as much room as before.
// Where chunks are freed in the order in which they were saved, the chain (chain.h) does the same
// for ever. Elsewhere, a straight walk ends when the cells do: it visits a slot only as often as
// that has buffers that lie in cells. If cells and hole are of one size, cells can be walked again
// (contacts.h), which takes two thirds as many; what is saved after a turn is then fitted into what
// its slot consists of at that time (bins.h). So there is none for very long traces.
//
// Costs one pass over the buffers, a bounded number of steps a turn, and a first fit for what is in
// no chunk.
#pragma once

#include <atomic>
#include <optional>

#include "plan/planner.h"
#include "plan/timeline.h"

namespace stalloc {

// Nothing when buffers are fixed, no such turns are found or the chunks do not fill their slots.
// With a `limit`, gives up as place_in_order() does.
std::optional<Layout> plan_walk(const Problem& problem, const Timeline& timeline,
                                const Budget& budget, const std::atomic<Bytes>* limit = nullptr);

// By peak rank, where there is no walk.
class WalkPlanner final : public Planner {
 public:
  std::string_view name() const override { return "walk"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc
