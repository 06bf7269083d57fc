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
// Needs no trace, so a run can do it when a batch comes that its plan is too small for. Where the
// extents are larger than what was profiled, laws extrapolate. A size without a proven law may come
// out wrong: its request then departs from the plan, as any other surprise.
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
  LayoutOptions layout = {};
  // Where memory is in several pieces: the plan's walls. See Plan::walls.
  std::vector<Offset> walls = {};
};

using LawSizes = IndexedVector<profile::LawIndex, Bytes>;

// The planned size of every law at `extents`: what the law gives there; for an unexplained one the
// largest size seen, in proportion to the extents that exceed the envelope. Never 0, and rounded up
// where a law leaves a remainder. Throws PlanError where a size does not fit in Bytes.
LawSizes law_sizes(const Plan& plan, std::span<const profile::Extent> extents);

// The load bound of the plan at `extents`: no layout for them is lower. O(n log n).
Bytes bound_at(const Plan& plan, std::span<const profile::Extent> extents);

// The plan for `extents`, as many as the plan has names; an unknown one (negative) is as in the
// envelope. The result has passed check(). Requests of start-up that lie in the pool lose their
// address: when decisions are live in the first iteration is not in a plan. The resident region
// keeps its sizes. Throws PlanError where fixed offsets or walls clash, or sizes do not fit.
Plan resize(const Plan& plan, std::span<const profile::Extent> extents,
            const ResizeOptions& options = {});

// True where each of `extents` is at most the one of `envelope`.
bool covers(std::span<const profile::Extent> envelope, std::span<const profile::Extent> extents);

}  // namespace stalloc::plan
