// Chooses the size of each group's region: the group's typical need and some head room.
//
// Microbatches are alike. So the groups that correspond to each other in the phases of one kind
// form a family, whose regions have one size. A family has more samples of the typical need, and
// equal sizes leave no fragments. The head room is a share of the difference between the family's
// largest need and its median. A need that never differs gets none.
//
// With too little head room, requests overflow into the fallback. With too much, the pool grows in
// vain. The profile decides by cross-validation: each iteration is served from regions sized by the
// other iterations. All groups are served together, because one group often needs less when another
// needs more. The best head room has the least sum of the pool's bound and the worst overflow.
//
// Head room costs nothing away from the peak. There a family gets up to the default if that does
// not raise the bound: a request that misses its region by a few bytes would fall back as a whole.
#pragma once

#include <span>
#include <vector>

#include "profile/lifetimes.h"
#include "solve/core/problem.h"

namespace stalloc::plan {

// The head room in per cent if there is only one iteration and nothing to compare.
inline constexpr std::int32_t kDefaultHeadroom = 200;

struct Regions {
  std::vector<Bytes> sizes;   // one a group, multiples of the alignment
  std::int32_t headroom = 0;  // at the peak: per cent of (largest need - median)
  Bytes cost = 0;             // what the head room adds to the bound
  Bytes saves = 0;            // by how much it lowers the overflow at its worst peak
  Bytes total = 0;            // the bound with the regions, and the overflow that remains
};

// `problem` passes check() and ends with one buffer a group, whose sizes do not matter. `phases`
// are the profile's. Throws OverflowError if the regions' sizes do not fit in Bytes.
Regions size_regions(std::span<const profile::ProfiledGroup> groups,
                     std::span<const profile::ProfiledPhase> phases, solve::Problem problem);

}  // namespace stalloc::plan
