#include "runtime/departures.h"

#include <gtest/gtest.h>

#include "plans.h"

namespace stalloc {
namespace {

using testing::decision;
using testing::plan_of;
using trace::PhaseKind;

constexpr Bytes kWeight = 640'000;
constexpr Bytes kKept = 300'000;
constexpr Bytes kState = 160'000;
constexpr Bytes kBias = 1'600;
constexpr Bytes kInput = 400'000;
constexpr Bytes kActivation = 800'000;

plan::StartupRequest permanent(PhaseIndex phase, Bytes size) {
  plan::StartupRequest r;
  r.phase = phase;
  r.size = size;
  r.upper = kNever;
  return r;
}

// A backward phase makes gradients that the optimizer replaces, and one that the loop keeps.
plan::Plan training() {
  const PhaseIndex other(0), forward(1), backward(2), optimizer(3);
  plan::Plan plan = plan_of({}, 100, 0);
  for (const PhaseKind kind :
       {PhaseKind::kOther, PhaseKind::kForward, PhaseKind::kBackward, PhaseKind::kOptimizer}) {
    plan.phases.push_back({{kind, 0, 0, 0}, 0, plan.period});
  }
  const auto add = [&plan](Bytes size, PhaseIndex phase, PhaseIndex end) {
    plan::Decision d = decision(size, plan.pool, 0, plan.period);
    d.phase = phase;
    d.phase_end = end;
    plan.pool += align_up(size, plan.alignment);
    plan.decisions.push_back(d);
  };
  add(kActivation, forward, backward);
  add(kWeight, backward, optimizer);
  add(kBias, backward, optimizer);
  plan.startup = {permanent(other, kInput), permanent(backward, kKept),
                  permanent(optimizer, kState)};
  return plan;
}

TEST(DeparturesTest, WeightsHaveTheSizesOfGradientsAndStates) {
  const plan::Plan plan = training();
  const runtime::Departures departures(plan);
  for (const Bytes size : {kWeight, kBias, kKept, kState}) {
    EXPECT_TRUE(departures.may_be_weight(size)) << size;
  }
  for (const Bytes size : {kInput, kActivation, kWeight / 2, 2 * kWeight}) {
    EXPECT_FALSE(departures.may_be_weight(size)) << size;
  }
}

TEST(DeparturesTest, NewStatesMayBeCopiesOfAnyPermanentBlock) {
  const plan::Plan plan = training();
  const runtime::Departures departures(plan);
  constexpr PhaseIndex origin = runtime::Departures::kUnplanned;
  for (const Bytes size : {kWeight, kWeight / 2, 2 * kWeight, kInput, kBias}) {
    EXPECT_FALSE(departures.admits(origin, size, /*wary=*/true)) << size;
    EXPECT_TRUE(departures.admits(origin, size, /*wary=*/false)) << size;
  }
  EXPECT_TRUE(departures.admits(origin, kActivation + kWeight, /*wary=*/true));
}

TEST(DeparturesTest, AKindThatHasStayedIsNotAdmitted) {
  const plan::Plan plan = training();
  runtime::Departures departures(plan);
  constexpr PhaseIndex origin = runtime::Departures::kUnplanned;
  departures.record_stayed(origin, kActivation);
  EXPECT_FALSE(departures.admits(origin, kActivation, /*wary=*/false));
  EXPECT_TRUE(departures.admits(runtime::Departures::kOtherThread, kActivation, false));
  EXPECT_TRUE(departures.keeps(origin, 2 * kActivation));
  EXPECT_FALSE(departures.keeps(origin, 2 * kActivation + 2));
}

}  // namespace
}  // namespace stalloc
