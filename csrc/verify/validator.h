// The validator of layouts. It shares no code with the planners.
#pragma once

#include "solve/core/problem.h"

namespace stalloc::verify {

// Throws PlanError that names the offending buffers unless all of these hold:
//   - Every buffer is placed, aligned, inside [0, height), and at its fixed offset if it has one.
//   - The height is within the capacity.
//   - No two buffers share a moment and an address, except during idle intervals.
//   - If streams are separate, no two buffers of different streams share an address at any time.
// A buffer without size, or without lifetime outside its idle intervals, conflicts with nothing.
// O(n log n).
void validate(const solve::Problem& problem, const solve::Layout& layout);

}  // namespace stalloc::verify
