// The independent check of a layout: shares no code with the planners.
#pragma once

#include "solve/core/problem.h"

namespace stalloc::verify {

// Throws PlanError that names the offending buffers unless every buffer is placed, aligned, inside
// [0, height) and, where fixed, at its place; the height is within the capacity; and no two that
// share a moment share an address, gaps left out, nor, where streams are separate, any two of
// different streams at all. A buffer without size, or without lifetime outside its gaps, conflicts
// with nothing. O(n log n).
void validate(const solve::Problem& problem, const solve::Layout& layout);

}  // namespace stalloc::verify
