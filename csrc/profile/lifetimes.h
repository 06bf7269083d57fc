// Derives the iteration profile from a trace of several iterations: which requests come in every
// iteration, with which lifetime, and which do not.
//
// The last complete iteration is the reference. Its requests are aligned, phase by phase and thread
// by thread, with those of the iterations before it (a warm-up is left out; see counterparts.h). A
// request is static if it has a counterpart of the same size and stream in all of them. Its
// lifetime is the longest that any iteration saw. The end of a lifetime is measured by the aligned
// requests around the free. So neither the order of frees nor a late garbage collection makes a
// plan wrong. Dynamic requests and those of other threads are never planned: they have the
// reference's lifetime.
#pragma once

#include "profile/iteration_profile.h"
#include "trace/trace.h"

namespace stalloc::profile {

// Throws TraceError if the trace fails check() or holds no complete iteration. With one complete
// iteration (compared == 0), every request that is live at its end counts as persistent.
IterationProfile profile_iteration(const trace::Trace& trace);

}  // namespace stalloc::profile
