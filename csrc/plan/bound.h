// The load bound: the largest sum of rounded live sizes over time. No layout is lower.
//
// Nor is any lower than its largest buffer, be its lifetime empty, or than the end of a fixed one.
#pragma once

#include "plan/problem.h"

namespace stalloc {

// O(n log n). With several separate streams, the sum of each stream's own
// load. `problem` has passed
// check().
Bytes load_bound(const Problem& problem);

}  // namespace stalloc
