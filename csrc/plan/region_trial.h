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

// The dynamic requests of a compared iteration, ready to be served from regions of any sizes.
class RegionTrial {
 public:
  // `groups` outlives this object.
  RegionTrial(std::span<const profile::ProfiledGroup> groups, std::size_t iteration,
              Bytes alignment, Tick period);

  // The most bytes that overflow at once. `sizes` are those of the regions. `idle` has the bytes
  // that are idle beside each region through its window. Ends early if the result exceeds `limit`.
  Bytes overflow(std::span<const Bytes> sizes, std::span<const Bytes> idle, Bytes limit) const;

 private:
  friend class RegionRun;
  struct Event {
    Tick tick = 0;
    bool is_allocation = false;  // frees come before allocations of the same tick
    std::size_t group = 0;
    std::size_t request = 0;  // counted over all groups
    Bytes size = 0;           // rounded up

    auto operator<=>(const Event&) const = default;
  };
  struct Visit {  // of a group's site
    Tick last_birth = 0;
    Tick closes = 0;
    bool passing = false;  // it ends within its phase
  };

  std::span<const profile::ProfiledGroup> groups_;
  std::vector<Visit> visits_;  // by group
  std::vector<Event> events_;
};

}  // namespace stalloc::plan
