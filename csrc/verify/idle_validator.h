// The validator of reusable space. It shares no code with reusable.h, which finds it.
#pragma once

#include <span>

#include "solve/core/problem.h"

namespace stalloc::verify {

// The claim that [begin, end) is idle from `lower` to `upper`.
struct IdleClaim {
  Offset begin = 0;
  Offset end = 0;
  Tick lower = 0;  // as a buffer's lifetime, circular too
  Tick upper = 0;
  StreamId stream = 0;
};

// Throws PlanError that names claim and buffer if a claim shares an address and a moment with a
// buffer of its stream, or an address with a buffer of another stream. Claims may overlap each
// other. `layout` is valid. n buffers and claims: O(n log n) for each stream that has claims.
void validate_idle(const solve::Problem& problem, const solve::Layout& layout,
                   std::span<const IdleClaim> claims);

}  // namespace stalloc::verify
