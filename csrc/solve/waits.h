// Reuse across streams, and what it takes.
//
// With Streams::kOrdered, a buffer may lie where one of another stream lay before. Freed only means
// that the host has let go of it: its stream may still be at work there. So whoever follows such a
// layout lets the later buffer's stream wait (for an event, on a GPU) until the earlier one's work
// up to its free is done.
//
//   offset ^
//          |  [ a, stream 0 )[ b, stream 1 )[ c, stream 0 )      b waits for a, c waits for b
//          +------------------------------------------------> tick
//
// It is enough to wait for the last that lay at each address: waits follow each other.
#pragma once

#include <vector>

#include "solve/core/problem.h"

namespace stalloc::solve {

// All waits of a valid layout, ascending. With a period, the first in a turn waits for the last of
// the turn before. O(n log n).
std::vector<Wait> find_waits(const Problem& problem, const Layout& layout);

}  // namespace stalloc::solve
