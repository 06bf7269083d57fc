// The validator of waits. It shares no code with waits.h, which finds them.
#pragma once

#include <span>

#include "solve/core/problem.h"

namespace stalloc::verify {

// `waits` is ascending. It must have a wait for every two buffers of different streams of which the
// second is the next one at some address, and no other wait. Otherwise throws PlanError that names
// the buffers. O(n log n).
void validate_waits(const solve::Problem& problem, const solve::Layout& layout,
                    std::span<const solve::Wait> waits);

}  // namespace stalloc::verify
