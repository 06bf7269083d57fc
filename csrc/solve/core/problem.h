// The planning problem: dynamic storage allocation.
//
//   offset ^
//          |        +-----------+
//          |        |     1     |  size       A buffer is a rectangle. Its lifetime is given, its
//          |  +-----+--+--------+             offset is sought. No two rectangles may overlap, and
//          |  |   0    |   +-----+            the highest top is to be as low as possible.
//          |  |        |   |  2  |
//          +--+--------+---+-----+----> tick
//         lower      upper
//
// Time may be circular: with a period P > 0, a buffer with upper > P lives on at the start of the
// next period, in [lower, P) and [0, upper - P).
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace stalloc::solve {

struct Buffer {
  Bytes size = 0;  // as asked; planners round it up to the problem's alignment
  Tick lower = 0;
  Tick upper = 0;  // half-open; an empty lifetime (upper <= lower) conflicts with nothing
  StreamId stream = 0;
  Offset fixed = kUnplaced;        // the required offset, if any
  PhaseIndex phase_begin = kNone;  // p_s and p_e, for the paper's planner; kNone if unknown
  PhaseIndex phase_end = kNone;
};

// An idle interval: a part of a buffer's lifetime in which others may use its addresses.
struct IdleInterval {
  std::int32_t buffer = kNone;  // index into Problem::buffers
  Tick lower = 0;               // lies within the buffer's lifetime
  Tick upper = 0;               // half-open, not empty
};

// Addresses that stay closed to another stream for a while after a buffer's end. The buffer's own
// stream, and streams without a hold, may have them at once.
//
//   stream 0   [ buffer )[ next, stream 0 )
//   stream 1   [ buffer ) . . hold . . |[ next, stream 1 )
struct Hold {
  std::int32_t buffer = kNone;  // index into Problem::buffers
  StreamId stream = 0;          // not the buffer's own
  Tick until = 0;               // later than the buffer's end
};

// The addresses of freed buffers that a buffer may use.
enum class Streams : std::uint8_t {
  kSeparate,  // those of its own stream only
  kOrdered,   // any; the user of the layout then orders the streams as waits.h says
};

constexpr std::string_view name(Streams streams) {
  return streams == Streams::kOrdered ? "ordered" : "separate";
}

struct Problem {
  std::vector<Buffer> buffers = {};
  Tick period = 0;  // 0: time is a line
  Bytes alignment = kDefaultAlignment;
  Bytes capacity = 0;  // 0: none. Otherwise a plan must not be higher
  Streams streams = Streams::kSeparate;
  std::vector<IdleInterval> idle =
      {};                        // by buffer, then by lower; disjoint. Not with ordered streams
  std::vector<Hold> holds = {};  // by buffer, then by stream. Only with ordered streams

  // Throws PlanError, naming the first offending buffer, unless: sizes are not negative, and their
  // rounded sum above the highest fixed offset fits in Bytes; alignment is positive; lifetimes are
  // neither negative nor reversed; fixed offsets are aligned; with a period lower < period and
  // upper - lower <= period, and the same for holds; and idle intervals and holds are as stated.
  void check() const;
};

// One offset a buffer, in the order of Problem::buffers.
struct Layout {
  std::vector<Offset> offsets;
  Bytes height = 0;  // max(offset + rounded size)
};

// An edge between streams that a layout requires; see waits.h.
struct Wait {
  // Indices into Problem::buffers. The use of `buffer` waits for the work on `after`, which is of
  // another stream.
  std::int32_t buffer = kNone;
  std::int32_t after = kNone;
  auto operator<=>(const Wait&) const = default;
};

}  // namespace stalloc::solve
