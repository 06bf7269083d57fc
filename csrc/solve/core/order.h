// The orders in which a greedy planner can place buffers. None is safe alone.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "solve/core/problem.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

using BufferIndex = std::int32_t;  // index into Problem::buffers

enum class Order : std::uint8_t {
  kSize,      // largest first
  kLifetime,  // longest first
  kArea,      // size x lifetime, largest first
  kStart,     // as they are allocated
  // Moments ranked by load, highest first; a buffer comes with its best-ranked moment. The moments
  // that decide the height are packed while there is most freedom. Ties:
  kPeakRankEnd,    // latest end first
  kPeakRankStart,  // earliest start first
  kPeakRankSize,   // largest first
  // What is a two-thousandth of the peak or more by peak rank, and what is smaller afterwards:
  // small buffers among large ones leave holes that are just too small for the next of these.
  kLargePeakRankEnd,  // latest end first
  // By distance from the highest moment, nearest first: each buffer meets only one side that is
  // already there, the one towards the peak.
  kCentreOutEnd,
  kCentreOutSize,
  // What a phase carries into another one first, and what lives within a phase afterwards: what a
  // pass saves is packed as if there were no temporaries, and these find their place around it.
  kCarriedStart,         // then as they are allocated
  kCarriedCentreOutEnd,  // then centre out, latest end first
};

inline constexpr int kOrders = 12;

// Whether it is live in the phase it was allocated in and in another.
inline bool is_carried(const Buffer& buffer) { return buffer.phase_begin != buffer.phase_end; }

std::string_view to_string(Order order);  // "size", ..., "peak-rank-end", ...

// Every buffer that has a size and a lifetime, in that order; ties end at the index, so that the
// result is one and only. O(n log n).
std::vector<BufferIndex> ordered(const Problem& problem, const Timeline& timeline, Order order);

}  // namespace stalloc::solve
