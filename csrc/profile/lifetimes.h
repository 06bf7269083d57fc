// From a trace of several iterations to the one that repeats: which requests come back every time,
// with which lifetime, and which do not.
//
// The last complete iteration is the reference. Its requests are aligned, phase by phase and thread
// by thread, with those of the iterations before it (a warm-up is left out; see counterparts.h). A
// request that has its counterpart of the same size and stream in all of them is static. Its
// lifetime is the longest any iteration saw, told by the place among the aligned requests where it
// was freed, so that neither the order of frees nor a late garbage collection makes a plan wrong.
// (Dynamic requests and those of other threads are never planned: theirs is what the reference
// saw.)
#pragma once

#include "profile/iteration_profile.h"
#include "trace/trace.h"

namespace stalloc::profile {

// Throws TraceError when the trace fails check() or holds no complete iteration. One alone
// (compared == 0) is taken at its word: what is still live at its end counts as persistent.
IterationProfile profile_iteration(const trace::Trace& trace);

}  // namespace stalloc::profile
