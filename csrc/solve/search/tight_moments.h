// Packs the tightest moments first, and learns which these are.
//
//   slack ^
//         | \           /\   /    Each moment has a slack: a guess of how hard it is to pack.
//         Buffers |  \_       _/  | /     are placed by first fit, in the order of the least slack
//         in their |    \_   _/    |/      lifetimes. A buffer that ends above the target lowers
//         the slack |      \_/      v       of a moment.
//         +------ peak ------> moment
//
// At first, the slack is the distance to the peak, or what the load lacks there. In every round,
// all buffers are placed. Each one that ends above the target lowers the slack of one moment: that
// with the highest load in its lifetime. So all buffers that meet there come earlier in the next
// round. Repair (repair.h) moves only the buffers that failed, and breaks up the addresses of the
// others.
//
// In virtual pipelines, and if microbatches differ in length, few moments come near the bound, but
// an order that packs some of them leaves holes at others.
//
// Costs one first fit of all buffers a round at most. A round that can no longer be the best ends
// after a few failures. A search that does not come below the layout that is known before, and no
// longer gains, ends early.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "solve/core/planner.h"
#include "solve/core/problem.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

// How a search begins, and how it learns.
struct TightStart {
  enum class By : std::uint8_t { kDistance, kLoad };

  std::string_view name;
  By by = By::kDistance;         // the first slack: a part of all moments, or of the highest load
  double step = 0;               // by which a failure lowers the slack, on average
  bool is_long_first = false;    // places all long-lived buffers before the others
  bool is_failed_first = false;  // among equals, those that failed most often come first
};

// The starts that are worth trying, the most promising first.
const std::vector<TightStart>& tight_starts();

inline constexpr Bytes kNoIncumbent = std::numeric_limits<Bytes>::max();

// Returns the lowest layout after about so many first-fit placements, or nothing if it is as high
// as `limit`. `incumbent`: the height of the layout that is known before, or kNoIncumbent. Stops at
// the budget's target. Handles fixed offsets and circular time.
std::optional<Layout> plan_tight_moments(const Problem& problem, const Timeline& timeline,
                                         const TightStart& start, Bytes incumbent,
                                         std::int64_t placements, const Budget& budget,
                                         const std::atomic<Bytes>* limit = nullptr);

// The planner "tight-moments": the best of all starts.
class TightMomentsPlanner final : public Planner {
 public:
  std::string_view name() const override { return "tight-moments"; }
  Layout plan(const Problem& problem, const Budget& budget) const override;
};

}  // namespace stalloc::solve
