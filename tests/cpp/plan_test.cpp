// Plans from profiles, and the plans that Plan::check() refuses.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/error.h"
#include "complaint.h"
#include "plan/build.h"
#include "plan/regions.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using ::testing::IsSubstring;
using testing::TraceBuilder;

// Three iterations with a gradient that wraps round, an evaluation, a dynamic request and two
// streams.
trace::Trace training_run() {
  TraceBuilder t;
  std::int32_t gradient = kNone;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(1000);
    const auto b = t.alloc(2000);
    if (gradient != kNone) t.free(gradient);
    const auto other_stream = t.alloc(300, 1);
    t.phase(trace::PhaseKind::kUnplanned);
    t.free(t.alloc(5000));
    t.free(other_stream);
    t.phase(trace::PhaseKind::kBackward, 0);
    const auto dynamic = t.alloc(700 + i);
    t.free(b);
    gradient = t.alloc(1500);
    t.free(dynamic);
    t.free(a);
    t.step();
  }
  return t.finish();
}

plan::Plan sound_plan() { return plan::make_plan(profile::profile_iteration(training_run()), {}); }

std::string complaint(const std::function<void(plan::Plan&)>& damage) {
  plan::Plan plan = sound_plan();
  damage(plan);
  return testing::complaint_of(plan);
}

TEST(MakePlan, PlansRepeatedRequestsOnly) {
  const profile::IterationProfile profile = profile::profile_iteration(training_run());
  const plan::Plan plan = plan::make_plan(profile, {.dynamic = false});
  EXPECT_TRUE(plan.groups.empty());
  ASSERT_EQ(plan.decisions.size(), 4u);
  std::vector<Bytes> sizes;
  for (const plan::Decision& d : plan.decisions) sizes.push_back(d.size);
  EXPECT_EQ(sizes, (std::vector<Bytes>{1000, 2000, 300, 1500}));
  EXPECT_EQ(plan.period, profile.period);
  EXPECT_EQ(plan.load, profile.load);
  EXPECT_EQ(plan.bound, 1024 + 2048 + 1536 + 512);
  EXPECT_EQ(plan.pool, plan.bound);
  EXPECT_TRUE(plan.optimal);
  EXPECT_FALSE(plan.algorithm.empty());
  EXPECT_EQ(plan.gap(), 0.0);
  ASSERT_EQ(plan.phases.size(), 3u);  // the first is what comes before the forward: nothing
  EXPECT_EQ(plan.phases[1].key, (trace::PhaseKey{trace::PhaseKind::kForward, 0, 0, 0}));
  EXPECT_EQ(plan.phases[2].key, (trace::PhaseKey{trace::PhaseKind::kBackward, 0, 0, 0}));
  EXPECT_EQ(plan.decisions[2].phase_end, kNone);
  EXPECT_EQ(plan.decisions[3].phase, 2);
  EXPECT_EQ(plan.decisions[3].phase_end, 1);
  EXPECT_GT(plan.decisions[3].upper, plan.period);
}

TEST(MakePlan, KeepsARegionForDynamicRequestsAndListsIdleSpace) {
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(training_run()), {});
  ASSERT_EQ(plan.groups.size(), 1u);
  const plan::DynamicGroup& group =
      plan.groups[0];  // 701 and 702 bytes at the beginning of a backward
  EXPECT_EQ(group.phase, 2);
  EXPECT_EQ(group.after, kNone);
  EXPECT_EQ(group.phase_end, 2);
  EXPECT_EQ(group.size, 1024);
  EXPECT_EQ(plan.headroom, plan::kDefaultHeadroom) << "it costs nothing: 702 bytes are 1024 anyway";
  // 1000, 2000 and 1500 bytes of its stream are in use through the window or at some moment of it;
  // the last 512 of the pool are the other stream's.
  EXPECT_TRUE(group.reusable.empty());
  EXPECT_TRUE(plan.dynamic.empty());
}

TEST(MakePlan, WithoutRegionsGroupsHaveIdleSpaceOnly) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(1000);
    t.free(t.alloc(5000));
    t.free(t.alloc(700 + i));
    t.free(a);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  const plan::Plan reuse = plan::make_plan(profile, {.regions = false});
  ASSERT_EQ(reuse.groups.size(), 1u);
  EXPECT_EQ(reuse.groups[0].after, 1);
  EXPECT_EQ(reuse.groups[0].size, 0);
  EXPECT_EQ(reuse.pool, 1024 + 5120);
  ASSERT_EQ(reuse.groups[0].reusable.size(), 1u);
  const plan::AddressRange range = reuse.groups[0].reusable[0];
  EXPECT_EQ(range.end - range.begin, 5120);
  EXPECT_EQ(range.begin, reuse.decisions[1].offset);

  const plan::Plan regions = plan::make_plan(profile, {});
  EXPECT_EQ(regions.pool, 1024 + 5120);  // the region lies where the static request did
  EXPECT_EQ(regions.groups[0].size, 1024);
  Bytes reusable = 0;
  for (const auto& [begin, end] : regions.groups[0].reusable) reusable += end - begin;
  EXPECT_EQ(reusable, 5120 - 1024);
}

TEST(MakePlan, TakesANamedPlannerAndAnAlignment) {
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(training_run()),
                                          {.algorithm = "first-fit-size", .alignment = 1});
  EXPECT_EQ(plan.algorithm, "first-fit-size+first-fit-size");
  EXPECT_EQ(plan.alignment, 1);
  EXPECT_GE(plan.pool, 1000 + 2000 + 1500 + 300);
}

TEST(MakePlan, AnIterationWithoutRequestsGivesAnEmptyPlan) {
  TraceBuilder t;
  t.step();
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(t.finish()), {});
  EXPECT_TRUE(plan.decisions.empty());
  EXPECT_EQ(plan.pool, 0);
  EXPECT_EQ(plan.gap(), 0.0);
}

TEST(MakePlan, RefusesOptionsThatMakeNoSense) {
  const profile::IterationProfile profile = profile::profile_iteration(training_run());
  EXPECT_THROW(plan::make_plan(profile, {.algorithm = "by magic"}), PlanError);
  EXPECT_THROW(plan::make_plan(profile, {.alignment = 0}), PlanError);
  EXPECT_THROW(plan::make_plan(profile, {.alignment = std::numeric_limits<Bytes>::max()}),
               PlanError);
  EXPECT_THROW(plan::make_plan(profile, {.time_limit = -1}), PlanError);
  EXPECT_THROW(plan::make_plan(profile, {.time_limit = std::numeric_limits<double>::quiet_NaN()}),
               PlanError);
  EXPECT_NO_THROW(
      plan::make_plan(profile, {.time_limit = std::numeric_limits<double>::infinity()}));
}

TEST(PlanCheck, AcceptsAPlan) { EXPECT_NO_THROW(sound_plan().check()); }

TEST(PlanCheck, RefusesOverlapsAndPlacesOutsideThePool) {
  EXPECT_PRED_FORMAT2(IsSubstring, "overlap", complaint([](plan::Plan& p) {
                        p.decisions[1].offset = p.decisions[0].offset;
                      }));
  EXPECT_PRED_FORMAT2(IsSubstring, "buffer 1",
                      complaint([](plan::Plan& p) { p.decisions[1].offset = p.pool; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "buffer 2",
                      complaint([](plan::Plan& p) { p.decisions[2].offset = -512; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "not aligned",
                      complaint([](plan::Plan& p) { p.decisions[0].offset += 1; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "pool: 512 bytes",
                      complaint([](plan::Plan& p) { p.pool = 512; }));
}

TEST(PlanCheck, RefusesRowsThatPointNowhere) {
  EXPECT_PRED_FORMAT2(IsSubstring, "decisions, row 1: lives from phase 3 to",
                      complaint([](plan::Plan& p) { p.decisions[1].phase = 3; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "decisions, row 1",
                      complaint([](plan::Plan& p) { p.decisions[1].phase_end = 3; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "decisions, row 0",
                      complaint([](plan::Plan& p) { p.decisions[0].size = 0; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "decisions, row 0",
                      complaint([](plan::Plan& p) { p.decisions[0].stream = -1; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "decisions, row 3",
                      complaint([](plan::Plan& p) { p.decisions[3].upper += p.period; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "decisions, row 3",
                      complaint([](plan::Plan& p) { p.decisions[3].lower = p.period; }));
}

TEST(PlanCheck, RefusesDisorder) {
  EXPECT_PRED_FORMAT2(IsSubstring, "decisions, row 1: out of order",
                      complaint([](plan::Plan& p) { std::swap(p.decisions[0], p.decisions[1]); }));
  EXPECT_PRED_FORMAT2(IsSubstring, "phases, row 1: the phase is there twice",
                      complaint([](plan::Plan& p) { p.phases[1].key = p.phases[0].key; }));
  EXPECT_PRED_FORMAT2(
      IsSubstring, "phases, row 0: an unplanned phase",
      complaint([](plan::Plan& p) { p.phases[0].key.kind = trace::PhaseKind::kUnplanned; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "phases, row 1",
                      complaint([](plan::Plan& p) { p.phases[1].end = p.period + 1; }));
}

TEST(PlanCheck, RefusesGroupsThatPointNowhereOrOverlap) {
  const auto of_group = [](const std::function<void(plan::Plan&, plan::DynamicGroup&)>& damage) {
    return complaint([&](plan::Plan& p) { damage(p, p.groups[0]); });
  };
  using Group = plan::DynamicGroup;
  const auto expect = [&](const char* what,
                          const std::function<void(plan::Plan&, Group&)>& damage) {
    EXPECT_PRED_FORMAT2(IsSubstring, what, of_group(damage));
  };
  expect("groups, row 0: lives from phase 3", [](plan::Plan&, Group& g) { g.phase = 3; });
  expect("groups, row 0: lives from phase", [](plan::Plan&, Group& g) { g.phase_end = 3; });
  expect("groups, row 0: a negative stream", [](plan::Plan&, Group& g) { g.stream = -1; });
  expect("groups, row 0: a region of -512", [](plan::Plan&, Group& g) { g.size = -512; });
  expect("groups, row 0: a region of 100", [](plan::Plan&, Group& g) { g.size = 100; });
  expect("groups, row 0: lives from tick", [](plan::Plan&, Group& g) { g.upper = g.lower; });
  expect("groups, row 0: lives from tick",
         [](plan::Plan& p, Group& g) { g.upper = g.lower + p.period + 1; });
  expect("groups, row 0: a context's sizes are -1,",
         [](plan::Plan&, Group& g) { g.contexts = {{.size = profile::DynamicContext::kStart}}; });
  expect("groups, row 0: a context's sizes are 0, -3",
         [](plan::Plan&, Group& g) { g.contexts = {{.size = 0, .before = -3}}; });
  expect("groups, row 0: its contexts are out of order", [](plan::Plan&, Group& g) {
    g.contexts = {{.size = 1}, {.size = profile::DynamicContext::kSmall}};
  });
  expect("groups, row 0: comes after decision 0", [](plan::Plan&, Group& g) { g.after = 0; });
  expect("groups, row 0: comes after decision 4", [](plan::Plan&, Group& g) { g.after = 4; });
  expect("groups, row 0: comes after decision -2", [](plan::Plan&, Group& g) { g.after = -2; });
  expect("ends above the height", [](plan::Plan& p, Group& g) { g.offset = p.pool; });
  expect("not aligned", [](plan::Plan&, Group& g) { g.offset += 1; });
  expect("overlap", [](plan::Plan& p, Group& g) { g.offset = p.decisions[0].offset; });
  expect("groups, row 1: out of order", [](plan::Plan& p, Group& g) {
    p.groups.push_back(Group(g));
    p.groups.front().stream += 1;
  });
  expect("headroom", [](plan::Plan& p, Group&) { p.headroom = -1; });
}

TEST(PlanCheck, RefusesReusableSpaceThatIsNotIdle) {
  const auto with = [](std::vector<plan::AddressRange> ranges) {
    return complaint([&](plan::Plan& p) { p.groups[0].reusable = ranges; });
  };
  const plan::Plan plan = sound_plan();
  const Offset a = plan.decisions[0].offset;
  const Offset region = plan.groups[0].offset;
  EXPECT_PRED_FORMAT2(IsSubstring, "not idle, buffer 0", with({{a, a + 512}}));
  EXPECT_PRED_FORMAT2(IsSubstring, "not idle, buffer 4", with({{region, region + 512}}));
  EXPECT_PRED_FORMAT2(IsSubstring, "out of order", with({{512, 512}}));
  EXPECT_PRED_FORMAT2(IsSubstring, "out of order", with({{512, 1024}, {1024, 1536}}));
  EXPECT_PRED_FORMAT2(IsSubstring, "out of order", with({{-512, 512}}));
  EXPECT_PRED_FORMAT2(IsSubstring, "out of order", with({{0, plan.pool + 512}}));
  EXPECT_PRED_FORMAT2(IsSubstring, "out of order", with({{1, 512}}));
}

TEST(PlanCheck, RefusesFiguresThatCannotBe) {
  EXPECT_PRED_FORMAT2(IsSubstring, "alignment", complaint([](plan::Plan& p) { p.alignment = 0; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "period", complaint([](plan::Plan& p) { p.period = -1; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "bound", complaint([](plan::Plan& p) { p.bound = -1; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "load", complaint([](plan::Plan& p) { p.load = -1; }));
}

}  // namespace
}  // namespace stalloc
