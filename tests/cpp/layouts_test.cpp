// The choice and the making of layouts for changing extents.
#include "runtime/layouts.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "plan/layout.h"
#include "plan/resize.h"

namespace stalloc::runtime {
namespace {

using profile::Extent;

// Two requests of rows x tokens units, of which one lives in the other's lifetime.
plan::Plan budget_plan(Extent rows, Extent tokens) {
  plan::Plan plan;
  plan.extent_names = {"ids.0", "ids.1"};
  plan.extents = {rows, tokens};
  plan.seen = {{rows, tokens}, {tokens, rows}};
  profile::SizeLaw law;
  law.terms = {{512, {0, 1, kNone}}};
  plan.laws = {law};
  plan.phases = {{{trace::PhaseKind::kForward, 0, 0, 0}, 0, 8}};
  plan.period = 8;
  for (const Tick lower : {0, 2}) {
    plan.decisions.push_back({.size = 512 * rows * tokens,
                              .lower = lower,
                              .upper = 7 - lower,
                              .phase = 0,
                              .phase_end = 0,
                              .law = 0});
  }
  plan::lay_out(plan, {.search_steps = 0}, {});
  plan.check();
  return plan;
}

TEST(Layouts, FewServeAllBatchesOfABudget) {
  const plan::Plan plan = budget_plan(8, 1024);
  Layouts layouts(plan);
  const Layouts::Memory memory{plan.pool, {}};
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    const Extent rows = std::uniform_int_distribution<Extent>(1, 1024)(random);
    const Extent tokens = std::uniform_int_distribution<Extent>(1, 8192 / rows)(random);
    const std::vector<Extent> extents = {rows, std::min<Extent>(tokens, 1024)};
    if (layouts.covers(extents)) continue;
    const plan::Plan* found = layouts.find(extents, memory, {});
    ASSERT_NE(found, nullptr) << rows << " x " << tokens;
    EXPECT_TRUE(plan::covers(found->extents, extents));
    EXPECT_LE(found->pool, plan.pool);
    layouts.use(found);
  }
  EXPECT_LT(layouts.made(), 500u) << "at most one for ten batches";
}

TEST(Layouts, NoneIsWidenedBeyondWhatIsKnown) {
  const plan::Plan plan = budget_plan(8, 64);
  Layouts layouts(plan);
  const plan::Plan* found = layouts.find(std::vector<Extent>{16, 2}, {plan.pool, {}}, {});
  ASSERT_NE(found, nullptr);
  EXPECT_GE(found->extents[0], 16);
  EXPECT_LE(found->extents[0], 64) << "rows of the batches that were seen";
  EXPECT_EQ(layouts.find(std::vector<Extent>{64, 64}, {plan.pool, {}}, {}), nullptr);
}

}  // namespace
}  // namespace stalloc::runtime
