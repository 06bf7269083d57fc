// The contract of solve::Planner, checked for every planner in the registry and for the planner of
// idle intervals, which the portfolio calls directly.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "brute_force.h"
#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/core/planner.h"
#include "solve/search/gaps.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

class IdleIntervals final : public solve::Planner {
 public:
  std::string_view name() const override { return "gaps"; }
  solve::Layout plan(const solve::Problem& problem, const solve::Budget& budget) const override {
    return solve::plan_gaps(problem, {}, budget).layout;
  }
};

std::vector<const solve::Planner*> all_planners() {
  static const IdleIntervals idle_intervals;
  std::vector<const solve::Planner*> all = solve::planners();
  all.push_back(&idle_intervals);
  return all;
}

class PlannerContract : public ::testing::TestWithParam<const solve::Planner*> {
 protected:
  // Linear and circular time in turn, every third problem with phases.
  static solve::Problem problem(RandomProblems& random, int k) {
    solve::Problem problem = random.next(9, k % 2 == 0);
    if (k % 3 > 0) return problem;
    for (solve::Buffer& b : problem.buffers) {
      b.phase_begin = static_cast<PhaseIndex>(b.lower / 4);
      b.phase_end = static_cast<PhaseIndex>(b.upper / 4);
    }
    return problem;
  }

  static constexpr int kProblems = 60;
};

TEST_P(PlannerContract, ReturnsAValidLayoutNotBelowTheBound) {
  RandomProblems random(101);
  for (int k = 0; k < kProblems; ++k) {
    const solve::Problem p = problem(random, k);
    const solve::Layout layout = GetParam()->plan(p, {});
    EXPECT_NO_THROW(verify::validate(p, layout)) << "problem " << k;
    EXPECT_GE(layout.height, solve::load_bound(p)) << "problem " << k;
  }
}

TEST_P(PlannerContract, RepeatsItsResult) {
  RandomProblems random(102);
  for (int k = 0; k < kProblems; ++k) {
    const solve::Problem p = problem(random, k);
    EXPECT_EQ(GetParam()->plan(p, {}).offsets, GetParam()->plan(p, {}).offsets) << "problem " << k;
  }
}

TEST_P(PlannerContract, KeepsFixedOffsets) {
  RandomProblems random(103);
  int found = 0;
  for (int k = 0; k < kProblems; ++k) {
    solve::Problem p = problem(random, k);
    const solve::Layout stacked = testing::stacked(p);
    for (std::size_t i = 0; i < p.buffers.size(); i += 3) p.buffers[i].fixed = stacked.offsets[i];
    solve::Layout layout;
    try {
      layout = GetParam()->plan(p, {});
    } catch (const PlanError&) {
      continue;  // the contract allows a planner to find no layout
    }
    ++found;
    EXPECT_NO_THROW(verify::validate(p, layout)) << "problem " << k;
    for (std::size_t i = 0; i < p.buffers.size(); i += 3) {
      EXPECT_EQ(layout.offsets[i], stacked.offsets[i]) << "problem " << k;
    }
  }
  EXPECT_TRUE(found == kProblems || GetParam()->name() == "paper") << found;
}

TEST_P(PlannerContract, AcceptsACapacityThatAnyLayoutFits) {
  RandomProblems random(104);
  for (int k = 0; k < kProblems; ++k) {
    solve::Problem p = problem(random, k);
    p.capacity = testing::stacked(p).height;
    EXPECT_NO_THROW(verify::validate(p, GetParam()->plan(p, {}))) << "problem " << k;
  }
}

TEST_P(PlannerContract, ReturnsAValidLayoutWhenCancelledOrLate) {
  RandomProblems random(105);
  const std::atomic<bool> cancel = true;
  constexpr auto kPast = std::chrono::steady_clock::time_point::min();
  for (int k = 0; k < kProblems; ++k) {
    const solve::Problem p = problem(random, k);
    EXPECT_NO_THROW(verify::validate(p, GetParam()->plan(p, {.cancel = &cancel})));
    EXPECT_NO_THROW(verify::validate(p, GetParam()->plan(p, {.deadline = kPast})));
  }
}

INSTANTIATE_TEST_SUITE_P(Planners, PlannerContract, ::testing::ValuesIn(all_planners()),
                         [](const auto& tested) {
                           std::string name(tested.param->name());
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace stalloc
