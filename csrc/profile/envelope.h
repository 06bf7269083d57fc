// The extents that a plan is made for.
//
// One microbatch with the largest of every extent needs the most memory. If batches obey a budget
// (many short rows, or few long ones), no such microbatch exists, and a plan for it would need many
// times the memory of any real one. Then the plan is made for the microbatch that needs the most,
// and the runtime lays the pool out anew for others (runtime/layouts.h).
//
// Batches may repeat: in a recording, each microbatch of an iteration may have its own extents, the
// same in every iteration. Where microbatches are in flight together, a plan in which any of them
// may be the largest needs more memory than the recording. Then the trace is planned as it is.
// If they do not repeat, the plan is made for a row that needs no more than was recorded, and the
// runtime lays the pool out anew for the microbatches that are larger.
//
// Cost: O(n log n) for n requests of an iteration, and O(n) for each of a few rows.
#pragma once

#include <vector>

#include "profile/size_laws.h"
#include "trace/trace.h"

namespace stalloc::profile {

// The largest of each extent if that needs hardly more memory than the row of `laws.seen` that
// needs the most, else this row.
std::vector<Extent> planned_extents(const trace::Trace& trace, const SizeLaws& laws);

// True if the microbatches of all iterations have the same extents in the same order, and need much
// less memory than with the planned extents.
bool is_repeated(const trace::Trace& trace, const SizeLaws& laws);

// The planned extents. If an iteration of several such microbatches needs much more memory than was
// ever live in the trace: the row of `laws.seen` that needs the most within that.
std::vector<Extent> fitting_extents(const trace::Trace& trace, const SizeLaws& laws);

// The most bytes live at once in a trace.
Bytes recorded_load(const trace::Trace& trace);

}  // namespace stalloc::profile
