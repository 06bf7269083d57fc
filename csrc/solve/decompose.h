// Taking a problem apart without losing anything.
//
//   offset ^   +--+ +-----+  |  +----+       What lives through everything can be moved to the
//          |   |  | |     |  |  | 3  |       bottom of any layout, as it lies below or above every
//          |   +--+-+--+--+  |  +----+       other buffer as a whole. Where nothing else is live,
//          |   |       |     |               the parts before and after do not know each other.
//          +---+-------+-----+-------+       Then the same again, for each part.
//          |      lives throughout   |
//          +-------------------------+----> tick
//
// Both steps keep the optimum: the best layout is the best of every part, on its base.
#pragma once

#include <cstdint>
#include <vector>

#include "solve/core/problem.h"

namespace stalloc::solve {

struct Part {
  Problem problem;
  std::vector<std::int32_t> buffers;  // where the part's buffers are in the whole problem
  Offset base = 0;                    // what is below belongs to others
  Bytes load = 0;                     // the part's own load bound
};

// The parts of a problem that has passed check() and in which nothing is fixed, highest first
// (base + load). Buffers that are in no part have their place in `offsets`; those without size or
// lifetime are placed at 0. Circular time is cut open where least crosses. O(n log n).
std::vector<Part> decompose(const Problem& problem, std::vector<Offset>& offsets);

}  // namespace stalloc::solve
