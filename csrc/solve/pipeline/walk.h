// Many microbatches in flight, and a hole that walks along what they free.
//
//   offset ^
//          | f2                          | needed 2
//          | f1      | needed 1 | hole 2 | needed 2
//          | hole 1  | needed 1 | saved again
//          +------ turn 1 ----------- turn 2 ------> tick
//
// In a pipeline's steady state each backward pass begins by freeing a buffer (f1, f2), and at once
// needs that and all that is idle in one piece: the freed one has to touch the hole. Which passes
// follow each other is known, so the buffers that they free first are laid out side by side in just
// that order, whenever they are saved; and what one turn has freed is the next one's hole.
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

#include "solve/core/planner.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

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

}  // namespace stalloc::solve
