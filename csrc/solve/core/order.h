// The orders in which a greedy planner can place buffers. No single order is good on all problems.
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
  kStart,     // in order of allocation
  // By peak rank: moments are ranked by load, highest first, and a buffer comes with its
  // best-ranked moment. So the moments that decide the height are packed first. Ties:
  kPeakRankEnd,    // latest end first
  kPeakRankStart,  // earliest start first
  kPeakRankSize,   // largest first
  // Buffers of a two-thousandth of the peak or more by peak rank, smaller ones afterwards. Small
  // buffers among large ones leave holes that are just too small for the next large one.
  kLargePeakRankEnd,  // latest end first
  // By distance from the highest moment, nearest first. Each buffer then has placed neighbours only
  // on one side, towards the peak.
  kCentreOutEnd,
  kCentreOutSize,
  // Buffers that live on into another phase first, those of a single phase afterwards. The saved
  // activations are packed as if there were no temporaries, which then go around them.
  kCarriedStart,         // then in order of allocation
  kCarriedCentreOutEnd,  // then centre out, latest end first
};

inline constexpr int kOrders = 12;

// True if the buffer is live in the phase of its allocation and in another one.
inline bool is_carried(const Buffer& buffer) { return buffer.phase_begin != buffer.phase_end; }

std::string_view to_string(Order order);  // "size", ..., "peak-rank-end", ...

// Every buffer that has a size and a lifetime, in that order. The index breaks the last ties, so
// the result is unique. O(n log n).
std::vector<BufferIndex> ordered(const Problem& problem, const Timeline& timeline, Order order);

}  // namespace stalloc::solve
