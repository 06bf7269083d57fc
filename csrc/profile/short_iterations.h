// Iterations that lack phases of others: the last accumulation of an epoch has fewer microbatches,
// a generator steps with every fifth step of its critic.
//
//   long    f0 b0 o0 f1 b1 o1 step o2     the reference: the last one that has all phases
//   short   f0 b0 o0 step o1              its o1 is the other's o2: both follow the step
//
// An iteration profile shows one iteration, the reference, which is the last one of a trace. A plan
// of a short one has no decisions for the phases that it lacks. So iterations after the last long
// one are left out. `other` phases, which are numbered in program order, get the reference's
// numbers.
#pragma once

#include <optional>

#include "trace/trace.h"

namespace stalloc::profile {

// The trace with these changes; nothing if it needs none. `trace` has passed check(). O(phases)
// and, if there are changes, the cost of a copy.
std::optional<trace::Trace> even_out(const trace::Trace& trace);

}  // namespace stalloc::profile
