// Buffers that are inactive in part of their lifetime, and come back to the same place.
//
//   offset ^
//          |  +--------+ +-----+ +----+     a's contents do not matter during its gap: another
//          |  |   a    | |  b  | | a  |     buffer may lie there meanwhile, but a returns to the
//          |  +--------+ +-----+ +----+     offset it had.
//          +------------- gap -------------> tick
//
// A planner that knows nothing of gaps plans as if there were none: valid, and perhaps too high.
// This one places all active parts of a buffer at once, by first fit in several orders with repair,
// and searches small problems to the end.
#pragma once

#include <vector>

#include "solve/core/planner.h"
#include "solve/core/problem.h"

namespace stalloc::solve {

// The lowest layout found, and what is proven. `warm` is empty, or has an offset for every buffer.
// `problem` has passed check(), all its buffers share their addresses whatever their stream, and
// what is fixed does not clash. Deterministic unless the budget expires.
Minimum plan_gaps(const Problem& problem, const std::vector<Offset>& warm, const Budget& budget);

}  // namespace stalloc::solve
