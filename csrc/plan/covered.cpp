#include "plan/covered.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "solve/order.h"
#include "solve/waits.h"
#include "verify/order_validator.h"

namespace stalloc::plan {
namespace {

std::vector<StreamId> streams_of(const solve::Problem& problem) {
  std::set<StreamId> streams;
  for (const solve::Buffer& b : problem.buffers) streams.insert(b.stream);
  return {streams.begin(), streams.end()};
}

}  // namespace

std::vector<solve::Hold> holds_of(const Plan& plan) {
  std::vector<solve::Hold> holds;
  if (plan.orders.empty()) return holds;
  const solve::Problem problem = problem_of(plan);
  const std::vector<StreamId> streams = streams_of(problem);
  const solve::OrderTable table(plan.orders, streams, plan.period);
  const std::size_t rows = plan.decisions.size() + plan.groups.size() + plan.turns.size();
  for (std::size_t i = 0; i < rows; ++i) {
    const solve::Buffer& b = problem.buffers[i];
    if (b.size == 0 || b.upper <= b.lower) continue;
    for (const StreamId stream : streams) {
      if (stream == b.stream) continue;
      const Tick until = std::min(table.after_all(stream, b.upper), b.lower + plan.period);
      if (until > b.upper) holds.push_back({static_cast<std::int32_t>(i), stream, until});
    }
  }
  return holds;
}

bool is_covered(const Plan& plan) {
  const solve::Problem problem = problem_of(plan);
  const solve::OrderTable table(plan.orders, streams_of(problem), plan.period);
  return solve::uncovered(problem, solve::find_waits(problem, layout_of(plan)), table).empty();
}

void drop_uncovered_orders(Plan& plan) {
  if (!plan.orders.empty() && !is_covered(plan)) plan.orders.clear();
}

void check_covered(const Plan& plan) {
  if (plan.orders.empty()) return;
  constexpr Tick kFurthest = kNever / 8;  // sums of a few such ticks fit
  for (std::size_t i = 0; i < plan.orders.size(); ++i) {
    const auto& [tick, stream, after, upto] = plan.orders[i];
    const bool in_period = tick >= 0 && tick < plan.period && plan.period < kFurthest;
    if (in_period && stream >= 0 && after >= 0 && upto > -kFurthest && upto < kFurthest) continue;
    throw PlanError("orders, row " + std::to_string(i) + ": outside the iteration's " +
                    std::to_string(plan.period) + " ticks, or a negative stream");
  }
  const solve::Problem problem = problem_of(plan);
  try {
    verify::validate_order(problem, solve::find_waits(problem, layout_of(plan)), plan.orders);
  } catch (const PlanError& error) {
    throw PlanError("orders (buffers: decisions, then groups): " + std::string(error.what()));
  }
}

}  // namespace stalloc::plan
