// Dynamic reusable space (section 5.2 of the paper): the addresses that a layout leaves idle
// through a window.
#pragma once

#include <span>
#include <vector>

#include "plan/plan.h"
#include "solve/core/problem.h"

namespace stalloc::plan {

struct Window {
  Tick lower = 0;  // as a buffer's lifetime, circular too; not empty
  Tick upper = 0;
  StreamId stream = 0;
};

// For each window, the addresses of [0, height) that no buffer of its stream occupies within the
// window, and no buffer of another stream ever. Ranges are ascending, disjoint and not adjacent.
// `layout` is valid.
//
// N buffers, k windows, r ranges: O((N + k + r) log(N + k)) for each stream that has windows.
std::vector<std::vector<AddressRange>> reusable_space(const solve::Problem& problem,
                                                      const solve::Layout& layout,
                                                      std::span<const Window> windows);

}  // namespace stalloc::plan
