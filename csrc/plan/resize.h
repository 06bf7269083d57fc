// A plan for other extents: the same requests, every size by its law, a new layout.
//
//   plan for 1,024 tokens        the same for 2,048 tokens
//   +--------+                   +--------+
//   | act |  |                   |  act   |
//   |-----+--| weights' grads    |        |--+
//   | x |    |                   |--------| weights' grads: no law, the same size
//   +--------+                   |  x  |  |
//                                +--------+
//
// This needs no trace, so a run can do it when a batch exceeds its plan. For extents larger than
// the profiled ones, laws extrapolate. A size without a proven law may be wrong: then its request
// departs from the plan like any unexpected request.
//
// Cost: one solve (8,000 requests: 10 to 20 ms) and O(n log n). Thread-safe.
#pragma once

#include <span>
#include <vector>

#include "plan/layout.h"
#include "plan/plan.h"

namespace stalloc::plan {

struct ResizeOptions {
  double time_limit = 0.1;  // seconds, for the search after the first layout
  Bytes enough = 0;         // the search ends with a pool of at most so many bytes
  LayoutOptions layout = {};
  // The walls between several pieces of memory. See Plan::walls.
  std::vector<Offset> walls = {};
};

using LawSizes = IndexedVector<profile::LawIndex, Bytes>;

// The planned size of every law at `extents`: the law's size; for an unexplained law the largest
// profiled size, in proportion to the extents that exceed the envelope. Never 0; rounded up if a
// law leaves a remainder. Throws PlanError if a size does not fit in Bytes.
LawSizes law_sizes(const Plan& plan, std::span<const profile::Extent> extents);

// The load bound of the plan at `extents`: no layout for them is lower. O(n log n).
Bytes bound_at(const Plan& plan, std::span<const profile::Extent> extents);

// The plan for `extents`, one for each of the plan's names; an unknown extent (negative) is as in
// the envelope. The result has passed check(). Requests of start-up in the pool lose their
// addresses, because a plan does not store when decisions live in the first iteration. The resident
// region keeps its sizes. Throws PlanError if fixed offsets or walls clash, or sizes do not fit in
// Bytes.
Plan resize(const Plan& plan, std::span<const profile::Extent> extents,
            const ResizeOptions& options = {});

// True if each of `extents` is at most the one of `envelope`.
bool covers(std::span<const profile::Extent> envelope, std::span<const profile::Extent> extents);

}  // namespace stalloc::plan
