#include "plan/generations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "functional_training.h"
#include "live_blocks.h"
#include "plan/plan_json.h"
#include "plan/resize.h"
#include "replay/replay.h"
#include "runtime/static_pool.h"

namespace stalloc {
namespace {

using plan::Decision;
using runtime::StaticPool;
using testing::expect_no_shared_address;
using testing::functional_training;
using testing::kUnit;
using testing::LiveBlocks;
using testing::plan_of_trace;

constexpr int kStates = 60;

// All new state is made before any old is freed, and activations are larger than each state.
trace::Trace handed_over_together(unsigned seed, bool startup = false) {
  std::mt19937 random(seed);
  return functional_training(kStates, 6, random,
                             {.ahead = kStates, .activation = 5 * kUnit, .startup = startup});
}

bool is_in_generation(const Decision& d) { return d.over > 0 && d.box != kNone; }

TEST(Generations, StateThatIsHandedOverTogetherMeetsTheBound) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const trace::Trace trace = handed_over_together(seed);
    const plan::Plan plan = plan_of_trace(trace);
    ASSERT_EQ(plan.slots.size(), 1u) << seed;
    EXPECT_EQ(plan.slots[0].count, 2) << seed;
    EXPECT_EQ(std::ranges::count_if(plan.decisions, is_in_generation), kStates) << seed;
    EXPECT_LE(plan.pool, plan.bound + plan.bound / 70) << seed;
    const replay::ReplayResult result = replay::replay_planned(trace, plan);
    EXPECT_EQ(result.misses, 0) << seed;
    EXPECT_EQ(result.peak_reserved, plan.pool + plan.resident) << seed;
  }
}

TEST(Generations, StateThatIsHandedOverOneByOneKeepsSlotsOfItsOwn) {
  std::mt19937 random(1);
  const plan::Plan plan =
      plan_of_trace(functional_training(kStates, 6, random, {.activation = 5 * kUnit}));
  EXPECT_FALSE(plan.slots.empty());
  EXPECT_TRUE(std::ranges::none_of(plan.decisions, is_in_generation));
}

TEST(Generations, StateOfStartUpLiesWhereTheGenerationBeforeTheFirstWould) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const trace::Trace trace = handed_over_together(seed, /*startup=*/true);
    const plan::Plan plan = plan_of_trace(trace);
    const auto precedes = [](const plan::StartupRequest& r) { return r.decision != kNone; };
    EXPECT_EQ(std::ranges::count_if(plan.startup, precedes), kStates) << seed;
    const replay::ReplayResult result = replay::replay_planned(trace, plan);
    EXPECT_EQ(result.misses, 0) << seed;
    EXPECT_EQ(result.peak_reserved, plan.pool + plan.resident) << seed;
  }
}

TEST(Generations, NoTwoLiveRequestsShareAnAddress) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    const int states = 12 + static_cast<int>(seed);
    const trace::Trace trace = functional_training(states, 6, random,
                                                   {.ahead = seed % 2 ? states : states / 2,
                                                    .activation = 5 * kUnit,
                                                    .startup = seed % 4 < 2});
    const plan::Plan plan = plan_of_trace(trace);
    expect_no_shared_address(trace, plan);
  }
}

// Two requests of 4 units that are handed over together, and another in the idle slot.
plan::Plan small_plan() {
  plan::Plan plan;
  plan.period = 10;
  plan.phases.push_back({{trace::PhaseKind::kForward, 0, 0, 0}, 0, 10});
  plan.decisions = {{.size = 7 * kUnit,
                     .offset = 0,
                     .lower = 1,
                     .upper = 4,
                     .phase = 0,
                     .phase_end = 0,
                     .slots = 0,
                     .box = 1},
                    {.size = 4 * kUnit,
                     .offset = 0,
                     .lower = 5,
                     .upper = 15,
                     .phase = 0,
                     .slots = 0,
                     .over = 2,
                     .box = 0}};
  Decision second = plan.decisions.back();
  second.offset += 4 * kUnit;
  second.lower += 1;
  second.upper += 1;
  plan.decisions.push_back(second);
  plan.slots.push_back({.size = 8 * kUnit, .offset = 0, .count = 2});
  plan.pool = plan.bound = 16 * kUnit;
  return plan;
}

TEST(Generations, AreProvenByTheirClassAndWithinTheirSlot) {
  EXPECT_NO_THROW(small_plan().check());
  const auto damaged = [](auto change) {
    plan::Plan plan = small_plan();
    change(plan);
    return plan;
  };
  const auto with = [&](std::size_t d, auto change) {
    return damaged([&](plan::Plan& plan) { change(plan.decisions[d]); });
  };
  EXPECT_THROW(with(2, [](auto& d) { d.offset = 3 * kUnit; }).check(), PlanError) << "they meet";
  EXPECT_THROW(with(2, [](auto& d) { d.offset = 5 * kUnit; }).check(), PlanError) << "too high";
  EXPECT_THROW(with(1, [](auto& d) { d.over = 0; }).check(), PlanError)
      << "no state in a box of it";
  EXPECT_THROW(with(2, [](auto& d) { d.over = 11; }).check(), PlanError) << "two periods";
  EXPECT_THROW(with(2, [](auto& d) { d.upper = 15; }).check(), PlanError) << "no whole period";
  EXPECT_THROW(with(2, [](auto& d) { d.stream = 1; }).check(), PlanError);
  EXPECT_THROW(with(0, [](auto& d) { d.box = 0; }).check(), PlanError) << "no state";
  EXPECT_THROW(with(0, [](auto& d) { d.upper = 6; }).check(), PlanError) << "in the hand-over";
  EXPECT_THROW(damaged([](auto& plan) { --plan.slots[0].count; }).check(), PlanError);
}

TEST(Generations, RefuseRequestsOfStartUpThatCannotTakeTheirPlaces) {
  plan::Plan plan = small_plan();
  plan.startup = {
      {.phase = 0, .size = 4 * kUnit, .lower = 0, .upper = 9, .slots = 0, .decision = 1},
      {.phase = 0, .size = 4 * kUnit, .lower = 1, .upper = 9, .slots = 0, .decision = 2}};
  EXPECT_NO_THROW(plan.check());
  EXPECT_EQ(plan::to_json(plan::plan_from_json(plan::to_json(plan), "p")), plan::to_json(plan));
  const auto damaged = [&](auto change) {
    plan::Plan other = plan;
    change(other.startup[1]);
    return other;
  };
  EXPECT_THROW(damaged([](auto& r) { r.decision = 1; }).check(), PlanError) << "taken";
  EXPECT_THROW(damaged([](auto& r) { r.decision = 0; }).check(), PlanError) << "no state";
  EXPECT_THROW(damaged([](auto& r) { r.decision = 9; }).check(), PlanError) << "no decision";
  EXPECT_THROW(damaged([](auto& r) { r.size = 5 * kUnit; }).check(), PlanError) << "too large";
  EXPECT_THROW(damaged([](auto& r) { r.slots = kNone; }).check(), PlanError) << "no slot";
}

TEST(Generations, TakeTheOtherSlotInTheNextIteration) {
  StaticPool pool(small_plan());
  EXPECT_EQ(pool.place_before(1, 4 * kUnit), 0);
  EXPECT_EQ(pool.place_before(2, 4 * kUnit), 4 * kUnit);
  EXPECT_EQ(pool.place_before(2, 4 * kUnit), 12 * kUnit) << "in the first slot it is live";
  pool.release(12 * kUnit);
  Offset old = 0;
  for (int t = 0; t < 5; ++t) {
    const Offset next = 8 * kUnit - old;
    EXPECT_EQ(pool.place(0), next) << t;
    pool.release(next);
    EXPECT_EQ(pool.place(1), next) << t;
    EXPECT_EQ(pool.place(2), next + 4 * kUnit) << t;
    pool.check();
    pool.release(old);
    pool.release(old + 4 * kUnit);
    pool.check();
    pool.end_iteration();
    old = next;
  }
}

TEST(Generations, LieAroundABlockThatIsFreedLate) {
  StaticPool pool(small_plan());
  pool.place(1);
  const Offset late = pool.place(2);
  pool.end_iteration();
  pool.place(1);
  pool.place(2);
  pool.release(0);
  pool.end_iteration();
  EXPECT_EQ(pool.place(0), kUnplaced) << "the late block keeps its slot";
  EXPECT_EQ(pool.place(1), 0) << "beside the late block";
  EXPECT_EQ(pool.place(2), kUnplaced);
  pool.check();
  pool.release(late);
  EXPECT_EQ(pool.place(2), 4 * kUnit);
  pool.release(8 * kUnit);
  pool.release(12 * kUnit);
  pool.end_iteration();
  EXPECT_EQ(pool.place(0), 8 * kUnit) << "back on plan";
  pool.check();
}

TEST(Generations, StressKeepsThePoolSound) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::mt19937 random(100 + seed);
    const plan::Plan plan = plan_of_trace(handed_over_together(seed, /*startup=*/true));
    ASSERT_TRUE(std::ranges::any_of(plan.decisions, is_in_generation));
    StaticPool pool(plan);
    LiveBlocks live(pool, plan.pool, plan.alignment);
    for (int step = 0; step < 500; ++step) {
      const auto pick = random() % 20;
      const auto d = static_cast<std::int32_t>(random() % plan.decisions.size());
      const Decision& decision = plan.decisions[static_cast<std::size_t>(d)];
      if (pick < 10) {
        live.note(pool.place(d), decision.size);
      } else if (pick < 12) {
        if (is_in_generation(decision))
          live.note(pool.place_before(d, decision.size), decision.size);
      } else if (pick < 13) {
        const Bytes size = 1 + static_cast<Bytes>(random() % (40 * kUnit));
        live.note(pool.place_idle(size, 0), size);
      } else if (pick < 19) {
        live.release_any(random);
      } else {
        pool.end_iteration();
      }
      live.check();
    }
  }
}

TEST(Generations, StayWhereTheyAreAtOtherExtents) {
  plan::Plan plan = plan_of_trace(handed_over_together(3, /*startup=*/true));
  plan.laws = {{.terms = {{kUnit, {0, kNone, kNone}}}, .proof = profile::LawProof::kProven}};
  plan.extent_names = {"ids.1"};
  plan.extents = {5};
  plan.seen = {{5}};
  for (Decision& d : plan.decisions) {
    if (d.slots == kNone && d.size == 5 * kUnit) d.law = 0;
  }
  plan.check();
  StaticPool pool(plan);
  std::vector<Offset> live;
  for (std::int32_t d = 0; d < static_cast<std::int32_t>(plan.decisions.size()); ++d) {
    if (is_in_generation(plan.decisions[static_cast<std::size_t>(d)]))
      live.push_back(pool.place(d));
  }
  for (const profile::Extent extent : {40, 2}) {
    const plan::Plan other = plan::resize(plan, std::vector<profile::Extent>{extent});
    pool.relayout(other, std::max(plan.pool, other.pool));
    pool.check();
    EXPECT_EQ(pool.live_blocks(), live.size());
  }
  for (const Offset offset : live) EXPECT_NE(pool.release(offset).size, StaticPool::kNotLive);
}

}  // namespace
}  // namespace stalloc
