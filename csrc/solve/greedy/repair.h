// Repair of an order: what ended too high moves to the front, and all is placed again.
//
// A greedy planner fails at few buffers, those that came when the addresses they needed had been
// broken up. Placed first, they cost the others little. A handful of rounds does most of it;
// where several in a row bring nothing better, it mostly goes round in a circle, and stops.
#pragma once

#include <vector>

#include "solve/greedy/place_in_order.h"

namespace stalloc::solve {

// The best layout of up to `rounds` repairs of `order`, and of the order itself; the first that is
// no higher than the budget's target. Each round costs what placing in order costs; where that is
// dear, what is still far above the target after a few rounds gets no more.
Layout repaired(const Problem& problem, const Timeline& timeline, std::vector<BufferIndex> order,
                Fit fit, int rounds, const Budget& budget);

}  // namespace stalloc::solve
