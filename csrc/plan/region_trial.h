// What regions of given sizes would have done to a profiled iteration.
//
// Served as by the runtime (StaticPool), as far as that can be told before anything has an address:
// a request goes into its place's region, else into what another one has left whose requests have
// all been made and which stays open for about as long. What passes within its phase may lie
// anywhere idle: half of what is idle through the place's whole window is taken to be in pieces
// that are of use. What overflows is left over.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "profile/lifetimes.h"
#include "solve/core/problem.h"

namespace stalloc::plan {

// `requests` in order of `lower`, served from a region that has as much room as they take: where
// the highest of them ends. -1 when that is no 63-bit number.
Bytes region_need(std::span<const profile::DynamicSighting> requests, Bytes alignment);

// The most bytes that overflow at once in iteration `iteration` of those that were compared.
// `sizes` and `idle`, by place: of the regions, and what is idle beside them through the window.
Bytes region_overflow(std::span<const profile::DynamicPlace> places, std::size_t iteration,
                      std::span<const Bytes> sizes, std::span<const Bytes> idle, Bytes alignment,
                      Tick period);

}  // namespace stalloc::plan
