// The load bound: the largest sum of rounded live sizes over time. No layout is lower.
#pragma once

#include "plan/problem.h"

namespace stalloc {

// O(n log n). With several streams, the sum of each stream's own bound.
Bytes load_bound(const Problem& problem);

}  // namespace stalloc
