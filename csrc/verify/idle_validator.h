// The independent check of reusable space: shares no code with what finds it.
#pragma once

#include <span>

#include "solve/core/problem.h"

namespace stalloc::verify {

// That [begin, end) is idle from `lower` to `upper`.
struct IdleClaim {
  Offset begin = 0;
  Offset end = 0;
  Tick lower = 0;  // as a buffer's lifetime, circular too
  Tick upper = 0;
  StreamId stream = 0;
};

// Throws PlanError that names claim and buffer unless no claim shares an address and a moment with
// a buffer of its stream, nor an address with one of another. Claims may overlap each other.
// `layout` is valid. n buffers and claims: O(n log n) for each stream that has claims.
void validate_idle(const solve::Problem& problem, const solve::Layout& layout,
                   std::span<const IdleClaim> claims);

}  // namespace stalloc::verify
