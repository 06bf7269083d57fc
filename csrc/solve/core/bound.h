// The load bound: the largest sum of rounded live sizes over time. No layout is lower.
//
// No layout is lower than its largest buffer (even one with an empty lifetime) or than the end of a
// fixed buffer.
#pragma once

#include "solve/core/problem.h"

namespace stalloc::solve {

// With several separate streams, the sum of each stream's own load. `problem` has passed check().
// O(n log n).
Bytes load_bound(const Problem& problem);

}  // namespace stalloc::solve
