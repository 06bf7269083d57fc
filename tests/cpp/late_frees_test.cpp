// Late frees: a block that a short iteration frees late is in nobody's way.
#include "plan/late_frees.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "plans.h"

namespace stalloc {
namespace {

using plan::Decision;
using plan::Plan;
using trace::PhaseKind;

constexpr Bytes kActivation = 1 << 20;

// Two microbatches. The second one frees the loss of the first, whose address the optimizer's tiny
// requests have, too.
Plan accumulating() {
  const PhaseIndex forward_0(0);
  const PhaseIndex backward_0(1);
  const PhaseIndex forward_1(2);
  const PhaseIndex backward_1(3);
  const PhaseIndex optimizer(4);
  Plan plan = testing::plan_of(
      {{.size = 4,
        .offset = 0,
        .lower = 4,
        .upper = 23,
        .phase = forward_0,
        .phase_end = forward_1},
       {.size = kActivation,
        .offset = 512,
        .lower = 2,
        .upper = 15,
        .phase = forward_0,
        .phase_end = backward_0},
       {.size = kActivation,
        .offset = 512,
        .lower = 21,
        .upper = 35,
        .phase = forward_1,
        .phase_end = backward_1},
       {.size = 8, .offset = 0, .lower = 41, .upper = 44, .phase = optimizer},
       {.size = 8, .offset = 512, .lower = 42, .upper = 43, .phase = optimizer},
       {.size = 8, .offset = 0, .lower = 45, .upper = 46, .phase = optimizer},
       {.size = kActivation, .offset = 512, .lower = 50, .upper = 55, .phase = optimizer},
       {.size = 8, .offset = 0, .lower = 51, .upper = 52, .phase = optimizer}},
      60, 5);
  plan.phases = {{{PhaseKind::kForward, 0, 0, 0}, 0, 10},
                 {{PhaseKind::kBackward, 0, 0, 0}, 10, 20},
                 {{PhaseKind::kForward, 1, 0, 0}, 20, 30},
                 {{PhaseKind::kBackward, 1, 0, 0}, 30, 40},
                 {{PhaseKind::kOptimizer, kNone, 0, 0}, 40, 60}};
  plan.load = plan.pool;
  return plan;
}

TEST(LateFrees, MoveSmallRequestsToIdleAddresses) {
  Plan plan = accumulating();
  const Bytes pool = plan.pool;
  plan.check();
  make_room_for_late_frees(plan, {}, {});
  plan.check();
  EXPECT_EQ(plan.pool, pool);
  std::vector<Offset> offsets;
  for (const Decision& d : plan.decisions) offsets.push_back(d.offset);
  // The first of them avoids the one that comes next; the last one finds nothing idle.
  EXPECT_EQ(offsets, (std::vector<Offset>{512, 0, 512, 1024, 512, 512, 512, 0}));
}

TEST(LateFrees, MoveNothingThatIsFixedOrToObstacles) {
  Plan plan = accumulating();
  IndexedVector<plan::DecisionIndex, Offset> fixed;
  fixed.resize(plan.decisions.size(), kUnplaced);
  fixed[plan::DecisionIndex(3)] = 0;
  make_room_for_late_frees(plan, fixed, {{.size = 600, .lower = 0, .upper = 60, .fixed = 512}});
  EXPECT_EQ(plan.decisions[3].offset, 0);
  EXPECT_EQ(plan.decisions[5].offset, 2048 - 512);
}

// A program of random requests: some are freed by a later microbatch, many are tiny.
Plan random_plan(std::mt19937& random) {
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Plan plan = testing::random_plan(random, 120, 1);
  const std::int32_t microbatches = pick(2, 4);
  plan.phases.clear();
  for (std::int32_t p = 0; p < 2 * microbatches; ++p) {
    const PhaseKind kind = p % 2 == 0 ? PhaseKind::kForward : PhaseKind::kBackward;
    plan.phases.push_back({{kind, p / 2, 0, 0},
                           plan.period * p / (2 * microbatches),
                           plan.period * (p + 1) / (2 * microbatches)});
  }
  const auto phase_at = [&](Tick tick) {
    const auto next = std::ranges::upper_bound(plan.phases, tick % plan.period, {},
                                               &profile::ProfiledPhase::begin);
    return PhaseIndex(next - plan.phases.begin() - 1);
  };
  for (Decision& d : plan.decisions) {
    d.phase = phase_at(d.lower);
    d.phase_end = phase_at(d.upper);
  }
  std::ranges::stable_sort(plan.decisions, {},
                           [](const Decision& d) { return std::pair(d.phase, d.lower); });
  plan.load = plan.pool * pick(1, 8000);  // decides which requests are small
  return plan;
}

TEST(LateFrees, LeaveEveryPlanValid) {
  std::mt19937 random(11);
  int moved = 0;
  for (int round = 0; round < 300; ++round) {
    const Plan before = random_plan(random);
    before.check();
    Plan plan = before;
    IndexedVector<plan::DecisionIndex, Offset> fixed(plan.decisions.size());
    for (const plan::DecisionIndex d : fixed.indices()) {
      fixed[d] = random() % 4 == 0 ? plan[d].offset : kUnplaced;
    }
    // Nothing lies above the pool, so an obstacle there leaves the rest as it is.
    make_room_for_late_frees(plan, fixed, {{.size = 512, .fixed = plan.pool}});
    EXPECT_NO_THROW(plan.check());
    EXPECT_EQ(plan.pool, before.pool);
    for (const plan::DecisionIndex d : fixed.indices()) {
      EXPECT_TRUE(fixed[d] == kUnplaced || fixed[d] == plan[d].offset);
      moved += plan[d].offset != before[d].offset;
    }
  }
  EXPECT_GT(moved, 300);
}

}  // namespace
}  // namespace stalloc
