// Reuse across streams, and the waits that it requires.
//
// With Streams::kOrdered, a buffer may use the addresses of an earlier one of another stream. A
// free only means that the host has released the earlier buffer: its stream may still work on it.
// So the user of such a layout makes the later buffer's stream wait (for an event, on a GPU) until
// the earlier stream's work up to the free is done.
//
//   offset ^
//          |  [ a, stream 0 )[ b, stream 1 )[ c, stream 0 )      b waits for a, c waits for b
//          +------------------------------------------------> tick
//
// It suffices to wait for the last buffer at each address, because waits are transitive.
#pragma once

#include <vector>

#include "solve/core/problem.h"

namespace stalloc::solve {

// All waits of a valid layout, ascending. With a period, the first buffer at an address waits for
// the last one of the previous period. O(n log n).
std::vector<Wait> find_waits(const Problem& problem, const Layout& layout);

}  // namespace stalloc::solve
