// Finds the requests that only the start-up of a run makes.
//
// Start-up allocates the weights. The first iteration allocates gradients, the optimizer's states
// and workspaces. Later iterations do not make these requests again, so the comparison of
// iterations leaves them out. Most of them stay permanently. To find them, the first iteration is
// aligned with the reference: a request without a counterpart belongs to start-up. A request that
// outlives the next iteration is aligned only with others that do. Otherwise an optimizer's state
// would match a temporary of its size and shift all that follow.
//
// The trace has no boundary between start-up and the first iteration: start-up is the first phase
// of that iteration, before any model was called.
#pragma once

#include "profile/counterparts.h"
#include "profile/iteration_profile.h"

namespace stalloc::profile {

// Fills `profile.startup`, and appends the phases that only start-up has to `profile.phases`. The
// profile is complete except for that. Does nothing if the first iteration is a compared one.
void add_startup(const Counterparts& all, IterationProfile& profile);

}  // namespace stalloc::profile
