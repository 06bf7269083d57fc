// The independent check of waits: shares no code with what finds them.
#pragma once

#include <span>

#include "solve/core/problem.h"

namespace stalloc::verify {

// Throws PlanError that names the buffers unless `waits`, ascending, has one
// for every two buffers of different streams of which the second is the next at some address; and
// no other. O(n log n).
void validate_waits(const solve::Problem& problem, const solve::Layout& layout,
                    std::span<const solve::Wait> waits);

}  // namespace stalloc::verify
