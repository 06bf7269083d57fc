// How large a region each group of dynamic requests gets: what it typically needs, and some head
// room.
//
// One microbatch is like the other, so the places that correspond to each other in the phases of
// one kind are a family, whose regions are of one size: more is known of what is typical, and equal
// sizes are packed without crumbs. The head room is a share of how far above the median a family's
// need has gone: what never differs gets none.
//
// Too little head room, and requests fall back on memory of their own; too much, and the pool grows
// for nothing. Which is worse is told by the profile itself: each iteration is served from regions
// sized after the others, all places together, since where one needs more another mostly needs
// less; and the head room is taken that makes the sum of the pool's bound and of what overflowed at
// the worst peak least.
//
// Away from the peak head room costs nothing: there a family gets as much as the default if that
// does not raise the bound. A request that misses its region by a few bytes falls back as a whole.
#pragma once

#include <span>
#include <vector>

#include "profile/lifetimes.h"
#include "solve/core/problem.h"

namespace stalloc::plan {

// Per cent, where there is only one iteration and nothing to compare.
inline constexpr std::int32_t kDefaultHeadroom = 200;

struct Regions {
  std::vector<Bytes> sizes;   // one a place, multiples of the alignment
  std::int32_t headroom = 0;  // at the peak: per cent of what the largest need has above the median
  Bytes cost = 0;             // what the head room adds to the bound
  Bytes saves = 0;            // by how much it lowers the overflow at its worst peak
};

// `problem` ends with one buffer a place, whose sizes do not matter, and passes check(); `phases`
// are the profile's. Throws OverflowError when the regions' sizes do not fit in Bytes.
Regions size_regions(std::span<const profile::DynamicPlace> places,
                     std::span<const profile::ProfiledPhase> phases, solve::Problem problem);

}  // namespace stalloc::plan
