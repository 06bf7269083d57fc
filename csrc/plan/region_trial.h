// Simulates how regions of given sizes would have served a profiled iteration.
//
// The simulation follows the runtime (StaticPool), as far as that is possible before addresses are
// known. A request goes into its group's region. If the region is full, the request goes into free
// space of another region whose requests have all come and which stays open for about as long. A
// request that ends within its phase may use any idle space: half of the bytes that are idle
// through the group's window are assumed to be in usable pieces. The remaining requests overflow.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "profile/lifetimes.h"
#include "solve/core/problem.h"

namespace stalloc::plan {

// The size that a region needs for `requests`, which are in order of `lower`. -1 if that is no
// 63-bit number.
Bytes region_need(std::span<const profile::DynamicSighting> requests, Bytes alignment);

// The most bytes that overflow at once in the compared iteration `iteration`. `sizes` are those of
// the regions. `idle` has the bytes that are idle beside each region through its window.
Bytes region_overflow(std::span<const profile::ProfiledGroup> groups, std::size_t iteration,
                      std::span<const Bytes> sizes, std::span<const Bytes> idle, Bytes alignment,
                      Tick period);

}  // namespace stalloc::plan
