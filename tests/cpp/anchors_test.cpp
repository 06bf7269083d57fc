// Anchors: places that all layouts of a plan share.
#include "plan/anchors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "plan/resize.h"

namespace stalloc::plan {
namespace {

using profile::Extent;

constexpr Bytes kUnit = 4096;
constexpr Tick kMicrobatch = 40;

profile::SizeLaw proportional(Bytes a_token) {
  profile::SizeLaw law;
  law.terms = {{a_token, {0, 1, kNone}}};
  law.proof = profile::LawProof::kProven;
  return law;
}

// Microbatches of rows x tokens, each with an input that lives until the next one's exists, a stack
// of activations and one gradient for each, which live from the first microbatch to the end.
Plan accumulating(Extent rows, Extent tokens, int microbatches, int layers = 6) {
  Plan plan;
  plan.extent_names = {"ids.0", "ids.1"};
  plan.extents = {rows, tokens};
  plan.seen = {{rows, tokens}, {tokens, rows}};
  plan.laws = {proportional(kUnit), proportional(1)};
  plan.period = kMicrobatch * microbatches + 2;
  for (int m = 0; m < microbatches; ++m) {
    const Tick begin = kMicrobatch * m;
    const PhaseIndex forward(2 * m);
    const PhaseIndex backward(2 * m + 1);
    const Tick turn = begin + 2 + 2 * layers;
    plan.phases.push_back({{trace::PhaseKind::kForward, m, 0, 0},
                           begin + 1,
                           turn,
                           m,
                           m + 1 < microbatches ? m + 1 : kNone});
    plan.phases.push_back({{trace::PhaseKind::kBackward, m, 0, 0},
                           turn,
                           begin + kMicrobatch,
                           m,
                           m + 1 < microbatches ? m + 1 : kNone});
    const auto add = [&](Tick lower, Tick upper, profile::LawIndex law, Bytes size) {
      const PhaseIndex phase = lower < turn ? forward : backward;
      plan.decisions.push_back({.size = size,
                                .lower = lower,
                                .upper = std::min(upper, plan.period),
                                .phase = phase,
                                .phase_end = phase,
                                .law = law});
    };
    add(begin, begin + kMicrobatch + 1, 1, rows * tokens);
    for (int i = 0; i < layers; ++i) {
      add(begin + 2 + i, turn + 2 * (layers - i) + 2, 0, kUnit * rows * tokens);
    }
    for (int i = 0; m == 0 && i < layers; ++i) {
      add(turn + 2 * i + 1, plan.period - 1, kNone, 64 * kUnit * (1 + i % 3));
    }
  }
  plan.load = bound_at(plan, plan.extents);
  return plan;
}

TEST(Anchors, GradientsOfSeveralMicrobatchesLieAtTheBottom) {
  Plan plan = accumulating(8, 512, 3);
  Bytes gradients = 0;
  for (const Decision& d : plan.decisions) gradients += d.law == kNone ? d.size : 0;
  lay_out_anchored(plan, {}, {});
  plan.check();
  const std::vector<DecisionIndex> anchors = anchors_of(plan);
  Bytes constant = 0;
  for (const DecisionIndex d : anchors) {
    constant += plan[d].law == kNone ? plan[d].size : 0;
    EXPECT_LE(plan[d].offset, gradients + 4 * 2 * 8 * 512) << "below all activations";
  }
  EXPECT_EQ(constant, gradients);
  EXPECT_LE(plan.pool, plan.bound + plan.bound / 500);
}

TEST(Anchors, KeepTheirPlacesInAllLayouts) {
  Plan plan = accumulating(8, 512, 3);
  lay_out_anchored(plan, {}, {});
  const std::vector<DecisionIndex> anchors = anchors_of(plan);
  ASSERT_FALSE(anchors.empty());
  std::mt19937 random(3);
  ResizeOptions options;
  options.anchors = anchors;
  for (int i = 0; i < 30; ++i) {
    const Extent rows = std::uniform_int_distribution<Extent>(1, 64)(random);
    const Plan other = resize(plan, std::vector<Extent>{rows, 4096 / rows}, options);
    for (const DecisionIndex d : anchors) {
      EXPECT_EQ(other[d].offset, plan[d].offset);
      EXPECT_EQ(other[d].size, plan[d].size) << "its room";
    }
  }
}

TEST(Anchors, SmallInputsHaveRoomForLargerBatches) {
  Plan plan = accumulating(8, 512, 2);
  const Bytes before = plan.decisions[0].size;
  lay_out_anchored(plan, {}, {});
  EXPECT_EQ(plan.decisions[0].size, before + before / 2);
  ResizeOptions options;
  options.anchors = anchors_of(plan);
  const Plan larger = resize(plan, std::vector<Extent>{64, 4096}, options);
  EXPECT_EQ(larger.decisions[0].offset, plan.decisions[0].offset) << "a larger one departs";
  EXPECT_EQ(larger.decisions[0].size, plan.decisions[0].size);
}

TEST(Anchors, LargeOnesBeyondTheirRoomLieElsewhere) {
  Plan plan = accumulating(8, 512, 2);
  // The inputs are as large as activations.
  plan.laws[1] = proportional(kUnit);
  for (Decision& d : plan.decisions) {
    if (d.law == 1) d.size = kUnit * 8 * 512;
  }
  plan.load = bound_at(plan, plan.extents);
  lay_out_anchored(plan, {}, {});
  ResizeOptions options;
  options.anchors = anchors_of(plan);
  EXPECT_NE(std::ranges::find(options.anchors, DecisionIndex(0)), options.anchors.end());
  const Plan larger = resize(plan, std::vector<Extent>{16, 512}, options);
  EXPECT_EQ(larger.decisions[0].size, kUnit * 16 * 512);
  larger.check();
}

// One forward with a loss, which lives until the end of the iteration, and a step.
TEST(Anchors, ASmallBlockThatOutlivesTheStepLiesAtTheBottom) {
  Plan plan;
  plan.extent_names = {"ids.0", "ids.1"};
  plan.extents = {1, 4000};
  plan.seen = {{1, 4000}};
  plan.laws = {proportional(kUnit)};
  plan.period = 12;
  plan.phases = {{{trace::PhaseKind::kForward, 0, 0, 0}, 0, 5},
                 {{trace::PhaseKind::kBackward, 0, 0, 0}, 5, 7},
                 {{trace::PhaseKind::kOptimizer, kNone, 0, 0}, 7, 10},
                 {{trace::PhaseKind::kOther, kNone, 0, 0}, 10, 12}};
  const auto add = [&](Bytes size, Tick upper, int phase_end, profile::LawIndex law) {
    const Tick lower = static_cast<Tick>(plan.decisions.size());
    plan.decisions.push_back({.size = size,
                              .lower = lower,
                              .upper = upper,
                              .phase = PhaseIndex(0),
                              .phase_end = PhaseIndex(phase_end),
                              .law = law});
  };
  add(4000 * kUnit, 6, 1, 0);
  add(4000 * kUnit, 7, 1, 0);
  add(kUnit, 11, 3, kNone);
  plan.load = 8001 * kUnit;
  EXPECT_EQ(anchors_of(plan), std::vector<DecisionIndex>{DecisionIndex(2)});
  lay_out_anchored(plan, {}, {});
  plan.check();
  EXPECT_EQ(plan.decisions[2].offset, 0);
  EXPECT_EQ(plan.pool, 8001 * kUnit);
}

TEST(Anchors, AreNoneWithoutLawsOrWithStreamsThatShareNothing) {
  Plan plan = accumulating(8, 512, 2);
  Plan streams = plan;
  streams.decisions.back().stream = 1;
  lay_out_anchored(streams, {}, {});
  EXPECT_TRUE(anchors_of(streams).empty());
  for (Decision& d : plan.decisions) d.law = kNone;
  plan.laws.clear();
  lay_out_anchored(plan, {}, {});
  EXPECT_TRUE(anchors_of(plan).empty());
}

}  // namespace
}  // namespace stalloc::plan
