// Repairs an order: buffers that ended too high move to the front, and all are placed again.
//
// A greedy planner fails at few buffers: those that came after the addresses they needed had been
// broken up. If they come first, the others hardly suffer. A few rounds bring most of the gain.
// Repair stops after several rounds without improvement, since it then mostly repeats itself.
#pragma once

#include <vector>

#include "solve/greedy/place_in_order.h"

namespace stalloc::solve {

// Returns the best layout of `order` and of up to `rounds` repairs of it. Stops at the first that
// is no higher than the budget's target. Each round costs as much as place_in_order(). Large
// problems that are still far above the target after a few rounds get no more.
Layout repaired(const Problem& problem, const Timeline& timeline, std::vector<BufferIndex> order,
                Fit fit, int rounds, const Budget& budget);

}  // namespace stalloc::solve
