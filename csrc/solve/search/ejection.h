// Lowers a layout by ejection chains.
//
//   aim  - - - - - - - - - - - -      The highest buffers are taken out. Each is put back below the
//          [   ejected   ]            aim, where it displaces the least. The buffers that it
//     +----------+ +--------+         overlaps there are ejected, and put back in turn, until
//     |   put    |v|  stays |         none is left: then the layout is as low as the aim.
//     +----------+ +--------+
//
// A buffer that is ejected weighs more from then on. So a chain does not turn in a circle, and
// buffers that are hard to place find a place in the end. Orders of placement (greedy planners,
// tight moments) move all that comes after a change; a chain moves the buffers in its way alone.
#pragma once

#include <cstdint>

#include "solve/core/planner.h"
#include "solve/core/problem.h"

namespace stalloc::solve {

// Returns the lowest layout found, or `start` if none is lower. A chain ends after `puts` buffers
// were put back. Proves no bound. Supports circular time and fixed offsets. Deterministic.
Minimum search_ejections(const Problem& problem, const Layout& start, std::int64_t puts,
                         const Budget& budget);

}  // namespace stalloc::solve
