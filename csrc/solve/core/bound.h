// The load bound: the largest sum of rounded live sizes over time. No layout is lower.
//
// Nor is any lower than its largest buffer, be its lifetime empty, or than the end of a fixed one.
#pragma once

#include "solve/core/problem.h"

namespace stalloc::solve {

// O(n log n). With several separate streams, the sum of each stream's own
// load. `problem` has passed
// check().
Bytes load_bound(const Problem& problem);

}  // namespace stalloc::solve
