// Places the temporaries of start-up: requests that only start-up and the first iteration make, and
// that are freed again.
//
// They lie, largest first, in parts of the pool and of the resident region that are idle during
// their lifetimes. They never make the two larger: the fallback serves those that find no space,
// and returns its memory.
//
// Note [Left out]
// A check of the model before its first step may need more than an iteration:
//
//   memory   |                  large
//            |  large           temporaries
//            |  temporaries     beside the pool
//            |  beside it
//            |------------      - - - - - - -
//            |  small ones      small ones,
//            |  in the pool     beside it, too
//
// The addresses that small temporaries use get memory, and the fallback keeps what it had for large
// ones meanwhile, until the first phase begins. So if start-up needs more than the plan, the first
// temporaries, up to a tick, are left to the fallback where the sum is less then.
#pragma once

#include <span>

#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::plan {

// Fills the offsets of temporaries in `plan.startup`. Permanent requests have theirs. `row_of` maps
// the profile's requests to decisions. Cost: O(n log n) for n requests of start-up, plus the
// decisions that are live together with temporaries, at a few intervals each.
void place_temporaries(Plan& plan, const profile::Startup& startup,
                       std::span<const DecisionIndex> row_of);

}  // namespace stalloc::plan
