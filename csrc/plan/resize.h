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

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plan/law_sizes.h"
#include "plan/layout.h"
#include "plan/plan.h"

namespace stalloc::plan {

// A microbatch of the iteration (profile::ProfiledPhase::own), and the extents that it has instead
// of those of the layout.
struct OwnExtents {
  std::int32_t microbatch = kNone;
  std::vector<profile::Extent> extents;
};

struct ResizeOptions {
  // Seconds for the search after the first layout, which then depends on the processor.
  double time_limit = std::numeric_limits<double>::infinity();
  Bytes enough = 0;  // the search ends with a pool of at most so many bytes
  LayoutOptions layout = {};
  // Decisions that keep their offset and the room that their size gives them; see anchors.h.
  std::vector<DecisionIndex> anchors = {};
  std::vector<OwnExtents> own = {};  // complete
  // Blocks of the iteration before that take turns, with their addresses.
  std::vector<Turn> live_turns = {};
  // Requests that take turns may lie anywhere, even if they fit their places.
  bool free_turns = false;
  // The walls between several pieces of memory. See Plan::walls.
  std::vector<Offset> walls = {};
};

// The plan with its sizes at `extents`, and the layout of before.
Plan sized(const Plan& plan, std::span<const profile::Extent> extents,
           const std::vector<OwnExtents>& own = {});

// The load bound of the plan at `extents`: no layout for them is lower. O(n log n).
// `live_turns`: as ResizeOptions'.
Bytes bound_at(const Plan& plan, std::span<const profile::Extent> extents,
               const std::vector<OwnExtents>& own = {}, const std::vector<Turn>& live_turns = {});

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
