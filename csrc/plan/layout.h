// Gives a plan its addresses: solves its problem, and derives the reusable space of groups.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/range_set.h"
#include "plan/plan.h"
#include "solve/core/planner.h"

namespace stalloc::plan {

// The most work of a layout without a time limit: two to four seconds of one processor. More of it
// found no lower layout in any recording tried.
inline constexpr std::int64_t kLayoutWork = 10'000'000;

struct LayoutOptions {
  std::string algorithm = {};  // empty: the portfolio
  int threads = 0;             // 0: one for each core
  // Limits of the planners, and of each of their searches, as solve::PortfolioOptions explains.
  std::int64_t work = std::numeric_limits<std::int64_t>::max();
  std::int64_t search_steps = std::numeric_limits<std::int64_t>::max();
  // The required offset of each decision, kUnplaced for none. Empty: no decision is fixed.
  IndexedVector<DecisionIndex, Offset> fixed = {};
  // The same for the region of each group.
  IndexedVector<GroupIndex, Offset> fixed_regions = {};
  // The same for the second place of each turn.
  IndexedVector<TurnIndex, Offset> fixed_turns = {};
  // Addresses that nothing may have for a while, with fixed offsets above the slots.
  std::vector<solve::Buffer> obstacles = {};
};

// Fills the offsets, `reusable`, `pool`, `bound`, `algorithm` and `optimal` of a plan whose sizes,
// lifetimes and walls are complete. Returns the work that it took (solve::PortfolioResult). Throws
// PlanError if fixed offsets or walls clash.
std::int64_t lay_out(Plan& plan, const LayoutOptions& options, const solve::Budget& budget);

// The addresses that the plan gives to anything.
RangeSet addresses_of(const Plan& plan);

// The same without the regions of dynamic groups.
RangeSet static_addresses_of(const Plan& plan);

// True if a pool of `pool` bytes and the resident region need much more than was live at once in
// the recording.
bool exceeds_load(const Plan& plan, Bytes pool);

// True if that holds for the plan's pool, and its addresses need not all have memory. If the
// recording's load is not known, the dynamic groups alone tell. An iteration that never changes
// uses all of them, even if they exceed its load: its streams may not share addresses.
bool has_idle(const Plan& plan);

}  // namespace stalloc::plan
