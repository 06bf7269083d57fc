// The choice and the making of layouts for changing extents.
#include "runtime/layouts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "busy_processors.h"
#include "plan/layout.h"
#include "plan/resize.h"

namespace stalloc::runtime {
namespace {

using profile::Extent;

// A request of rows x tokens units.
void add_request(plan::Plan& plan, Tick lower, Tick upper, PhaseIndex phase) {
  plan.decisions.push_back({.size = 512 * plan.extents[0] * plan.extents[1],
                            .lower = lower,
                            .upper = upper,
                            .phase = phase,
                            .phase_end = phase,
                            .law = 0});
}

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
  for (const Tick lower : {0, 2}) add_request(plan, lower, 7 - lower, 0);
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
    if (layouts.covers(extents, kNone)) continue;
    const plan::Plan* found = layouts.find(extents, kNone, memory, {});
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
  const plan::Plan* found = layouts.find(std::vector<Extent>{16, 2}, kNone, {plan.pool, {}}, {});
  ASSERT_NE(found, nullptr);
  EXPECT_GE(found->extents[0], 16);
  EXPECT_LE(found->extents[0], 64) << "rows of the batches that were seen";
  EXPECT_EQ(layouts.find(std::vector<Extent>{64, 64}, kNone, {plan.pool, {}}, {}), nullptr);
}

TEST(Layouts, KnowTheExtentsThatTheProfileHad) {
  const Layouts layouts(budget_plan(8, 1024));
  const auto was_profiled = [&](Extent rows, Extent tokens) {
    return layouts.was_profiled(std::vector<Extent>{rows, tokens});
  };
  EXPECT_TRUE(was_profiled(8, 1024));
  EXPECT_TRUE(was_profiled(1024, 8)) << "not those of the plan";
  EXPECT_TRUE(was_profiled(7, 1000)) << "smaller than one that it had";
  EXPECT_FALSE(was_profiled(9, 1024));
  EXPECT_FALSE(was_profiled(16, 16)) << "no batch had as many of both";
}

// Two microbatches of rows x tokens: an input that lives until the second one's forward is over,
// and temporaries of each.
plan::Plan plan_of_two(Extent rows, Extent tokens) {
  plan::Plan plan = budget_plan(rows, tokens);
  plan.phases.push_back({{trace::PhaseKind::kForward, 1, 0, 0}, 8, 16});
  plan.period = 16;
  for (const Tick lower : {8, 10}) add_request(plan, lower, 15, 1);
  plan.decisions[0].upper = 14;
  plan::lay_out(plan, {.search_steps = 0}, {});
  plan.check();
  return plan;
}

TEST(Layouts, NothingIsPlannedOverALiveBlockThatCannotStayPlanned) {
  const plan::Plan plan = plan_of_two(8, 64);
  Layouts layouts(plan);
  // A block of a smaller batch, where the new layout would rather have something else.
  StaticPool::LiveRows live;
  live.decisions = {{plan::DecisionIndex(0), 512 * 100, 512 * 4 * 64}};
  live.since = 8;
  const plan::Plan* found =
      layouts.grow(std::vector<Extent>{16, 64}, {plan.pool, {}}, live, Layouts::More::kBehindPool);
  ASSERT_NE(found, nullptr);
  const Offset begin = 512 * 100;
  const Offset end = begin + 512 * 4 * 64;
  for (std::size_t i = 2; i < found->decisions.size(); ++i) {
    const plan::Decision& d = found->decisions[i];
    EXPECT_TRUE(d.offset >= end || d.offset + d.size <= begin) << "decision " << i;
  }
}

TEST(Layouts, TheSameSearchIsMadeOnce) {
  const plan::Plan plan = plan_of_two(8, 64);
  Layouts layouts(plan);
  StaticPool::LiveRows live;
  live.decisions = {{plan::DecisionIndex(0), 512 * 100, 512 * 4 * 64}};
  live.since = 8;
  const auto grow = [&] {
    return layouts.grow(std::vector<Extent>{16, 64}, {plan.pool, {}}, live,
                        Layouts::More::kBehindPool);
  };
  const plan::Plan* found = grow();
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(grow(), found) << "nobody has used it, and the next iteration asks again";
  EXPECT_EQ(layouts.made(), 1u);
  live.decisions[0].offset += 512;
  EXPECT_NE(grow(), found) << "the block lies elsewhere";
  EXPECT_EQ(layouts.made(), 2u);
}

// An evaluation has left a block in the middle of the pool.
TEST(Layouts, NothingIsPlannedOverALeftover) {
  const plan::Plan plan = plan_of_two(8, 64);
  Layouts layouts(plan);
  StaticPool::LiveRows live;
  live.leftovers = {{512 * 100, 512 * 256, 0}};
  ASSERT_TRUE(layouts.is_obstructed(live.leftovers));
  const Layouts::Memory memory{plan.pool + live.leftovers[0].size, {}};
  for (int i = 0; i < 3; ++i) {
    const plan::Plan* found = layouts.find(std::vector<Extent>{4, 32}, kNone, memory, live);
    ASSERT_NE(found, nullptr);
    layouts.use(found);
    EXPECT_FALSE(layouts.is_obstructed(live.leftovers));
    EXPECT_LE(found->pool, memory.size);
    for (const plan::Decision& d : found->decisions) {
      EXPECT_TRUE(d.offset >= 512 * 356 || d.offset + d.size <= 512 * 100);
    }
  }
  EXPECT_LE(layouts.made(), 3u) << "the first one serves as long as the block lives";
  EXPECT_EQ(layouts.find(std::vector<Extent>{8, 64}, kNone, {plan.pool, {}}, live), nullptr)
      << "there is no room for both";
}

// Requests whose lifetimes are so long that no search meets the bound.
plan::Plan hard_plan() {
  constexpr Tick kRequests = 250;
  plan::Plan plan = budget_plan(8, 64);
  plan.period = 2 * kRequests;
  plan.phases[0].end = plan.period;
  plan.decisions.clear();
  std::mt19937 random(1);
  for (Tick i = 0; i < kRequests; ++i) {
    const Tick lower = 2 * i;
    const Tick ticks = 1 + 2 * static_cast<Tick>(random() % (kRequests / 2));
    add_request(plan, lower, std::min(lower + ticks, plan.period - 1), 0);
    plan.decisions.back().law = kNone;
    plan.decisions.back().size = static_cast<Bytes>(512 * (1 + random() % 1000));
  }
  plan.decisions.front().law = 0;
  plan.decisions.front().size = 512 * 8 * 64;
  plan::lay_out(plan, {.search_steps = 0}, {});
  plan.check();
  return plan;
}

TEST(Layouts, AreTheSameOnABusyProcessor) {
  const plan::Plan plan = hard_plan();
  const auto offsets = [&](bool in_same_memory) {
    Layouts layouts(plan);
    const std::vector<Extent> extents = {16, 64};
    const Layouts::Memory memory{in_same_memory ? plan.pool + plan.pool / 4 : plan.pool, {}};
    const plan::Plan* found = in_same_memory
                                  ? layouts.find(extents, kNone, memory, {})
                                  : layouts.grow(extents, memory, {}, Layouts::More::kBehindPool);
    EXPECT_NE(found, nullptr);
    return found ? plan::layout_of(*found).offsets : std::vector<Offset>{};
  };
  for (const bool in_same_memory : {false, true}) {
    const std::vector<Offset> quiet = offsets(in_same_memory);
    const BusyProcessors busy;
    EXPECT_EQ(offsets(in_same_memory), quiet);
  }
}

}  // namespace
}  // namespace stalloc::runtime
