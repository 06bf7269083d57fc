#include "plan/shared.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/anchors.h"
#include "plan/boxes.h"
#include "plan/covered.h"

namespace stalloc::plan {
namespace {

bool has_one_stream(const Plan& plan) {
  const solve::Problem problem = problem_of(plan);
  return std::ranges::all_of(problem.buffers, [&](const solve::Buffer& b) {
    return b.stream == problem.buffers.front().stream;
  });
}

// Lays the plan out, around anchors if the program orders the streams then, too: they are laid out
// without regard to the streams.
void lay_out_covered(Plan& plan, const LayoutOptions& options, const solve::Budget& budget) {
  Plan anchored = plan;
  lay_out_anchored(anchored, options, budget);
  if (is_covered(anchored)) {
    plan = std::move(anchored);
  } else {
    lay_out(plan, options, budget);
  }
}

}  // namespace

void share_addresses(Plan& plan, std::span<const Order> orders, const LayoutOptions& options,
                     const solve::Budget& budget) {
  if (orders.empty() || has_one_stream(plan) || plan.streams == solve::Streams::kOrdered) return;
  Plan shared = plan;
  shared.streams = solve::Streams::kOrdered;
  shared.orders.assign(orders.begin(), orders.end());
  drop_boxes(shared);
  std::vector<Plan> attempts{shared};
  add_boxes(attempts.front());
  const auto is_boxed = [](const Decision& d) { return d.box != kNone && d.over == 0; };
  if (std::ranges::any_of(attempts.front().decisions, is_boxed)) {
    attempts.push_back(std::move(shared));
  }
  for (Plan& attempt : attempts) {
    lay_out_covered(attempt, options, budget);
    if (attempt.pool >= plan.pool || !is_covered(attempt)) continue;
    plan = std::move(attempt);
    if (plan.pool == plan.bound) return;
  }
}

}  // namespace stalloc::plan
