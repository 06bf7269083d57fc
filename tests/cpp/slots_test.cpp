#include "plan/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "functional_training.h"
#include "live_blocks.h"
#include "plan/boxes.h"
#include "plan/build.h"
#include "plan/layout.h"
#include "plan/plan_json.h"
#include "plan/resize.h"
#include "plans.h"
#include "profile/lifetimes.h"
#include "replay/replay.h"
#include "runtime/layouts.h"
#include "runtime/static_pool.h"
#include "solve/core/bound.h"
#include "verify/slots_validator.h"

namespace stalloc {
namespace {

using verify::SlotRange;
using verify::SlotUse;

using testing::expect_no_shared_address;
using testing::functional_training;
using testing::kUnit;
using testing::LiveBlocks;
using testing::plan_of_trace;

TEST(SlotsValidator, CountsARequestAndItsSuccessor) {
  const std::vector<SlotUse> uses = {{.slots = 0, .size = 100, .lower = 2, .upper = 15},
                                     {.slots = 0, .size = 512, .lower = 4, .upper = 17}};
  const auto check = [&](std::int32_t count) {
    const std::vector<SlotRange> classes = {{.size = kUnit, .offset = kUnit, .count = count}};
    verify::validate_slots(classes, uses, 10, kUnit, 100 * kUnit);
  };
  EXPECT_NO_THROW(check(4));
  EXPECT_THROW(check(3), PlanError);
}

TEST(SlotsValidator, RefusesRequestsThatDoNotFit) {
  const SlotRange good{.size = kUnit, .offset = 0, .count = 2, .stream = 0};
  const SlotUse use{.slots = 0, .size = 100, .lower = 2, .upper = 15, .stream = 0};
  const auto check = [](SlotRange range, SlotUse u, Tick period = 10) {
    verify::validate_slots(std::vector{range}, std::vector{u}, period, kUnit, 2 * kUnit);
  };
  EXPECT_NO_THROW(check(good, use));
  const auto range = [&](auto change) {
    SlotRange r = good;
    change(r);
    return r;
  };
  const auto other = [&](auto change) {
    SlotUse u = use;
    change(u);
    return u;
  };
  EXPECT_THROW(check(range([](auto& r) { r.size = 100; }), use), PlanError);
  EXPECT_THROW(check(range([](auto& r) { r.offset = 100; }), use), PlanError);
  EXPECT_THROW(check(range([](auto& r) { r.offset = kUnit; }), use), PlanError);
  EXPECT_THROW(check(range([](auto& r) { r.offset = -kUnit; }), use), PlanError);
  EXPECT_THROW(check(range([](auto& r) { r.count = 3; }), use), PlanError);
  EXPECT_THROW(check(range([](auto& r) { r.count = 0; }), use), PlanError);
  EXPECT_THROW(check(range([](auto& r) { r.stream = -1; }), use), PlanError);
  EXPECT_THROW(check(good, other([](auto& u) { u.slots = 1; })), PlanError);
  EXPECT_THROW(check(good, other([](auto& u) { u.slots = -1; })), PlanError);
  EXPECT_THROW(check(good, other([](auto& u) { u.size = kUnit + 1; })), PlanError);
  EXPECT_THROW(check(good, other([](auto& u) { u.stream = 1; })), PlanError);
  EXPECT_THROW(check(good, other([](auto& u) { u.lower = 10; })), PlanError);
  EXPECT_THROW(check(good, other([](auto& u) { u.upper = 23; })), PlanError);
  EXPECT_THROW(check(good, use, 0), PlanError);
}

TEST(SlotsValidator, AgreesWithBruteForce) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const Tick period = 1 + static_cast<Tick>(random() % 12);
    std::vector<SlotUse> uses;
    for (int i = 0; i < static_cast<int>(random() % 6) + 1; ++i) {
      const auto lower = static_cast<Tick>(random() % period);
      const Tick ticks = 1 + static_cast<Tick>(random() % (2 * period));
      uses.push_back({.slots = 0, .size = 1, .lower = lower, .upper = lower + ticks});
    }
    std::int32_t most = 0;
    for (Tick t = 5 * period; t < 6 * period; ++t) {
      std::int32_t live = 0;
      for (const SlotUse& u : uses) {
        for (Tick turn = 0; turn < 10; ++turn) {
          const Tick born = u.lower + turn * period;
          live += born <= t && t < born + u.upper - u.lower;
        }
      }
      most = std::max(most, live);
    }
    const auto check = [&](std::int32_t count) {
      const std::vector<SlotRange> classes = {{.size = kUnit, .offset = 0, .count = count}};
      verify::validate_slots(classes, uses, period, kUnit, 100 * kUnit);
    };
    EXPECT_NO_THROW(check(most)) << round;
    if (most > 1) {
      EXPECT_THROW(check(most - 1), PlanError) << round;
    }
  }
}

TEST(Slots, ReplacedStateHasOneSpareSlotAClass) {
  std::mt19937 random(1);
  const plan::Plan plan = plan_of_trace(functional_training(30, 4, random));
  ASSERT_EQ(plan.slots.size(), 3u);
  std::map<plan::SlotClassIndex, std::int32_t> members;
  for (const plan::Decision& d : plan.decisions) {
    if (d.slots != kNone && d.box == kNone) ++members[d.slots];
  }
  Bytes spare = 0;
  for (std::size_t c = 0; c < plan.slots.size(); ++c) {
    EXPECT_EQ(plan.slots[c].count, members[c] + 1);
    spare += plan.slots[c].size;
  }
  EXPECT_LE(plan.pool, plan.bound + spare);
}

TEST(Slots, AClassHasAsManySlotsAsTheTraceHoldsAtOnce) {
  for (const int ahead : {1, 2, 3, 7}) {
    std::mt19937 random(static_cast<unsigned>(ahead));
    const trace::Trace trace = functional_training(30, 5, random, {.ahead = ahead});
    const plan::Plan plan = plan_of_trace(trace);
    std::map<Bytes, std::map<Tick, std::int32_t>> changes;  // by size
    const Tick period = trace.iterations[4] - trace.iterations[3];
    for (const trace::Request& r : trace.requests) {
      if (r.upper - r.lower <= period && r.upper != kNever) continue;
      ++changes[r.size][r.lower];
      --changes[r.size][r.upper];
    }
    std::map<Bytes, std::int32_t> most;
    for (const auto& [size, at] : changes) {
      std::int32_t live = 0;
      for (const auto& [tick, change] : at) most[size] = std::max(most[size], live += change);
    }
    ASSERT_EQ(plan.slots.size(), most.size()) << ahead;
    for (const plan::SlotClass& c : plan.slots) EXPECT_EQ(c.count, most[c.size]) << ahead;
  }
}

TEST(Slots, ThePlanSurvivesItsFile) {
  std::mt19937 random(2);
  const plan::Plan plan = plan_of_trace(functional_training(12, 4, random));
  const std::string text = plan::to_json(plan);
  const plan::Plan read = plan::plan_from_json(text, "plan.json");
  EXPECT_EQ(plan::to_json(read), text);
  ASSERT_FALSE(read.slots.empty());
  plan::Plan damaged = read;
  --damaged.slots[0].count;
  EXPECT_THROW(damaged.check(), PlanError);
  damaged = read;
  damaged.slots[0].offset += kUnit;
  EXPECT_THROW(damaged.check(), PlanError) << "it meets another class, a decision or the end";
  for (plan::Decision& d : damaged.decisions) d.slots = d.slots == kNone ? kNone : 99;
  EXPECT_THROW(damaged.check(), PlanError);
}

TEST(Slots, ServeEveryIterationAtTheirPlaces) {
  for (const int ahead : {1, 2, 5}) {
    std::mt19937 random(3);
    const trace::Trace trace = functional_training(40, 12, random, {.ahead = ahead});
    const plan::Plan plan = plan_of_trace(trace);
    const replay::ReplayResult result = replay::replay_planned(trace, plan);
    EXPECT_EQ(result.misses, 0) << ahead;
    EXPECT_EQ(result.peak_reserved, plan.pool + plan.resident) << ahead;
  }
}

TEST(Slots, NoTwoLiveRequestsShareAnAddress) {
  for (int seed = 0; seed < 8; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const trace::Trace trace = functional_training(15, 7, random, {.ahead = 1 + seed % 3});
    const plan::Plan plan = plan_of_trace(trace);
    expect_no_shared_address(trace, plan);
  }
}

TEST(Slots, AFrameOfStressKeepsThePoolSound) {
  for (int seed = 0; seed < 6; ++seed) {
    std::mt19937 random(static_cast<unsigned>(100 + seed));
    const plan::Plan plan = plan_of_trace(functional_training(10, 4, random));
    runtime::StaticPool pool(plan);
    LiveBlocks live(pool, plan.pool, plan.alignment);
    for (int step = 0; step < 600; ++step) {
      const auto pick = random() % 10;
      if (pick < 4) {
        const auto d = static_cast<std::int32_t>(random() % plan.decisions.size());
        live.note(pool.place(d), plan.decisions[static_cast<std::size_t>(d)].size);
      } else if (pick < 5) {
        const auto c = static_cast<std::int32_t>(random() % plan.slots.size());
        live.note(pool.place_in_slots(c, 100), plan.slots[static_cast<std::size_t>(c)].size);
      } else if (pick < 6) {
        const Bytes size = 1 + static_cast<Bytes>(random() % (4 * kUnit));
        live.note(pool.place_idle(size, 0), size);
      } else if (pick < 9) {
        live.release_any(random);
      } else {
        pool.end_iteration();
      }
      live.check();
    }
  }
}

// Two slots of 8 units for one state, and a box in the spare one with three requests.
plan::Plan boxed_plan() {
  plan::Plan plan;
  plan.period = 10;
  plan.phases.push_back({{trace::PhaseKind::kForward, 0, 0, 0}, 0, 10});
  const auto add = [&](Bytes size, Offset offset, Tick lower, Tick upper, Tick over,
                       std::int32_t box) {
    plan.decisions.push_back({.size = size,
                              .offset = offset,
                              .lower = lower,
                              .upper = upper,
                              .phase = 0,
                              .phase_end = over > 0 ? kNone : 0,
                              .slots = 0,
                              .over = over,
                              .box = box});
  };
  add(4 * kUnit, 0, 1, 5, 0, 0);
  add(3 * kUnit, 4 * kUnit, 2, 6, 0, 0);
  add(8 * kUnit, 0, 6, 7, 0, 1);
  add(8 * kUnit, 0, 7, 17, 2, kNone);
  plan.slots.push_back({.size = 8 * kUnit, .offset = 0, .count = 2});
  plan.pool = 16 * kUnit;
  plan.bound = 16 * kUnit;
  return plan;
}

TEST(Boxes, AreProvenByTheirClassAndWithinTheirSlot) {
  const plan::Plan good = boxed_plan();
  EXPECT_NO_THROW(good.check());
  const auto damaged = [&](std::size_t d, auto change) {
    plan::Plan plan = good;
    change(plan.decisions[d]);
    return plan;
  };
  EXPECT_THROW(damaged(1, [](auto& d) { d.offset = 3 * kUnit; }).check(), PlanError) << "meets 0";
  EXPECT_THROW(damaged(1, [](auto& d) { d.offset = 6 * kUnit; }).check(), PlanError) << "too high";
  EXPECT_THROW(damaged(1, [](auto& d) { d.offset = -kUnit; }).check(), PlanError);
  EXPECT_THROW(damaged(2, [](auto& d) { d.upper = 8; }).check(), PlanError) << "in the hand-over";
  EXPECT_THROW(damaged(1, [](auto& d) { d.upper = 7; }).check(), PlanError) << "two boxes at once";
  EXPECT_THROW(damaged(0, [](auto& d) { d.box = 4; }).check(), PlanError) << "no such box";
  EXPECT_THROW(damaged(0, [](auto& d) { d.slots = kNone; }).check(), PlanError);
  EXPECT_THROW(damaged(0, [](auto& d) { d.over = 1; }).check(), PlanError);
  EXPECT_THROW(damaged(0, [](auto& d) { d.stream = 1; }).check(), PlanError);
}

TEST(Boxes, GoWhereAFreeSlotIs) {
  runtime::StaticPool pool(boxed_plan());
  const auto expect = [&](std::int32_t d, Offset at) {
    const Offset offset = pool.place(d);
    EXPECT_EQ(offset, at) << d;
    pool.check();
    return offset;
  };
  const Offset first = expect(3, 0);  // the state takes a slot, the box the other one
  pool.end_iteration();
  const Offset a = expect(0, 8 * kUnit);
  const Offset b = expect(1, 12 * kUnit);
  EXPECT_EQ(pool.at(b).decision, 1);
  EXPECT_EQ(pool.release(a).size, 4 * kUnit);
  EXPECT_EQ(pool.place(2), kUnplaced) << "b has not been freed, and both slots are taken";
  EXPECT_EQ(pool.release(b).size, 3 * kUnit);
  const Offset c = expect(2, 8 * kUnit);
  EXPECT_EQ(pool.place(2), kUnplaced) << "it is live";
  pool.release(c);
  const Offset second = expect(3, 8 * kUnit);
  pool.release(first);
  pool.end_iteration();
  expect(0, 0);
  expect(1, 4 * kUnit);
  pool.release(second);
  pool.check();
}

TEST(Boxes, BringThePlanDownToTheBound) {
  std::int64_t boxed = 0;
  for (int seed = 0; seed < 12; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const trace::Trace trace = functional_training(4 + seed, 6, random, {.ahead = 1 + seed % 3});
    const plan::Plan plan = plan_of_trace(trace);
    boxed += std::ranges::count_if(plan.decisions, [](const auto& d) { return d.box != kNone; });
    const replay::ReplayResult result = replay::replay_planned(trace, plan);
    EXPECT_EQ(result.misses, 0) << seed;
    EXPECT_EQ(result.peak_reserved, plan.pool + plan.resident) << seed;
  }
  EXPECT_GT(boxed, 50);
}

TEST(Boxes, TakeTheRequestsAtThePeakIfTheLargestLeaveMore) {
  plan::Plan plan = boxed_plan();
  plan.decisions.erase(plan.decisions.begin(), plan.decisions.end() - 1);
  const auto add = [&](Bytes size, Tick lower, Tick upper) {
    plan.decisions.push_back(
        {.size = size * kUnit, .lower = lower, .upper = upper, .phase = 0, .phase_end = 0});
  };
  // Only one of the first two fits into the idle slot. The other two are too large for it.
  add(6, 1, 5);
  add(5, 4, 6);
  add(9, 3, 4);
  add(12, 5, 6);
  plan::add_boxes(plan);
  EXPECT_EQ(plan.decisions[1].box, kNone) << "the largest is not live at the peak";
  EXPECT_EQ(plan.decisions[2].box, 0);
  EXPECT_EQ(solve::load_bound(plan::problem_of(plan)), (16 + 15) * kUnit);
}

// Two slots for one state, and requests of `size` bytes while one of the slots is idle.
plan::Plan plan_with_idle_slot(Bytes size) {
  plan::Plan plan = boxed_plan();
  for (plan::Decision& d : plan.decisions) {
    if (d.over == 0) d = {.size = size, .lower = d.lower, .upper = d.upper, .phase = 0};
  }
  return plan;
}

TEST(Boxes, ABoundCountsRequestsThatIdleSlotsCannotTake) {
  // Requests 0 and 1 are live at once, and a state of 8 units with them.
  const Bytes small = plan::bound_with_slots(plan_with_idle_slot(8 * kUnit));
  EXPECT_EQ(small, 24 * kUnit) << "the load: they may lie in the idle slot";
  const Bytes large = plan::bound_with_slots(plan_with_idle_slot(9 * kUnit));
  EXPECT_EQ(large, (16 + 18) * kUnit) << "they fit into no slot, so the idle one is lost";
  plan::Plan late = plan_with_idle_slot(8 * kUnit);
  for (plan::Decision& d : late.decisions) {
    if (d.over == 0) d.upper = 8;
  }
  EXPECT_EQ(plan::bound_with_slots(late), (16 + 24) * kUnit) << "both slots are taken at tick 7";
  EXPECT_EQ(plan::bound_with_slots(boxed_plan()), 16 * kUnit);
}

TEST(Boxes, NoPlanIsBelowTheBoundWithSlots) {
  for (int seed = 0; seed < 12; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const plan::Plan plan =
        plan_of_trace(functional_training(4 + seed, 6, random, {.ahead = 1 + seed % 4}));
    const Bytes least = plan::bound_with_slots(plan);
    EXPECT_GE(least, plan.bound) << seed;
    EXPECT_GE(plan.pool, least) << seed;
    EXPECT_EQ(plan.optimal, plan.pool == least) << seed;
  }
}

// Slots take no more than their requests need beside a pool that has no slots.
TEST(Slots, NeverMakeAPlanWorse) {
  for (int seed = 0; seed < 12; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    profile::IterationProfile profile = profile::profile_iteration(
        functional_training(4 + 3 * seed, 5, random, {.ahead = 1 + seed % 4}));
    const plan::Plan plan = plan::make_plan(profile, {.time_limit = 1});
    Bytes beside = 0;
    for (const plan::SlotClass& c : plan.slots) beside += c.size * c.count;
    ASSERT_GT(beside, 0);
    for (profile::ProfiledRequest& r : profile.requests) r.over = 0;
    profile.startup = {};
    const plan::Plan without = plan::make_plan(profile, {.time_limit = 1});
    ASSERT_TRUE(without.slots.empty());
    EXPECT_LE(plan.pool, without.pool + beside) << seed;
  }
}

// Activations that depend on an extent, and state that does not.
plan::Plan resizable_plan(std::mt19937& random) {
  plan::Plan plan = plan_of_trace(functional_training(12, 5, random));
  plan.laws = {{.terms = {{kUnit, {0, kNone, kNone}}}, .proof = profile::LawProof::kProven}};
  plan.extent_names = {"ids.1"};
  plan.extents = {4};
  plan.seen = {{4}};
  for (plan::Decision& d : plan.decisions) {
    if (d.slots == kNone && d.size == 4 * kUnit) d.law = 0;
  }
  plan.check();
  return plan;
}

TEST(Slots, StayWhereTheyAreAtOtherExtents) {
  std::mt19937 random(6);
  const plan::Plan plan = resizable_plan(random);
  runtime::StaticPool pool(plan);
  std::map<Offset, std::int32_t> live;
  for (std::int32_t d = 0; d < static_cast<std::int32_t>(plan.decisions.size()); ++d) {
    if (plan.decisions[static_cast<std::size_t>(d)].slots == kNone) continue;
    const Offset offset = pool.place(d);
    if (offset != kUnplaced) live[offset] = d;
  }
  pool.end_iteration();
  for (const profile::Extent extent : {40, 2, 17}) {
    const plan::Plan other = plan::resize(plan, std::vector<profile::Extent>{extent});
    for (std::size_t c = 0; c < plan.slots.size(); ++c) {
      EXPECT_EQ(other.slots[c].offset, plan.slots[c].offset);
      EXPECT_EQ(other.slots[c].size, plan.slots[c].size);
      EXPECT_EQ(other.slots[c].count, plan.slots[c].count);
    }
    pool.relayout(other, std::max(plan.pool, other.pool));
    pool.check();
    EXPECT_EQ(pool.live_blocks(), live.size());
    for (const auto& [offset, d] : live) EXPECT_EQ(pool.at(offset).decision, d);
  }
  runtime::Layouts layouts(plan);
  const runtime::Layouts::Memory memory{4 * plan.pool, {}};
  const plan::Plan* found = layouts.find(std::vector<profile::Extent>{40}, kNone, memory, {});
  ASSERT_NE(found, nullptr);
  pool.relayout(*found, memory.size);
  pool.check();
  for (const auto& [offset, d] : live) EXPECT_NE(pool.release(offset).size, -1);
  pool.check();
}

TEST(Slots, ALateFreeCostsASlotAndNoAddress) {
  plan::Plan plan;
  plan.period = 4;
  plan.phases.push_back({{trace::PhaseKind::kForward, 0, 0, 0}, 0, 4});
  plan.decisions.push_back(
      {.size = 100, .lower = 1, .upper = 5, .phase = 0, .slots = 0, .over = 1});
  plan.slots.push_back({.size = kUnit, .offset = 0, .count = 2});
  plan.pool = plan.bound = 2 * kUnit;
  plan.check();
  runtime::StaticPool pool(plan);
  const Offset first = pool.place(0);
  pool.end_iteration();
  const Offset second = pool.place(0);
  EXPECT_NE(first, second);
  pool.end_iteration();
  EXPECT_EQ(pool.place(0), kUnplaced) << "both are still live";
  EXPECT_EQ(pool.release(first).size, 100);
  EXPECT_EQ(pool.place(0), first);
  EXPECT_EQ(pool.place_idle(100, 0), kUnplaced) << "slots are no idle space";
  pool.check();
}

TEST(Slots, StateThatStartUpMadeTakesSlots) {
  std::mt19937 random(5);
  trace::Trace trace = functional_training(20, 5, random);
  const plan::Plan plan = plan_of_trace(trace);
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_EQ(result.peak_reserved, plan.pool + plan.resident);
}

}  // namespace
}  // namespace stalloc
