// The validator of plans that rely on the program's own order. It shares no code with
// solve/order.h.
#pragma once

#include <span>

#include "base/order.h"
#include "solve/core/problem.h"

namespace stalloc::verify {

// `waits` are those of `layout` (waits_validator.h). For each, `orders` must say that the user's
// stream comes after all work that the other streams of the problem had got by the free: otherwise
// throws PlanError that names the buffers. `orders` repeat with the problem's period. O(n log n)
// for one stream more.
void validate_order(const solve::Problem& problem, std::span<const solve::Wait> waits,
                    std::span<const Order> orders);

}  // namespace stalloc::verify
