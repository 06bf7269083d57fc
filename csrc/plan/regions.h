// How large a region each group of dynamic requests gets: what the profiled iterations needed, and
// some head room.
//
// Too little head room, and requests fall back on memory of their own; too much, and the pool grows
// for nothing. Which is worse is told by the profile itself: each iteration is served from regions
// sized after the others, and the head room is taken that makes the sum of the pool's bound and of
// what overflowed at its peak least.
#pragma once

#include <span>
#include <vector>

#include "plan/problem.h"
#include "trace/lifetimes.h"

namespace stalloc {

// Per cent, where there is only one iteration and nothing to compare.
inline constexpr std::int32_t kDefaultHeadroom = 10;

struct Regions {
  std::vector<Bytes> sizes;   // one a place, multiples of the alignment
  std::int32_t headroom = 0;  // per cent
  Bytes cost = 0;             // what the head room adds to the bound
  Bytes saves = 0;            // by how much it lowers the overflow's peak, on the average
};

// `problem` ends with one buffer a place, whose sizes do not matter, and passes check(). Throws
// OverflowError when the regions' sizes do not fit in Bytes.
Regions size_regions(std::span<const DynamicPlace> places, Problem problem);

}  // namespace stalloc
