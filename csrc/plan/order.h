// The orders in which a greedy planner can place buffers. None is safe alone.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/problem.h"
#include "plan/timeline.h"

namespace stalloc {

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
  // By distance from the highest moment, nearest first: each buffer meets only one side that is
  // already there, the one towards the peak.
  kCentreOutEnd,
  kCentreOutSize,
};

inline constexpr int kOrders = 9;

std::string_view to_string(Order order);  // "size", ..., "peak-rank-end", ...

// Every buffer that has a size and a lifetime, in that order; ties end at the index, so that the
// result is one and only. O(n log n).
std::vector<BufferIndex> ordered(const Problem& problem, const Timeline& timeline, Order order);

}  // namespace stalloc
