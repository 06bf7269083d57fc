// Large-neighbourhood search: what stands too high is made room for, in one small window after
// another.
//
//   offset ^       +---+
//  ceiling | - - - | a | - - - -
//          | +---+ +---+ +---+
//          | | c |       | d |
//          | | +-----------+ |
//          | +-|     b     |-+
//          |   +-----------+
//          +----------------------> tick
//
// A window is a band of addresses through the lifetime of a buffer that ends above the ceiling (a),
// all that lies in it, and some of what lies about those. It is emptied, and filled again several
// times by first or best fit, in orders that chance has a say in; all else stays where it is. The
// best of these stands where it does not make the whole worse, or hardly. Once nothing is above the
// ceiling, that comes down.
//
// Chance comes from a seed, and the search ends by steps: the same on every machine. A step costs a
// few passes over the buffers, and the window's size squared.
#pragma once

#include <cstdint>

#include "solve/core/planner.h"
#include "solve/exact/exact_planner.h"

namespace stalloc::solve {

// As minimise_height(): the lowest layout found in so many steps, `start` if there is none lower;
// it proves nothing. Linear and circular time; what is fixed stays.
Minimum search_windows(const Problem& problem, const Layout& start, std::int64_t steps,
                       const Budget& budget);

class WindowsPlanner final : public Planner {
 public:
  std::string_view name() const override { return "windows"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
