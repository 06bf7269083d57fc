// Places two microbatches in flight as two stacks that grow towards each other.
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
// Backward frees the saved activations in reverse order. If even microbatches are stacked from the
// bottom and odd ones from the top, the addresses that are freed first always lie next to the hole
// in the middle. So a temporary that needs both finds them in one piece, if other temporaries keep
// to the far side of the hole. First fit, from one side only, achieves this for every other
// microbatch.
//
// Phases tell the stack of a buffer: the phases that carry most into other phases alternate, and
// any other phase belongs to the stack of which it frees most. Costs two first fits.
#pragma once

#include <atomic>
#include <optional>

#include "solve/core/planner.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

// Returns nothing if buffers are fixed, or if no two phases carry buffers into others.
// With a `limit`, gives up as place_in_order() does.
std::optional<Layout> plan_two_stacks(const Problem& problem, const Timeline& timeline,
                                      const Budget& budget,
                                      const std::atomic<Bytes>* limit = nullptr);

// The planner "two-stacks". It places buffers by peak rank if there are no two stacks.
class TwoStacksPlanner final : public Planner {
 public:
  std::string_view name() const override { return "two-stacks"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
