#include "plan/shared.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/anchors.h"
#include "solve/order.h"
#include "solve/waits.h"
#include "verify/order_validator.h"

namespace stalloc::plan {
namespace {

// Layouts to try. Each finds more addresses that must stay idle for a while.
constexpr int kMostRounds = 24;

// The plan's problem with the lifetimes that the requests have.
solve::Problem without_holds(Plan plan) {
  for (Decision& d : plan.decisions) d.hold = 0;
  for (DynamicGroup& g : plan.groups) g.hold = 0;
  return problem_of(plan);
}

std::vector<StreamId> streams_of(const solve::Problem& problem) {
  std::set<StreamId> streams;
  for (const solve::Buffer& b : problem.buffers) streams.insert(b.stream);
  return {streams.begin(), streams.end()};
}

// Keeps the addresses of a decision or a group idle from its end to tick `until`.
void hold(auto& row, Tick until, Tick period) {
  const Tick most = period - (row.upper - row.lower);
  row.hold = std::clamp(until == kNever ? most : until - row.upper, row.hold, most);
}

// Holds what a layout gives on too early. True if there is nothing.
bool settle(Plan& plan, const solve::OrderTable& table) {
  const solve::Problem problem = without_holds(plan);
  const std::vector<solve::Wait> waits = solve::find_waits(problem, layout_of(plan));
  const std::vector<solve::Wait> open = solve::uncovered(problem, waits, table);
  for (const auto& [user, after] : open) {
    const solve::Buffer& before = problem.buffers[after];
    const Tick until = table.after_all(problem.buffers[user].stream, before.upper);
    const auto i = static_cast<std::size_t>(after);
    if (i < plan.decisions.size()) {
      hold(plan.decisions[i], until, plan.period);
    } else if (i < plan.decisions.size() + plan.groups.size()) {
      hold(plan.groups[i - plan.decisions.size()], until, plan.period);
    }
  }
  return open.empty();
}

}  // namespace

void share_addresses(Plan& plan, std::span<const Order> orders, const LayoutOptions& options,
                     const solve::Budget& budget) {
  const solve::Problem separate = problem_of(plan);
  std::vector<StreamId> streams = streams_of(separate);
  if (orders.empty() || streams.size() < 2 || plan.streams == solve::Streams::kOrdered) return;
  const solve::OrderTable table(orders, std::move(streams), plan.period);
  Plan shared = plan;
  shared.streams = solve::Streams::kOrdered;
  for (Decision& d : shared.decisions) {
    // A box of separate streams keeps its requests; others are laid out anew.
    if (d.box != kNone && d.over == 0) return;
  }
  for (int round = 0; round < kMostRounds; ++round) {
    lay_out_anchored(shared, options, budget);
    if (shared.pool >= plan.pool || budget.expired()) return;
    if (!settle(shared, table)) continue;
    shared.orders.assign(orders.begin(), orders.end());
    plan = std::move(shared);
    return;
  }
}

void check_shared(const Plan& plan) {
  if (plan.orders.empty()) return;
  constexpr Tick kFurthest = kNever / 8;  // sums of a few such ticks fit
  for (std::size_t i = 0; i < plan.orders.size(); ++i) {
    const auto& [tick, stream, after, upto] = plan.orders[i];
    const bool in_period = tick >= 0 && tick < plan.period && plan.period < kFurthest;
    if (in_period && stream >= 0 && after >= 0 && upto > -kFurthest && upto < kFurthest) continue;
    throw PlanError("orders, row " + std::to_string(i) + ": outside the iteration's " +
                    std::to_string(plan.period) + " ticks, or a negative stream");
  }
  const solve::Problem problem = without_holds(plan);
  try {
    verify::validate_order(problem, solve::find_waits(problem, layout_of(plan)), plan.orders);
  } catch (const PlanError& error) {
    throw PlanError("orders (buffers: decisions, then groups): " + std::string(error.what()));
  }
}

}  // namespace stalloc::plan
