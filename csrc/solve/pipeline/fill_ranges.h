// Fills ranges of addresses with sizes that take up nearly all of them, or all.
//
// Best fit would leave a useless remainder in each range. So this fills one range after another,
// the smallest first, each with the largest sizes that fit. It takes back a choice that wastes more
// than the total allows. Equal sizes are one choice, so there are few choices. The number of steps
// is bounded.
#pragma once

#include <optional>
#include <vector>

#include "base/range.h"

namespace stalloc::solve {

// The offset of each size in one of the ranges. Sizes are above 0; ranges do not overlap. Returns
// nothing if the sizes do not fit, or if the search takes too many steps.
std::optional<std::vector<Offset>> fill_ranges(const std::vector<Bytes>& sizes,
                                               std::vector<Range> ranges);

}  // namespace stalloc::solve
