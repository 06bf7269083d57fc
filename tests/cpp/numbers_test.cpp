// Numbers: a loss that the training loop keeps displaces no other request.
#include "plan/numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/pretend.h"
#include "plan/build.h"
#include "plan/layout.h"
#include "plan/resize.h"
#include "profile/iteration_profile.h"
#include "profile/lifetimes.h"
#include "runtime/planned_allocator.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using trace::PhaseKind;

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kLoss = 4;
constexpr int kLayers = 4;

// Iterations of a few layers. The forward makes a loss, which goes after the backward; a temporary
// number of the optimizer goes at once.
trace::Trace training(int iterations, Bytes activation) {
  testing::TraceBuilder b;
  b.phase(PhaseKind::kOther);
  for (int i = 0; i < iterations; ++i) {
    b.phase(PhaseKind::kForward, 0);
    std::vector<std::int32_t> saved;
    for (int layer = 0; layer < kLayers; ++layer) saved.push_back(b.alloc(activation));
    const std::int32_t loss = b.alloc(kLoss);
    b.phase(PhaseKind::kBackward, 0);
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::int32_t gradient = b.alloc(activation);
      b.free(saved.back());
      saved.pop_back();
      b.free(gradient);
    }
    b.phase(PhaseKind::kOptimizer);
    b.free(loss);
    const std::int32_t step = b.alloc(2 * kLoss);
    const std::int32_t temporary = b.alloc((kLayers + 1) * activation);
    b.free(temporary);
    b.free(step);
    b.step();
  }
  return b.finish();
}

plan::Plan plan_of(Bytes activation) {
  return plan::make_plan(profile::profile_iteration(training(3, activation)), {});
}

// True if the decision is a number, and the plan has units for these.
bool lies_apart(const plan::Plan& plan, const plan::Decision& d) {
  return plan::NumbersApart(plan).contains(d);
}

const plan::Decision& loss_of(const plan::Plan& plan) {
  return *std::ranges::find(plan.decisions, kLoss, &plan::Decision::size);
}

TEST(Numbers, LieBelowAllOtherRequests) {
  const plan::Plan plan = plan_of(kMiB);
  const plan::NumbersApart numbers(plan);
  ASSERT_EQ(numbers.size(), 2 * plan.alignment) << "the loss, and the optimizer's step";
  for (const plan::Decision& d : plan.decisions) {
    EXPECT_EQ(d.offset < numbers.begin() + numbers.size(), d.size <= plan::kNumber) << d.size;
  }
  EXPECT_EQ(loss_of(plan).upper - loss_of(plan).lower, plan.period);
  EXPECT_EQ(plan.pool, plan.bound);
  EXPECT_TRUE(plan.optimal);
}

// A plan of a step of the optimizer, without decisions.
plan::Plan plan_of_step(Tick period) {
  plan::Plan plan;
  plan.period = period;
  plan.load = kMiB;
  plan.phases = {{{PhaseKind::kOptimizer, kNone, 0, 0}, 0, period}};
  return plan;
}

TEST(Numbers, ThoseOfOnePhaseTakeTurns) {
  plan::Plan plan = plan_of_step(100);
  for (Tick i = 0; i < 20; ++i) {
    plan.decisions.push_back({.size = 8, .lower = 4 * i, .upper = 4 * i + 3});
    plan.decisions.push_back({.size = 4, .lower = 4 * i + 1, .upper = 4 * i + 2});
  }
  for (plan::Decision& d : plan.decisions) d.phase = d.phase_end = PhaseIndex(0);
  plan::set_numbers_apart(plan);
  EXPECT_EQ(plan::NumbersApart(plan).size(), 8 * plan.alignment);
  plan::lay_out(plan, {}, {});
  EXPECT_EQ(plan.pool, 8 * plan.alignment);
  EXPECT_EQ(plan.bound, plan.pool);
  plan.check();
  plan.load = 2 * plan::kNumberParts * plan.alignment;  // two units are all that they may have
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    plan.decisions[i].upper = plan.decisions[i].lower + (i % 2 == 0 ? 3 : 1);
  }
  plan::set_numbers_apart(plan);
  EXPECT_EQ(plan::NumbersApart(plan).size(), 2 * plan.alignment);
  plan.check();
}

TEST(Numbers, OfDifferentStreamsShareNoUnit) {
  plan::Plan plan = plan_of_step(100);
  for (Tick i = 0; i < 40; ++i) {
    plan.decisions.push_back({.size = 8,
                              .lower = 2 * i,
                              .upper = 2 * i + 1,
                              .phase = PhaseIndex(0),
                              .phase_end = PhaseIndex(0),
                              .stream = static_cast<StreamId>(i % 3)});
  }
  plan::set_numbers_apart(plan);
  plan::lay_out(plan, {}, {});
  plan.check();
  EXPECT_EQ(plan.pool, 8 * plan.alignment);
}

TEST(Numbers, HaveRoomIfTheAlignmentIsFiner) {
  for (const Bytes alignment : {1, 2, 64}) {
    const plan::Plan plan =
        plan::make_plan(profile::profile_iteration(training(3, kMiB)), {.alignment = alignment});
    EXPECT_EQ(plan::NumbersApart(plan).size(), 2 * std::max(alignment, plan::kNumber));
    plan.check();
  }
}

// Both live for a period together, which is no reason to take them for one unit.
TEST(Numbers, ThatOverlapHaveNoUnit) {
  plan::Plan plan = plan_of_step(4);
  plan.load = 0;  // no number may lie apart
  for (const auto& [lower, upper] : {std::pair<Tick, Tick>{0, 3}, {1, 2}}) {
    plan.decisions.push_back({.size = 1,
                              .lower = lower,
                              .upper = upper,
                              .phase = PhaseIndex(0),
                              .phase_end = PhaseIndex(0)});
  }
  plan::set_numbers_apart(plan);
  plan::lay_out(plan, {}, {});
  plan.check();
  EXPECT_EQ(plan::NumbersApart(plan).size(), 0);
}

TEST(Numbers, ThatCostTooMuchShareAddresses) {
  const Bytes least = 2 * plan::kNumberParts * plan::Plan().alignment / (kLayers + 1);
  EXPECT_EQ(plan::NumbersApart(plan_of(least / 2)).size(), 0);
  EXPECT_GT(plan::NumbersApart(plan_of(2 * least)).size(), 0);
}

TEST(Numbers, AnotherLayoutLeavesThemWhereTheyAre) {
  const plan::Plan plan = plan_of(kMiB);
  const Offset before = loss_of(plan).offset;
  // A block that nothing may have begins in the number's address.
  plan::ResizeOptions options;
  options.layout.obstacles = {{.size = kMiB, .upper = plan.period, .fixed = before}};
  const plan::Plan around = plan::resize(plan, {}, options);
  EXPECT_EQ(loss_of(around).offset, before);
  for (const plan::Decision& d : around.decisions) {
    if (!lies_apart(around, d)) {
      EXPECT_GE(d.offset, before + kMiB);
    }
  }
}

// Runs iterations as in training(), of which some keep their loss until the next one is kept.
class KeptLoss : public ::testing::Test {
 protected:
  void run(bool keep) {
    auto& loop = allocator_.loop();
    const auto make = [&](Bytes size) { return allocator_.allocate(size, 0, true); };
    loop.enter_phase(PhaseKind::kForward, 0, 0);
    std::vector<void*> saved;
    for (int layer = 0; layer < kLayers; ++layer) saved.push_back(make(kMiB));
    void* loss = make(kLoss);
    loop.enter_phase(PhaseKind::kBackward, 0, 0);
    for (int layer = 0; layer < kLayers; ++layer) {
      void* gradient = make(kMiB);
      allocator_.deallocate(saved.back());
      saved.pop_back();
      allocator_.deallocate(gradient);
    }
    loop.enter_phase(PhaseKind::kOptimizer, kNone, 0);
    if (keep) std::swap(loss, kept_);
    if (loss) allocator_.deallocate(loss);
    void* step = make(2 * kLoss);
    allocator_.deallocate(make((kLayers + 1) * kMiB));
    allocator_.deallocate(step);
    loop.end_iteration();
  }

  device::PretendMemory device_{100 * kMiB};
  runtime::PlannedAllocator allocator_{device_};
  void* kept_ = nullptr;
};

TEST_F(KeptLoss, DisplacesNoOtherRequest) {
  allocator_.enable(plan_of(kMiB));
  constexpr std::int64_t kPlanned = 2 * kLayers + 3;
  run(false);
  ASSERT_EQ(allocator_.figures().statistics().hits, kPlanned);
  run(true);
  for (int i = 0; i < 8; ++i) run(i % 4 == 3);
  const auto now = allocator_.figures().statistics();
  EXPECT_EQ(now.misses, 4) << "the losses until the next one is kept";
  EXPECT_EQ(now.hits, 10 * kPlanned - 4);
  EXPECT_EQ(now.fallback.peak, kLoss) << "no activation lies beside the pool";
}

}  // namespace
}  // namespace stalloc
