// Replay of traces under torch's policy and under stalloc's runtime, and of plans without traces.
#include "replay/replay.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "plan/build.h"
#include "profile/lifetimes.h"
#include "replay/counting_memory.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using testing::TraceBuilder;

constexpr Bytes kMiB = Bytes{1} << 20;

// Weights, activations that backward frees in reverse, a gradient that wraps round.
trace::Trace training(int iterations) {
  TraceBuilder builder;
  builder.alloc(30 * kMiB);
  std::int32_t gradient = kNone;
  for (int i = 0; i < iterations; ++i) {
    builder.phase(trace::PhaseKind::kForward, 0);
    const auto a = builder.alloc(11 * kMiB);
    if (gradient != kNone) builder.free(gradient);
    const auto b = builder.alloc(15 * kMiB);
    builder.phase(trace::PhaseKind::kBackward, 0);
    gradient = builder.alloc(13 * kMiB);
    builder.free(b);
    builder.free(a);
    builder.phase(trace::PhaseKind::kOptimizer);
    builder.free(builder.alloc(25 * kMiB));
    builder.step();
  }
  return builder.finish();
}

TEST(Replay, TorchsPolicyCountsLiveAndHeldBytes) {
  const replay::ReplayResult result = replay::replay_caching(training(3), {});
  // Weights 30, two activations 11 and 15, the gradient 13.
  EXPECT_EQ(result.load, (30 + 11 + 15 + 13) * kMiB);
  // The activations' segments are 12 and 16, the gradient's 14, and the optimizer's 26.
  EXPECT_EQ(result.reserved, (30 + 12 + 16 + 14 + 26) * kMiB);
  EXPECT_EQ(result.peak_reserved, result.reserved);
  EXPECT_EQ(result.mallocs, 5);
  EXPECT_EQ(result.failed, kNone);
  EXPECT_DOUBLE_EQ(result.efficiency(), 69.0 / 98.0);
}

TEST(Replay, TorchsPolicyStopsAtTheFirstRequestThatDoesNotFit) {
  replay::CachingSettings settings;
  settings.capacity = 60 * kMiB;
  const replay::ReplayResult result = replay::replay_caching(training(3), settings);
  EXPECT_EQ(result.failed, 3) << "the gradient of the first iteration";
  EXPECT_LE(result.peak_reserved, settings.capacity);
}

TEST(Replay, APlanHitsEveryDecision) {
  const trace::Trace trace = training(5);
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(trace), {});
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_EQ(result.load, 69 * kMiB);
  EXPECT_EQ(result.misses, 0);
  EXPECT_EQ(result.hits, 5 * static_cast<std::int64_t>(plan.decisions.size()));
  EXPECT_EQ(result.reserved, plan.pool + 30 * kMiB);
  EXPECT_EQ(result.mallocs, 2);
  EXPECT_EQ(result.frees, 0);
}

// A layer's sizes differ between iterations. Every third one adds to a memory that grows, and each
// keeps a mask of its own. The requests after the layer need its addresses.
trace::Trace with_memory(int iterations, bool kept) {
  TraceBuilder t;
  for (int i = 0; i < iterations; ++i) {
    const Bytes tokens = 50'000 + 7919 * i % 3001;
    t.phase(trace::PhaseKind::kForward, 0);
    const auto x = t.alloc(kMiB);
    std::vector<std::int32_t> layer;
    for (const Bytes width : {16, 64, 16}) layer.push_back(t.alloc(width * tokens));
    if (kept) t.alloc(8 * tokens);
    if (kept && i % 3 == 1) t.alloc(3 * kMiB);
    for (const auto r : layer) t.free(r);
    std::vector<std::int32_t> blocks;
    for (int n = 0; n < 12; ++n) blocks.push_back(t.alloc(kMiB));
    t.phase(trace::PhaseKind::kBackward, 0);
    for (const auto r : blocks) t.free(r);
    t.free(t.alloc(2 * kMiB));
    t.free(x);
    t.step();
  }
  return t.finish();
}

TEST(Replay, KeptBlocksStayOutOfThePlansWay) {
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(with_memory(5, true)), {});
  const plan::Plan without = plan::make_plan(profile::profile_iteration(with_memory(5, false)), {});
  EXPECT_EQ(plan.pool, without.pool);
  const replay::ReplayResult result = replay::replay_planned(with_memory(20, true), plan);
  EXPECT_EQ(result.hits, 20 * static_cast<std::int64_t>(plan.decisions.size()));
  EXPECT_EQ(result.misses, 0);
}

// Between its iterations a run adds samples to a memory that grows. From an iteration on it scores
// samples there.
trace::Trace with_scores(int iterations, int scored_from) {
  TraceBuilder t;
  for (int i = 0; i < iterations; ++i) {
    t.phase(trace::PhaseKind::kOther, kNone);
    for (int n = 0; n <= i * 7 % 3; ++n) t.alloc(2 * kMiB + 7919 * (i + n) % 3001 * 512);
    if (i >= scored_from) t.free(t.alloc((40 + i) * kMiB));
    t.phase(trace::PhaseKind::kForward, 0);
    std::vector<std::int32_t> blocks;
    for (int n = 0; n < 12; ++n) blocks.push_back(t.alloc(8 * kMiB));
    t.phase(trace::PhaseKind::kBackward, 0);
    for (const auto r : blocks) t.free(r);
    t.step();
  }
  return t.finish();
}

TEST(Replay, ALargeRequestAmongKeptOnesLiesInThePool) {
  constexpr int kNever = 100;
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(with_scores(5, kNever)), {});
  const auto run = [&](int scored_from) {
    return replay::replay_planned(with_scores(12, scored_from), plan);
  };
  EXPECT_EQ(run(8).reserved, run(kNever).reserved);
  EXPECT_EQ(run(8).misses, 0);
  EXPECT_EQ(run(8).moves, run(kNever).moves) << "no memory moves beside the pool";
}

TEST(Replay, APlanFailsIfItsPoolDoesNotFit) {
  const trace::Trace trace = training(3);
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(trace), {});
  EXPECT_EQ(replay::replay_planned(trace, plan, {.capacity = plan.pool - 1}).failed, 0);
  EXPECT_NE(replay::replay_planned(trace, plan, {.capacity = plan.pool + 29 * kMiB}).failed, kNone)
      << "the weights";
  EXPECT_EQ(replay::replay_planned(trace, plan, {.capacity = plan.pool + 30 * kMiB}).failed, kNone);
}

// Iterations whose third has more beside them: what was idle there before does not fit.
TEST(Replay, WhatIsIdleInTorchGoesBeforeANewPeak) {
  TraceBuilder builder;
  const auto iteration = [&](bool has_more) {
    builder.phase(trace::PhaseKind::kForward, 0);
    const auto a = builder.alloc(11 * kMiB);
    builder.phase(trace::PhaseKind::kBackward, 0);
    builder.free(a);
    builder.phase(trace::PhaseKind::kUnplanned);
    if (has_more) {
      const auto first = builder.alloc(48 * kMiB, 0, /*thread=*/1);
      const auto idle = builder.alloc(384 * kMiB, 0, 1);
      const auto last = builder.alloc(48 * kMiB, 0, 1);
      builder.free(idle);
      const auto larger = builder.alloc(480 * kMiB, 0, 1);
      for (const auto r : {first, last, larger}) builder.free(r);
    }
    builder.step();
  };
  for (const bool has_more : {false, false, true, false}) iteration(has_more);
  const trace::Trace trace = builder.finish();
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(trace), {});
  replay::CachingSettings settings;
  settings.expandable_segments = true;
  const auto peak = [&](bool thrifty) {
    return replay::replay_planned(trace, plan, {.torch = settings, .thrifty = thrifty})
        .peak_reserved;
  };
  EXPECT_GE(peak(false), (48 + 384 + 48 + 480) * kMiB);
  EXPECT_LE(peak(true), (48 + 48 + 480 + 11 + 3 * 20) * kMiB);
}

TEST(Replay, TorchsSettingsApplyToTheRequestsOutsideThePool) {
  const trace::Trace trace = training(4);
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(trace), {});
  const auto replayed = [&](const replay::CachingSettings& settings, Bytes capacity) {
    return replay::replay_planned(trace, plan,
                                  {.capacity = capacity, .startup = false, .torch = settings});
  };
  constexpr Bytes kEndless = replay::CachingSettings::kUnlimited;
  replay::CachingSettings settings;
  const replay::ReplayResult own = replay::replay_planned(trace, plan, {.startup = false});
  const replay::ReplayResult torch = replayed(settings, kEndless);
  EXPECT_EQ(torch.hits, own.hits);
  EXPECT_EQ(torch.misses, 0);
  EXPECT_EQ(torch.peak_load, own.peak_load);
  EXPECT_EQ(torch.load, own.load);
  EXPECT_EQ(torch.peak_reserved, plan.pool + 30 * kMiB) << "the weights";
  settings.expandable_segments = true;
  const replay::ReplayResult expandable = replayed(settings, kEndless);
  EXPECT_EQ(expandable.peak_reserved, plan.pool + 40 * kMiB) << "two chunks";
  EXPECT_EQ(expandable.maps, 5) << "and what of the pool gave way to the weights, and came back";
  EXPECT_EQ(replayed({}, plan.pool + 30 * kMiB).failed, kNone);
  EXPECT_NE(replayed({}, plan.pool + 29 * kMiB).failed, kNone) << "the capacity is that of both";
}

TEST(Replay, APlanOfAnotherTraceCostsMemoryOnly) {
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(training(3)), {});
  TraceBuilder other;
  for (int i = 0; i < 4; ++i) {
    other.phase(trace::PhaseKind::kForward, 0);
    const auto a = other.alloc(17 * kMiB);
    const auto b = other.alloc(11 * kMiB, 1);
    other.free(a);
    other.free(b);
    other.step();
  }
  const replay::ReplayResult result = replay::replay_planned(other.finish(), plan);
  EXPECT_EQ(result.load, 28 * kMiB);
  EXPECT_EQ(result.hits, 0);
  EXPECT_EQ(result.failed, kNone);
}

TEST(Replay, TheWarmUpCountsForThePeakAlone) {
  TraceBuilder builder;
  builder.phase(trace::PhaseKind::kForward, 0);
  builder.free(builder.alloc(40 * kMiB));
  for (int i = 0; i < 6; ++i) {
    builder.step();
    builder.phase(trace::PhaseKind::kForward, 0);
    builder.free(builder.alloc(20 * kMiB));
  }
  builder.step();
  const trace::Trace trace = builder.finish();
  const replay::ReplayResult result =
      replay::replay_planned(trace, plan::make_plan(profile::profile_iteration(trace), {}));
  EXPECT_EQ(result.load, 20 * kMiB);
  EXPECT_EQ(result.reserved, 20 * kMiB);
  EXPECT_EQ(result.peak_reserved, 40 * kMiB) << "the idle pool gives way";
}

TEST(Replay, AnUnplannedInterruptionIsServedFromIdleSpace) {
  TraceBuilder builder;
  for (int i = 0; i < 5; ++i) {
    builder.phase(trace::PhaseKind::kForward, 0);
    const auto a = builder.alloc(20 * kMiB);
    builder.free(a);
    builder.phase(trace::PhaseKind::kUnplanned);
    builder.free(builder.alloc(12 * kMiB));
    builder.phase(trace::PhaseKind::kForward, 0);  // goes on
    builder.free(builder.alloc(10 * kMiB));
    builder.step();
  }
  const trace::Trace trace = builder.finish();
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(trace), {});
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_EQ(result.misses, 0);
  EXPECT_EQ(result.reserved, plan.pool);
}

// The recorder ends an iteration between two microbatches by guess, and joins it to the next one.
TEST(Replay, APhaseThatGoesOnInAnotherSpanCountsOnce) {
  TraceBuilder builder;
  builder.alloc(30 * kMiB);
  for (int i = 0; i < 4; ++i) {
    builder.phase(trace::PhaseKind::kForward, 0);
    builder.free(builder.alloc(20 * kMiB));
    builder.phase(trace::PhaseKind::kOther, kNone, 1);
    builder.free(builder.alloc(kMiB));
    if (i == 0) builder.phase(trace::PhaseKind::kOther, kNone, 1);
    builder.phase(trace::PhaseKind::kForward, 1);
    builder.free(builder.alloc(20 * kMiB));
    builder.phase(trace::PhaseKind::kOther, kNone, 2);
    builder.free(builder.alloc(30 * kMiB));  // as large as the weight
    builder.step();
  }
  const trace::Trace trace = builder.finish();
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(trace), {});
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_EQ(result.load, 60 * kMiB);
  EXPECT_EQ(result.peak_reserved, 60 * kMiB) << "the last phase of the first iteration is known";
}

TEST(Replay, DynamicRequestsAreAnnounced) {
  TraceBuilder builder;
  for (int i = 0; i < 5; ++i) {
    builder.phase(trace::PhaseKind::kForward, 0);
    const auto a = builder.alloc(20 * kMiB);
    const auto dynamic = builder.alloc((4 + i) * kMiB);
    builder.tag_dynamic(dynamic);
    const auto b = builder.alloc(8 * kMiB);
    for (const auto r : {b, dynamic, a}) builder.free(r);
    builder.step();
  }
  const trace::Trace trace = builder.finish();
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(trace), {});
  const replay::ReplayResult with = replay::replay_planned(trace, plan);
  EXPECT_EQ(with.reserved, with.load) << "addresses of the region without a request have no memory";
  const replay::ReplayResult without = replay::replay_planned(trace, plan, {.reuse = false});
  EXPECT_EQ(without.reserved, 28 * kMiB + 8 * kMiB);
}

TEST(Unroll, RepeatsTheStaticRequests) {
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(training(4)), {});
  const trace::Trace trace = replay::unroll(plan, 5);
  trace.check();
  EXPECT_EQ(trace.requests.size(), 5 * plan.decisions.size() + 1) << "and the weights, once";
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_EQ(result.misses, 0);
  EXPECT_EQ(result.reserved, plan.pool + 30 * kMiB);
  EXPECT_EQ(result.load, (30 + 11 + 15 + 13) * kMiB);
}

TEST(Unroll, AnEmptyPlanGivesAnEmptyTrace) {
  const trace::Trace trace = replay::unroll(plan::Plan{}, 3);
  trace.check();
  EXPECT_TRUE(trace.requests.empty());
}

// A larger layout ends within a page, and the pool grows from there.
TEST(CountingMemory, AddressesThatEndWithinAPageGetItWhole) {
  replay::CountingMemory memory(64 * kMiB, /*page=*/2 * kMiB, nullptr);
  void* pool = memory.allocate_pool(4 * kMiB, /*grows=*/true);
  ASSERT_TRUE(memory.extend(pool, 4 * kMiB, 7 * kMiB));
  ASSERT_TRUE(memory.attach(pool, {4 * kMiB, 7 * kMiB}));
  EXPECT_EQ(memory.in_pieces(), 8 * kMiB);
  ASSERT_TRUE(memory.grow(pool, 7 * kMiB, 8 * kMiB));
  ASSERT_TRUE(memory.grow(pool, 8 * kMiB, 10 * kMiB));
  const Range moved{4 * kMiB, 8 * kMiB};
  EXPECT_EQ(memory.detach(pool, moved), moved);
  EXPECT_TRUE(memory.attach(pool, moved));
  EXPECT_EQ(memory.in_pieces(), 10 * kMiB);
}

TEST(Replay, AnEmptyTraceHoldsNothing) {
  const replay::ReplayResult result = replay::replay_caching({}, {});
  EXPECT_EQ(result.reserved, 0);
  EXPECT_DOUBLE_EQ(result.efficiency(), 1.0);
  trace::Trace wrong;
  wrong.requests.push_back({});
  EXPECT_THROW(replay::replay_caching(wrong, {}), TraceError);
  EXPECT_THROW(replay::replay_planned(wrong, {}), TraceError);
}

}  // namespace
}  // namespace stalloc
