// Moves the origin of circular time.
//
// Between two iterations, a training loop usually holds little except what lives throughout. With
// its origin there, circular time is a line, or nearly.
#pragma once

#include "solve/core/problem.h"

namespace stalloc::solve {

// The tick within [0, period) that the fewest bytes live across, the first of several. Buffers that
// live the whole period do not count. O(n log n). `problem` has passed check() and has a period.
Tick lightest_tick(const Problem& problem);

// The same problem with tick `origin` as tick 0. If only buffers that live the whole period cross
// it, time becomes a line: the result has no period. A layout of one problem is a layout of the
// other.
Problem with_origin(const Problem& problem, Tick origin);

}  // namespace stalloc::solve
