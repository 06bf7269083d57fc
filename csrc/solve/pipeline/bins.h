// Sizes into ranges that they all but fill, or fill to the last byte.
//
// Best fit leaves what is too small for anything in each. So this fills one range after another,
// the smallest first and each with the largest it takes, and takes back a choice that wastes more
// than there is to waste. Equal sizes are one choice, which leaves few; the number of steps is
// bounded.
#pragma once

#include <optional>
#include <vector>

#include "base/range.h"

namespace stalloc::solve {

// The offset of each size, all of them above 0, in one of the ranges, which do not overlap. Nothing
// when they do not fit, or if that is not found out in time.
std::optional<std::vector<Offset>> fill_bins(const std::vector<Bytes>& sizes,
                                             std::vector<Range> bins);

}  // namespace stalloc::solve
