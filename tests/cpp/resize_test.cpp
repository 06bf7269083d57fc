// Plans for other extents: sizes by law, layouts that the validator accepts, walls and fixed
// decisions.
#include "plan/resize.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "plans.h"

namespace stalloc::plan {
namespace {

using profile::Extent;
using profile::LawIndex;
using profile::LawProof;
using profile::SizeLaw;

SizeLaw affine(Bytes constant, Bytes a_token) {
  return {
      .constant = constant, .terms = {{a_token, {0, kNone, kNone}}}, .proof = LawProof::kProven};
}

// Three decisions: activations of 1 KiB a token, their gradient, and a weight's gradient.
Plan small_plan(Extent tokens) {
  Plan plan =
      testing::plan_of({{.size = 1024 * tokens, .offset = 0, .lower = 0, .upper = 4},
                        {.size = 512 * tokens, .offset = 1024 * tokens, .lower = 1, .upper = 3},
                        {.size = 4096, .offset = 1536 * tokens, .lower = 2, .upper = 7}},
                       8);
  plan.laws = {affine(0, 1024), affine(0, 512)};
  plan.decisions[0].law = 0;
  plan.decisions[1].law = 1;
  plan.extent_names = {"ids.1"};
  plan.extents = {tokens};
  plan.seen = {{tokens}};
  plan.check();
  return plan;
}

TEST(Resize, GivesEverySizeByItsLaw) {
  const Plan plan = small_plan(16);
  const Plan larger = resize(plan, std::vector<Extent>{40});
  EXPECT_EQ(larger.decisions[0].size, 40960);
  EXPECT_EQ(larger.decisions[1].size, 20480);
  EXPECT_EQ(larger.decisions[2].size, 4096);
  EXPECT_EQ(larger.pool, 40960 + 20480 + 4096);
  EXPECT_EQ(larger.pool, bound_at(plan, std::vector<Extent>{40}));
  EXPECT_EQ(larger.extents, std::vector<Extent>{40});
  EXPECT_EQ(resize(larger, plan.extents).pool, plan.pool);
}

TEST(Resize, UnknownExtentsAreThoseOfTheEnvelope) {
  const Plan plan = small_plan(16);
  EXPECT_EQ(resize(plan, std::vector<Extent>{kNone}).decisions[0].size, 16384);
  EXPECT_THROW(resize(plan, std::vector<Extent>{}), PlanError);
}

TEST(Resize, RoundsUpRemaindersOfLawsAndNeverGivesZero) {
  Plan plan = small_plan(16);
  plan.laws[0] = {.constant = 1, .terms = {{1, {0, kNone, kNone}}}, .divisor = 3, .step = 4};
  plan.laws[1] = {.constant = -600, .terms = {{1, {0, kNone, kNone}}}};
  EXPECT_EQ(law_sizes(plan, std::vector<Extent>{12})[LawIndex(0)],
            8);  // 13 / 3, up to a multiple of 4
  EXPECT_EQ(law_sizes(plan, std::vector<Extent>{12})[LawIndex(1)], 1);
}

TEST(Resize, ScalesUnexplainedSizes) {
  Plan plan = small_plan(16);
  plan.laws[0] = affine(16384, 0);
  plan.laws[0].proof = LawProof::kUnexplained;
  EXPECT_EQ(law_sizes(plan, std::vector<Extent>{24})[LawIndex(0)], 24576);
  EXPECT_EQ(law_sizes(plan, std::vector<Extent>{8})[LawIndex(0)], 16384);
}

TEST(Resize, RefusesSizesOfNoRequest) {
  const Plan plan = small_plan(16);
  EXPECT_THROW(resize(plan, std::vector<Extent>{Extent{1} << 47}), PlanError);
}

TEST(Resize, KeepsFixedOffsetsAndPutsNothingAcrossAWall) {
  const Plan plan = small_plan(16);
  ResizeOptions options;
  options.layout.fixed = {kUnplaced, kUnplaced, 1536 * 16};
  options.walls = {align_up(plan.pool, plan.alignment)};
  const Plan larger = resize(plan, std::vector<Extent>{20}, options);
  EXPECT_EQ(larger.decisions[2].offset, plan.decisions[2].offset);
  const Offset wall = larger.walls.at(0);
  for (const Decision& d : larger.decisions) {
    EXPECT_TRUE(d.offset + d.size <= wall || d.offset >= wall + plan.alignment);
  }
}

TEST(Resize, ScalesRegionsAndLeavesKeptGroupsWithout) {
  Plan plan = small_plan(16);
  DynamicGroup group;
  group.phase = group.phase_end = 0;
  group.after = 0;
  group.size = 1024;
  group.offset = plan.pool;
  group.lower = 1;
  group.upper = 2;
  group.law = 1;
  plan.groups.push_back(group);
  DynamicGroup kept;
  kept.phase = kept.phase_end = 0;
  kept.after = 2;
  kept.lower = 2;
  kept.upper = 10;
  plan.groups.push_back(kept);
  plan.pool += 1024;
  plan.check();
  ASSERT_TRUE(plan.is_kept(plan.groups[1]));
  const Plan larger = resize(plan, std::vector<Extent>{40});
  EXPECT_EQ(larger.groups[0].size, 2560);
  EXPECT_TRUE(larger.is_kept(larger.groups[1]));
  ResizeOptions options;
  options.layout.fixed_regions = {100 * 512, kUnplaced};
  EXPECT_EQ(resize(plan, std::vector<Extent>{40}, options).groups[0].offset, 100 * 512);
}

TEST(Resize, MovesTheResidentRegionWithTheEndOfThePool) {
  Plan plan = small_plan(16);
  plan.resident = 2048;
  plan.startup = {{.phase = 0, .size = 2048, .offset = plan.pool, .lower = 0, .upper = kNever},
                  {.phase = 0, .size = 512, .offset = 0, .lower = 1, .upper = 2}};
  plan.check();
  const Plan larger = resize(plan, std::vector<Extent>{40});
  EXPECT_EQ(larger.startup[0].offset, larger.pool);
  EXPECT_EQ(larger.startup[1].offset, kUnplaced);
}

TEST(Resize, RandomLawsAndExtentsGivePlansThatTheValidatorAccepts) {
  std::mt19937 random(18);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    Plan plan =
        testing::random_plan(random, pick(2, 80), 4, pick(1, 2),
                             pick(0, 1) ? solve::Streams::kOrdered : solve::Streams::kSeparate);
    if (pick(0, 1)) plan = testing::with_groups(std::move(plan), 5);
    plan.extent_names = {"a", "b"};
    plan.extents = {pick(1, 50), pick(1, 50)};
    for (int l = 0; l < 6; ++l) {
      SizeLaw law;
      law.constant = pick(-500, 5000);
      law.step = pick(0, 1) ? 1 : 512;
      law.terms.push_back({pick(1, 300), {0, kNone, kNone}});
      if (pick(0, 1)) law.terms.push_back({pick(1, 300), {0, 1, kNone}});
      law.divisor = pick(1, 3);
      law.proof = pick(0, 4) == 0 ? LawProof::kUnexplained : LawProof::kProven;
      if (law.proof == LawProof::kUnexplained) law.constant = pick(1, 9000);
      plan.laws.push_back(law);
    }
    for (Decision& d : plan.decisions) d.law = pick(kNone, 5);
    for (DynamicGroup& g : plan.groups) g.law = pick(kNone, 5);
    const std::vector<Extent> extents = {pick(0, 120), pick(0, 120)};
    ResizeOptions options;
    options.layout.search_steps = 0;
    if (pick(0, 1)) options.walls = {pick(0, 60) * plan.alignment * 8};
    const Plan resized = resize(plan, extents, options);  // check() is part of it
    const LawSizes sizes = law_sizes(plan, extents);
    for (const Decision& d : resized.decisions) {
      if (d.law == kNone) continue;
      EXPECT_EQ(d.size, sizes[d.law]);
    }
    EXPECT_GE(resized.pool, bound_at(plan, extents));
  }
}

}  // namespace
}  // namespace stalloc::plan
