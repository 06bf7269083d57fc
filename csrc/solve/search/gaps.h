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

#include <cstdint>
#include <vector>

#include "solve/core/planner.h"
#include "solve/core/problem.h"
#include "solve/exact/exact_planner.h"

namespace stalloc::solve {

// The active parts of all buffers, as buffers of a problem without gaps. Its load is the load of
// the whole; its layouts are those of the whole where all parts of a buffer lie at one offset.
struct ActiveParts {
  Problem problem;
  std::vector<std::int32_t> owner;  // of each part, index into the whole problem's buffers
  std::vector<std::size_t> first;   // of each buffer's parts, and one more: each has one at least
};

ActiveParts active_parts(const Problem& problem);

// The lowest layout found, and what is proven. `warm` is empty, or has an offset for every buffer.
// `problem` has passed check(), all its buffers share their addresses whatever their stream, and
// what is fixed does not clash. Deterministic unless the budget expires.
Minimum plan_gaps(const Problem& problem, const std::vector<Offset>& warm, const Budget& budget);

}  // namespace stalloc::solve
