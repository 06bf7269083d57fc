// Two microbatches in flight, as two stacks that grow towards each other.
//
//   offset ^ ---------------+                    +-------------
//          |  carried, odd  +--+--+        +--+--+  carried, odd        F, B: the forward and
//          |                +--+  |  hole  |  +--+                      the backward pass of an
//          |                      +---++---+        +--+  hole          even microbatch; its own
//          |  hole         +---+  | temporaries  +--+  |                stack is at the bottom, so
//          |     +---+-----+   +--+-----------+--+     +---+--          its temporaries keep to the
//          | ----+  carried, even             |                         top of the hole.
//          +-----|------ F ------|----- B ----|-----------> tick
//
// What a pass saves is freed last first. If every other microbatch is stacked from the bottom, and
// those between from the top, then what is freed first always lies next to the hole in the middle,
// and a temporary that needs both finds them in one piece; provided that other temporaries have
// kept to the far side of the hole. First fit, from one side only, has this right for one of two.
//
// Which stack a buffer belongs to is told by phases alone: those that carry most into other phases
// take turns, and a phase belongs to the stack of which it frees most. Costs two first fits.
#pragma once

#include <atomic>
#include <optional>

#include "solve/core/planner.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

// Nothing when buffers are fixed, or no two phases carry anything into others.
// With a `limit`, gives up as place_in_order() does.
std::optional<Layout> plan_two_stacks(const Problem& problem, const Timeline& timeline,
                                      const Budget& budget,
                                      const std::atomic<Bytes>* limit = nullptr);

// By peak rank, where there are no two stacks.
class TwoStacksPlanner final : public Planner {
 public:
  std::string_view name() const override { return "two-stacks"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
