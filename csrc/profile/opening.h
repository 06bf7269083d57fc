// What only the beginning of a run asks for.
//
// Start-up makes the weights, and the first iteration what it keeps: gradients, the optimizer's
// states, workspaces. No later iteration makes them again, so that comparing iterations leaves them
// out; and most of them stay for good. They are found by aligning the first iteration with the
// reference: what has no counterpart there belongs to the opening. What outlives the next iteration
// is aligned only with its like, or a state would be taken for a temporary of its size and shift
// all that follow.
//
// Start-up is not told apart from the first iteration: it is the first phase of it, before any
// model was called.
#pragma once

#include "profile/counterparts.h"
#include "profile/iteration_profile.h"

namespace stalloc::profile {

// Fills `profile.opening`, and appends to its phases what phases the opening alone has. The profile
// is complete but for that. Does nothing where the first iteration is one of those compared.
void add_opening(const Counterparts& all, IterationProfile& profile);

}  // namespace stalloc::profile
