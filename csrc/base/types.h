// Units. Every number that crosses an interface carries its unit in its type's name.
//
// Intervals are half-open everywhere: of time [lower, upper), of addresses [begin, end).
#pragma once

#include <cstdint>
#include <limits>

#include "base/index.h"

namespace stalloc {

using Bytes = std::int64_t;   // a size, in bytes
using Offset = std::int64_t;  // bytes from the start of a pool
using Tick = std::int64_t;    // a moment: the number of allocations and frees before it
using PhaseIndex = Index<struct Phase>;
using LayerIndex = Index<struct Layer>;  // of a table of layer names
using StreamId = std::int32_t;       // ordinal of a stream by first use; 0 is the device's default
using ThreadOrdinal = std::int32_t;  // ordinal of a thread by first use; 0 is the training thread

inline constexpr Tick kNever = std::numeric_limits<Tick>::max();  // not freed while recorded
inline constexpr Offset kUnplaced = -1;
inline constexpr Bytes kDefaultAlignment = 512;  // what CUDA's allocators give

}  // namespace stalloc
