// Where to cut circular time open.
//
// Between two turns, a training loop usually holds little but what lives all the time: cut there,
// and what was circular is a line, or nearly.
#pragma once

#include "solve/core/problem.h"

namespace stalloc::solve {

// The tick within [0, period) that the fewest bytes live across, the first of several; what lives
// the whole turn does not count. O(n log n). `problem` has passed check() and has a period.
Tick lightest_cut(const Problem& problem);

// The same problem with tick `cut` as tick 0. When nothing crosses it but what lives the whole
// turn, time becomes a line: the result has no period. Layouts fit both problems alike.
Problem rotated(const Problem& problem, Tick cut);

}  // namespace stalloc::solve
