#include "plan/startup.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "plan/startup_temporaries.h"
#include "verify/validator.h"

namespace stalloc::plan {
namespace {

// A tiny temporary of start-up, of at most the alignment, keeps its address for so many ticks
// longer than in the profile: threads of a communication library free messages when they come to
// it. 64 of them at most: 32 KiB.
constexpr Tick kLateTicks = 128;

std::string named(std::size_t row) { return "startup, row " + std::to_string(row) + ": "; }

void check_row(const Plan& plan, std::size_t row) {
  const StartupRequest& r = plan.startup[row];
  if (!r.phase.points_into(plan.phases)) {
    throw PlanError(named(row) + "belongs to phase " + to_string(r.phase) + ", but there are " +
                    std::to_string(plan.phases.size()) + " phases");
  }
  const bool follows = r.after.points_into(plan.decisions) && plan[r.after].phase == r.phase;
  if (r.after != kNone && !follows) {
    throw PlanError(named(row) + "comes after decision " + to_string(r.after) +
                    ", which is none of its phase");
  }
  if (r.size <= 0 || r.stream < 0) {
    throw PlanError(named(row) + "a size of " + std::to_string(r.size) + " bytes on stream " +
                    std::to_string(r.stream));
  }
  if (r.lower < 0 || r.upper <= r.lower) {
    throw PlanError(named(row) + "lives from tick " + std::to_string(r.lower) + " to " +
                    std::to_string(r.upper));
  }
  if (r.offset == kUnplaced) return;
  const bool in_region = r.offset >= plan.pool;
  const Offset end = in_region ? plan.pool + plan.resident : plan.pool;
  if (r.offset < 0 || r.offset > end || r.size > end - r.offset || (r.stays() && !in_region)) {
    throw PlanError(named(row) + std::to_string(r.size) + " bytes at " + std::to_string(r.offset) +
                    (r.stays() ? " stay, and are not" : ", which are not") +
                    " inside the resident region from " + std::to_string(plan.pool) + " to " +
                    std::to_string(plan.pool + plan.resident) +
                    (r.stays() ? "" : " nor inside the pool below it"));
  }
}

// Checks that the sum of all requests, rounded up, fits above the pool.
void check_sizes(const Plan& plan, const profile::Startup& startup) {
  solve::Problem problem;
  problem.alignment = plan.alignment;
  problem.buffers.push_back({.size = plan.pool});
  for (const profile::StartupSighting& s : startup.requests)
    problem.buffers.push_back({.size = s.size});
  problem.check();
}

// Adds one buffer for each request of start-up. Those of unplaced requests conflict with no other.
void add_buffers(solve::Problem& problem, solve::Layout& layout, const Plan& plan) {
  for (const StartupRequest& r : plan.startup) {
    const bool placed = r.offset != kUnplaced;
    problem.buffers.push_back({.size = placed ? r.size : 0,
                               .lower = r.lower,
                               .upper = placed ? r.upper : r.lower,
                               .stream = r.stream});
    layout.offsets.push_back(placed ? r.offset : 0);
  }
}

// Checks that start-up's addresses of `stream` are never another stream's.
void check_stream(const Plan& plan, StreamId stream) {
  solve::Problem problem;
  problem.alignment = plan.alignment;
  solve::Layout layout;
  layout.height = plan.pool + plan.resident;
  add_buffers(problem, layout, plan);
  const auto add = [&](const auto& d) {
    const bool is_other = d.stream != stream;  // its own addresses have been checked
    problem.buffers.push_back({.size = is_other ? d.size : 0, .stream = d.stream});
    layout.offsets.push_back(d.offset);
  };
  std::ranges::for_each(plan.decisions, add);
  std::ranges::for_each(plan.groups, add);
  for (SlotClass c : plan.slots) {
    c.size *= c.count;
    add(c);
  }
  // All buffers of `stream` become one stream, all others another, and no two are live together:
  // the validator then reports only addresses that both streams have.
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    solve::Buffer& b = problem.buffers[i];
    b.stream = b.stream == stream ? 0 : 1;
    b.lower = static_cast<Tick>(i);
    b.upper = static_cast<Tick>(i) + 1;
  }
  problem.check();
  verify::validate(problem, layout);
}

void check_streams(const Plan& plan) {
  std::set<StreamId> streams;
  for (const StartupRequest& r : plan.startup) {
    if (r.offset != kUnplaced) streams.insert(r.stream);
  }
  for (const StreamId stream : streams) check_stream(plan, stream);
}

}  // namespace

void add_startup(Plan& plan, const profile::Startup& startup, const PhaseMap& phase_of,
                 std::span<const DecisionIndex> row_of) {
  check_sizes(plan, startup);
  for (const profile::StartupSighting& s : startup.requests) {
    StartupRequest r{.phase = phase_of[s.phase],
                     .after = s.after == kNone ? kNone : row_of[s.after],
                     .size = s.size,
                     .offset = kUnplaced,
                     .lower = s.lower,
                     .upper = s.upper,
                     .stream = s.stream,
                     .law = s.law};
    if (r.size <= plan.alignment && r.upper < startup.work) {
      r.upper = std::min(r.upper + kLateTicks, startup.work);
    }
    if (r.stays() && !s.recurs) {
      r.offset = plan.pool + plan.resident;
      plan.resident += align_up(r.size, plan.alignment);
    }
    plan.startup.push_back(r);
  }
  place_temporaries(plan, startup, row_of);
  std::ranges::sort(plan.startup, {},
                    [](const auto& r) { return std::tuple{r.phase, r.after, r.lower}; });
  if (startup.stays.empty()) return;
  IndexedVector<DecisionIndex, bool> made(plan.decisions.size());
  for (const profile::StartupStay& stay : startup.stays) made[row_of[stay.request]] = true;
  for (const DecisionIndex d : made.indices()) {
    if (!made[d]) plan.absent.push_back(d);
  }
}

void check_startup(const Plan& plan) {
  Bytes top = 0;
  if (plan.resident < 0 || plan.resident % plan.alignment != 0 ||
      __builtin_add_overflow(plan.pool, plan.resident, &top)) {
    throw PlanError("resident: " + std::to_string(plan.resident) +
                    " bytes, which is negative, too large above the pool, or no multiple of " +
                    std::to_string(plan.alignment));
  }
  // The region is a piece of memory of its own, so its addresses are relative to the pool's end.
  if (plan.resident > 0 && plan.pool % plan.alignment != 0) {
    throw PlanError("pool: " + std::to_string(plan.pool) + " bytes, no multiple of " +
                    std::to_string(plan.alignment) + ", where the resident region begins");
  }
  const auto key = [](const StartupRequest& r) { return std::tuple{r.phase, r.after, r.lower}; };
  for (std::size_t i = 0; i < plan.startup.size(); ++i) {
    check_row(plan, i);
    if (i > 0 && key(plan.startup[i - 1]) >= key(plan.startup[i])) {
      throw PlanError(named(i) + "out of order: they go by phase, then by decision, then by tick");
    }
  }
  for (std::size_t i = 0; i < plan.absent.size(); ++i) {
    const DecisionIndex d = plan.absent[i];
    if (!d.points_into(plan.decisions) || (i > 0 && plan.absent[i - 1] >= d)) {
      throw PlanError("absent, row " + std::to_string(i) + ": decision " + to_string(d) +
                      " is out of order, or there is none");
    }
  }
  solve::Problem problem;
  problem.alignment = plan.alignment;
  solve::Layout layout;
  layout.height = top;
  add_buffers(problem, layout, plan);
  try {
    problem.check();
    verify::validate(problem, layout);
  } catch (const PlanError& error) {
    throw PlanError("startup (as buffers, by row): " + std::string(error.what()));
  }
  try {
    check_streams(plan);
  } catch (const PlanError& error) {
    throw PlanError("startup, then decisions, then groups (as buffers, by row): " +
                    std::string(error.what()));
  }
}

}  // namespace stalloc::plan
