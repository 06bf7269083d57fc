// The independent check of slots: shares no code with the planner that counts them.
#pragma once

#include <cstdint>
#include <span>

#include "base/types.h"

namespace stalloc::verify {

// The slots of one class: `count` slots of `size` bytes, side by side from `offset`.
struct SlotRange {
  Bytes size = 0;
  Offset offset = 0;
  std::int32_t count = 0;
  StreamId stream = 0;
};

using SlotRangeIndex = Index<SlotRange>;

// A request that comes once in every iteration and takes any slot of its class that is free.
struct SlotUse {
  SlotRangeIndex slots = kNone;  // of its class
  Bytes size = 0;                // as asked
  Tick lower = 0;                // within [0, period)
  Tick upper = 0;                // half-open, at most two periods after `lower`
  StreamId stream = 0;
};

// Proves that every assignment of free slots succeeds. Throws PlanError that names class and use
// unless the ranges are aligned and inside [0, pool), each use fits a slot of its class and has its
// stream, and no more uses of a class are ever live at once than it has slots. Lifetimes are those
// of an endless repetition, so a request may meet its own successor. O(n log n).
void validate_slots(std::span<const SlotRange> classes, std::span<const SlotUse> uses, Tick period,
                    Bytes alignment, Bytes pool);

}  // namespace stalloc::verify
