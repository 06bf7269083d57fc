// The peak first, exactly; the rest under it.
//
//   load ^        bound
//        |- - - - -/\- - -/\- - - - -     Only few moments come near the bound, and only what lives
//        |    /\  /  \/\_/  \   /\        then has to be packed without a gap. Between those
//        moments
//        |___/  \/           \_/  \___    there is room: first fit does.
//        +----------------------------> tick
//
// The core is what lives at the critical moments, with time condensed to these. It is searched
// exactly; what it leaves is placed under it by first fit, in several orders, with repair. Where
// that ends above the target, the busiest moment of each buffer that did becomes critical too, and
// all is done again: constraints are added when they are missed, and not before.
//
// A core that is proven to have no layout this low proves it for the whole problem.
#pragma once

#include <cstdint>

#include "solve/core/planner.h"

namespace stalloc::solve {

// As minimise_height(): the best layout found, `start` if there is none lower, and what is proven.
// Linear and circular time, fixed offsets.
Minimum solve_peak_core(const Problem& problem, const Layout& start, std::int64_t nodes,
                        const Budget& budget);

class PeakCorePlanner final : public Planner {
 public:
  std::string_view name() const override { return "peak-core"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
