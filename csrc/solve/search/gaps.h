// Plans buffers with idle intervals, after which they are back at the same offset.
//
//   offset ^
//          |  +--------+ +-----+ +----+     a's content does not matter in its idle interval: b may
//          |  |   a    | |  b  | | a  |     use the addresses meanwhile, but a has the same offset
//          |  +--------+ +-----+ +----+     afterwards.
//          +-------- idle interval ----> tick
//
// Other planners ignore idle intervals: their layouts are valid, and perhaps too high. This one
// places all active parts of a buffer at once, by first fit in several orders with repair. It
// searches small problems exhaustively.
#pragma once

#include <vector>

#include "solve/core/planner.h"
#include "solve/core/problem.h"

namespace stalloc::solve {

// Returns the lowest layout found, and the proven bound. `warm` is empty or has an offset for every
// buffer. `problem` has passed check(), all its buffers may share addresses, whatever their stream,
// and its fixed buffers do not clash. Deterministic unless the budget expires.
Minimum plan_gaps(const Problem& problem, const std::vector<Offset>& warm, const Budget& budget);

}  // namespace stalloc::solve
