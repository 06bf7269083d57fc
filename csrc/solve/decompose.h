// Divides a problem into parts that can be solved separately.
//
//   offset ^   +--+ +-----+  |  +----+       A buffer that lives throughout can move to the bottom
//          |   |  | |     |  |  | 3  |       of any layout: it lies entirely below or above each
//          |   +--+-+--+--+  |  +----+       other buffer. If nothing else is live at a moment, the
//          |   |       |     |               parts before and after it are independent. The same
//          +---+-------+-----+-------+       two steps are applied to each part again.
//          |      lives throughout   |
//          +-------------------------+----> tick
//
// Both steps keep the optimum: the best layout has the best layout of every part, above its base.
#pragma once

#include <cstdint>
#include <vector>

#include "solve/core/problem.h"

namespace stalloc::solve {

struct Part {
  Problem problem;
  std::vector<std::int32_t> buffers;  // the part's buffers: indices into the whole problem
  Offset base = 0;                    // the part lies above this offset
  Bytes load = 0;                     // the part's own load bound
};

// The parts of a problem that has passed check() and has no fixed buffers, highest first (base +
// load). Buffers that belong to no part get their offset in `offsets`; those without size or
// lifetime get 0. The origin of circular time moves to where the fewest bytes cross. O(n log n).
std::vector<Part> decompose(const Problem& problem, std::vector<Offset>& offsets);

}  // namespace stalloc::solve
