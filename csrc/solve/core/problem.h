// The planning problem: dynamic storage allocation.
//
//   offset ^
//          |        +-----------+
//          |        |     1     |  size       A buffer is a rectangle whose place in time is given
//          |  +-----+--+--------+             and whose place in the pool is sought, so that no two
//          |  |   0    |   +-----+            overlap and the top of the highest is lowest.
//          |  |        |   |  2  |
//          +--+--------+---+-----+----> tick
//         lower      upper
//
// Time may be circular: with a period P > 0, a buffer with upper > P goes on at the start of the
// next turn and lives in [lower, P) and [0, upper - P).
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace stalloc::solve {

struct Buffer {
  Bytes size = 0;  // as asked; planners round it up to the problem's alignment
  Tick lower = 0;
  Tick upper = 0;  // half-open; an empty lifetime (upper <= lower) conflicts with nothing
  StreamId stream = 0;
  Offset fixed = kUnplaced;        // where it must lie, if anywhere
  PhaseIndex phase_begin = kNone;  // p_s and p_e, for the paper's planner; kNone when unknown
  PhaseIndex phase_end = kNone;
};

// A stretch of a buffer's lifetime in which its place is free for others.
struct Gap {
  std::int32_t buffer = kNone;  // index into Problem::buffers
  Tick lower = 0;               // lies within the buffer's lifetime
  Tick upper = 0;               // half-open, not empty
};

// Which addresses a buffer may use that others have used before it.
enum class Streams : std::uint8_t {
  kSeparate,  // its own stream's only
  kOrdered,   // any: whoever follows the layout orders the streams as waits.h says
};

struct Problem {
  std::vector<Buffer> buffers = {};
  Tick period = 0;  // 0: time is a line
  Bytes alignment = kDefaultAlignment;
  Bytes capacity = 0;  // 0: none. Otherwise a plan must not be higher
  Streams streams = Streams::kSeparate;
  std::vector<Gap> gaps = {};  // by buffer, then by lower; disjoint. Not where streams are ordered

  // Throws PlanError, naming the first offending buffer, unless: sizes are not negative, and their
  // rounded sum above the highest fixed offset fits in Bytes; alignment is positive; lifetimes are
  // neither negative nor reversed; fixed offsets are aligned; with a period lower < period and
  // upper - lower <= period; and gaps are as stated.
  void check() const;
};

// One offset a buffer, in the order of Problem::buffers.
struct Layout {
  std::vector<Offset> offsets;
  Bytes height = 0;  // max(offset + rounded size)
};

// An edge between streams that a layout asks for; see waits.h.
struct Wait {
  std::int32_t buffer = kNone;  // index into Problem::buffers: before this one is used,
  std::int32_t after = kNone;   // what was asked of this one, of another stream, has to be done
  auto operator<=>(const Wait&) const = default;
};

}  // namespace stalloc::solve
