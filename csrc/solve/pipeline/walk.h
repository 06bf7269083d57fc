// Places many microbatches in flight around a hole that walks along the buffers that they free.
//
//   offset ^
//          | f2                          | needed 2
//          | f1      | needed 1 | hole 2 | needed 2
//          | hole 1  | needed 1 | saved again
//          +------ peak 1 ----------- peak 2 ------> tick
//
// In a pipeline's steady state, each backward pass begins by freeing a buffer (f1, f2). At once it
// needs the freed bytes and all idle ones in one piece: the freed buffer has to touch the hole. The
// order of the passes is known, so the buffers that they free first lie side by side in that order,
// whenever they are saved. The addresses that one peak frees are the next peak's hole.
//
// A chunk is all that a pass saves. It lies in the slot of the chunk whose end made room for it:
// some of the walk's cells, and a range of its own. A peak takes one cell from its slot, for the
// next hole, and gives it the last hole in exchange. So the size of a slot never changes.
//
// If chunks are freed in the order in which they were saved, the chain (chain.h) does the same
// without end. Otherwise a straight walk ends with its cells: it visits a slot only as often as the
// slot has buffers that lie in cells. If cells and hole have one size, cells can be walked again
// (borders.h), which takes two thirds as many. Buffers that are saved after a peak are then fitted
// into the ranges of their slot at that time (fill_ranges.h). So there is no walk for very long
// traces.
//
// Costs one pass over the buffers, a bounded number of steps a peak, and a first fit for the
// buffers outside chunks.
#pragma once

#include <atomic>
#include <optional>

#include "solve/core/planner.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

// Returns nothing if buffers are fixed, no such peaks are found or chunks do not fill their slots.
// With a `limit`, gives up as place_in_order() does.
std::optional<Layout> plan_walk(const Problem& problem, const Timeline& timeline,
                                const Budget& budget, const std::atomic<Bytes>* limit = nullptr);

// The planner "walk". It places buffers by peak rank if there is no walk.
class WalkPlanner final : public Planner {
 public:
  std::string_view name() const override { return "walk"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
