// Multilevel search: packs a coarse problem by trial and error, then refines it.
//
//   load ^   ______________________
//        |  |  long, large buffers |__        1. Coarsen: the long-lived, large buffers stay as
//        |  |_____________________    |          blocks. Their births and deaths cut time into
//        |  |  |____|  |__________|___|          pieces; one rectangle a piece stands for all
//        |  |__|    |__| rectangles   |          other buffers, as high as their largest load.
//        +-----------------------------> tick    The bound is that of the whole problem.
//
//   2. Bundle: blocks that are born one after another and freed in reverse form a unit, as the
//      checkpoints of a microbatch do. Each rectangle is a unit of its own.
//   3. Squeaky wheel: units are placed by first fit in the order of their priorities. Each unit
//      that ends above the target gains priority, and all are placed again. Priorities start in
//      order of birth, later in reverse order of death and by load.
//   4. Refine: the long buffers keep the offsets found, the others go between them by first fit,
//      with some repair.
//
// Random numbers come from a fixed seed and the search ends after a number of placements, so the
// result does not depend on the machine. A round costs one first fit of blocks and rectangles: a
// hundredth to a tenth of a first fit of all buffers.
#pragma once

#include <cstdint>

#include "solve/core/planner.h"

namespace stalloc::solve {

// Returns the lowest layout found with at most `placements` placements of blocks and rectangles, or
// `start` if none is lower. Proves no bound. Supports circular time and fixed offsets.
Minimum search_multilevel(const Problem& problem, const Layout& start, std::int64_t placements,
                          const Budget& budget);

class MultilevelPlanner final : public Planner {
 public:
  std::string_view name() const override { return "multilevel"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
