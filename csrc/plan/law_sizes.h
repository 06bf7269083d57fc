// The planned sizes of a plan's laws at other extents.
#pragma once

#include <span>

#include "base/index.h"
#include "plan/plan.h"
#include "profile/size_law.h"

namespace stalloc::plan {

using LawSizes = IndexedVector<profile::LawIndex, Bytes>;

// The planned size of every law at `extents`: the law's size; for an unexplained law the largest
// profiled size, in proportion to the extents that exceed the envelope. Never 0; rounded up if a
// law leaves a remainder. Throws PlanError if a size does not fit in Bytes.
LawSizes law_sizes(const Plan& plan, std::span<const profile::Extent> extents);

// The largest of each law at the envelope and at all profiled extents. Throws as law_sizes().
LawSizes largest_sizes(const Plan& plan);

}  // namespace stalloc::plan
