// Packs the peak exactly and places the other buffers around it.
//
//   load ^        bound
//        |- - - - -/\- - -/\- - - - -     Only few moments come near the bound. The buffers that
//        |    /\  /  \/\_/  \   /\        live there have to be packed without holes. At the other
//        |___/  \/           \_/  \___    moments there is space: first fit suffices.
//        +----------------------------> tick
//
// The core has the buffers that live at critical moments, and only these moments. It is searched
// exactly. The other buffers are placed around it by first fit, in several orders, with repair. If
// some end above the target, the busiest moment of each becomes critical too, and all is repeated.
// So constraints are added only once they are violated.
//
// If the core is proven to have no layout of a height, neither has the whole problem.
#pragma once

#include <cstdint>

#include "solve/core/planner.h"

namespace stalloc::solve {

// As minimise_height(): returns the best layout found, or `start` if none is lower, and the proven
// bound. Handles linear and circular time and fixed offsets.
Minimum solve_peak_core(const Problem& problem, const Layout& start, std::int64_t nodes,
                        const Budget& budget);

class PeakCorePlanner final : public Planner {
 public:
  std::string_view name() const override { return "peak-core"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
